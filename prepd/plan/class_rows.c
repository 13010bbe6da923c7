/* class_rows.c: packs the units of a window, all together or by resolution class
 * (data.resolution_class).
 *
 * By class: a class that fills at least ENOUGH rows is packed alone, and its full rows are kept.
 * Its other rows are packed again together with the units of all other classes. */
#include <string.h>

#include "prepd/plan/pack.h"
#include "prepd/plan/planner.h"

enum {
    ENOUGH = 8, /* rows; with fewer, the last one, which is not full, would weigh too much */
    FULL_NUM = 995,
    FULL_DEN =
        1000, /* a row is full from this share of its tokens on: what rows reach when mixed */
};

/* Copies items[member[0]] to items[member[n - 1]] side by side. */
static status take_members(const pack_item *items, const int64_t *member, int64_t n, arena *a,
                           pack_item **out)
{
    TRY(arena_calloc(a, (size_t)n + 1, sizeof **out, (void **)out));
    for (int64_t k = 0; k < n; k++)
        (*out)[k] = items[member[k]];
    return ST_OK;
}

/* Packs the members and numbers their full rows from *inout_rows on. Members of other rows keep -1
 * in row_of. */
static status keep_full(const plan *p, const pack_item *items, const int64_t *member, int64_t n,
                        arena *a, int64_t *row_of, int64_t *inout_rows)
{
    int64_t *mine, *tokens, rows;
    pack_item *some;
    TRY(arena_calloc(a, (size_t)n + 1, sizeof *mine, (void **)&mine));
    TRY(take_members(items, member, n, a, &some));
    TRY(pack_rows(some, n, p->token_budget, p->patch_budget, a, mine, &rows));
    TRY(arena_calloc(a, (size_t)rows + 1, sizeof *tokens, (void **)&tokens));
    for (int64_t k = 0; k < n; k++)
        tokens[mine[k]] += items[member[k]].tokens;
    for (int64_t r = 0; r < rows; r++)
        tokens[r] = tokens[r] * FULL_DEN >= p->token_budget * FULL_NUM ? (*inout_rows)++ : -1;
    for (int64_t k = 0; k < n; k++)
        row_of[member[k]] = tokens[mine[k]];
    return ST_OK;
}

status plan_pack_mixed(plan *p, const pack_item *items, int64_t n, int64_t *row_of,
                       int64_t *out_rows)
{
    int64_t rows;
    TRY(pack_rows(items, n, p->token_budget, p->patch_budget, &p->scratch, row_of, &rows));
    TRY(pack_level(items, n, p->token_budget, p->patch_budget, &p->scratch, row_of, rows));
    *out_rows = rows;
    return ST_OK;
}

status plan_pack_classes(plan *p, const pack_item *items, const int64_t *units, int64_t n,
                         int64_t *row_of, int64_t *out_rows)
{
    arena *a = &p->scratch;
    int64_t *member, *mine, n_mixed = 0, rows = 0, mixed_rows;
    pack_item *some;
    TRY(arena_calloc(a, (size_t)n + 1, sizeof *member, (void **)&member));
    TRY(arena_calloc(a, (size_t)n + 1, sizeof *mine, (void **)&mine));
    for (int64_t i = 0; i < n; i++)
        row_of[i] = -1;
    for (int k = 0; k < RESOLUTION_CLASSES; k++) {
        int64_t of_class = 0, tokens = 0;
        for (int64_t i = 0; i < n; i++) {
            if (p->units[units[i]].class != k)
                continue;
            member[of_class++] = i;
            tokens += items[i].tokens;
        }
        const arena_mark mark = arena_save(a);
        status st = ST_OK;
        if (tokens >= ENOUGH * p->token_budget)
            st = keep_full(p, items, member, of_class, a, row_of, &rows);
        arena_release(a, mark);
        TRY(st);
    }
    for (int64_t i = 0; i < n; i++)
        if (row_of[i] < 0)
            member[n_mixed++] = i;
    TRY(take_members(items, member, n_mixed, a, &some));
    TRY(plan_pack_mixed(p, some, n_mixed, mine, &mixed_rows));
    for (int64_t k = 0; k < n_mixed; k++)
        row_of[member[k]] = rows + mine[k];
    *out_rows = rows + mixed_rows;
    return ST_OK;
}
