/* SPDX-License-Identifier: Apache-2.0 */
/* class_rows.c: packs the units of a window, all together or by resolution class
 * (data.resolution_class).
 *
 * A class that fills at least ENOUGH rows is packed alone, and its full rows are kept. Its other
 * rows are packed again together with the units of all other classes. */
#include "prepd/plan/pack.h"
#include "prepd/plan/planner.h"

enum {
    ENOUGH = 8,     /* rows; with fewer, the last one, which is not full, would weigh too much */
    FULL_NUM = 995, /* a row is full from this share of its tokens on: what rows reach when mixed */
    FULL_DEN = 1000,
};

/* A 500th of a row's tokens is left free where rows are made alike: with a 200th ranks are slightly
 * more even, but 0.3 % more rows are needed. */
enum { SLACK = 500 };

/* Packs rows a little below their budget, so that units can change rows afterwards, and makes the
 * rows alike in predicted cost. */
static status pack_alike(plan *planned, const pack_item *items, const int64_t *units, int64_t count,
                         int64_t *row_of, int64_t *out_rows)
{
    arena *memory = &planned->scratch;
    const int64_t budget = planned->token_budget - planned->token_budget / SLACK;
    pack_item *short_items;
    int64_t *cost;
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof *short_items, (void **)&short_items));
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof *cost, (void **)&cost));
    for (int64_t i = 0; i < count; i++) {
        short_items[i] = items[i];
        if (short_items[i].tokens > budget) /* it has a row to itself either way */
            short_items[i].tokens = budget;
        cost[i] = plan_unit_cost(planned, &planned->units[units[i]]);
    }
    TRY(pack_rows(short_items, count, budget, planned->patch_budget, memory, row_of, out_rows));
    TRY(pack_level(items, count, planned->token_budget, planned->patch_budget, memory, row_of,
                   *out_rows));
    return pack_balance(items, cost, count,
                        (pack_item){planned->token_budget, planned->patch_budget}, memory, row_of,
                        *out_rows);
}

status plan_pack_mixed(plan *planned, const pack_item *items, const int64_t *units, int64_t count,
                       int64_t *row_of, int64_t *out_rows)
{
    if (plan_balances(planned))
        return pack_alike(planned, items, units, count, row_of, out_rows);
    TRY(pack_rows(items, count, planned->token_budget, planned->patch_budget, &planned->scratch,
                  row_of, out_rows));
    return pack_level(items, count, planned->token_budget, planned->patch_budget, &planned->scratch,
                      row_of, *out_rows);
}

/* Copies items[member[0]] to items[member[count - 1]] side by side. */
static status take_members(const pack_item *items, const int64_t *member, int64_t count,
                           arena *memory, pack_item **out)
{
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof **out, (void **)out));
    for (int64_t k = 0; k < count; k++)
        (*out)[k] = items[member[k]];
    return ST_OK;
}

/* Packs the members and numbers their full rows from *inout_rows on. Members of other rows keep -1
 * in row_of. */
static status keep_full(const plan *planned, const pack_item *items, const int64_t *member,
                        int64_t count, arena *memory, int64_t *row_of, int64_t *inout_rows)
{
    int64_t *mine, *tokens, rows;
    pack_item *some;
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof *mine, (void **)&mine));
    TRY(take_members(items, member, count, memory, &some));
    TRY(pack_rows(some, count, planned->token_budget, planned->patch_budget, memory, mine, &rows));
    TRY(arena_calloc(memory, (size_t)rows + 1, sizeof *tokens, (void **)&tokens));
    for (int64_t k = 0; k < count; k++)
        tokens[mine[k]] += items[member[k]].tokens;
    for (int64_t row = 0; row < rows; row++)
        tokens[row] =
            tokens[row] * FULL_DEN >= planned->token_budget * FULL_NUM ? (*inout_rows)++ : -1;
    for (int64_t k = 0; k < count; k++)
        row_of[member[k]] = tokens[mine[k]];
    return ST_OK;
}

/* Keeps the full rows of one class, if it is large enough. `member` [count] is scratch. */
static status keep_class(plan *planned, const pack_item *items, const int64_t *units, int64_t count,
                         int32_t class, int64_t *member, int64_t *row_of, int64_t *inout_rows)
{
    int64_t of_class = 0, tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        if (planned->units[units[i]].class != class)
            continue;
        member[of_class++] = i;
        tokens += items[i].tokens;
    }
    if (tokens < ENOUGH * planned->token_budget)
        return ST_OK;
    const arena_mark mark = arena_save(&planned->scratch);
    const status st =
        keep_full(planned, items, member, of_class, &planned->scratch, row_of, inout_rows);
    arena_release(&planned->scratch, mark);
    return st;
}

status plan_pack_classes(plan *planned, const pack_item *items, const int64_t *units, int64_t count,
                         int64_t *row_of, int64_t *out_rows)
{
    arena *memory = &planned->scratch;
    int64_t *member, *mine, *mixed, n_mixed = 0, rows = 0, mixed_rows;
    pack_item *some;
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof *member, (void **)&member));
    for (int64_t i = 0; i < count; i++)
        row_of[i] = -1;
    for (int32_t class = 0; class < PLAN_CLASSES; class ++)
        TRY(keep_class(planned, items, units, count, class, member, row_of, &rows));
    for (int64_t i = 0; i < count; i++)
        if (row_of[i] < 0)
            member[n_mixed++] = i;
    TRY(take_members(items, member, n_mixed, memory, &some));
    TRY(arena_calloc(memory, (size_t)n_mixed + 1, sizeof *mine, (void **)&mine));
    TRY(arena_calloc(memory, (size_t)n_mixed + 1, sizeof *mixed, (void **)&mixed));
    for (int64_t k = 0; k < n_mixed; k++)
        mixed[k] = units[member[k]];
    TRY(plan_pack_mixed(planned, some, mixed, n_mixed, mine, &mixed_rows));
    for (int64_t k = 0; k < n_mixed; k++)
        row_of[member[k]] = rows + mine[k];
    *out_rows = rows + mixed_rows;
    return ST_OK;
}
