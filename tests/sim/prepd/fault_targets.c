/* SPDX-License-Identifier: Apache-2.0 */
/* fault_targets.c: what breaks at a worker, or at the connection of a worker or a rank. */
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_faults.h"
#include "tests/sim/prepd/work.h"

/* Any worker that is there and at work or idle; -1 if there is none. */
static int pick_worker(simulation *sim, bool busy, bool remote)
{
    int found = -1, count = 0;
    for (int i = 0; i < sim->n_workers; i++) {
        const sim_worker *worker = sim->worker[i];
        if (worker->state == WORKER_GONE || (busy && worker->state != WORKER_BUSY) ||
            (remote && (worker->local || worker->link < 0)) || worker->stopped)
            continue;
        if (sim_random_below(&sim->faults, (uint64_t)++count) == 0)
            found = i;
    }
    return found;
}

static int pick_rank(simulation *sim)
{
    int found = -1, count = 0;
    for (int i = 0; i < sim->n_ranks; i++)
        if (sim->rank[i]->link >= 0 && sim_random_below(&sim->faults, (uint64_t)++count) == 0)
            found = i;
    return found;
}

/* Whether an end of this worker blames none of its items. A crash must not come so often while one
 * item is alone in work that the item would have to be condemned; nor any end or cut of a worker
 * that decides on another machine, of which nobody says how it ended. */
static bool blames_no_item(const sim_job *job)
{
    for (int64_t i = 1; i < job->n_items; i++)
        if (lease_sample(job->item[i]) != lease_sample(job->item[0]))
            return true;
    return false;
}

static bool decides_elsewhere(const simulation *sim, const sim_worker *worker)
{
    return !worker->local && worker_decides(sim, worker);
}

int fault_worker(simulation *sim, sim_fault fault)
{
    const bool busy = fault == FAULT_ACCIDENT || fault == FAULT_FREEZE_WORKER ||
                      fault == FAULT_BREACH || sim_random_chance(&sim->faults, 3, 4);
    const int number = pick_worker(sim, busy, fault == FAULT_CUT_WORKER);
    if (number < 0)
        return -1;
    const sim_worker *worker = sim->worker[number];
    if (((fault == FAULT_ACCIDENT || decides_elsewhere(sim, worker)) &&
         !blames_no_item(&worker->job)) ||
        (fault == FAULT_BREACH && worker->breached))
        return -1;
    return number;
}

void fault_do_worker(simulation *sim, sim_fault fault, int number)
{
    sim_worker *worker = sim->worker[number];
    switch (fault) {
    case FAULT_KILL_WORKER:
        worker_end(sim, number, PROC_END_OUTSIDE, -1, "signal 9");
        break;
    case FAULT_ACCIDENT:
        worker_end(sim, number, PROC_END_CRASH, -1, "signal 11");
        break;
    case FAULT_STOP_WORKER:
        if (!worker->local)
            worker_end(sim, number, PROC_END_OUTSIDE, -1, "signal 9");
        else
            worker->stopped = true;
        if (worker->local)
            daemon_child_paused(&sim->daemon[worker->daemon], worker->pid);
        break;
    case FAULT_FREEZE_WORKER:
        worker->job.frozen = true;
        sim_queue_put(&sim->queue, /* someone notices */
                      (sim_event){.at_ns = sim->now_ns +
                                           sim_random_between(&sim->faults, SECOND, 60 * SECOND),
                                  .kind = EVENT_WORKER,
                                  .who = number,
                                  .word = KILLED});
        break;
    case FAULT_BREACH:
        worker->breached = true;
        work_breach(sim, number);
        break;
    default:
        link_cut(sim, worker->link, false);
    }
}

bool fault_comes_before_end(simulation *sim, sim_link *link)
{
    if (sim->rules.weight[FAULT_CLOG] == 0 || sim->now_ns >= sim->calm_ns ||
        link->kind != END_RANK || sim->now_ns < link->clogged_ns ||
        !sim_random_chance(&sim->faults, 1, 4))
        return false;
    fault_note(sim, FAULT_CLOG, &sim->daemon[link->daemon]);
    fault_do_link(sim, FAULT_CLOG, (int)(link - sim->link));
    return true;
}

int fault_link(simulation *sim, sim_fault fault)
{
    const int rank = pick_rank(sim), worker = pick_worker(sim, false, true);
    const bool of_rank = fault == FAULT_CUT_RANK || fault == FAULT_CLOG || worker < 0 ||
                         sim_random_chance(&sim->faults, 1, 2);
    if (of_rank ? rank < 0
                : decides_elsewhere(sim, sim->worker[worker]) &&
                      !blames_no_item(&sim->worker[worker]->job))
        return -1;
    return of_rank ? sim->rank[rank]->link : sim->worker[worker]->link;
}

/* Now and then longer than a worker may take, which has just asked whether its daemon is there. */
static void stall_long(simulation *sim, int link)
{
    const int64_t limit_ns = (int64_t)(sim->options.prepd_sample_timeout * 1e9);
    sim_worker *worker = sim->worker[sim->link[link].who];
    link_stall(sim, link, limit_ns + sim_random_between(&sim->faults, 0, limit_ns));
    if (worker->state == WORKER_IDLE)
        worker_send_join(sim, worker);
}

void fault_do_link(simulation *sim, sim_fault fault, int link)
{
    const int64_t for_ns = sim_random_tail(&sim->faults, MS, SECOND);
    if (fault == FAULT_STALL && sim->link[link].kind == END_WORKER &&
        sim_random_chance(&sim->faults, 1, 4))
        stall_long(sim, link);
    else if (fault == FAULT_STALL)
        link_stall(sim, link, for_ns);
    else if (fault == FAULT_CLOG)
        sim->link[link].clogged_ns = sim->now_ns + for_ns;
    else
        link_cut(sim, link, fault == FAULT_HALF_OPEN);
}
