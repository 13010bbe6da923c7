/* SPDX-License-Identifier: Apache-2.0 */
/* slice.h: the part of a stored tensor that one rank holds, as a box with four axes. The elements
 * of the box in their own row-major order are the rank's local tensor. Pure arithmetic.
 *
 * A tensor of fewer axes has sizes of 1. One of fused experts, gate_up [E, H, 2I], is seen as
 * [E, H, 2, I], so that cutting its last axis takes a piece of the gate and the same piece of the
 * up half.
 *
 * "Stored" counts the elements of the whole tensor, "local" those of the box, both from 0 in
 * row-major order. */
#ifndef TESSERA_TRAINER_PARALLEL_SLICE_H
#define TESSERA_TRAINER_PARALLEL_SLICE_H

#include <stdint.h>

enum { SLICE_AXES = 4 };

/* The box has the elements [first, first + count) of each axis. */
typedef struct slice {
    int64_t size[SLICE_AXES]; /* of the whole tensor */
    int64_t first[SLICE_AXES], count[SLICE_AXES];
} slice;

/* All of a tensor [rows, columns, depth, last]. */
slice slice_whole(int64_t rows, int64_t columns, int64_t depth, int64_t last);
/* Keeps share number `share` of `shares` equal shares of an axis. `shares` must divide what the box
 * has of that axis. */
void slice_cut(slice *box, int axis, int64_t share, int64_t shares);
/* Elements of the box. */
int64_t slice_count(const slice *box);
/* How many of the local elements [local, local + most), from the first on, are also consecutive in
 * the stored tensor, and where they begin there (*out_stored). At least 1; most must be > 0. */
int64_t slice_run(const slice *box, int64_t local, int64_t most, int64_t *out_stored);
/* The local number of a stored element; -1 if the box does not have it. */
int64_t slice_find(const slice *box, int64_t stored);
/* For a stored element that the box does not have: how many elements from it on the box does not
 * have either. At least 1. */
int64_t slice_gap(const slice *box, int64_t stored);

#endif
