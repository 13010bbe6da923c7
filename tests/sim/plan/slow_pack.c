/* SPDX-License-Identifier: Apache-2.0 */
/* slow_pack.c: puts items into rows (prepd/plan/packing.md): the better of completion and best fit
 * decreasing, each as a plain search. */
#include <string.h>

#include "tests/sim/plan/slow_parts.h"

enum { FIRST_TRIES = 32 }; /* items that are tried as the first of three */

typedef struct item {
    int64_t tokens, patches;
} item;

typedef struct packing {
    const item *items;
    int64_t count;
    item budget;
    int64_t *row; /* [count] -1: in none yet */
    int64_t rows;
    int64_t *left; /* [n_left] items in no row, from the longest on, in their order if alike */
    int64_t n_left;
    item room; /* of the row that is being filled */
} packing;

static void place(packing *of, int64_t number)
{
    int64_t at = 0;
    while (of->left[at] != number)
        at++;
    memmove(of->left + at, of->left + at + 1, (size_t)(--of->n_left - at) * sizeof *of->left);
    of->row[number] = of->rows;
    of->room.tokens -= of->items[number].tokens;
    of->room.patches -= of->items[number].patches;
}

static int64_t next_left(const packing *of, int64_t from)
{
    while (from < of->count && of->row[from] >= 0)
        from++;
    return from;
}

/* Where in `left` the items of the next length begin. */
static int64_t next_length(const packing *of, int64_t at)
{
    const int64_t tokens = of->items[of->left[at]].tokens;
    while (at < of->n_left && of->items[of->left[at]].tokens == tokens)
        at++;
    return at;
}

/* The item at a place of `left`, or if it is one of these two, the next of its length; -1. */
static int64_t other_than(const packing *of, int64_t at, int64_t one, int64_t two)
{
    const int64_t end = next_length(of, at);
    while (at < end && (of->left[at] == one || of->left[at] == two))
        at++;
    return at < end ? of->left[at] : -1;
}

/* The place of the first item of the greatest length that fits; -1. */
static int64_t longest_fit(const packing *of, item room)
{
    for (int64_t at = 0; at < of->n_left; at = next_length(of, at))
        if (of->items[of->left[at]].tokens <= room.tokens &&
            of->items[of->left[at]].patches <= room.patches)
            return at;
    return -1;
}

typedef struct choice {
    int64_t one, two, three; /* -1: none */
    int64_t tokens;
} choice;

static void keep_better(choice *best, choice tried)
{
    if (tried.tokens > best->tokens)
        *best = tried;
}

/* Tries item `one` (-1: none) with one or two others. */
static void try_with(const packing *of, int64_t one, choice *best)
{
    const item used = one < 0 ? (item){0, 0} : of->items[one];
    const item room = {of->room.tokens - used.tokens, of->room.patches - used.patches};
    if (room.tokens < 0 || room.patches < 0)
        return;
    keep_better(best, (choice){one, -1, -1, used.tokens});
    for (int64_t at = 0; at < of->n_left && best->tokens < of->room.tokens;
         at = next_length(of, at)) {
        const int64_t two = other_than(of, at, one, one);
        if (two < 0 || of->items[two].tokens > room.tokens || of->items[two].patches > room.patches)
            continue;
        const item second = of->items[two];
        const item rest = {slow_least(room.tokens - second.tokens, second.tokens),
                           room.patches - second.patches};
        keep_better(best, (choice){one, two, -1, used.tokens + second.tokens});
        const int64_t place = longest_fit(of, rest),
                      three = place < 0 ? -1 : other_than(of, place, one, two);
        if (three >= 0 && of->items[three].patches <= rest.patches)
            keep_better(best, (choice){one, two, three,
                                       used.tokens + second.tokens + of->items[three].tokens});
        if (2 * second.tokens < room.tokens)
            break;
    }
}

/* Adds the up to three items that fill the row best. False if none fits. */
static bool complete(packing *of)
{
    choice best = {-1, -1, -1, 0};
    int64_t at = next_left(of, 0), last = -1;
    try_with(of, -1, &best);
    for (int k = 0; k < FIRST_TRIES && at < of->count && best.tokens < of->room.tokens; k++) {
        int64_t head = 0; /* the first of the same length */
        while (of->items[of->left[head]].tokens != of->items[at].tokens)
            head++;
        if (of->items[at].tokens != last)
            try_with(of, of->left[head], &best);
        last = of->items[at].tokens;
        at = next_left(of, at + 1);
    }
    if (best.one >= 0)
        place(of, best.one);
    if (best.two >= 0)
        place(of, best.two);
    if (best.three >= 0)
        place(of, best.three);
    return best.tokens > 0;
}

static int64_t *sort_by_length(const item *items, int64_t count)
{
    int64_t *sorted = slow_memory(count, sizeof *sorted);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i;
        for (; at > 0 && items[sorted[at - 1]].tokens < items[i].tokens; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = i;
    }
    return sorted;
}

/* Rows one after the other: in the order given until two average items are missing, and then the
 * ones that fill the row best. */
static int64_t by_completion(const item *items, int64_t count, item budget, int64_t *row)
{
    packing of = {.items = items, .count = count, .budget = budget, .row = row, .n_left = count};
    int64_t mean = 0;
    of.left = sort_by_length(items, count);
    for (int64_t i = 0; i < count; i++) {
        row[i] = -1;
        mean += items[i].tokens;
    }
    mean /= count > 0 ? count : 1;
    for (; of.n_left > 0; of.rows++) {
        of.room = budget;
        for (int64_t at = next_left(&of, 0);
             at < count && of.room.tokens - items[at].tokens >= 2 * mean &&
             items[at].patches <= of.room.patches;
             at = next_left(&of, at))
            place(&of, at);
        while (of.room.tokens > 0 && complete(&of))
            ;
    }
    free(of.left);
    return of.rows;
}

/* The heaviest item in no row, by the greater of its shares of the budgets. */
static int64_t heaviest(const item *items, int64_t count, item budget, const int64_t *row)
{
    int64_t found = -1, most = -1;
    for (int64_t i = 0; i < count; i++) {
        const int64_t by_tokens = items[i].tokens * (budget.patches + 1),
                      by_patches = items[i].patches * (budget.tokens + 1),
                      weight = by_tokens > by_patches ? by_tokens : by_patches;
        if (row[i] < 0 && weight > most) {
            most = weight;
            found = i;
        }
    }
    return found;
}

/* From the heaviest on, each item into the row with the least room for it; of several with the same
 * room, into the one that was filled last. */
static int64_t by_best_fit(const item *items, int64_t count, item budget, int64_t *row)
{
    item *room = slow_memory(count, sizeof *room);
    int64_t *filled = slow_memory(count, sizeof *filled), rows = 0;
    for (int64_t i = 0; i < count; i++)
        row[i] = -1;
    for (int64_t k = 0; k < count; k++) {
        const int64_t number = heaviest(items, count, budget, row);
        int64_t to = -1;
        for (int64_t i = 0; i < rows; i++) {
            if (room[i].tokens < items[number].tokens || room[i].patches < items[number].patches)
                continue;
            if (to < 0 || room[i].tokens < room[to].tokens ||
                (room[i].tokens == room[to].tokens && filled[i] > filled[to]))
                to = i;
        }
        if (to < 0) {
            to = rows++;
            room[to] = budget;
        }
        row[number] = to;
        room[to].tokens -= items[number].tokens;
        room[to].patches -= items[number].patches;
        filled[to] = k;
    }
    free(room);
    free(filled);
    return rows;
}

void slow_pack(slow_items *inout, int64_t budget, int64_t patch_budget)
{
    const item most = {budget, patch_budget};
    item *items = slow_memory(inout->count, sizeof *items);
    int64_t *other = slow_memory(inout->count, sizeof *other);
    for (int64_t i = 0; i < inout->count; i++) {
        items[i] = (item){slow_least(inout->unit[i]->tokens, budget), inout->unit[i]->patches};
    }
    inout->rows = by_completion(items, inout->count, most, inout->row);
    const int64_t rows = by_best_fit(items, inout->count, most, other);
    if (rows < inout->rows) {
        inout->rows = rows;
        memcpy(inout->row, other, (size_t)inout->count * sizeof *other);
    }
    free(items);
    free(other);
}
