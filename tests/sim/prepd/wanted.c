/* wanted.c: see wanted.h. */
#include "tests/sim/prepd/wanted.h"

#include <stdio.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_faults.h"

static const int64_t THIRD_NS = 3000000000;

static void set_wanted(sim_daemon *daemon, int64_t count)
{
    daemon->wanted = count > 0 ? (int)count : 0;
    daemon->third_asked = false; /* whoever is to decide is started anew */
}

void wanted_by_options(sim_daemon *daemon, const conf *options)
{
    set_wanted(daemon, options->prepd_workers);
}

void operator_message_arrives(sim_daemon *to, const sim_link *link, wire_msg *message)
{
    const span text = wire_msg_part(message, 1);
    const bool listens =
        !to->stopping && !peer_limits_ignores(&to->state->peer_limits, &link->peer);
    json_value *said = NULL;
    if (json_parse((const char *)text.data, text.size, "operator", &said) != ST_OK)
        said = NULL;
    const int64_t count = json_int(json_find(said, "workers"), -1);
    json_free(&said);
    daemon_message(to, link, message);
    if (listens && count >= 0 && count <= MAX_LOCAL)
        set_wanted(to, count);
}

static bool wants_third(const lease *leased)
{
    return leased && (audit_wants_third(leased) || failure_wants_third(leased));
}

static bool is_third_wanted(const dispatch *state)
{
    for (const lease *lost = state->book.lost; lost; lost = lost->next)
        if (wants_third(lost))
            return true;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        if (wants_third(seat->work) || wants_third(seat->ahead))
            return true;
    return false;
}

static void check_third(simulation *sim, sim_daemon *daemon)
{
    const bool there = daemon->state->third_worker;
    const bool wanted = (there || daemon->third_asked) && is_third_wanted(daemon->state);
    if (daemon->third_asked && !there && wanted)
        sim_break(sim, INV_PROCESSES,
                  "the worker that was started to decide is sent home before it has decided");
    daemon->third_asked = there;
    if (!there || wanted)
        daemon->third_ns = 0;
    else if (daemon->third_ns == 0)
        daemon->third_ns = sim->now_ns;
    else if (sim->now_ns - daemon->third_ns > THIRD_NS)
        sim_break(sim, INV_PROCESSES,
                  "the worker that was started to decide has nothing to decide");
}

void check_wanted(simulation *sim, sim_daemon *daemon)
{
    const int target = daemon->state->local.target - daemon->state->third_worker;
    check_third(sim, daemon);
    /* Where there are to be none, one is started if remote ones contradict each other. */
    if (daemon->listens && target != daemon->wanted && !(daemon->wanted == 0 && target == 1))
        sim_break(sim, INV_PROCESSES, "%d local workers are to be there, and %d are wanted", target,
                  daemon->wanted);
}

/* most_first: the most that there may be, before that, for a moment in which few of them have come.
 */
static void scale(sim_daemon *daemon, bool most_first)
{
    static const int64_t MOMENT_NS = 15000000;
    simulation *sim = daemon->sim;
    const int link = link_open(sim, END_OPERATOR, 0, daemon->number, DOOR_CONTROL, 200 * US);
    char json[64];
    if (link < 0)
        return;
    if (most_first) {
        snprintf(json, sizeof json, "{\"command\":\"scale\",\"workers\":%d}", MAX_LOCAL);
        link_say(sim, link, KIND_COMMAND, 0, json);
        sim->link[link].up_ns += MOMENT_NS;
    }
    snprintf(json, sizeof json, "{\"command\":\"scale\",\"workers\":%d}",
             (int)sim_random_between(&sim->faults, 1, 6));
    link_say(sim, link, KIND_COMMAND, 0, json);
}

void scale_at_random(sim_daemon *daemon)
{
    scale(daemon, sim_random_chance(&daemon->sim->faults, 1, 100));
}

void scale_beside_third(sim_daemon *daemon)
{
    simulation *sim = daemon->sim;
    if (!daemon->state || !daemon->state->third_worker || daemon->third_asked ||
        sim->now_ns >= sim->calm_ns || sim->rules.weight[FAULT_SCALE] == 0 ||
        !sim_random_chance(&sim->faults, 1, 2))
        return;
    fault_note(sim, FAULT_SCALE, daemon);
    scale(daemon, sim_random_chance(&sim->faults, 1, 4));
}
