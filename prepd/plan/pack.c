/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c: best fit decreasing, and the choice between it and completion (complete.c).
 *
 * Best fit decreasing takes the items from the largest on and puts each into the fullest open row
 * that still holds it. Open rows lie in lists by the tokens they have room for (pack.h). */
#include "prepd/plan/pack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* An item with its sort key: the larger of its shares of the two budgets. Both shares are
 * multiplied by (token_budget + 1) * (patch_budget + 1), so that they are whole numbers. */
typedef struct ranked {
    int64_t weight, item;
} ranked;

static int heavier_first(const void *left, const void *right)
{
    const ranked *first = (const ranked *)left, *second = (const ranked *)right;
    if (first->weight != second->weight)
        return first->weight > second->weight ? -1 : 1;
    return first->item < second->item ? -1 : first->item > second->item;
}

/* Takes the fullest open row that holds the item out of its list; *out_room is the row's room for
 * tokens. -1 if no open row holds it. */
static int64_t take_row(lists *open, const int64_t *patch_room, pack_item item, int64_t *out_room)
{
    for (int64_t room = lists_next(open, item.tokens); room >= 0;
         room = lists_next(open, room + 1)) {
        int64_t before = -1;
        for (int64_t row = open->head[room]; row >= 0; before = row, row = open->next[row]) {
            if (patch_room[row] < item.patches)
                continue;
            lists_remove(open, room, before, row);
            *out_room = room;
            return row;
        }
    }
    return -1;
}

status pack_best_fit(const pack_item *items, int64_t count, int64_t token_budget,
                     int64_t patch_budget, arena *memory, int64_t *row_of, int64_t *out_rows)
{
    lists open;
    ranked *rank;
    int64_t *patch_room, rows = 0;
    TRY(lists_init(&open, token_budget + 1, count, memory));
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof *rank, (void **)&rank));
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof *patch_room, (void **)&patch_room));
    for (int64_t i = 0; i < count; i++) {
        int64_t by_tokens = items[i].tokens * (patch_budget + 1);
        int64_t by_patches = items[i].patches * (token_budget + 1);
        rank[i] = (ranked){by_tokens > by_patches ? by_tokens : by_patches, i};
    }
    qsort(rank, (size_t)count, sizeof *rank, heavier_first);
    for (int64_t k = 0; k < count; k++) {
        pack_item item = items[rank[k].item];
        int64_t room = token_budget, row = take_row(&open, patch_room, item, &room);
        if (row < 0) {
            row = rows++;
            patch_room[row] = patch_budget;
        }
        row_of[rank[k].item] = row;
        patch_room[row] -= item.patches;
        lists_add(&open, room - item.tokens, row);
    }
    *out_rows = rows;
    return ST_OK;
}

static status check_items(const pack_item *items, int64_t count, int64_t token_budget,
                          int64_t patch_budget)
{
    for (int64_t i = 0; i < count; i++)
        if (items[i].tokens < 1 || items[i].tokens > token_budget || items[i].patches < 0 ||
            items[i].patches > patch_budget)
            return FAIL(ST_INTERNAL,
                        "an item of %" PRId64 " tokens and %" PRId64
                        " patches does not fit rows of %" PRId64 " tokens and %" PRId64 " patches",
                        items[i].tokens, items[i].patches, token_budget, patch_budget);
    return ST_OK;
}

/* A lower bound: no packing has fewer rows than the sums of tokens and of patches fill. */
static int64_t fewest_rows(const pack_item *items, int64_t count, int64_t token_budget,
                           int64_t patch_budget)
{
    int64_t tokens = 0, patches = 0;
    for (int64_t i = 0; i < count; i++) {
        tokens += items[i].tokens;
        patches += items[i].patches;
    }
    int64_t by_tokens = (tokens + token_budget - 1) / token_budget;
    int64_t by_patches = patches ? (patches + patch_budget - 1) / patch_budget : 0;
    return by_tokens > by_patches ? by_tokens : by_patches;
}

status pack_rows(const pack_item *items, int64_t count, int64_t token_budget, int64_t patch_budget,
                 arena *scratch, int64_t *row_of, int64_t *out_rows)
{
    arena_mark mark = arena_save(scratch);
    int64_t *other, rows, other_rows;
    status st;
    TRY(check_items(items, count, token_budget, patch_budget));
    TRY_OR(done, pack_complete(items, count, token_budget, patch_budget, scratch, row_of, &rows));
    if (rows > fewest_rows(items, count, token_budget, patch_budget)) {
        TRY_OR(done, arena_calloc(scratch, (size_t)count + 1, sizeof *other, (void **)&other));
        TRY_OR(done, pack_best_fit(items, count, token_budget, patch_budget, scratch, other,
                                   &other_rows));
        if (other_rows < rows) {
            memcpy(row_of, other, (size_t)count * sizeof *row_of);
            rows = other_rows;
        }
    }
    *out_rows = rows;
done:
    arena_release(scratch, mark);
    return st;
}
