/* SPDX-License-Identifier: Apache-2.0 */
/* assign.c: shares the rows of a step out among the ranks.
 *
 * First every row, from the dearest to the cheapest, goes to the rank with the least load so far
 * (longest processing time first, Graham 1969), as long as that rank has room: all ranks get
 * equally many rows. The last rows therefore have little choice, so afterwards rows of the dearest
 * rank are exchanged for cheaper rows of others while that helps. Ties go to the lower row and the
 * lower rank, so every process computes the same. */
#include "proto/row/assign.h"

#include <stdbool.h>
#include <stdlib.h>

typedef struct costed {
    int64_t cost, row;
} costed;

static int dearer_first(const void *left, const void *right)
{
    const costed *first = (const costed *)left, *second = (const costed *)right;
    if (first->cost != second->cost)
        return first->cost > second->cost ? -1 : 1;
    return first->row < second->row ? -1 : first->row > second->row;
}

int64_t assign_cost(const row_measure *measure)
{
    return measure->tokens * 18250 + measure->patches * 2900 + measure->squares * 118 / 100;
}

enum { EVEN = 1000 }; /* stop when the dearest rank is within a thousandth of the mean */

/* Exchanges a row of the dearest rank for a row of another. It takes the pair after which the
 * dearer of the two ranks is cheapest. False if no exchange helps the dearest rank. */
static bool exchange(const int64_t *row_cost, int64_t count, int dearest, int64_t *load,
                     int *rank_of)
{
    int64_t least = load[dearest], best[2] = {-1, -1};
    for (int64_t i = 0; i < count; i++) {
        if (rank_of[i] != dearest)
            continue;
        for (int64_t j = 0; j < count; j++) {
            const int64_t less = row_cost[i] - row_cost[j];
            if (rank_of[j] == dearest || less <= 0)
                continue;
            const int64_t ours = load[dearest] - less, theirs = load[rank_of[j]] + less;
            if ((ours > theirs ? ours : theirs) < least) {
                least = ours > theirs ? ours : theirs;
                best[0] = i;
                best[1] = j;
            }
        }
    }
    if (best[0] < 0)
        return false;
    const int other = rank_of[best[1]];
    const int64_t less = row_cost[best[0]] - row_cost[best[1]];
    load[dearest] -= less;
    load[other] += less;
    rank_of[best[0]] = other;
    rank_of[best[1]] = dearest;
    return true;
}

static void even_out(const int64_t *row_cost, int64_t n_rows, int ranks, int64_t *load,
                     int *rank_of)
{
    int64_t total = 0;
    for (int rank = 0; rank < ranks; rank++)
        total += load[rank];
    const int64_t enough = total / ranks + total / ranks / EVEN;
    /* Every exchange lowers the sum of the squared loads, so this ends; `n_rows` exchanges are
     * enough. */
    for (int64_t k = 0; k < n_rows; k++) {
        int dearest = 0;
        for (int rank = 1; rank < ranks; rank++)
            if (load[rank] > load[dearest])
                dearest = rank;
        if (load[dearest] <= enough || !exchange(row_cost, n_rows, dearest, load, rank_of))
            return;
    }
}

status assign_rows(const int64_t *row_cost, int64_t n_rows, int ranks, int *rank_of)
{
    status st = ST_OK;
    if (ranks < 1 || n_rows < 0)
        return FAIL(ST_BAD_INPUT, "cannot share out %lld rows among %d ranks", (long long)n_rows,
                    ranks);
    costed *rows = (costed *)malloc(((size_t)n_rows + 1) * sizeof *rows);
    int64_t *load = (int64_t *)calloc((size_t)ranks, sizeof *load);
    int64_t *room = (int64_t *)calloc((size_t)ranks, sizeof *room);
    if (!rows || !load || !room) {
        st = FAIL(ST_NO_MEMORY, "no memory to share out %lld rows among %d ranks",
                  (long long)n_rows, ranks);
        goto done;
    }
    /* If the count does not divide, the first ranks take one more. */
    for (int rank = 0; rank < ranks; rank++)
        room[rank] = n_rows / ranks + (rank < n_rows % ranks);
    for (int64_t i = 0; i < n_rows; i++)
        rows[i] = (costed){row_cost[i], i};
    qsort(rows, (size_t)n_rows, sizeof *rows, dearer_first);
    for (int64_t i = 0; i < n_rows; i++) {
        int best = -1;
        for (int rank = 0; rank < ranks; rank++)
            if (room[rank] && (best < 0 || load[rank] < load[best]))
                best = rank;
        rank_of[rows[i].row] = best;
        load[best] += rows[i].cost;
        room[best]--;
    }
    if (n_rows > ranks)
        even_out(row_cost, n_rows, ranks, load, rank_of);
done:
    free(rows);
    free(load);
    free(room);
    return st;
}
