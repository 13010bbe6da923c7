/* assign.c: which rank gets which row of a step: longest processing time first (Graham 1969) with
 * equal counts. Greedy by cost; ties go to the lower row and the lower rank, so every process that
 * computes it gets the same. */
#include "proto/assign.h"

#include <stdlib.h>

typedef struct costed {
    int64_t cost, row;
} costed;

static int dearer_first(const void *a, const void *b)
{
    const costed *x = (const costed *)a, *y = (const costed *)b;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

int64_t assign_cost(const row_measure *m)
{
    return m->tokens * 18250 + m->patches * 2900 + m->squares * 118 / 100;
}

status assign_rows(const int64_t *row_cost, int64_t n_rows, int ranks, int *rank_of)
{
    status st = ST_OK;
    if (ranks < 1 || n_rows < 0)
        return FAIL(ST_BAD_INPUT, "%lld rows for %d ranks", (long long)n_rows, ranks);
    costed *rows = (costed *)malloc(((size_t)n_rows + 1) * sizeof *rows);
    int64_t *load = (int64_t *)calloc((size_t)ranks, sizeof *load);
    int64_t *room = (int64_t *)calloc((size_t)ranks, sizeof *room);
    if (!rows || !load || !room) {
        st =
            FAIL(ST_NO_MEMORY, "no memory to give %lld rows to %d ranks", (long long)n_rows, ranks);
        goto done;
    }
    /* Where the count does not divide, the first ranks take one more. */
    for (int r = 0; r < ranks; r++)
        room[r] = n_rows / ranks + (r < n_rows % ranks);
    for (int64_t i = 0; i < n_rows; i++)
        rows[i] = (costed){row_cost[i], i};
    qsort(rows, (size_t)n_rows, sizeof *rows, dearer_first);
    for (int64_t i = 0; i < n_rows; i++) {
        int best = -1;
        for (int r = 0; r < ranks; r++)
            if (room[r] && (best < 0 || load[r] < load[best]))
                best = r;
        rank_of[rows[i].row] = best;
        load[best] += rows[i].cost;
        room[best]--;
    }
done:
    free(rows);
    free(load);
    free(room);
    return st;
}
