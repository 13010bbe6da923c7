/* peers.c: cases of ops in which ranks reach each other's memory (peers.h). One device plays all
 * ranks, one after the other in an order drawn at random, so that a case sees what each rank leaves
 * for the others. Rows are only copied, so there is no tolerance. */
#include <stdlib.h>

#include "tests/parity/parity.h"

enum { RANKS_MOST = 8, EXPERTS_MOST = 1024, LEAD = 16 /* bytes of a window before its contents */ };

/* How the tokens choose experts. */
enum { ANYHOW, TO_LAST, TO_NOBODY, EVERY_OTHER };

/* The slots of every rank, sorted by expert: offset [P, E + 1]. */
typedef struct routed {
    int64_t ranks, experts, rows, slots; /* slots: how many a rank has room for */
    int32_t *offset;
} routed;

static int64_t draw_count(parity *p, const routed *o, int64_t expert, int how)
{
    const int64_t own = o->experts / o->ranks;
    switch (how) {
    case TO_LAST:
        return expert / own == o->ranks - 1 ? parity_below(p, 9) : 0;
    case TO_NOBODY:
        return 0;
    case EVERY_OTHER:
        return expert % 2 ? parity_below(p, 9) : 0;
    default:
        return parity_below(p, 6);
    }
}

/* shape: ranks, experts, rows of a round, how */
static routed draw_routed(parity *p, const int64_t *shape)
{
    routed o = {.ranks = shape[0], .experts = shape[1], .rows = shape[2], .slots = 1};
    o.offset = parity_zero_ints(p, o.ranks * (o.experts + 1));
    for (int64_t r = 0; r < o.ranks; r++) {
        int32_t *at = o.offset + r * (o.experts + 1);
        for (int64_t e = 0; e < o.experts; e++)
            at[e + 1] = at[e] + (int32_t)draw_count(p, &o, e, (int)shape[3]);
        o.slots = at[o.experts] + 2 > o.slots ? at[o.experts] + 2 : o.slots;
    }
    return o;
}

/* Draws a permutation of the ranks. */
static void draw_turns(parity *p, int64_t n, int32_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = parity_below(p, i + 1);
        out[i] = out[j];
        out[j] = (int32_t)i;
    }
}

/* Makes windows of `bytes` each within one block. */
static void *const *bases(parity *p, void *block, int64_t ranks, size_t bytes)
{
    void *base[RANKS_MOST];
    for (int64_t r = 0; r < ranks; r++)
        base[r] = (char *)block + (size_t)r * bytes;
    return parity_bytes(p, base, (size_t)ranks * sizeof *base);
}

/* shape: ranks, values */
static void tell_case(parity *p, const int64_t *shape)
{
    const int64_t ranks = shape[0], n = shape[1], lead = LEAD / (int64_t)sizeof(int32_t);
    const int64_t all = lead + ranks * n;
    int32_t *was = parity_zero_ints(p, ranks * all), turn[RANKS_MOST];
    for (int64_t i = 0; i < ranks * all; i++)
        was[i] = (int32_t)parity_below(p, 1000);
    int32_t *dev = parity_ints(p, was, ranks * all);
    void *const *base = bases(p, dev, ranks, (size_t)all * sizeof *dev);
    draw_turns(p, ranks, turn);
    for (int64_t i = 0; i < ranks - 1; i++) { /* the last rank tells nothing */
        int32_t *values = parity_zero_ints(p, n);
        for (int64_t k = 0; k < n; k++)
            values[k] = (int32_t)parity_below(p, 1000);
        PARITY_RUN(p, op_peers_tell(p->s, &(peers_tell_args){{base, turn[i], (int32_t)ranks},
                                                             LEAD,
                                                             n,
                                                             parity_ints(p, values, n)}));
        for (int64_t r = 0; r < ranks; r++)
            for (int64_t k = 0; k < n; k++)
                was[r * all + lead + turn[i] * n + k] = values[k];
    }
    parity_expect_ints(p, "windows", dev, was, ranks * all);
}

/* Meetings of ranks. A window holds arrived [P], then met. shape: ranks */
static void meet_case(parity *p, const int64_t *shape)
{
    const int64_t ranks = shape[0], each = ranks + 1;
    int32_t *want = parity_zero_ints(p, ranks * each), turn[RANKS_MOST];
    int32_t *dev = parity_ints(p, want, ranks * each);
    int32_t *rounds = parity_ints(p, (int32_t[]){2}, 1), *stop = parity_ints(p, (int32_t[]){1}, 1);
    void *const *base = bases(p, dev, ranks, (size_t)each * sizeof *dev);
    for (int32_t round = 0; round < 3; round++) {
        peers_meet_args a = {.met = (size_t)ranks * sizeof *dev, .round = round, .rounds = rounds};
        for (a.phase = MEET_ARRIVE; a.phase <= MEET_WAIT; a.phase++) {
            draw_turns(p, ranks, turn);
            for (int64_t i = 0; i < ranks; i++) {
                a.peers = (peer_set){base, turn[i], (int32_t)ranks};
                PARITY_RUN(p, op_peers_meet(p->s, &a));
            }
        }
    }
    for (int64_t i = 0; i < ranks * each; i++)
        want[i] = 2; /* two meetings sufficed */
    parity_expect_ints(p, "met", dev, want, ranks * each);
    /* After `stop` is set, a rank that is alone does not wait for the others. */
    assert_ok(op_peers_meet(p->s, &(peers_meet_args){.peers = {base, 0, (int32_t)ranks},
                                                     .met = (size_t)ranks * sizeof *dev,
                                                     .phase = MEET_ARRIVE | MEET_WAIT,
                                                     .stop = stop}));
    for (int64_t r = 0; r < ranks; r++)
        want[r * each] = 3;
    want[ranks] = 3;
    parity_expect_ints(p, "met without the others", dev, want, ranks * each);
}

/* A row of an owner's order. */
typedef struct row_of {
    int64_t owner, row;
} row_of;

/* Writes the row of every slot to where [P, slots], and the borders of rows to order [P, E/P + 1].
 * Returns the number of rounds. */
static int32_t order_loop(const routed *o, row_of *where, int32_t *order)
{
    const int64_t own = o->experts / o->ranks;
    int64_t most = 0;
    for (int64_t owner = 0; owner < o->ranks; owner++) {
        int64_t row = 0;
        for (int64_t x = 0; x < own; x++) {
            order[owner * (own + 1) + x] = (int32_t)row;
            for (int64_t from = 0; from < o->ranks; from++) {
                const int32_t *at = o->offset + from * (o->experts + 1) + owner * own + x;
                for (int64_t slot = at[0]; slot < at[1]; slot++)
                    where[from * o->slots + slot] = (row_of){owner, row++};
            }
        }
        order[owner * (own + 1) + own] = (int32_t)row;
        most = row > most ? row : most;
    }
    return (int32_t)((most + o->rows - 1) / o->rows);
}

/* The plan of one rank, on the device. */
typedef struct planned {
    int32_t *place, *order, *rounds;
    int64_t *moved;
} planned;

static planned plan_rank(parity *p, const routed *o, int64_t rank, const int32_t *borders)
{
    static const int64_t before[2] = {100, 1000};
    planned a = {.place = parity_ints(p, o->offset, o->experts),
                 .order = parity_ints(p, o->offset, o->experts / o->ranks + 1),
                 .rounds = parity_ints(p, o->offset, 1),
                 .moved = parity_bytes(p, before, sizeof before)};
    PARITY_RUN(p, op_exchange_plan(p->s, &(exchange_plan_args){o->ranks, o->experts, o->rows,
                                                               (int32_t)rank, borders, a.place,
                                                               a.order, a.rounds, a.moved}));
    return a;
}

/* Compares 64-bit numbers; the machine is little-endian. */
static void expect_moved(parity *p, const int64_t *dev, int64_t come, int64_t go)
{
    const int64_t want[2] = {100 + come, 1000 + go};
    int32_t words[4];
    memcpy(words, want, sizeof words);
    parity_expect_ints(p, "moved", (const int32_t *)(const void *)dev, words, 4);
}

/* shape: as draw_routed */
static void plan_case(parity *p, const int64_t *shape)
{
    const routed o = draw_routed(p, shape);
    const int64_t own = o.experts / o.ranks, n = o.experts + 1;
    row_of *where = calloc((size_t)(o.ranks * o.slots), sizeof *where);
    int32_t *order = parity_zero_ints(p, o.ranks * (own + 1)), *place, come = 0, go = 0;
    int32_t *borders = parity_ints(p, o.offset, o.ranks * n), rounds;
    assert_non_null(where);
    rounds = order_loop(&o, where, order);
    for (int64_t rank = 0; rank < o.ranks && !p->bench; rank++) {
        const planned got = plan_rank(p, &o, rank, borders);
        place = parity_zero_ints(p, o.experts);
        come = go = 0;
        for (int64_t e = 0; e < o.experts; e++) {
            int64_t owner = e / own, x = e % own;
            place[e] = order[owner * (own + 1) + x];
            for (int64_t from = 0; from < o.ranks; from++) {
                int32_t slots = o.offset[from * n + e + 1] - o.offset[from * n + e];
                place[e] += from < rank ? slots : 0;
                come += from != rank && owner == rank ? slots : 0;
                go += from == rank && owner != rank ? slots : 0;
            }
        }
        parity_expect_ints(p, "place", got.place, place, o.experts);
        parity_expect_ints(p, "order", got.order, order + rank * (own + 1), own + 1);
        parity_expect_ints(p, "rounds", got.rounds, &rounds, 1);
        expect_moved(p, got.moved, come, go);
    }
    if (p->bench)
        plan_rank(p, &o, 0, borders);
    free(where);
}

/* One round of all ranks: rows go to the owners of their experts and come back doubled, as from an
 * expert that doubles. */
typedef struct played {
    const routed *o;
    const row_of *where;
    const planned *plan;
    tensor mine, window; /* [P, slots, width]; windows of LEAD bytes and [R, width] */
    double *mine_want, *window_want;
    void *const *base;
    int64_t width, lead; /* in elements */
} played;

static void move_rank(parity *p, const played *g, int64_t rank, int32_t round, bool back,
                      int32_t *round_offset)
{
    const routed *o = g->o;
    const planned *a = &g->plan[rank];
    PARITY_RUN(p, op_exchange_rows(
                      p->s, &(exchange_rows_args){
                                .peers = {g->base, (int32_t)rank, (int32_t)o->ranks},
                                .at = (size_t)g->lead * st_dtype_size(p->s->dev->backend->act),
                                .back = back,
                                .round = round,
                                .slots = o->slots,
                                .width = g->width,
                                .experts = o->experts,
                                .rows = o->rows,
                                .offset = parity_ints(p, o->offset + rank * (o->experts + 1),
                                                      o->experts + 1),
                                .place = a->place,
                                .order = a->order,
                                .rounds = a->rounds,
                                .mine = parity_at(g->mine, rank * o->slots * g->width),
                                .round_offset = round_offset}));
}

/* The specification: copies every slot of the round to its owner, or back. */
static void move_loop(const played *g, int32_t round, bool back)
{
    const routed *o = g->o;
    const int64_t window = g->lead + o->rows * g->width;
    for (int64_t from = 0; from < o->ranks; from++)
        for (int64_t slot = 0; slot < o->offset[from * (o->experts + 1) + o->experts]; slot++) {
            const row_of *w = g->where + from * o->slots + slot;
            int64_t row = w->row - round * o->rows;
            if (row < 0 || row >= o->rows)
                continue;
            double *there = g->window_want + w->owner * window + g->lead + row * g->width;
            double *here = g->mine_want + (from * o->slots + slot) * g->width;
            memcpy(back ? here : there, back ? there : here, (size_t)g->width * sizeof *here);
        }
}

static void check_round(parity *p, const played *g, const int32_t *order, int32_t round)
{
    const routed *o = g->o;
    const int64_t own = o->experts / o->ranks;
    int32_t turn[RANKS_MOST], *want = parity_zero_ints(p, own + 1);
    draw_turns(p, o->ranks, turn);
    for (int64_t i = 0; i < o->ranks; i++) {
        int32_t *got = parity_ints(p, order, own + 1);
        move_rank(p, g, turn[i], round, false, got);
        for (int64_t x = 0; x <= own; x++) {
            int64_t row = order[turn[i] * (own + 1) + x] - round * o->rows;
            want[x] = (int32_t)(row < 0 ? 0 : row > o->rows ? o->rows : row);
        }
        parity_expect_ints(p, "rows of the round", got, want, own + 1);
    }
    move_loop(g, round, false);
    parity_expect(p, "windows", g->window, g->window_want, 0);
}

/* Doubles the rows at their owners, which then send them back. In a round that is not needed it
 * does nothing. */
static void answer_round(parity *p, const played *g, int32_t round)
{
    const int64_t n = g->window.n;
    int32_t turn[RANKS_MOST];
    assert_ok(op_scale(p->s, &(scale_args){.n = n, .factor = 2, .y = g->window.dev}));
    for (int64_t i = 0; i < n; i++)
        g->window_want[i] *= 2;
    draw_turns(p, g->o->ranks, turn);
    for (int64_t i = 0; i < g->o->ranks; i++)
        move_rank(p, g, turn[i], round, true, NULL);
    move_loop(g, round, true);
    parity_expect(p, "slots", g->mine, g->mine_want, 0);
}

/* shape: as draw_routed, and the width of a row */
static void rows_case(parity *p, const int64_t *shape)
{
    const routed o = draw_routed(p, shape);
    const int64_t own = o.experts / o.ranks, act = (int64_t)st_dtype_size(p->s->dev->backend->act);
    row_of *where = calloc((size_t)(o.ranks * o.slots), sizeof *where);
    planned plan[RANKS_MOST];
    played g = {.o = &o, .where = where, .plan = plan, .width = shape[4], .lead = LEAD / act};
    const int64_t window = g.lead + o.rows * g.width;
    int32_t *order = parity_zero_ints(p, o.ranks * (own + 1));
    int32_t *borders = parity_ints(p, o.offset, o.ranks * (o.experts + 1));
    assert_non_null(where);
    const int32_t rounds = order_loop(&o, where, order);
    for (int64_t r = 0; r < o.ranks; r++)
        plan[r] = plan_rank(p, &o, r, borders);
    g.mine = parity_tensor(p, o.ranks * o.slots * g.width, 1);
    g.window = parity_tensor(p, o.ranks * window, 1);
    g.mine_want = parity_copy(p, g.mine.ref, g.mine.n);
    g.window_want = parity_copy(p, g.window.ref, g.window.n);
    g.base = bases(p, g.window.dev, o.ranks, (size_t)(window * act));
    for (int32_t round = 0; round < rounds + 2 && !p->bench; round++) {
        check_round(p, &g, order, round);
        answer_round(p, &g, round);
    }
    if (p->bench)
        move_rank(p, &g, 0, 0, false, NULL);
    free(where);
}

const parity_case parity_peers[] = {
    {"peers_tell", "alone", tell_case, {1, 5}},
    {"peers_tell", "ragged", tell_case, {3, 130}},
    {"peers_tell", "real", tell_case, {8, 129}},
    {"peers_meet", "alone", meet_case, {1}},
    {"peers_meet", "ragged", meet_case, {3}},
    {"peers_meet", "hostile", meet_case, {8}},
    {"exchange_plan", "alone", plan_case, {1, 4, 10, ANYHOW}},
    {"exchange_plan", "ragged", plan_case, {3, 21, 7, ANYHOW}},
    {"exchange_plan", "empty", plan_case, {4, 8, 5, TO_NOBODY}},
    {"exchange_plan", "hostile one owner", plan_case, {4, 16, 5, TO_LAST}},
    {"exchange_plan", "experts without", plan_case, {2, 80, 64, EVERY_OTHER}},
    {"exchange_plan", "hostile many experts", plan_case, {2, EXPERTS_MOST, 1000, ANYHOW}},
    {"exchange_plan", "real", plan_case, {8, 128, 4000, ANYHOW}},
    {"exchange_rows", "alone", rows_case, {1, 4, 5, ANYHOW, 8}},
    {"exchange_rows", "ragged", rows_case, {3, 9, 7, ANYHOW, 5}},
    {"exchange_rows", "wide", rows_case, {2, 6, 9, ANYHOW, 1096}},
    {"exchange_rows", "empty", rows_case, {2, 4, 5, TO_NOBODY, 8}},
    {"exchange_rows", "hostile one owner", rows_case, {4, 8, 3, TO_LAST, 16}},
    {"exchange_rows", "experts without", rows_case, {4, 16, 20, EVERY_OTHER, 24}},
    {"exchange_rows", "one round", rows_case, {8, 16, 400, ANYHOW, 8}},
    {"exchange_rows", "real", rows_case, {8, 128, 500, ANYHOW, 2048}},
    {NULL},
};
