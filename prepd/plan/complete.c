/* complete.c: packs rows one at a time and ends each with the items that fill it best.
 *
 * Best fit decreasing leaves the small items to the last rows, where a whole number of them wastes
 * up to one item per row. Here a row is filled in the order given, so that what remains keeps its
 * mix of lengths, until two or three average items are missing. Those are searched for: one of the
 * next few items, and the pair of lengths that brings the sum nearest to the budget. */
#include <stdbool.h>

#include "prepd/plan/lists.h"

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

static int64_t key_of(const filling *f, int64_t tokens)
{
    return f->token_budget - tokens;
}

static void place_item(filling *f, int64_t item)
{
    /* Items are always taken from the head of their list, which holds them in the order given. */
    lists_remove(&f->left, key_of(f, f->items[item].tokens), -1, item);
    f->placed[item] = true;
    f->row_of[item] = f->row;
    f->room -= f->items[item].tokens;
    f->patch_room -= f->items[item].patches;
}

/* The first item from `item` on that is not placed; n if there is none. */
static int64_t following(const filling *f, int64_t item)
{
    while (item < f->count && f->placed[item])
        item++;
    return item;
}

/* The longest item that fits into the room, among the heads of the lists; -1 if none does. */
static int64_t longest_fit(const filling *f, int64_t room, int64_t patch_room)
{
    if (room < 1)
        return -1;
    for (int64_t key = lists_next(&f->left, key_of(f, room)); key >= 0;
         key = lists_next(&f->left, key + 1))
        if (f->items[f->left.head[key]].patches <= patch_room)
            return f->left.head[key];
    return -1;
}

typedef struct choice {
    int64_t item[3]; /* -1 = none */
    int64_t tokens;
} choice;

/* Finds the one or two items that fill the row best together with `first` (-1 for none), which
 * takes what is in `used`, and keeps them in *best if they are better. */
static void try_pairs(const filling *f, int64_t first, pack_item used, choice *best)
{
    int64_t room = f->room - used.tokens, patch_room = f->patch_room - used.patches;
    if (room < 0 || patch_room < 0)
        return;
    if (used.tokens > best->tokens)
        *best = (choice){{first, -1, -1}, used.tokens};
    if (room == 0)
        return;
    /* Item b is the longer of the two, so it need not be tried below half the room. */
    for (int64_t key = lists_next(&f->left, key_of(f, room)); key >= 0 && best->tokens < f->room;
         key = lists_next(&f->left, key + 1)) {
        int64_t b = f->left.head[key];
        if (b == first)
            b = f->left.next[b];
        if (b < 0 || f->items[b].patches > patch_room)
            continue;
        int64_t tokens = used.tokens + f->items[b].tokens;
        if (tokens > best->tokens)
            *best = (choice){{first, b, -1}, tokens};
        int64_t rest = room - f->items[b].tokens;
        if (rest > f->items[b].tokens)
            rest = f->items[b].tokens;
        int64_t c = longest_fit(f, rest, patch_room - f->items[b].patches);
        while (c >= 0 && (c == first || c == b))
            c = f->left.next[c];
        if (c >= 0 && f->items[c].patches <= patch_room - f->items[b].patches &&
            tokens + f->items[c].tokens > best->tokens)
            *best = (choice){{first, b, c}, tokens + f->items[c].tokens};
        if (2 * f->items[b].tokens < room)
            break;
    }
}

/* Adds the one, two or three items that fill the row best. False if none fits. */
static bool complete_row(filling *f)
{
    choice best = {{-1, -1, -1}, 0};
    int64_t item = f->next;
    int64_t seen_tokens = -1;
    try_pairs(f, -1, (pack_item){0, 0}, &best);
    for (int k = 0; k < FIRST_TRIES && best.tokens < f->room; k++) {
        item = following(f, item);
        if (item == f->count)
            break;
        /* The item tried is the head of its list, the first in order of that length. */
        int64_t head = f->left.head[key_of(f, f->items[item].tokens)];
        if (f->items[head].tokens != seen_tokens)
            try_pairs(f, head, f->items[head], &best);
        seen_tokens = f->items[head].tokens;
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
            place_item(f, best.item[k]);
    return true;
}

status pack_complete(const pack_item *items, int64_t n, int64_t token_budget, int64_t patch_budget,
                     arena *a, int64_t *row_of, int64_t *out_rows)
{
    filling f = {.items = items, .count = n, .token_budget = token_budget, .row_of = row_of};
    TRY(lists_init(&f.left, token_budget + 1, n, a));
    TRY(arena_calloc(a, (size_t)n + 1, sizeof *f.placed, (void **)&f.placed));
    for (int64_t i = n - 1; i >= 0; i--) { /* backwards, since the last one added is the head */
        lists_add(&f.left, key_of(&f, items[i].tokens), i);
        f.mean += items[i].tokens;
    }
    f.mean /= n > 0 ? n : 1;
    for (f.row = 0; (f.next = following(&f, f.next)) < n; f.row++) {
        f.room = token_budget;
        f.patch_room = patch_budget;
        while ((f.next = following(&f, f.next)) < n &&
               f.room - items[f.next].tokens >= 2 * f.mean && items[f.next].patches <= f.patch_room)
            place_item(&f, f.next);
        while (f.room > 0 && complete_row(&f))
            f.next = following(&f, f.next);
    }
    *out_rows = f.row;
    return ST_OK;
}
