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

static inline grouped_arrays grouped_arrays_of(const grouped_gemm_args *a)
{
    switch (a->mode) {
    case GROUPED_FWD:
        return grouped_arrays{a->x, a->w, {a->gated && a->y_dropped ? NULL : a->y, a->gated}};
    case GROUPED_DGRAD:
        return grouped_arrays{a->y, a->w, {a->x, NULL}};
    default:
        return grouped_arrays{a->x, a->y, {a->dw, NULL}};
    }
}

/* Whether rows are made of whole 16-byte pieces, as TMA and cp.async need them. */
static inline bool grouped_aligned(const grouped_gemm_args *a)
{
    grouped_arrays p = grouped_arrays_of(a);
    return a->k % VECTOR == 0 && a->n % (a->gated ? 2 * VECTOR : VECTOR) == 0 &&
           aligned16(p.a, p.b, p.out.y, p.out.gated);
}

/* An upper bound of the number of tiles, whatever the offsets are: each expert may begin one tile
 * more than its rows fill. */
static inline int64_t grouped_tiles_most(const grouped_work *w)
{
    int64_t units =
        w->mode == GROUPED_WGRAD ? w->experts : ceil_div(w->rows_cap, GROUPED_TILE_M) + w->experts;
    return grouped_tiles(w, (int32_t)units);
}

/* Needs sm_90 and grouped_aligned. */
status grouped_gemm_hopper(stream *s, const grouped_gemm_args *a);

#endif
