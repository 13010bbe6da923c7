/* SPDX-License-Identifier: Apache-2.0 */
/* complete.c: packs rows one at a time and ends each with the items that fill it best.
 *
 * Best fit decreasing leaves the small items to the last rows, where a whole number of them wastes
 * up to one item per row. Here a row is filled in the order given, so that what remains keeps its
 * mix of lengths, until two or three average items are missing. Those are searched for: one of the
 * next few items, and the pair of lengths that brings the sum nearest to the budget. */
#include <stdbool.h>

#include "prepd/plan/pack.h"

/* Linked lists by key, and two levels of bits to find the next list that is not empty. */

void lists_add(lists *all, int64_t key, int64_t node)
{
    all->next[node] = all->head[key];
    all->head[key] = node;
    all->bits[key >> 6] |= UINT64_C(1) << (key & 63);
    all->some[key >> 12] |= UINT64_C(1) << (key >> 6 & 63);
}

void lists_remove(lists *all, int64_t key, int64_t before, int64_t node)
{
    if (before >= 0)
        all->next[before] = all->next[node];
    else
        all->head[key] = all->next[node];
    if (all->head[key] >= 0)
        return;
    all->bits[key >> 6] &= ~(UINT64_C(1) << (key & 63));
    if (!all->bits[key >> 6])
        all->some[key >> 12] &= ~(UINT64_C(1) << (key >> 6 & 63));
}

int64_t lists_next(const lists *all, int64_t from)
{
    if (from >= all->n_keys)
        return -1;
    uint64_t word = all->bits[from >> 6] & (~UINT64_C(0) << (from & 63));
    if (word)
        return (from & ~INT64_C(63)) + __builtin_ctzll(word);
    int64_t next_word = (from >> 6) + 1;
    int64_t at = next_word >> 6;
    if (at >= all->n_some)
        return -1;
    uint64_t some = all->some[at] & (~UINT64_C(0) << (next_word & 63));
    while (!some && ++at < all->n_some)
        some = all->some[at];
    if (!some)
        return -1;
    int64_t found = at * 64 + __builtin_ctzll(some);
    return found * 64 + __builtin_ctzll(all->bits[found]);
}

status lists_init(lists *all, int64_t n_keys, int64_t n_nodes, arena *memory)
{
    all->n_keys = n_keys;
    all->n_some = (n_keys >> 12) + 1;
    TRY(arena_calloc(memory, (size_t)n_keys, sizeof *all->head, (void **)&all->head));
    TRY(arena_calloc(memory, (size_t)n_nodes + 1, sizeof *all->next, (void **)&all->next));
    TRY(arena_calloc(memory, (size_t)(n_keys >> 6) + 1, sizeof *all->bits, (void **)&all->bits));
    TRY(arena_calloc(memory, (size_t)all->n_some, sizeof *all->some, (void **)&all->some));
    for (int64_t k = 0; k < n_keys; k++)
        all->head[k] = -1;
    return ST_OK;
}

/* How many of the next items are tried as the first of three. COCO pictures come in about 110
 * lengths, and with those 32 tries nearly always find a sum that fills the row to the token. */
enum { FIRST_TRIES = 32 };

typedef struct filling {
    const pack_item *items;
    int64_t count, token_budget;
    lists left; /* items not placed, by token_budget - tokens, so rising keys are falling lengths */
    bool *placed; /* [count] */
    int64_t next; /* every item before it is placed */
    int64_t mean; /* tokens of an item, on average */
    int64_t *row_of;
    int64_t row, room, patch_room;
} filling;

static int64_t key_of(const filling *fill, int64_t tokens)
{
    return fill->token_budget - tokens;
}

static void place_item(filling *fill, int64_t item)
{
    /* Items are always taken from the head of their list, which holds them in the order given. */
    lists_remove(&fill->left, key_of(fill, fill->items[item].tokens), -1, item);
    fill->placed[item] = true;
    fill->row_of[item] = fill->row;
    fill->room -= fill->items[item].tokens;
    fill->patch_room -= fill->items[item].patches;
}

/* The first item from `item` on that is not placed; n if there is none. */
static int64_t following(const filling *fill, int64_t item)
{
    while (item < fill->count && fill->placed[item])
        item++;
    return item;
}

/* The longest item that fits into the room, among the heads of the lists; -1 if none does. */
static int64_t longest_fit(const filling *fill, int64_t room, int64_t patch_room)
{
    if (room < 1)
        return -1;
    for (int64_t key = lists_next(&fill->left, key_of(fill, room)); key >= 0;
         key = lists_next(&fill->left, key + 1))
        if (fill->items[fill->left.head[key]].patches <= patch_room)
            return fill->left.head[key];
    return -1;
}

typedef struct choice {
    int64_t item[3]; /* -1 = none */
    int64_t tokens;
} choice;

/* Finds the one or two items that fill the row best together with `first` (-1 for none), which
 * takes what is in `used`, and keeps them in *best if they are better. */
static void try_pairs(const filling *fill, int64_t first, pack_item used, choice *best)
{
    int64_t room = fill->room - used.tokens, patch_room = fill->patch_room - used.patches;
    if (room < 0 || patch_room < 0)
        return;
    if (used.tokens > best->tokens)
        *best = (choice){{first, -1, -1}, used.tokens};
    if (room == 0)
        return;
    /* Item `other` is the longer of the two, so it need not be tried below half the room. */
    for (int64_t key = lists_next(&fill->left, key_of(fill, room));
         key >= 0 && best->tokens < fill->room; key = lists_next(&fill->left, key + 1)) {
        int64_t other = fill->left.head[key];
        if (other == first)
            other = fill->left.next[other];
        if (other < 0 || fill->items[other].patches > patch_room)
            continue;
        int64_t tokens = used.tokens + fill->items[other].tokens;
        if (tokens > best->tokens)
            *best = (choice){{first, other, -1}, tokens};
        int64_t rest = room - fill->items[other].tokens;
        if (rest > fill->items[other].tokens)
            rest = fill->items[other].tokens;
        int64_t third = longest_fit(fill, rest, patch_room - fill->items[other].patches);
        while (third >= 0 && (third == first || third == other))
            third = fill->left.next[third];
        if (third >= 0 && fill->items[third].patches <= patch_room - fill->items[other].patches &&
            tokens + fill->items[third].tokens > best->tokens)
            *best = (choice){{first, other, third}, tokens + fill->items[third].tokens};
        if (2 * fill->items[other].tokens < room)
            break;
    }
}

/* Adds the one, two or three items that fill the row best. False if none fits. */
static bool complete_row(filling *fill)
{
    choice best = {{-1, -1, -1}, 0};
    int64_t item = fill->next;
    int64_t seen_tokens = -1;
    try_pairs(fill, -1, (pack_item){0, 0}, &best);
    for (int k = 0; k < FIRST_TRIES && best.tokens < fill->room; k++) {
        item = following(fill, item);
        if (item == fill->count)
            break;
        /* The item tried is the head of its list, the first in order of that length. */
        int64_t head = fill->left.head[key_of(fill, fill->items[item].tokens)];
        if (fill->items[head].tokens != seen_tokens)
            try_pairs(fill, head, fill->items[head], &best);
        seen_tokens = fill->items[head].tokens;
        item++;
    }
    if (best.tokens == 0)
        return false;
    /* Of two items of one list the earlier must leave first, since it is the head (place_item). */
    for (int k = 0; k < 3; k++)
        for (int j = k + 1; j < 3; j++)
            if (best.item[j] >= 0 && best.item[j] < best.item[k]) {
                int64_t swap = best.item[k];
                best.item[k] = best.item[j];
                best.item[j] = swap;
            }
    for (int k = 0; k < 3; k++)
        if (best.item[k] >= 0)
            place_item(fill, best.item[k]);
    return true;
}

status pack_complete(const pack_item *items, int64_t count, int64_t token_budget,
                     int64_t patch_budget, arena *memory, int64_t *row_of, int64_t *out_rows)
{
    filling fill = {.items = items, .count = count, .token_budget = token_budget, .row_of = row_of};
    TRY(lists_init(&fill.left, token_budget + 1, count, memory));
    TRY(arena_calloc(memory, (size_t)count + 1, sizeof *fill.placed, (void **)&fill.placed));
    for (int64_t i = count - 1; i >= 0; i--) { /* backwards, since the last one added is the head */
        lists_add(&fill.left, key_of(&fill, items[i].tokens), i);
        fill.mean += items[i].tokens;
    }
    fill.mean /= count > 0 ? count : 1;
    for (fill.row = 0; (fill.next = following(&fill, fill.next)) < count; fill.row++) {
        fill.room = token_budget;
        fill.patch_room = patch_budget;
        while ((fill.next = following(&fill, fill.next)) < count &&
               fill.room - items[fill.next].tokens >= 2 * fill.mean &&
               items[fill.next].patches <= fill.patch_room)
            place_item(&fill, fill.next);
        while (fill.room > 0 && complete_row(&fill))
            fill.next = following(&fill, fill.next);
    }
    *out_rows = fill.row;
    return ST_OK;
}
