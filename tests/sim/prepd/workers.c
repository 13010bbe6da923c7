/* SPDX-License-Identifier: Apache-2.0 */
/* workers.c: the life of a simulated worker, as prepd/worker/worker.c lives it: start, connect,
 * JOIN, TERMS, JOIN again, then lease after lease. */
#include <stdlib.h>

#include "tests/sim/prepd/blame.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/work.h"

static const int64_t ASK_AGAIN_NS = 10000000000, GIVE_UP_NS = 60000000000, RETRY_NS = 500000000;

void worker_go_on_after(simulation *sim, int number, int64_t ns)
{
    sim_worker *worker = sim->worker[number];
    sim_queue_put(&sim->queue, (sim_event){.at_ns = sim->now_ns + ns,
                                           .kind = EVENT_WORKER,
                                           .who = number,
                                           .word = ++worker->turn});
}

int worker_start(simulation *sim, int daemon, int supervisor, int place, worker_bent bent)
{
    if (sim->n_workers == sim->workers_room) {
        sim->workers_room = 2 * sim->workers_room + 16;
        sim->worker = realloc(sim->worker, (size_t)sim->workers_room * sizeof *sim->worker);
    }
    sim_worker *made = calloc(1, sizeof *made);
    if (!sim->worker || !made)
        abort();
    *made = (sim_worker){.state = WORKER_STARTING,
                         .bent = bent,
                         .local = supervisor < 0,
                         .daemon = daemon,
                         .supervisor = supervisor,
                         .ship = supervisor >= 0 && sim->rules.ships[supervisor],
                         .place = place,
                         .pid = ++sim->next_pid,
                         .host = supervisor < 0 ? 0 : sim->supervisor[supervisor].host,
                         .link = -1,
                         .heard_ns = sim->now_ns,
                         .begun_ns = sim->now_ns};
    sim->worker[sim->n_workers] = made;
    worker_go_on_after(sim, sim->n_workers, sim_random_tail(&sim->delays, 20 * MS, 100 * MS));
    return sim->n_workers++;
}

int worker_find(const simulation *sim, pid_t pid)
{
    int from = 0, to = sim->n_workers; /* pids grow with the numbers */
    while (from < to) {
        const int middle = from + (to - from) / 2;
        if (sim->worker[middle]->pid < pid)
            from = middle + 1;
        else
            to = middle;
    }
    return from < sim->n_workers && sim->worker[from]->pid == pid ? from : -1;
}

sim_worker *worker_of_seat(const simulation *sim, const worker_seat *seat, int *out_number)
{
    const sim_link *link = &sim->link[seat->peer.connection - 1];
    if (link->kind != END_WORKER)
        return NULL;
    *out_number = link->who;
    return sim->worker[link->who];
}

bool worker_decides(const simulation *sim, const sim_worker *worker)
{
    return worker->local || sim->rules.trusted[worker->supervisor];
}

sim_worker *worker_of_pid(simulation *sim, pid_t pid, int *out_number)
{
    const int number = worker_find(sim, pid);
    if (number < 0 || !sim->worker[number]->local)
        return NULL;
    *out_number = number;
    return sim->worker[number];
}

void worker_end(simulation *sim, int number, proc_end how, int code, const char *what)
{
    sim_worker *worker = sim->worker[number];
    if (worker->state == WORKER_GONE)
        return;
    worker->state = WORKER_GONE;
    worker->ended_ns = sim->now_ns;
    worker->end = (child_end){.how = how, .code = code};
    snprintf(worker->end.what, sizeof worker->end.what, "%s", what);
    blame_note_end(sim, worker);
    sim_log_tell(&sim->log, sim->now_ns, "worker %d (pid %d) ends: %s", number, (int)worker->pid,
                 what);
    if (worker->link >= 0)
        link_close(sim, worker->link);
    work_forget(&worker->job);
    while (worker->n_inbox > 0)
        wire_msg_free(&worker->inbox[--worker->n_inbox]);
    if (!worker->local) {
        supervisor_worker_ended(sim, number);
        return;
    }
    sim_queue_put(&sim->queue,
                  (sim_event){.at_ns = sim->now_ns + sim_random_tail(&sim->delays, 1, MS),
                              .kind = EVENT_CHILD,
                              .who = sim->daemon[worker->daemon].incarnation,
                              .word = number});
}

void worker_ask_to_leave(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    if (!worker->leaving)
        worker->asked_ns = sim->now_ns;
    worker->leaving = true;
    if (worker->state != WORKER_BUSY && worker->state != WORKER_GONE)
        worker_go_on_after(sim, number, sim_random_tail(&sim->delays, MS, 200 * MS));
}

void worker_done(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    worker->state = WORKER_IDLE;
    worker->leases++;
    sim->daemon[worker->daemon].any_worked |= worker->local;
    if (worker->leaving || worker->leases >= sim->rules.recycle_leases) {
        link_say(sim, worker->link, KIND_BYE, 0, "{}");
        worker_end(sim, number, PROC_END_LEFT, worker->leaving ? 0 : PROC_EXIT_AGAIN,
                   worker->leaving ? "exit code 0" : "restarts");
        return;
    }
    worker_go_on_after(sim, number, ASK_AGAIN_NS);
    worker_read(sim, number);
}

/* An idle worker says now and then that it is there, and gives up after a long silence. */
static void wait_on(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    if (sim->now_ns - worker->heard_ns > GIVE_UP_NS) {
        worker_end(sim, number, PROC_END_LEFT, status_exit_code(ST_TIMEOUT), "hears nothing");
        return;
    }
    worker_send_join(sim, worker);
    worker_go_on_after(sim, number, ASK_AGAIN_NS);
}

void worker_event(simulation *sim, const sim_event *event)
{
    const int number = event->who;
    if (number < 0) { /* the place of one that has gone */
        supervisor_start_again(sim, -1 - number);
        return;
    }
    sim_worker *worker = sim->worker[number];
    if (event->word == KILLED)
        worker_end(sim, number, PROC_END_OUTSIDE, -1, "signal 9");
    if (worker->state == WORKER_GONE || event->word != worker->turn || worker->stopped)
        return;
    if (worker->state == WORKER_BUSY) {
        work_go_on(sim, number);
    } else if (worker->leaving) {
        if (worker->link >= 0)
            link_say(sim, worker->link, KIND_BYE, 0, "{}");
        worker_end(sim, number, PROC_END_LEFT, 0, "exit code 0");
    } else if (worker->bent == BENT_KILLED_EARLY) {
        worker_end(sim, number, PROC_END_OUTSIDE, -1, "signal 9");
    } else if (worker->bent == BENT_DIES_EARLY) {
        worker_end(sim, number, PROC_END_CRASH, -1, "signal 11");
    } else if (worker->link < 0 && worker->bent == BENT_FLOODS && worker_floods(sim, number)) {
        worker_go_on_after(sim, number, sim_random_between(&sim->lies, MS, 50 * MS));
    } else if (worker->link < 0) {
        worker_connect(sim, number);
    } else if (worker->state == WORKER_LOADING && worker->bent == BENT_CANNOT_BEGIN) {
        link_say(sim, worker->link, KIND_ERROR, 0,
                 "{\"code\":\"ST_NO_INPUT\",\"message\":\"there is no tokenizer\"}");
        worker_end(sim, number, PROC_END_LEFT, status_exit_code(ST_NO_INPUT), "exit code 66");
    } else if (worker->state == WORKER_LOADING) {
        worker_send_join(sim, worker);
        worker->proved = true;
        worker->state = WORKER_IDLE;
        worker_go_on_after(sim, number, ASK_AGAIN_NS);
        worker_read(sim, number);
    } else {
        wait_on(sim, number);
    }
}

void worker_lost(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    if (worker->state == WORKER_GONE)
        return;
    if (worker->local) {
        worker_end(sim, number, PROC_END_LEFT, 0, "exit code 0");
    } else if (worker->proved) { /* in the sandbox it cannot connect again */
        worker_end(sim, number, PROC_END_LEFT, PROC_EXIT_AGAIN, "restarts");
    } else {
        worker->link = -1;
        worker->terms = 0;
        worker->state = WORKER_STARTING;
        worker_go_on_after(sim, number, RETRY_NS);
    }
}
