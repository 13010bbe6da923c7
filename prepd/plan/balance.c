/* SPDX-License-Identifier: Apache-2.0 */
/* balance.c: makes the rows of a window alike in predicted cost.
 *
 * Rows of questions on one picture are equally long and yet unlike: a row of few pictures with many
 * questions each has few patches, and a row of many pictures has many. A step waits for its
 * dearest row, so rows exchange units until their costs are alike. In each pass the cheapest row
 * meets the dearest one, the second cheapest the second dearest, and so on. Of all ways to share
 * out a few units of both that keep both rows within their budgets, the pair takes the one that
 * brings their costs nearest to each other. No row is added or emptied, and the tokens of the two
 * stay the same together, so the fill stays as packing made it.
 *
 * A unit that nearly fills a row leaves nothing to exchange, which is why large ones are split
 * beforehand (units.c). */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/plan/pack.h"

enum {
    PASSES = 24, /* at most; after ten all but a few rows are alike */
    /* In the first passes two fewer units of each row take part, which is enough for most rows. */
    QUICK_PASSES = 6,
    ALIKE = 400,   /* a pair whose costs differ by less than a 400th of one is left as it is */
    ENOUGH = 1000, /* what is found first is taken if it differs by less than a 1000th */
    OF_A_ROW = 6,  /* units of a row that take part in one meeting, so that there are at most 2^12
                      ways to share them out */
    PARTNERS = 32, /* at least so many cheap and dear rows meet in turn, even if fewer are unlike */
};

typedef struct balancing {
    const pack_item *items;
    const int64_t *cost; /* [items] */
    pack_item most;      /* the budgets of a row */
    int64_t *row_cost;   /* [rows] */
    pack_item *sum;      /* [rows] what each row holds */
    int64_t *first;      /* [rows + 1] where each row's items begin in `member` */
    int64_t *member;     /* [items] the items, sorted by row */
    int64_t *row_of;     /* [items] */
    int64_t rows, count;
    int pass;
} balancing;

typedef struct costed_row {
    int64_t cost, row;
} costed_row;

/* What a meeting is about: the units that may change sides. A set bit means the dear row. */
typedef struct meeting {
    int64_t item[2 * OF_A_ROW];
    int n_items, n_cheap; /* the cheap row's come first */
    int64_t enough;       /* a gap between their costs that needs no better one */
    pack_item dear, both; /* what the dear row holds, and both rows together */
} meeting;

static int cheaper_first(const void *left, const void *right)
{
    const costed_row *first = (const costed_row *)left, *second = (const costed_row *)right;
    if (first->cost != second->cost)
        return first->cost < second->cost ? -1 : 1;
    return first->row < second->row ? -1 : first->row > second->row;
}

/* Sorts the items by row, and adds up what each row holds and costs. */
static void list_members(balancing *state)
{
    memset(state->first, 0, ((size_t)state->rows + 1) * sizeof *state->first);
    memset(state->row_cost, 0, (size_t)state->rows * sizeof *state->row_cost);
    memset(state->sum, 0, (size_t)state->rows * sizeof *state->sum);
    for (int64_t i = 0; i < state->count; i++) {
        const int64_t row = state->row_of[i];
        state->first[row]++;
        state->row_cost[row] += state->cost[i];
        state->sum[row].tokens += state->items[i].tokens;
        state->sum[row].patches += state->items[i].patches;
    }
    for (int64_t row = 0, next = 0; row <= state->rows; row++) {
        next += state->first[row];
        state->first[row] = next;
    }
    /* Backwards, so that each row's items are in their order and `first` ends at their begin. */
    for (int64_t i = state->count - 1; i >= 0; i--)
        state->member[--state->first[state->row_of[i]]] = i;
}

/* Takes some units of a row into the meeting: other ones in every pass, where it has many. */
static void take_units(const balancing *state, int64_t row, meeting *met)
{
    const int64_t from = state->first[row], units = state->first[row + 1] - from;
    const int64_t most = state->pass < QUICK_PASSES ? OF_A_ROW - 2 : OF_A_ROW;
    const int64_t some = units < most ? units : most;
    for (int64_t k = 0; k < some; k++)
        met->item[met->n_items++] = state->member[from + (k + state->pass * most) % units];
}

static bool within(const balancing *state, const meeting *met, pack_item dear)
{
    return dear.tokens <= state->most.tokens && dear.patches <= state->most.patches &&
           met->both.tokens - dear.tokens <= state->most.tokens &&
           met->both.patches - dear.patches <= state->most.patches;
}

/* Tries all ways to share out the meeting's units and returns the best as bits. They are tried in
 * the order of a Gray code, in which one unit at a time changes sides. `gap` is what the dear row
 * costs more than the cheap one. */
static uint32_t share_out(const balancing *state, const meeting *met, int64_t gap)
{
    const uint32_t now = ((1U << met->n_items) - 1) & ~((1U << met->n_cheap) - 1);
    uint32_t tried = now, best = now;
    int64_t best_gap = gap;
    pack_item dear = met->dear;
    for (uint32_t k = 1; k < 1U << met->n_items && best_gap > met->enough; k++) {
        const int which = __builtin_ctz(k);
        const int64_t item = met->item[which];
        tried ^= 1U << which;
        const int64_t sign = tried >> which & 1 ? 1 : -1;
        dear.tokens += sign * state->items[item].tokens;
        dear.patches += sign * state->items[item].patches;
        gap += 2 * sign * state->cost[item];
        if (llabs(gap) < best_gap && within(state, met, dear)) {
            best_gap = llabs(gap);
            best = tried;
        }
    }
    return best;
}

/* Lets two rows exchange units. False if they stay as they are. */
static bool meet_rows(balancing *state, int64_t cheap, int64_t dear)
{
    const int64_t gap = state->row_cost[dear] - state->row_cost[cheap];
    meeting met = {.enough = state->row_cost[dear] / ENOUGH,
                   .dear = state->sum[dear],
                   .both = {state->sum[dear].tokens + state->sum[cheap].tokens,
                            state->sum[dear].patches + state->sum[cheap].patches}};
    take_units(state, cheap, &met);
    met.n_cheap = met.n_items;
    take_units(state, dear, &met);
    const uint32_t best = share_out(state, &met, gap);
    bool any = false;
    for (int k = 0; k < met.n_items; k++) {
        const int64_t to = best >> k & 1 ? dear : cheap;
        any = any || state->row_of[met.item[k]] != to;
        state->row_of[met.item[k]] = to;
    }
    return any;
}

/* One pass over all pairs. False if nothing changed. */
static bool balance_once(balancing *state, costed_row *rank)
{
    bool any = false;
    list_members(state);
    for (int64_t row = 0; row < state->rows; row++)
        rank[row] = (costed_row){state->row_cost[row], row};
    qsort(rank, (size_t)state->rows, sizeof *rank, cheaper_first);
    int64_t pairs = 0, unlike = 0;
    for (; pairs < state->rows / 2; pairs++) {
        const int64_t dear = rank[state->rows - 1 - pairs].cost;
        unlike += (dear - rank[pairs].cost) * ALIKE >= dear;
        if (unlike <= pairs && pairs >= PARTNERS)
            break;
    }
    if (unlike == 0)
        return false;
    for (int64_t k = 0; k < pairs; k++) {
        const costed_row *cheap = &rank[k],
                         *dear = &rank[state->rows - 1 - (k + state->pass) % pairs];
        if ((dear->cost - cheap->cost) * ALIKE >= dear->cost)
            any = meet_rows(state, cheap->row, dear->row) || any;
    }
    return any;
}

status pack_balance(const pack_item *items, const int64_t *cost, int64_t count, pack_item most,
                    arena *scratch, int64_t *row_of, int64_t rows)
{
    const arena_mark mark = arena_save(scratch);
    balancing state = {
        .items = items, .cost = cost, .most = most, .row_of = row_of, .rows = rows, .count = count};
    costed_row *rank;
    int idle = 0;
    status st = ST_OK;
    TRY_OR(done, arena_calloc(scratch, (size_t)rows + 1, sizeof *state.row_cost,
                              (void **)&state.row_cost));
    TRY_OR(done, arena_calloc(scratch, (size_t)rows + 1, sizeof *state.sum, (void **)&state.sum));
    TRY_OR(done,
           arena_calloc(scratch, (size_t)rows + 1, sizeof *state.first, (void **)&state.first));
    TRY_OR(done,
           arena_calloc(scratch, (size_t)count + 1, sizeof *state.member, (void **)&state.member));
    TRY_OR(done, arena_calloc(scratch, (size_t)rows + 1, sizeof *rank, (void **)&rank));
    for (state.pass = 0; state.pass < PASSES && idle < 2; state.pass++)
        idle = balance_once(&state, rank) ? 0 : idle + 1;
done:
    arena_release(scratch, mark);
    return st;
}
