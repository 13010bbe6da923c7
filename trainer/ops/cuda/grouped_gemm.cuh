/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_gemm.cuh: the two kernels of the grouped product, and the rule that decides between
 * them. */
#ifndef TESSERA_TRAINER_OPS_CUDA_GROUPED_GEMM_CUH
#define TESSERA_TRAINER_OPS_CUDA_GROUPED_GEMM_CUH

#include "trainer/ops/cuda/grouped_index.h"
#include "trainer/ops/cuda/kernel_launch.cuh"

/* A, B and the output in each mode, named as in grouped_index.h. */
typedef struct grouped_arrays {
    const void *a, *b;
    grouped_out out;
} grouped_arrays;

static inline grouped_arrays grouped_arrays_of(const grouped_gemm_args *args)
{
    switch (args->mode) {
    case GROUPED_FWD:
        return grouped_arrays{
            args->x, args->w, {args->gated && args->y_dropped ? NULL : args->y, args->gated, NULL}};
    case GROUPED_DGRAD:
        return grouped_arrays{args->y, args->w, {args->x, NULL, NULL}};
    default:
        return grouped_arrays{args->x, args->y, {args->dw, NULL, NULL}};
    }
}

/* Whether rows are made of whole 16-byte pieces, as TMA and cp.async need them. */
static inline bool grouped_aligned(const grouped_gemm_args *args)
{
    grouped_arrays arrays = grouped_arrays_of(args);
    return args->k % VECTOR == 0 && args->n % (args->gated ? 2 * VECTOR : VECTOR) == 0 &&
           aligned16(arrays.a, arrays.b, arrays.out.y, arrays.out.gated);
}

/* An upper bound of the number of tiles, whatever the offsets are: each expert may begin one tile
 * more than its rows fill. */
static inline int64_t grouped_tiles_most(const grouped_work *work)
{
    int64_t units = work->mode == GROUPED_WGRAD
                        ? work->experts
                        : ceil_div(work->rows_cap, GROUPED_TILE_M) + work->experts;
    return grouped_tiles(work, (int32_t)units);
}

/* Needs sm_90 and grouped_aligned. */
status grouped_gemm_hopper(stream *queue, const grouped_gemm_args *args);

#endif
