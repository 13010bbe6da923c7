/* SPDX-License-Identifier: Apache-2.0 */
/* slow_level.c: rows with far fewer tokens than the mean take documents from the fullest rows
 * (prepd/plan/packing.md, "Levelling"). */
#include <string.h>

#include "tests/sim/plan/slow_parts.h"

enum { PASSES = 16, EXAMINED = 64 };

typedef struct bin {
    int64_t *item; /* [count] those that came last are first */
    int64_t count, tokens, patches;
} bin;

typedef struct levelling {
    slow_items *of;
    bin *row;
    int64_t budget, patch_budget;
} levelling;

static void add(levelling *all, int64_t number, int64_t to, bool first)
{
    bin *row = &all->row[to];
    if (first)
        memmove(row->item + 1, row->item, (size_t)row->count * sizeof *row->item);
    row->item[first ? 0 : row->count] = number;
    row->count++;
    row->tokens += all->of->unit[number]->tokens;
    row->patches += all->of->unit[number]->patches;
    all->of->row[number] = to;
}

static void move(levelling *all, int64_t number, int64_t to)
{
    bin *row = &all->row[all->of->row[number]];
    int64_t at = 0;
    while (row->item[at] != number)
        at++;
    row->count--;
    memmove(row->item + at, row->item + at + 1, (size_t)(row->count - at) * sizeof *row->item);
    row->tokens -= all->of->unit[number]->tokens;
    row->patches -= all->of->unit[number]->patches;
    add(all, number, to, true);
}

/* Whether the row holds `more` in the place of `less` (NULL: of none). */
static bool holds(const levelling *all, const bin *row, const slow_unit *more,
                  const slow_unit *less)
{
    return row->tokens + more->tokens - (less ? less->tokens : 0) <= all->budget &&
           row->patches + more->patches - (less ? less->patches : 0) <= all->patch_budget;
}

static bool give_one(levelling *all, int64_t low, int64_t full)
{
    const bin *from = &all->row[full], *to = &all->row[low];
    for (int64_t i = 0; i < from->count; i++) {
        const slow_unit *unit = all->of->unit[from->item[i]];
        if (2 * unit->tokens <= from->tokens - to->tokens && holds(all, to, unit, NULL)) {
            move(all, from->item[i], low);
            return true;
        }
    }
    return false;
}

/* Exchanges the pair that brings the two rows nearest to each other. */
static bool exchange(levelling *all, int64_t low, int64_t full)
{
    const bin *from = &all->row[full], *to = &all->row[low];
    const int64_t gap = from->tokens - to->tokens;
    int64_t least = gap, gives = -1, takes = -1;
    for (int64_t i = 0; i < from->count && i < EXAMINED; i++)
        for (int64_t j = 0; j < to->count && j < EXAMINED; j++) {
            const slow_unit *one = all->of->unit[from->item[i]],
                            *other = all->of->unit[to->item[j]];
            const int64_t off = llabs(gap - 2 * (one->tokens - other->tokens));
            if (off >= least || !holds(all, to, one, other) || !holds(all, from, other, one))
                continue;
            least = off;
            gives = from->item[i];
            takes = to->item[j];
        }
    if (gives < 0)
        return false;
    move(all, gives, low);
    move(all, takes, full);
    return true;
}

typedef struct ranked {
    int64_t row, tokens;
} ranked;

/* Rows from the one with the fewest tokens on. */
static void rank_rows(const levelling *all, ranked *out)
{
    for (int64_t i = 0; i < all->of->rows; i++) {
        int64_t at = i;
        for (; at > 0 && out[at - 1].tokens > all->row[i].tokens; at--)
            out[at] = out[at - 1];
        out[at] = (ranked){i, all->row[i].tokens};
    }
}

static bool pass(levelling *all, int64_t enough, ranked *rank)
{
    bool any = false;
    rank_rows(all, rank);
    int64_t giver = all->of->rows - 1;
    for (int64_t k = 0; k < giver; k++)
        while (k < giver && all->row[rank[k].row].tokens < enough) {
            const int64_t low = rank[k].row, full = rank[giver].row;
            const bool done = give_one(all, low, full) || exchange(all, low, full);
            any |= done;
            if (!done || all->row[full].tokens <= rank[giver - 1].tokens)
                giver--;
        }
    return any;
}

void slow_level(slow_items *inout, int64_t budget, int64_t patch_budget)
{
    levelling all = {inout, slow_memory(inout->rows, sizeof *all.row), budget, patch_budget};
    ranked *rank = slow_memory(inout->rows, sizeof *rank);
    int64_t mean = 0;
    for (int64_t i = 0; i < inout->rows; i++)
        all.row[i].item = slow_memory(inout->count, sizeof *all.row[i].item);
    for (int64_t i = 0; i < inout->count; i++) {
        add(&all, i, inout->row[i], false);
        mean += inout->unit[i]->tokens;
    }
    mean /= inout->rows > 0 ? inout->rows : 1;
    for (int k = 0; k < PASSES && pass(&all, mean - mean / 64, rank); k++)
        ;
    for (int64_t i = 0; i < inout->rows; i++)
        free(all.row[i].item);
    free(all.row);
    free(rank);
}
