/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_calls.c: what all simulated ranks do together in a step: they agree on a shape, then make a
 * collective call. It stands for the engines' wait (trainer/parallel/comm/mpi_exchange.c). */
#include "tests/sim/ranks/ranks_world.h"

/* How long a rank that is in a call waits before it looks again. */
int64_t work_look_ns(const world *all)
{
    const int64_t part = all->call_ns / 8;
    return part < 500 * MS ? part : 500 * MS;
}

static call_state *call_of(world *all, int rank)
{
    const process *at = &all->rank[rank];
    return &all->call[at->step * CALLS + at->part];
}

void work_enter_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    call_state *const call = call_of(all, rank);
    at->work = WORK_CALLS;
    at->call = call_deadline_begin(all->now_ns, all->call_ns);
    call->came[rank] = true;
    call->n_came++;
    call->last = rank;
    sim_log_note(&all->log, all->now_ns, 111, rank, (uint64_t)(at->step * CALLS + at->part));
    work_wish_in(all, rank, work_look_ns(all));
    work_look(all);
}

/* What a rank's micro-batch needs in a step. */
static uint8_t need_of(int rank, int step, int number)
{
    return (uint8_t)((rank * 37 + step * 11 + number * 101) % 251);
}

/* Asks for the shape of the step's micro-batch, which all ranks do. */
void work_ask_shape(world *all, int rank)
{
    process *const at = &all->rank[rank];
    uint8_t need[LINK_NEEDS];
    for (int i = 0; i < LINK_NEEDS; i++)
        need[i] = need_of(rank, at->step, i);
    at->work = WORK_AGREES;
    work_wish_in(all, rank, work_look_ns(all));
    process_need(all, rank, need);
}

void work_agreed(world *all, int rank, const uint8_t most[LINK_NEEDS])
{
    process *const at = &all->rank[rank];
    if (at->work != WORK_AGREES) {
        world_broken(all, "rank %d hears an answer that it does not wait for", rank);
        return;
    }
    for (int i = 0; i < LINK_NEEDS; i++) {
        uint8_t want = 0;
        for (int other = 0; other < all->size; other++)
            want = need_of(other, at->step, i) > want ? need_of(other, at->step, i) : want;
        if (most[i] != want)
            world_broken(all, "rank %d, step %d: need %d is %d, and the largest is %d", rank,
                         at->step, i, most[i], want);
    }
    work_enter_call(all, rank);
}

/* The message of a call that is too late: who has not come, cannot be heard, or came so late that
 * its bytes are still under way. */
static void fail_late(world *all, int rank)
{
    char words[256];
    const call_state *call = call_of(all, rank);
    int used = snprintf(words, sizeof words, "no answer within %.1f s from ranks",
                        (double)all->call_ns * 1e-9);
    for (int i = 0; i < all->size && used < (int)sizeof words - 16; i++)
        if (!call->came[i] || (call->complete && i == call->last) ||
            (i != rank && (all->rank[i].cut || all->rank[i].lost_power)))
            used += snprintf(words + used, sizeof words - (size_t)used, " %d", i);
    work_fail(all, rank, words);
}

void work_look_at_call(world *all, int rank)
{
    process *const at = &all->rank[rank];
    const call_state *call = call_of(all, rank);
    if (call->complete && all->now_ns >= call->complete_ns && !at->cut)
        work_end_call(all, rank);
    else if (at->lost[0])
        work_fail(all, rank, at->lost);
    else if (call_deadline_passed(&at->call, all->now_ns,
                                  at->waits || link_core_others_wait(at->core)))
        fail_late(all, rank);
    else
        work_wish_in(all, rank, work_look_ns(all));
}

void work_look(world *all)
{
    for (int number = 0; number < (all->steps + 2) * CALLS; number++) {
        call_state *const call = &all->call[number];
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
            if (all->rank[i].work == WORK_CALLS && call_of(all, i) == call)
                world_put(all, call->complete_ns, SIM_WORK, i, all->rank[i].work_wish);
    }
}
