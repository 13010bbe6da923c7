/* SPDX-License-Identifier: Apache-2.0 */
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

static int64_t draw_count(parity *test, const routed *routes, int64_t expert, int how)
{
    const int64_t own = routes->experts / routes->ranks;
    switch (how) {
    case TO_LAST:
        return expert / own == routes->ranks - 1 ? parity_below(test, 9) : 0;
    case TO_NOBODY:
        return 0;
    case EVERY_OTHER:
        return expert % 2 ? parity_below(test, 9) : 0;
    default:
        return parity_below(test, 6);
    }
}

/* shape: ranks, experts, rows of a round, how */
static routed draw_routed(parity *test, const int64_t *shape)
{
    routed routes = {.ranks = shape[0], .experts = shape[1], .rows = shape[2], .slots = 1};
    routes.offset = parity_zero_ints(test, routes.ranks * (routes.experts + 1));
    for (int64_t rank = 0; rank < routes.ranks; rank++) {
        int32_t *at = routes.offset + rank * (routes.experts + 1);
        for (int64_t expert = 0; expert < routes.experts; expert++)
            at[expert + 1] = at[expert] + (int32_t)draw_count(test, &routes, expert, (int)shape[3]);
        routes.slots =
            at[routes.experts] + 2 > routes.slots ? at[routes.experts] + 2 : routes.slots;
    }
    return routes;
}

/* Draws a permutation of the ranks. */
static void draw_turns(parity *test, int64_t n, int32_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = parity_below(test, i + 1);
        out[i] = out[j];
        out[j] = (int32_t)i;
    }
}

/* Makes windows of `bytes` each within one block. */
static void *const *bases(parity *test, void *block, int64_t ranks, size_t bytes)
{
    void *base[RANKS_MOST];
    for (int64_t rank = 0; rank < ranks; rank++)
        base[rank] = (char *)block + (size_t)rank * bytes;
    return parity_bytes(test, base, (size_t)ranks * sizeof *base);
}

/* shape: ranks, values */
static void tell_case(parity *test, const int64_t *shape)
{
    const int64_t ranks = shape[0], n = shape[1], lead = LEAD / (int64_t)sizeof(int32_t);
    const int64_t all = lead + ranks * n;
    int32_t *was = parity_zero_ints(test, ranks * all), turn[RANKS_MOST];
    for (int64_t i = 0; i < ranks * all; i++)
        was[i] = (int32_t)parity_below(test, 1000);
    int32_t *dev = parity_ints(test, was, ranks * all);
    void *const *base = bases(test, dev, ranks, (size_t)all * sizeof *dev);
    draw_turns(test, ranks, turn);
    for (int64_t i = 0; i < ranks - 1; i++) { /* the last rank tells nothing */
        int32_t *values = parity_zero_ints(test, n);
        for (int64_t k = 0; k < n; k++)
            values[k] = (int32_t)parity_below(test, 1000);
        PARITY_RUN(test,
                   op_peers_tell(test->queue, &(peers_tell_args){{base, turn[i], (int32_t)ranks},
                                                                 LEAD,
                                                                 n,
                                                                 parity_ints(test, values, n)}));
        for (int64_t rank = 0; rank < ranks; rank++)
            for (int64_t k = 0; k < n; k++)
                was[rank * all + lead + turn[i] * n + k] = values[k];
    }
    parity_expect_ints(test, "windows", dev, was, ranks * all);
}

/* Meetings of ranks. A window holds arrived [P], then met. shape: ranks */
static void meet_case(parity *test, const int64_t *shape)
{
    const int64_t ranks = shape[0], each = ranks + 1;
    int32_t *want = parity_zero_ints(test, ranks * each), turn[RANKS_MOST];
    int32_t *dev = parity_ints(test, want, ranks * each);
    int32_t *rounds = parity_ints(test, (int32_t[]){2}, 1);
    const peer_watch over = {.longest_ns = INT64_MAX, .stop = 1};
    peer_watch *watch = parity_bytes(test, &over, sizeof over);
    void *const *base = bases(test, dev, ranks, (size_t)each * sizeof *dev);
    for (int32_t round = 0; round < 3; round++) {
        peers_meet_args args = {
            .met = (size_t)ranks * sizeof *dev, .round = round, .rounds = rounds};
        for (args.phase = MEET_ARRIVE; args.phase <= MEET_WAIT; args.phase++) {
            draw_turns(test, ranks, turn);
            for (int64_t i = 0; i < ranks; i++) {
                args.peers = (peer_set){base, turn[i], (int32_t)ranks};
                PARITY_RUN(test, op_peers_meet(test->queue, &args));
            }
        }
    }
    for (int64_t i = 0; i < ranks * each; i++)
        want[i] = 2; /* two meetings sufficed */
    parity_expect_ints(test, "met", dev, want, ranks * each);
    /* After `stop` is set, a rank that is alone does not wait for the others. */
    assert_ok(op_peers_meet(test->queue, &(peers_meet_args){.peers = {base, 0, (int32_t)ranks},
                                                            .met = (size_t)ranks * sizeof *dev,
                                                            .phase = MEET_ARRIVE | MEET_WAIT,
                                                            .watch = watch}));
    for (int64_t rank = 0; rank < ranks; rank++)
        want[rank * each] = 3;
    want[ranks] = 3;
    parity_expect_ints(test, "met without the others", dev, want, ranks * each);
    /* A wait that is too long fails. What a GPU does then is in tests/simt/test_meeting.c. */
    if (ranks > 1 && strcmp(test->queue->dev->backend->name, "cpu") == 0)
        assert_fails(ST_TIMEOUT,
                     op_peers_meet(test->queue,
                                   &(peers_meet_args){.peers = {base, 0, (int32_t)ranks},
                                                      .met = (size_t)ranks * sizeof *dev,
                                                      .phase = MEET_ARRIVE | MEET_WAIT,
                                                      .watch = &(peer_watch){.longest_ns = 1000}}),
                     "rank 1 of the group did not come to turn 4");
}

/* A row of an owner's order. */
typedef struct row_of {
    int64_t owner, row;
} row_of;

/* Writes the row of every slot to where [P, slots], and the borders of rows to order [P, E/P + 1].
 * Returns the number of rounds. */
static int32_t order_loop(const routed *routes, row_of *where, int32_t *order)
{
    const int64_t own = routes->experts / routes->ranks;
    int64_t most = 0;
    for (int64_t owner = 0; owner < routes->ranks; owner++) {
        int64_t row = 0;
        for (int64_t local = 0; local < own; local++) {
            order[owner * (own + 1) + local] = (int32_t)row;
            for (int64_t from = 0; from < routes->ranks; from++) {
                const int32_t *at =
                    routes->offset + from * (routes->experts + 1) + owner * own + local;
                for (int64_t slot = at[0]; slot < at[1]; slot++)
                    where[from * routes->slots + slot] = (row_of){owner, row++};
            }
        }
        order[owner * (own + 1) + own] = (int32_t)row;
        most = row > most ? row : most;
    }
    return (int32_t)((most + routes->rows - 1) / routes->rows);
}

/* The plan of one rank, on the device. */
typedef struct planned {
    int32_t *place, *order, *rounds;
    int64_t *moved;
} planned;

static planned plan_rank(parity *test, const routed *routes, int64_t rank, const int32_t *borders)
{
    static const int64_t before[2] = {100, 1000};
    planned plan = {.place = parity_ints(test, routes->offset, routes->experts),
                    .order = parity_ints(test, routes->offset, routes->experts / routes->ranks + 1),
                    .rounds = parity_ints(test, routes->offset, 1),
                    .moved = parity_bytes(test, before, sizeof before)};
    PARITY_RUN(test, op_exchange_plan(test->queue, &(exchange_plan_args){
                                                       routes->ranks, routes->experts, routes->rows,
                                                       (int32_t)rank, borders, plan.place,
                                                       plan.order, plan.rounds, plan.moved}));
    return plan;
}

/* Compares 64-bit numbers; the machine is little-endian. */
static void expect_moved(parity *test, const int64_t *dev, int64_t come, int64_t go)
{
    const int64_t want[2] = {100 + come, 1000 + go};
    int32_t words[4];
    memcpy(words, want, sizeof words);
    parity_expect_ints(test, "moved", (const int32_t *)(const void *)dev, words, 4);
}

/* shape: as draw_routed */
static void plan_case(parity *test, const int64_t *shape)
{
    const routed routes = draw_routed(test, shape);
    const int64_t own = routes.experts / routes.ranks, n = routes.experts + 1;
    row_of *where = calloc((size_t)(routes.ranks * routes.slots), sizeof *where);
    int32_t *order = parity_zero_ints(test, routes.ranks * (own + 1)), *place, come = 0, go = 0;
    int32_t *borders = parity_ints(test, routes.offset, routes.ranks * n), rounds;
    assert_non_null(where);
    rounds = order_loop(&routes, where, order);
    for (int64_t rank = 0; rank < routes.ranks && !test->bench; rank++) {
        const planned got = plan_rank(test, &routes, rank, borders);
        place = parity_zero_ints(test, routes.experts);
        come = go = 0;
        for (int64_t expert = 0; expert < routes.experts; expert++) {
            int64_t owner = expert / own, local = expert % own;
            place[expert] = order[owner * (own + 1) + local];
            for (int64_t from = 0; from < routes.ranks; from++) {
                int32_t slots =
                    routes.offset[from * n + expert + 1] - routes.offset[from * n + expert];
                place[expert] += from < rank ? slots : 0;
                come += from != rank && owner == rank ? slots : 0;
                go += from == rank && owner != rank ? slots : 0;
            }
        }
        parity_expect_ints(test, "place", got.place, place, routes.experts);
        parity_expect_ints(test, "order", got.order, order + rank * (own + 1), own + 1);
        parity_expect_ints(test, "rounds", got.rounds, &rounds, 1);
        expect_moved(test, got.moved, come, go);
    }
    if (test->bench)
        plan_rank(test, &routes, 0, borders);
    free(where);
}

/* One round of all ranks: rows go to the owners of their experts and come back doubled, as from an
 * expert that doubles. */
typedef struct played {
    const routed *routes;
    const row_of *where;
    const planned *plan;
    tensor mine, window; /* [P, slots, width]; windows of LEAD bytes and [R, width] */
    double *mine_want, *window_want;
    void *const *base;
    int64_t width, lead; /* in elements */
} played;

static void move_rank(parity *test, const played *game, int64_t rank, int32_t round, bool back,
                      int32_t *round_offset)
{
    const routed *routes = game->routes;
    const planned *plan = &game->plan[rank];
    PARITY_RUN(test,
               op_exchange_rows(
                   test->queue,
                   &(exchange_rows_args){
                       .peers = {game->base, (int32_t)rank, (int32_t)routes->ranks},
                       .at = (size_t)game->lead * st_dtype_size(test->queue->dev->backend->act),
                       .back = back,
                       .round = round,
                       .slots = routes->slots,
                       .width = game->width,
                       .experts = routes->experts,
                       .rows = routes->rows,
                       .offset = parity_ints(test, routes->offset + rank * (routes->experts + 1),
                                             routes->experts + 1),
                       .place = plan->place,
                       .order = plan->order,
                       .rounds = plan->rounds,
                       .mine = parity_at(game->mine, rank * routes->slots * game->width),
                       .round_offset = round_offset}));
}

/* The specification: copies every slot of the round to its owner, or back. */
static void move_loop(const played *game, int32_t round, bool back)
{
    const routed *routes = game->routes;
    const int64_t window = game->lead + routes->rows * game->width;
    for (int64_t from = 0; from < routes->ranks; from++)
        for (int64_t slot = 0;
             slot < routes->offset[from * (routes->experts + 1) + routes->experts]; slot++) {
            const row_of *where = game->where + from * routes->slots + slot;
            int64_t row = where->row - round * routes->rows;
            if (row < 0 || row >= routes->rows)
                continue;
            double *there =
                game->window_want + where->owner * window + game->lead + row * game->width;
            double *here = game->mine_want + (from * routes->slots + slot) * game->width;
            memcpy(back ? here : there, back ? there : here, (size_t)game->width * sizeof *here);
        }
}

static void check_round(parity *test, const played *game, const int32_t *order, int32_t round)
{
    const routed *routes = game->routes;
    const int64_t own = routes->experts / routes->ranks;
    int32_t turn[RANKS_MOST], *want = parity_zero_ints(test, own + 1);
    draw_turns(test, routes->ranks, turn);
    for (int64_t i = 0; i < routes->ranks; i++) {
        int32_t *got = parity_ints(test, order, own + 1);
        move_rank(test, game, turn[i], round, false, got);
        for (int64_t local = 0; local <= own; local++) {
            int64_t row = order[turn[i] * (own + 1) + local] - round * routes->rows;
            want[local] = (int32_t)(row < 0 ? 0 : row > routes->rows ? routes->rows : row);
        }
        parity_expect_ints(test, "rows of the round", got, want, own + 1);
    }
    move_loop(game, round, false);
    parity_expect(test, "windows", game->window, game->window_want, 0);
}

/* Doubles the rows at their owners, which then send them back. In a round that is not needed it
 * does nothing. */
static void answer_round(parity *test, const played *game, int32_t round)
{
    const int64_t n = game->window.n;
    int32_t turn[RANKS_MOST];
    assert_ok(op_scale(test->queue, &(scale_args){.n = n, .factor = 2, .y = game->window.dev}));
    for (int64_t i = 0; i < n; i++)
        game->window_want[i] *= 2;
    draw_turns(test, game->routes->ranks, turn);
    for (int64_t i = 0; i < game->routes->ranks; i++)
        move_rank(test, game, turn[i], round, true, NULL);
    move_loop(game, round, true);
    parity_expect(test, "slots", game->mine, game->mine_want, 0);
}

/* shape: as draw_routed, and the width of a row */
static void rows_case(parity *test, const int64_t *shape)
{
    const routed routes = draw_routed(test, shape);
    const int64_t own = routes.experts / routes.ranks,
                  act = (int64_t)st_dtype_size(test->queue->dev->backend->act);
    row_of *where = calloc((size_t)(routes.ranks * routes.slots), sizeof *where);
    planned plan[RANKS_MOST];
    played game = {
        .routes = &routes, .where = where, .plan = plan, .width = shape[4], .lead = LEAD / act};
    const int64_t window = game.lead + routes.rows * game.width;
    int32_t *order = parity_zero_ints(test, routes.ranks * (own + 1));
    int32_t *borders = parity_ints(test, routes.offset, routes.ranks * (routes.experts + 1));
    assert_non_null(where);
    const int32_t rounds = order_loop(&routes, where, order);
    for (int64_t rank = 0; rank < routes.ranks; rank++)
        plan[rank] = plan_rank(test, &routes, rank, borders);
    game.mine = parity_tensor(test, routes.ranks * routes.slots * game.width, 1);
    game.window = parity_tensor(test, routes.ranks * window, 1);
    game.mine_want = parity_copy(test, game.mine.ref, game.mine.n);
    game.window_want = parity_copy(test, game.window.ref, game.window.n);
    game.base = bases(test, game.window.dev, routes.ranks, (size_t)(window * act));
    for (int32_t round = 0; round < rounds + 2 && !test->bench; round++) {
        check_round(test, &game, order, round);
        answer_round(test, &game, round);
    }
    if (test->bench)
        move_rank(test, &game, 0, 0, false, NULL);
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
