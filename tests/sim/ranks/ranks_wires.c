/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_wires.c: connections as TCP gives them: bytes in order, cut and joined anyhow, or the end;
 * nothing at all while a machine is cut off, and what was sent meanwhile once it is not. A process
 * that closes while there are bytes that it has not read resets the connection, which may take with
 * it what it sent last. */
#include "tests/sim/ranks/ranks_world.h"

#include <stdlib.h>
#include <string.h>

static wire_end *end_of(world *all, int wire, int end)
{
    return &all->wire[wire].end[end];
}

/* Puts a segment on its way to `end`. */
static void put_segment(world *all, int wire, int end, const void *bytes, size_t size, bool reset)
{
    wire_end *const to = end_of(all, wire, end);
    segment *made = malloc(sizeof *made + size);
    if (!made)
        abort();
    int64_t at = all->now_ns + sim_random_tail(&all->wires, all->latency_ns, all->latency_ns);
    if (at < to->busy_until)
        at = to->busy_until;
    to->busy_until = at;
    *made = (segment){.at_ns = at, .reset = reset, .size = size};
    if (size > 0)
        memcpy(made->bytes, bytes, size);
    *to->last = made;
    to->last = &made->next;
    to->bytes += size;
    world_put(all, at, SIM_ARRIVE, wire * 2 + end, 0);
}

static segment *take_segment(wire_end *from)
{
    segment *first = from->first;
    from->first = first->next;
    if (!from->first)
        from->last = &from->first;
    from->bytes -= first->size;
    return first;
}

static void drop_segments(wire_end *from)
{
    while (from->first)
        free(take_segment(from));
}

int wires_connect(world *all, int rank)
{
    if (!process_runs(all, 0) && !(all->rank[0].alive && all->rank[0].stopped))
        return -1;
    if (all->n_wires == WIRES_MOST)
        return -1;
    const int number = all->n_wires++;
    tcp_wire *made = &all->wire[number];
    made->used = true;
    for (int i = 0; i < 2; i++) {
        made->end[i] = (wire_end){.rank = i == 0 ? rank : 0, .conn = -1, .open = true};
        made->end[i].last = &made->end[i].first;
    }
    return number;
}

void wires_send(world *all, int wire, int end, const void *bytes, size_t size)
{
    wire_end *const from = end_of(all, wire, end);
    const size_t cut =
        sim_random_chance(&all->wires, 1, 6) ? sim_random_below(&all->wires, size) : 0;
    if (!from->open || from->finished)
        return;
    if (cut > 0)
        put_segment(all, wire, !end, bytes, cut, false);
    put_segment(all, wire, !end, (const char *)bytes + cut, size - cut, false);
}

void wires_finish(world *all, int wire, int end)
{
    wire_end *const from = end_of(all, wire, end);
    if (from->open && !from->finished)
        put_segment(all, wire, !end, NULL, 0, false);
    from->finished = true;
}

/* Whether bytes wait that this end has not read. */
static bool has_unread(const world *all, const wire_end *end)
{
    return end->first && end->first->at_ns <= all->now_ns && end->first->size > 0;
}

void wires_close(world *all, int wire, int end)
{
    wire_end *const from = end_of(all, wire, end);
    if (!from->open)
        return;
    if (has_unread(all, from)) {
        if (sim_random_chance(&all->wires, 1, 2))
            drop_segments(end_of(all, wire, !end));
        put_segment(all, wire, !end, NULL, 0, true);
    } else if (!from->finished) {
        put_segment(all, wire, !end, NULL, 0, false);
    }
    from->open = false;
    drop_segments(from);
}

void wires_reset(world *all, int wire)
{
    for (int end = 0; end < 2; end++) {
        drop_segments(end_of(all, wire, end));
        put_segment(all, wire, end, NULL, 0, true);
    }
}

size_t wires_unsent(const world *all, int wire, int end)
{
    return all->wire[wire].end[!end].bytes;
}

static bool is_cut(const world *all, const wire_end *end)
{
    return end->rank >= 0 && (all->rank[end->rank].cut || all->rank[end->rank].lost_power);
}

/* What has arrived comes in one read, as far as it fits into READ_MOST bytes. */
static segment *join_segments(const world *all, wire_end *from)
{
    enum { READ_MOST = 2048 };
    segment *got = take_segment(from);
    while (got->size > 0 && from->first && from->first->at_ns <= all->now_ns &&
           from->first->size > 0 && got->size + from->first->size <= READ_MOST) {
        segment *next = take_segment(from);
        segment *both = realloc(got, sizeof *got + got->size + next->size);
        if (!both)
            abort();
        memcpy(both->bytes + both->size, next->bytes, next->size);
        both->size += next->size;
        free(next);
        got = both;
    }
    return got;
}

/* Gives a read to the process. A process that has closed its end answers bytes by a reset. */
static void give_segment(world *all, int wire, int end, const segment *got)
{
    wire_end *const to = end_of(all, wire, end);
    if (!to->open) {
        if (got->size > 0 && end_of(all, wire, !end)->open)
            put_segment(all, wire, !end, NULL, 0, true);
        return;
    }
    if (to->rank < 0) { /* strangers do not heed what they are told */
        return;
    }
    if (got->size > 0) {
        process_bytes(all, to->rank, to->conn, got->bytes, got->size);
        return;
    }
    const int conn = to->conn;
    process_gone(all, to->rank, conn, got->reset);
}

void wires_deliver(world *all, int wire, int end)
{
    wire_end *const to = end_of(all, wire, end);
    const bool has_process = to->rank >= 0 && to->open;
    while (to->first && to->first->at_ns <= all->now_ns) {
        if (is_cut(all, to) || is_cut(all, end_of(all, wire, !end)))
            return;
        if (has_process && to->open && (!process_runs(all, to->rank) || to->conn < 0))
            return; /* the system keeps it */
        segment *got = join_segments(all, to);
        give_segment(all, wire, end, got);
        free(got);
    }
}

void wires_deliver_all(world *all)
{
    for (int i = 0; i < all->n_wires; i++)
        for (int end = 0; end < 2; end++)
            wires_deliver(all, i, end);
}

void wires_free(world *all)
{
    for (int i = 0; i < all->n_wires; i++)
        for (int end = 0; end < 2; end++)
            drop_segments(end_of(all, i, end));
}
