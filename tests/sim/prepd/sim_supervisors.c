/* SPDX-License-Identifier: Apache-2.0 */
/* sim_supervisors.c: `prepd worker` on other machines, as prepd/worker/supervisor.c works: it
 * replaces workers. One that ended because its workers were refused is
 * started again by someone after a while; one that an operator sent away is not. */
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

static const int64_t SAY_NS = 1000000000, REPAIRED_NS = 5000000000;

static void look_again(simulation *sim, int number, int64_t after_ns)
{
    sim_queue_put(
        &sim->queue,
        (sim_event){.at_ns = sim->now_ns + after_ns, .kind = EVENT_SUPERVISOR, .who = number});
}

void supervisor_start(simulation *sim, int number)
{
    sim_supervisor *crew = &sim->supervisor[number];
    *crew = (sim_supervisor){.daemon = number % sim->rules.n_daemons,
                             .host = 1 + number % (sim->rules.n_hosts - 1),
                             .link = -1,
                             .n_places = sim->rules.kept[number],
                             .bent = sim->rules.bent[number]};
    for (int i = 0; i < crew->n_places; i++)
        crew->worker[i] = -1;
    look_again(sim, number, sim->rules.arrive_ns[number]);
}

static void start_missing(simulation *sim, int number)
{
    sim_supervisor *crew = &sim->supervisor[number];
    for (int i = 0; i < crew->n_places; i++) {
        if (crew->worker[i] != -1 || sim->now_ns < crew->start_ns[i])
            continue;
        const int made = worker_start(sim, crew->daemon, number, i, crew->bent);
        crew->worker[i] = made;
    }
}

static bool any_alive(const sim_supervisor *crew)
{
    for (int i = 0; i < crew->n_places; i++)
        if (crew->worker[i] >= 0)
            return true;
    return false;
}

void supervisor_event(simulation *sim, const sim_event *event)
{
    const int number = event->who;
    sim_supervisor *crew = &sim->supervisor[number];
    char json[48];
    if (crew->stopping && !any_alive(crew)) {
        if (crew->link >= 0)
            link_close(sim, crew->link);
        if (crew->sent_away)
            return;
        supervisor_start(sim, number);
        return;
    }
    if (!crew->stopping) {
        if (crew->link < 0)
            crew->link = link_open(sim, END_SUPERVISOR, number, crew->daemon, DOOR_WORKERS, 2 * MS);
        snprintf(json, sizeof json, "{\"keeps\":\"s%d\"}", number);
        if (crew->link >= 0)
            link_say(sim, crew->link, KIND_JOIN, 0, json);
        start_missing(sim, number);
    }
    look_again(sim, number, crew->stopping ? REPAIRED_NS : SAY_NS);
}

static void stop_crew(simulation *sim, int number)
{
    sim_supervisor *crew = &sim->supervisor[number];
    crew->stopping = true;
    for (int i = 0; i < crew->n_places; i++)
        if (crew->worker[i] >= 0)
            worker_ask_to_leave(sim, crew->worker[i]);
}

void supervisor_message(simulation *sim, int number, const wire_msg *message)
{
    frame head;
    if (frame_decode(wire_msg_part(message, 0), "core", &head) != ST_OK || head.kind != KIND_BYE)
        return;
    sim->supervisor[number].sent_away = true;
    stop_crew(sim, number);
}

/* A reason that may pass, after which another worker is tried. */
static bool may_pass(int code)
{
    return code == status_exit_code(ST_NO_MEMORY) || code == status_exit_code(ST_IO) ||
           code == status_exit_code(ST_INTERNAL);
}

void supervisor_worker_ended(simulation *sim, int number)
{
    const sim_worker *gone = sim->worker[number];
    sim_supervisor *crew = &sim->supervisor[gone->supervisor];
    const child_end *end = &gone->end;
    crew->worker[gone->place] =
        crew->stopping || (end->how == PROC_END_LEFT && end->code == 0) ? PLACE_LEFT : -1;
    crew->start_ns[gone->place] = sim->now_ns + sim_random_tail(&sim->delays, MS, 100 * MS) +
                                  (sim->rules.obstinate[gone->supervisor] ? 0 : gone->wait_ns);
    if (!crew->stopping && end->how == PROC_END_LEFT && end->code != 0 &&
        end->code != PROC_EXIT_AGAIN && !may_pass(end->code))
        stop_crew(sim, gone->supervisor);
    else if (crew->worker[gone->place] == -1)
        sim_queue_put(&sim->queue, (sim_event){.at_ns = crew->start_ns[gone->place],
                                               .kind = EVENT_WORKER,
                                               .who = -1 - gone->supervisor});
    if (!any_alive(crew) && !crew->stopping && crew->worker[gone->place] == PLACE_LEFT)
        crew->stopping = true; /* all of them have left */
}

void supervisor_start_again(simulation *sim, int number)
{
    if (!sim->supervisor[number].stopping)
        start_missing(sim, number);
}
