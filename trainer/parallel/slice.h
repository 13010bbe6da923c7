/* slice.h: a box of a stored tensor, as one rank holds it. Its elements in their own row-major
 * order are the rank's local tensor. Pure arithmetic.
 *
 * A tensor is seen with four axes: [E, H, 2, I] is gate_up [E, H, 2I], so that a cut of its width
 * takes a piece of the gate and the same piece of the up half. */
#ifndef TESSERA_TRAINER_PARALLEL_SLICE_H
#define TESSERA_TRAINER_PARALLEL_SLICE_H

#include <stdint.h>

enum { SLICE_AXES = 4 };

typedef struct slice {
    int64_t size[SLICE_AXES]; /* of the tensor */
    int64_t first[SLICE_AXES], n[SLICE_AXES];
} slice;

/* All of a tensor of these sizes. */
slice slice_whole(int64_t a, int64_t b, int64_t c, int64_t d);
/* Keeps share `share` of `shares` equal ones of an axis; shares divides what is held of it. */
void slice_cut(slice *s, int axis, int64_t share, int64_t shares);
int64_t slice_count(const slice *s);
/* Of the local elements [local, local + most): how many from the first on stand side by side in
 * the tensor too, and where. At least 1; most > 0. */
int64_t slice_run(const slice *s, int64_t local, int64_t most, int64_t *out_stored);
/* Local element of a stored one; -1: not held. */
int64_t slice_find(const slice *s, int64_t stored);
/* How many elements from a stored one on, which is not held, are not held either. At least 1. */
int64_t slice_gap(const slice *s, int64_t stored);

#endif
