/* peers.c: the ops of peers.h on the CPU, between processes that share memory. */
#include <sched.h>
#include <string.h>

#include "trainer/ops/cpu/cpu_ops.h"

static char *locate_window(const peer_set *p, int64_t rank, size_t at)
{
    return (char *)p->base[rank] + at;
}

static bool needs_round(int32_t round, const int32_t *rounds)
{
    return !rounds || round == 0 || round < rounds[0];
}

status CPU_OP(peers_tell)(stream *s, const peers_tell_args *a)
{
    (void)s;
    for (int64_t r = 0; r < a->peers.size; r++)
        memcpy((int32_t *)(void *)locate_window(&a->peers, r, a->at) + a->peers.rank * a->count,
               a->values, (size_t)a->count * sizeof *a->values);
    return ST_OK;
}

static bool has_arrived(const uint32_t *arrived, uint32_t turn)
{
    return (int32_t)(__atomic_load_n(arrived, __ATOMIC_ACQUIRE) - turn) >= 0;
}

static bool is_stopped(const int32_t *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

status CPU_OP(peers_meet)(stream *s, const peers_meet_args *a)
{
    (void)s;
    if (!needs_round(a->round, a->rounds))
        return ST_OK;
    uint32_t *met = (uint32_t *)(void *)locate_window(&a->peers, a->peers.rank, a->met),
             turn = *met + 1;
    for (int64_t r = 0; r < a->peers.size && (a->phase & MEET_ARRIVE); r++)
        __atomic_store_n((uint32_t *)(void *)locate_window(&a->peers, r, a->arrived) +
                             a->peers.rank,
                         turn, __ATOMIC_RELEASE);
    if (!(a->phase & MEET_WAIT))
        return ST_OK;
    const uint32_t *arrived =
        (const uint32_t *)(void *)locate_window(&a->peers, a->peers.rank, a->arrived);
    for (int64_t r = 0; r < a->peers.size; r++)
        while (!has_arrived(arrived + r, turn) && !is_stopped(a->stop))
            sched_yield();
    *met = turn;
    return ST_OK;
}

static int64_t count_of(const exchange_plan_args *a, int64_t rank, int64_t expert)
{
    const int32_t *b = a->borders + rank * (a->experts + 1) + expert;
    return b[1] > b[0] ? b[1] - b[0] : 0;
}

status CPU_OP(exchange_plan)(stream *s, const exchange_plan_args *a)
{
    (void)s;
    const int64_t own = a->experts / a->ranks;
    const int32_t *mine = a->borders + a->rank * (a->experts + 1);
    const int64_t kept = mine[(a->rank + 1) * own] - mine[a->rank * own];
    int64_t most = 0;
    for (int64_t owner = 0; owner < a->ranks; owner++) {
        int64_t row = 0;
        for (int64_t x = 0; x < own; x++) {
            if (owner == a->rank)
                a->order[x] = (int32_t)row;
            for (int64_t from = 0; from < a->ranks; from++) {
                if (from == a->rank)
                    a->place[owner * own + x] = (int32_t)row;
                row += count_of(a, from, owner * own + x);
            }
        }
        if (owner == a->rank)
            a->order[own] = (int32_t)row;
        most = row > most ? row : most;
    }
    a->rounds[0] = (int32_t)ceil_div(most, a->rows);
    a->moved[0] += a->order[own] - kept;
    a->moved[1] += mine[a->experts] - mine[0] - kept;
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

static void move_rows(const void *context, part p)
{
    const exchange_rows_args *a = context;
    const int64_t own = a->experts / a->peers.size;
    const size_t bytes = (size_t)a->width * sizeof(real);
    for (int64_t slot = p.begin; slot < p.end && slot < a->offset[a->experts]; slot++) {
        int64_t e = expert_of(a->offset, a->experts, slot);
        int64_t row = a->place[e] + slot - a->offset[e] - a->round * a->rows;
        if (row < 0 || row >= a->rows)
            continue;
        char *there = locate_window(&a->peers, e / own, a->at) + (size_t)row * bytes;
        char *here = (char *)a->mine + (size_t)slot * bytes;
        memcpy(a->back ? here : there, a->back ? there : here, bytes);
    }
}

status CPU_OP(exchange_rows)(stream *s, const exchange_rows_args *a)
{
    const int64_t first = a->round * a->rows, own = a->experts / a->peers.size;
    for (int64_t x = 0; x <= own && a->round_offset; x++) {
        int64_t row = a->order[x] - first;
        a->round_offset[x] = (int32_t)(row < 0 ? 0 : row > a->rows ? a->rows : row);
    }
    if (needs_round(a->round, a->rounds))
        cpu_run(s, a->slots, a->width, move_rows, a);
    return ST_OK;
}
