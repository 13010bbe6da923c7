/* grouped_scan.cuh: where each expert's rows and tiles begin. Every block finds this for itself
 * from the offsets in device memory, which needs neither the host nor a second kernel. */
#ifndef TESSERA_TRAINER_OPS_CUDA_GROUPED_SCAN_CUH
#define TESSERA_TRAINER_OPS_CUDA_GROUPED_SCAN_CUH

#include "trainer/ops/cuda/grouped_index.h"

/* One warp computes first[] and begin[] by a prefix sum, 32 experts at a time. */
static __device__ __forceinline__ void grouped_scan(const grouped_work &w, const int32_t *offset,
                                                    int32_t *first, int32_t *begin)
{
    int lane = threadIdx.x % 32;
    int32_t before = 0;
    for (int32_t e0 = 0; e0 < w.experts; e0 += 32) {
        int32_t e = e0 + lane, units = 0;
        if (e < w.experts) {
            int32_t from = grouped_clamp(offset[e], w.rows_cap);
            int32_t to = grouped_clamp(offset[e + 1], w.rows_cap);
            begin[e] = from;
            units = grouped_units(w.mode, to - from);
        }
        for (int d = 1; d < 32; d *= 2) {
            int32_t other = __shfl_up_sync(0xffffffffu, units, d);
            units += lane >= d ? other : 0;
        }
        if (e < w.experts)
            first[e + 1] = before + units;
        before += __shfl_sync(0xffffffffu, units, 31);
    }
    if (lane == 0) {
        first[0] = 0;
        begin[w.experts] = grouped_clamp(offset[w.experts], w.rows_cap);
    }
}

#endif
