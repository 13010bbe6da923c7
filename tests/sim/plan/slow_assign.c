/* SPDX-License-Identifier: Apache-2.0 */
/* slow_assign.c: what a row costs, and which rank of a step gets it (proto/row/assign.h): from the
 * dearest row on, each goes to the rank with the least load that has room; then the dearest rank
 * exchanges one row after the other. */
#include "tests/sim/plan/slow_parts.h"

int64_t slow_cost(int64_t tokens, int64_t patches, int64_t squares)
{
    return 18250 * tokens + 2900 * patches + 118 * squares / 100;
}

static int64_t load_of(const int64_t *cost, int64_t n_rows, const int *rank_of, int rank)
{
    int64_t load = 0;
    for (int64_t i = 0; i < n_rows; i++)
        load += rank_of[i] == rank ? cost[i] : 0;
    return load;
}

/* The dearest row that no rank has; the lower of two that cost the same. */
static int64_t dearest_left(const int64_t *cost, int64_t n_rows, const int *rank_of)
{
    int64_t dearest = -1;
    for (int64_t i = 0; i < n_rows; i++)
        if (rank_of[i] < 0 && (dearest < 0 || cost[i] > cost[dearest]))
            dearest = i;
    return dearest;
}

static void deal(const int64_t *cost, int64_t n_rows, int ranks, int *rank_of)
{
    int64_t *load = slow_memory(ranks, sizeof *load), *has = slow_memory(ranks, sizeof *has);
    for (int64_t i = 0; i < n_rows; i++)
        rank_of[i] = -1;
    for (int64_t k = 0; k < n_rows; k++) {
        const int64_t row = dearest_left(cost, n_rows, rank_of);
        int to = -1;
        for (int rank = 0; rank < ranks; rank++)
            if (has[rank] < n_rows / ranks + (rank < n_rows % ranks) &&
                (to < 0 || load[rank] < load[to]))
                to = rank;
        rank_of[row] = to;
        load[to] += cost[row];
        has[to]++;
    }
    free(load);
    free(has);
}

/* Exchanges the pair of rows after which the dearer of the two ranks is cheapest. False if none
 * helps the dearest rank. */
static bool exchange(const int64_t *cost, int64_t n_rows, const int64_t *load, int dearest,
                     int *rank_of)
{
    int64_t least = load[dearest], ours = -1, theirs = -1;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < n_rows && rank_of[i] == dearest; j++) {
            if (rank_of[j] == dearest || cost[j] >= cost[i])
                continue;
            const int64_t one = load[dearest] - cost[i] + cost[j],
                          other = load[rank_of[j]] + cost[i] - cost[j];
            if (one >= least || other >= least)
                continue;
            least = one > other ? one : other;
            ours = i;
            theirs = j;
        }
    if (ours < 0)
        return false;
    rank_of[ours] = rank_of[theirs];
    rank_of[theirs] = dearest;
    return true;
}

void slow_assign(const int64_t *cost, int64_t n_rows, int ranks, int *rank_of)
{
    int64_t *load = slow_memory(ranks, sizeof *load), total = 0;
    deal(cost, n_rows, ranks, rank_of);
    for (int64_t i = 0; i < n_rows; i++)
        total += cost[i];
    for (int64_t k = 0; k < n_rows && n_rows > ranks; k++) {
        int dearest = 0;
        for (int rank = 0; rank < ranks; rank++) {
            load[rank] = load_of(cost, n_rows, rank_of, rank);
            if (load[rank] > load[dearest])
                dearest = rank;
        }
        if (load[dearest] <= total / ranks + total / ranks / 1000 ||
            !exchange(cost, n_rows, load, dearest, rank_of))
            break;
    }
    free(load);
}
