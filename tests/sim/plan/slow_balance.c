/* SPDX-License-Identifier: Apache-2.0 */
/* slow_balance.c: cheap and dear rows share out some of their units anew until their predicted
 * costs are alike (prepd/plan/packing.md, "Levelling"). */
#include <string.h>

#include "tests/sim/plan/slow_parts.h"

enum { PASSES = 24, QUICK_PASSES = 6, TAKE_PART = 6, ALIKE = 400, ENOUGH = 1000, PARTNERS = 32 };

typedef struct balancing {
    slow_items *of;
    int64_t *cost; /* [items] */
    int64_t budget, patch_budget;
    int pass;
} balancing;

typedef struct held {
    int64_t cost, tokens, patches;
} held;

typedef struct ranked {
    int64_t row, cost;
} ranked;

int64_t slow_unit_squares(const slow_unit *unit)
{
    int64_t squares = 0;
    for (int64_t i = 0; i < unit->n_docs; i++) {
        const int64_t tokens = unit->docs[i].tokens,
                      before = unit->docs[i].part < 0 ? 0 : unit->prefix;
        squares += tokens * (tokens + 2 * before);
    }
    return squares;
}

static held held_by(const balancing *all, int64_t row)
{
    held sum = {0, 0, 0};
    for (int64_t i = 0; i < all->of->count; i++)
        if (all->of->row[i] == row) {
            sum.cost += all->cost[i];
            sum.tokens += all->of->unit[i]->tokens;
            sum.patches += all->of->unit[i]->patches;
        }
    return sum;
}

/* Adds the units of a row that take part in a meeting: others in each pass. */
static int take_part(const balancing *all, int64_t row, int64_t *out)
{
    int64_t *member = slow_memory(all->of->count, sizeof *member), count = 0;
    const int64_t most = all->pass < QUICK_PASSES ? TAKE_PART - 2 : TAKE_PART;
    for (int64_t i = 0; i < all->of->count; i++)
        if (all->of->row[i] == row)
            member[count++] = i;
    for (int64_t k = 0; k < most && k < count; k++)
        out[k] = member[(k + all->pass * most) % count];
    free(member);
    return (int)slow_least(most, count);
}

/* Tries every way to share out the units, in the order of a Gray code, so that each differs by one
 * unit from the one before it, and returns the best: a bit for each unit that the dear row gets. */
static uint32_t best_share(const balancing *all, const int64_t *item, int count, uint32_t now,
                           held cheap, held dear)
{
    const int64_t enough = dear.cost / ENOUGH;
    int64_t least = dear.cost - cheap.cost;
    uint32_t best = now;
    for (uint32_t k = 1; k < 1u << count && least > enough; k++) {
        const int bit = __builtin_ctz(k);
        const int to_dear = (now ^ k ^ k >> 1) >> bit & 1 ? 1 : -1;
        const slow_unit *moved = all->of->unit[item[bit]];
        dear.cost += to_dear * all->cost[item[bit]];
        cheap.cost -= to_dear * all->cost[item[bit]];
        dear.tokens += to_dear * moved->tokens;
        cheap.tokens -= to_dear * moved->tokens;
        dear.patches += to_dear * moved->patches;
        cheap.patches -= to_dear * moved->patches;
        if (llabs(dear.cost - cheap.cost) >= least || dear.tokens > all->budget ||
            cheap.tokens > all->budget || dear.patches > all->patch_budget ||
            cheap.patches > all->patch_budget)
            continue;
        least = llabs(dear.cost - cheap.cost);
        best = now ^ k ^ k >> 1;
    }
    return best;
}

static bool meet(balancing *all, int64_t cheap, int64_t dear)
{
    int64_t item[2 * TAKE_PART];
    const int first = take_part(all, cheap, item),
              count = first + take_part(all, dear, item + first);
    const uint32_t now = ((1u << count) - 1) ^ ((1u << first) - 1),
                   best =
                       best_share(all, item, count, now, held_by(all, cheap), held_by(all, dear));
    for (int i = 0; i < count; i++)
        all->of->row[item[i]] = best >> i & 1 ? dear : cheap;
    return best != now;
}

/* Rows from the cheapest on. */
static void rank_rows(const balancing *all, ranked *out)
{
    for (int64_t i = 0; i < all->of->rows; i++) {
        const int64_t cost = held_by(all, i).cost;
        int64_t at = i;
        for (; at > 0 && out[at - 1].cost > cost; at--)
            out[at] = out[at - 1];
        out[at] = (ranked){i, cost};
    }
}

static bool unlike(ranked cheap, ranked dear)
{
    return ALIKE * (dear.cost - cheap.cost) >= dear.cost;
}

/* How many cheap rows meet as many dear ones: as far as there are rows unlike their opposite. */
static int64_t count_pairs(const ranked *rank, int64_t rows)
{
    int64_t pairs = 0, differ = 0;
    for (; pairs < rows / 2; pairs++) {
        differ += unlike(rank[pairs], rank[rows - 1 - pairs]);
        if (differ <= pairs && pairs >= PARTNERS)
            break;
    }
    return differ > 0 ? pairs : 0;
}

static bool balance(balancing *all, ranked *rank)
{
    const int64_t rows = all->of->rows;
    bool any = false;
    rank_rows(all, rank);
    const int64_t pairs = count_pairs(rank, rows);
    for (int64_t k = 0; k < pairs; k++) {
        const ranked dear = rank[rows - 1 - (k + all->pass) % pairs];
        if (unlike(rank[k], dear))
            any |= meet(all, rank[k].row, dear.row);
    }
    return any;
}

void slow_balance(slow_items *inout, int64_t budget, int64_t patch_budget)
{
    balancing all = {.of = inout, .budget = budget, .patch_budget = patch_budget};
    ranked *rank = slow_memory(inout->rows, sizeof *rank);
    int idle = 0;
    all.cost = slow_memory(inout->count, sizeof *all.cost);
    for (int64_t i = 0; i < inout->count; i++)
        all.cost[i] = slow_cost(inout->unit[i]->tokens, inout->unit[i]->patches,
                                slow_unit_squares(inout->unit[i]));
    for (; all.pass < PASSES && idle < 2; all.pass++)
        idle = balance(&all, rank) ? 0 : idle + 1;
    free(all.cost);
    free(rank);
}
