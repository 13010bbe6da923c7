/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c: the ops of peers.h on the CPU, between processes that share memory. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "trainer/ops/cpu/cpu_ops.h"

static char *locate_window(const peer_set *peers, int64_t rank, size_t at)
{
    return (char *)peers->base[rank] + at;
}

static bool needs_round(int32_t round, const int32_t *rounds)
{
    return !rounds || round == 0 || round < rounds[0];
}

status CPU_OP(peers_tell)(stream *queue, const peers_tell_args *args)
{
    (void)queue;
    for (int64_t i = 0; i < args->peers.size; i++)
        memcpy((int32_t *)(void *)locate_window(&args->peers, i, args->at) +
                   args->peers.rank * args->count,
               args->values, (size_t)args->count * sizeof *args->values);
    return ST_OK;
}

static bool has_arrived(const uint32_t *arrived, uint32_t turn)
{
    return (int32_t)(__atomic_load_n(arrived, __ATOMIC_ACQUIRE) - turn) >= 0;
}

/* Waits until the rank `peer` has reached the turn, or the job is over. */
static status wait_for(const peers_meet_args *args, const uint32_t *arrived, int32_t peer,
                       uint32_t turn)
{
    const peer_watch *watch = args->watch;
    int64_t since_ns = clock_ns();
    int32_t anew = watch ? __atomic_load_n(&watch->anew, __ATOMIC_RELAXED) : 0;
    while (!has_arrived(arrived + peer, turn)) {
        const int32_t now_anew = watch ? __atomic_load_n(&watch->anew, __ATOMIC_RELAXED) : 0;
        const int64_t now_ns = clock_ns(),
                      longest_ns = watch ? __atomic_load_n(&watch->longest_ns, __ATOMIC_RELAXED)
                                         : PEERS_ALONE_NS;
        if (watch && __atomic_load_n(&watch->stop, __ATOMIC_RELAXED) != 0)
            return ST_OK;
        since_ns = now_anew == anew ? since_ns : now_ns;
        anew = now_anew;
        if (now_ns - since_ns > longest_ns)
            return FAIL(ST_TIMEOUT, "rank %d of the group did not come to turn %u", peer, turn);
        sched_yield();
    }
    return ST_OK;
}

status CPU_OP(peers_meet)(stream *queue, const peers_meet_args *args)
{
    (void)queue;
    if (!needs_round(args->round, args->rounds))
        return ST_OK;
    uint32_t *met = (uint32_t *)(void *)locate_window(&args->peers, args->peers.rank, args->met),
             turn = *met + 1;
    for (int64_t i = 0; i < args->peers.size && (args->phase & MEET_ARRIVE); i++)
        __atomic_store_n((uint32_t *)(void *)locate_window(&args->peers, i, args->arrived) +
                             args->peers.rank,
                         turn, __ATOMIC_RELEASE);
    if (!(args->phase & MEET_WAIT))
        return ST_OK;
    const uint32_t *arrived =
        (const uint32_t *)(void *)locate_window(&args->peers, args->peers.rank, args->arrived);
    for (int32_t i = 0; i < args->peers.size; i++)
        TRY(wait_for(args, arrived, i, turn));
    *met = turn;
    return ST_OK;
}

static int64_t count_of(const exchange_plan_args *args, int64_t rank, int64_t expert)
{
    const int32_t *borders = args->borders + rank * (args->experts + 1) + expert;
    return borders[1] > borders[0] ? borders[1] - borders[0] : 0;
}

status CPU_OP(exchange_plan)(stream *queue, const exchange_plan_args *args)
{
    (void)queue;
    const int64_t own = args->experts / args->ranks;
    const int32_t *mine = args->borders + args->rank * (args->experts + 1);
    const int64_t kept = mine[(args->rank + 1) * own] - mine[args->rank * own];
    int64_t most = 0;
    for (int64_t owner = 0; owner < args->ranks; owner++) {
        int64_t row = 0;
        for (int64_t i = 0; i < own; i++) {
            if (owner == args->rank)
                args->order[i] = (int32_t)row;
            for (int64_t from = 0; from < args->ranks; from++) {
                if (from == args->rank)
                    args->place[owner * own + i] = (int32_t)row;
                row += count_of(args, from, owner * own + i);
            }
        }
        if (owner == args->rank)
            args->order[own] = (int32_t)row;
        most = row > most ? row : most;
    }
    args->rounds[0] = (int32_t)ceil_div(most, args->rows);
    args->moved[0] += args->order[own] - kept;
    args->moved[1] += mine[args->experts] - mine[0] - kept;
    return ST_OK;
}

/* Finds the expert of a slot: offset[e] <= slot < offset[e + 1]. */
static int64_t expert_of(const int32_t *offset, int64_t experts, int64_t slot)
{
    int64_t low = 0, high = experts - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (offset[middle] <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void move_rows(const void *context, part todo)
{
    const exchange_rows_args *args = context;
    const int64_t own = args->experts / args->peers.size;
    const size_t bytes = (size_t)args->width * sizeof(real);
    for (int64_t slot = todo.begin; slot < todo.end && slot < args->offset[args->experts]; slot++) {
        int64_t expert = expert_of(args->offset, args->experts, slot);
        int64_t row = args->place[expert] + slot - args->offset[expert] - args->round * args->rows;
        if (row < 0 || row >= args->rows)
            continue;
        char *there = locate_window(&args->peers, expert / own, args->at) + (size_t)row * bytes;
        char *here = (char *)args->mine + (size_t)slot * bytes;
        memcpy(args->back ? here : there, args->back ? there : here, bytes);
    }
}

status CPU_OP(exchange_rows)(stream *queue, const exchange_rows_args *args)
{
    const int64_t first = args->round * args->rows, own = args->experts / args->peers.size;
    for (int64_t i = 0; i <= own && args->round_offset; i++) {
        int64_t row = args->order[i] - first;
        args->round_offset[i] = (int32_t)(row < 0 ? 0 : row > args->rows ? args->rows : row);
    }
    if (needs_round(args->round, args->rounds))
        cpu_run(queue, args->slots, args->width, move_rows, args);
    return ST_OK;
}
