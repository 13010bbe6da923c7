/* ranks_work.c: what a rank does besides watching the others: steps, in each of which it computes,
 * now and then waits for rows, and makes a collective call that all ranks make. It stands for the
 * engines' wait (trainer/parallel/mpi_exchange.c) and for the steps around it. */
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

/* The next time at which the rank's work goes on; earlier wishes are void. */
static void wish(world *all, int rank, int64_t after_ns)
{
    process *const at = &all->rank[rank];
    world_put(all, all->now_ns + after_ns, SIM_WORK, rank, ++at->work_wish);
}

/* How long a rank that is in a call waits before it looks again. */
static int64_t look_ns(const world *all)
{
    const int64_t part = all->call_ns / 8;
    return part < 500 * MS ? part : 500 * MS;
}

static void begin_step(world *all, int rank)
{
    process *const at = &all->rank[rank];
    at->step++;
    if (at->step > all->steps) {
        process_leave(all, rank, NULL);
        return;
    }
    sim_log_note(&all->log, all->now_ns, 110, rank, (uint64_t)at->step);
    const fault *slow = faults_find(all, FAULT_SLOW, rank);
    const fault *rows = faults_find(all, FAULT_ROWS, rank);
    const int64_t computes = sim_random_tail(&all->works, MS, all->compute_ns) % (all->call_ns / 4);
    if (rows && rows->step == at->step) {
        at->work = WORK_WAITS_ROWS;
        at->waits = true;
        sim_log_tell(&all->log, all->now_ns, "rank %d waits for rows", rank);
        wish(all, rank, rows->for_ns);
        return;
    }
    at->work = WORK_COMPUTES;
    wish(all, rank, computes + (slow ? slow->for_ns : 0));
}

static void enter_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    call_state *const call = &all->call[at->step];
    at->work = WORK_CALLS;
    at->call = call_deadline_begin(all->now_ns, all->call_ns);
    call->came[rank] = true;
    call->n_came++;
    sim_log_note(&all->log, all->now_ns, 111, rank, (uint64_t)at->step);
    wish(all, rank, look_ns(all));
    work_look(all);
}

static void end_computing(world *all, int rank)
{
    process *const at = &all->rank[rank];
    const fault *fails = faults_find(all, FAULT_FAILS, rank);
    const fault *hangs = faults_find(all, FAULT_HANGS, rank);
    at->waits = false;
    if (at->lost[0]) { /* it looks before it calls */
        process_leave(all, rank, at->lost);
    } else if (fails && fails->step == at->step) {
        all->guilty[rank] = all->fatal = true;
        all->disturbed_ns = all->now_ns;
        process_leave(all, rank, "a NaN");
    } else if (hangs && hangs->step == at->step) {
        all->guilty[rank] = all->fatal = true;
        all->disturbed_ns = all->now_ns;
        at->work = WORK_HANGS;
        sim_log_tell(&all->log, all->now_ns, "rank %d hangs in its work", rank);
    } else {
        enter_call(all, rank);
    }
}

/* The message of a call that is too late: who has not come, or cannot be heard. */
static void fail_late(world *all, int rank)
{
    char words[256];
    const call_state *call = &all->call[all->rank[rank].step];
    int used = snprintf(words, sizeof words, "no answer within %.1f s from ranks",
                        (double)all->call_ns * 1e-9);
    for (int i = 0; i < all->size && used < (int)sizeof words - 16; i++)
        if (!call->came[i] || (i != rank && (all->rank[i].cut || all->rank[i].lost_power)))
            used += snprintf(words + used, sizeof words - (size_t)used, " %d", i);
    process_leave(all, rank, words);
}

static void look_at_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    const call_state *call = &all->call[at->step];
    if (call->complete && all->now_ns >= call->complete_ns && !at->cut)
        begin_step(all, rank);
    else if (at->lost[0])
        process_leave(all, rank, at->lost);
    else if (call_deadline_passed(&at->call, all->now_ns,
                                  at->waits || link_core_others_wait(at->core)))
        fail_late(all, rank);
    else
        wish(all, rank, look_ns(all));
}

void work_begin(world *all, int rank)
{
    all->rank[rank].step = 0;
    all->rank[rank].work = WORK_COMPUTES;
    wish(all, rank, sim_random_between(&all->works, 0, 200 * MS));
}

void work_go_on(world *all, int rank, uint64_t wished)
{
    process *const at = &all->rank[rank];
    if (!at->alive || (wished != 0 && wished != at->work_wish))
        return;
    if (at->stopped) {
        at->missed_work = true;
        return;
    }
    if (wished == 0 && at->work != WORK_CALLS) /* the job is over; only a call looks at once */
        return;
    if (at->work == WORK_CALLS)
        look_at_call(all, rank);
    else if (at->work == WORK_COMPUTES && at->step == 0)
        begin_step(all, rank);
    else if (at->work == WORK_COMPUTES || at->work == WORK_WAITS_ROWS)
        end_computing(all, rank);
}

void work_look(world *all)
{
    for (int step = 1; step <= all->steps; step++) {
        call_state *const call = &all->call[step];
        bool cut = false;
        if (call->complete || call->n_came < all->size)
            continue;
        for (int i = 0; i < all->size; i++)
            cut |= all->rank[i].cut || all->rank[i].lost_power;
        if (cut)
            continue;
        call->complete = true;
        call->complete_ns = all->now_ns + sim_random_tail(&all->works, 10000, MS);
        for (int i = 0; i < all->size; i++)
            if (all->rank[i].work == WORK_CALLS && all->rank[i].step == step)
                world_put(all, call->complete_ns, SIM_WORK, i, all->rank[i].work_wish);
    }
}
