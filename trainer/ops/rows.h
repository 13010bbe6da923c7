/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: moves whole rows by index, and sums weighted rows of a table.
 *
 *   rows_gather        y[i] = x[index[i]] if index[i] >= 0, else 0 (or as it was, with `keep`)
 *   rows_scatter       y[index[i]] += x[i] for index[i] >= 0
 *   rows_weighted      y[i] += sum over q < 4 of weight[i, q] table[index[i, q]]
 *   rows_weighted_bwd  dtable[index[i, q]] += weight[i, q] dy[i]
 *
 * Gathers serve the embedding, the visual rows that replace tokens (keep), the sort by expert and
 * the rows of targets. rows_weighted interpolates the vision tower's position table between four
 * corners (transformers: modeling_qwen3_vl_moe.py, fast_pos_embed_interpolate).
 *
 * Sums run in a fixed order: on the CPU, and on CUDA for up to 32 rows into one target, in
 * ascending i.
 *
 * Indices are checked where they enter the program (batch/stager.h: ids, visual rows, corners). One
 * that still lies beyond y_rows or table_rows, or a negative corner, is a mistake of this program.
 * The CPU answers BAD_INPUT. On CUDA, where the host does not see indices, the kernel stops and the
 * stream's next wait answers BAD_DEVICE. */
#ifndef TESSERA_TRAINER_OPS_ROWS_H
#define TESSERA_TRAINER_OPS_ROWS_H

#include <stdbool.h>

#include "trainer/device/backend.h"

/* x [*, width] and y [n, width] act; index [n] int32 on the device, like every index here.
 *
 * Where each row of x goes to up to `copies` rows of y, the caller may say where: places [n /
 * copies, copies] has for row j of x every i with index[i] == j, and -1 for the rest, and x has n /
 * copies rows. The result is the same. A device can then read each row of x once; without it, once
 * for each of its copies, which lie too far apart for a cache. NULL: not said. Not with keep. */
typedef struct rows_gather_args {
    int64_t n, width;
    const int32_t *index;
    const void *x;
    void *y;
    bool keep;
    int64_t copies;
    const int32_t *places;
} rows_gather_args;

/* x [n, width] act; y [y_rows, width] is acc with y_acc (weight gradients), else act. `distinct`:
 * the caller promises that no index occurs twice (deepstack, visual rows), which allows a faster
 * way. */
typedef struct rows_scatter_args {
    int64_t n, width, y_rows;
    const int32_t *index;
    const void *x;
    void *y;
    bool y_acc, distinct;
} rows_scatter_args;

/* table [table_rows, width] act; y [n, width] act; weight [n, 4] acc; index [n, 4]. */
typedef struct rows_weighted_args {
    int64_t n, width, table_rows;
    const int32_t *index;
    const void *weight, *table;
    void *y;
} rows_weighted_args;

/* dy [n, width] act; dtable [table_rows, width] acc, added to; weight and index as in
 * rows_weighted. */
typedef struct rows_weighted_bwd_args {
    int64_t n, width, table_rows;
    const int32_t *index;
    const void *weight, *dy;
    void *dtable;
} rows_weighted_bwd_args;

#endif
