/* rows.h: moving whole rows by index, and weighted sums of table rows.
 *
 * rows_gather:  y[i] = index[i] >= 0 ? x[index[i]] : (keep ? y[i] : 0), i < n. Used for embedding,
 *               visual rows into tokens (keep), expert permutation, target rows.
 * rows_scatter: y[index[i]] += x[i] for index[i] >= 0, summed in a fixed order (on the CPU, and for
 *               up to 32 rows of a target on CUDA, in ascending i). y_acc: y is acc (weight
 *               gradients) else act. distinct: the caller promises that no index repeats
 *               (deepstack, visual rows), a faster path.
 * x, y [*, width]; index [n] int32 on the device; y_rows = rows of y (for bounds and workspace).
 *
 * rows_weighted:     y[i] += sum_q weight[i, q] * table[index[i, q]], q < 4: the vision position
 *                    table (spec 3.3). table [table_rows, width] act, y [n, width] act,
 *                    weight [n, 4] acc, index [n, 4] int32.
 * rows_weighted_bwd: dtable[index[i, q]] += weight[i, q] * dy[i] in fixed order; dtable acc.
 *
 * Indices are checked where they come from outside (batch/stager.h: ids, visual rows, corners). One
 * that still lies beyond y_rows or table_rows, or a negative corner, is a mistake of ours:
 * BAD_INPUT on the CPU; on CUDA, where the host does not see them, the kernel stops and the
 * stream's next wait answers BAD_DEVICE. */
#ifndef TESSERA_TRAINER_OPS_ROWS_H
#define TESSERA_TRAINER_OPS_ROWS_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct rows_gather_args {
    int64_t n, width;
    const int32_t *index;
    const void *x;
    void *y;
    bool keep;
} rows_gather_args;

typedef struct rows_scatter_args {
    int64_t n, width, y_rows;
    const int32_t *index;
    const void *x;
    void *y;
    bool y_acc, distinct;
} rows_scatter_args;

typedef struct rows_weighted_args {
    int64_t n, width, table_rows;
    const int32_t *index;
    const void *weight, *table;
    void *y;
} rows_weighted_args;

typedef struct rows_weighted_bwd_args {
    int64_t n, width, table_rows;
    const int32_t *index;
    const void *weight, *dy;
    void *dtable;
} rows_weighted_bwd_args;

#endif
