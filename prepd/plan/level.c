/* SPDX-License-Identifier: Apache-2.0 */
/* level.c: makes the rows of a window similar in their number of tokens.
 *
 * Packing leaves in the window's last row whatever fills no other row. A step takes rows in stream
 * order, and in the step of that last row every other rank still has a full row to compute: with
 * one row for each of eight ranks, the mean is then up to an eighth below the longest. So rows far
 * below the mean take units from the fullest rows, one from each. A unit is moved as a whole while
 * the giver stays the fuller of the two; otherwise it is exchanged for a shorter unit, such that
 * both rows come nearest to their middle. No row is added, so the fill stays as packing made it.
 *
 * Rows are levelled by tokens and not by predicted time. Texts and pictures meet in a row by
 * chance, and a row that took from the most expensive ones would end up made of pictures. */
#include <stdbool.h>
#include <stdlib.h>

#include "prepd/plan/pack.h"

enum {
    LOW = 64,      /* a row takes units while it is below the mean by more than a 64th */
    PASSES = 16,   /* at most; VQAv2 needs three or four */
    EXAMINED = 64, /* items of a row that are tried for an exchange; the rest are like these */
};

typedef struct levelling {
    const pack_item *items;
    pack_item most;  /* the budgets of a row */
    pack_item *sum;  /* [rows] what each row holds */
    int64_t *head;   /* [rows] the first item in the row's linked list; -1 if it is empty */
    int64_t *next;   /* [items] the item after it in the same row; -1 at the end */
    int64_t *row_of; /* [items] */
    int64_t enough;  /* a row with so many tokens takes no more */
} levelling;

typedef struct filled {
    int64_t tokens, row;
} filled;

static int emptier_first(const void *left, const void *right)
{
    const filled *first = (const filled *)left, *second = (const filled *)right;
    if (first->tokens != second->tokens)
        return first->tokens < second->tokens ? -1 : 1;
    return first->row < second->row ? -1 : first->row > second->row;
}

static void give_item(levelling *level, int64_t item, int64_t to)
{
    const int64_t from = level->row_of[item];
    const pack_item *moved = &level->items[item];
    int64_t *at = &level->head[from];
    while (*at != item)
        at = &level->next[*at];
    *at = level->next[item];
    level->next[item] = level->head[to];
    level->head[to] = item;
    level->row_of[item] = to;
    level->sum[from].tokens -= moved->tokens;
    level->sum[to].tokens += moved->tokens;
    level->sum[from].patches -= moved->patches;
    level->sum[to].patches += moved->patches;
}

/* Whether the row stays within its budgets with `more` in the place of `less`. */
static bool has_capacity(const levelling *level, int64_t row, pack_item more, pack_item less)
{
    return level->sum[row].tokens + more.tokens - less.tokens <= level->most.tokens &&
           level->sum[row].patches + more.patches - less.patches <= level->most.patches;
}

/* Moves to `low` the first item of `full` that leaves `full` the fuller row. False if there is
 * none. */
static bool move_item(levelling *level, int64_t low, int64_t full)
{
    const int64_t gap = level->sum[full].tokens - level->sum[low].tokens;
    for (int64_t i = level->head[full]; i >= 0; i = level->next[i]) {
        if (2 * level->items[i].tokens > gap ||
            !has_capacity(level, low, level->items[i], (pack_item){0, 0}))
            continue;
        give_item(level, i, low);
        return true;
    }
    return false;
}

/* Exchanges the two items that bring both rows nearest to their middle. False if no exchange brings
 * them nearer. */
static bool swap_items(levelling *level, int64_t low, int64_t full)
{
    const int64_t gap = level->sum[full].tokens - level->sum[low].tokens;
    int64_t best[2] = {-1, -1}, best_off = gap;
    int count = 0;
    for (int64_t i = level->head[full]; i >= 0 && count < EXAMINED; i = level->next[i], count++) {
        int tried = 0;
        for (int64_t j = level->head[low]; j >= 0 && tried < EXAMINED;
             j = level->next[j], tried++) {
            const pack_item first = level->items[i], second = level->items[j];
            const int64_t off = llabs(gap - 2 * (first.tokens - second.tokens));
            if (off < best_off && has_capacity(level, low, first, second) &&
                has_capacity(level, full, second, first)) {
                best[0] = i;
                best[1] = j;
                best_off = off;
            }
        }
    }
    if (best[0] < 0)
        return false;
    give_item(level, best[0], low);
    give_item(level, best[1], full);
    return true;
}

/* One pass: every low row, from the emptiest on, takes from the fullest rows that have not given
 * yet. False if no row could take anything. */
static bool level_once(levelling *level, filled *rank, int64_t rows)
{
    bool any = false;
    for (int64_t row = 0; row < rows; row++)
        rank[row] = (filled){level->sum[row].tokens, row};
    qsort(rank, (size_t)rows, sizeof *rank, emptier_first);
    int64_t giver = rows - 1;
    for (int64_t k = 0; k < giver; k++) {
        const int64_t low = rank[k].row;
        while (level->sum[low].tokens < level->enough && k < giver) {
            const int64_t full = rank[giver].row;
            const bool done = move_item(level, low, full) || swap_items(level, low, full);
            any = any || done;
            /* A row gives again while it is still the fullest. */
            if (!done || level->sum[full].tokens <= rank[giver - 1].tokens)
                giver--;
        }
    }
    return any;
}

status pack_level(const pack_item *items, int64_t count, int64_t token_budget, int64_t patch_budget,
                  arena *scratch, int64_t *row_of, int64_t rows)
{
    const arena_mark mark = arena_save(scratch);
    levelling level = {.items = items, .most = {token_budget, patch_budget}, .row_of = row_of};
    filled *rank;
    int64_t tokens = 0;
    status st = ST_OK;
    TRY_OR(done, arena_calloc(scratch, (size_t)rows + 1, sizeof *level.sum, (void **)&level.sum));
    TRY_OR(done, arena_calloc(scratch, (size_t)rows + 1, sizeof *level.head, (void **)&level.head));
    TRY_OR(done,
           arena_calloc(scratch, (size_t)count + 1, sizeof *level.next, (void **)&level.next));
    TRY_OR(done, arena_calloc(scratch, (size_t)rows + 1, sizeof *rank, (void **)&rank));
    for (int64_t row_number = 0; row_number < rows; row_number++)
        level.head[row_number] = -1;
    for (int64_t i = count - 1; i >= 0;
         i--) { /* backwards, so that each list is in the items' order */
        const int64_t its_number = row_of[i];
        level.next[i] = level.head[its_number];
        level.head[its_number] = i;
        level.sum[its_number].tokens += items[i].tokens;
        level.sum[its_number].patches += items[i].patches;
        tokens += items[i].tokens;
    }
    level.enough = rows ? tokens / rows - tokens / rows / LOW : 0;
    for (int k = 0; k < PASSES && level_once(&level, rank, rows); k++)
        ;
done:
    arena_release(scratch, mark);
    return st;
}
