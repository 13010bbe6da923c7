/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_scan.cuh: where each expert's rows and tiles begin. Every block finds this for itself
 * from the offsets in device memory, which needs neither the host nor a second kernel. */
#ifndef TESSERA_TRAINER_OPS_CUDA_GROUPED_SCAN_CUH
#define TESSERA_TRAINER_OPS_CUDA_GROUPED_SCAN_CUH

#include "trainer/ops/cuda/grouped_index.h"

/* One warp computes first[] and begin[] by a prefix sum, 32 experts at a time. */
static __device__ __forceinline__ void grouped_scan(const grouped_work &work, const int32_t *offset,
                                                    int32_t *first, int32_t *begin)
{
    int lane = threadIdx.x % 32;
    int32_t before = 0;
    for (int32_t e0 = 0; e0 < work.experts; e0 += 32) {
        int32_t expert = e0 + lane, units = 0;
        if (expert < work.experts) {
            int32_t from = grouped_clamp(offset[expert], work.rows_cap);
            int32_t to = grouped_clamp(offset[expert + 1], work.rows_cap);
            begin[expert] = from;
            units = grouped_units(work.mode, to - from);
        }
        for (int i = 1; i < 32; i *= 2) {
            int32_t other = __shfl_up_sync(0xffffffffu, units, i);
            units += lane >= i ? other : 0;
        }
        if (expert < work.experts)
            first[expert + 1] = before + units;
        before += __shfl_sync(0xffffffffu, units, 31);
    }
    if (lane == 0) {
        first[0] = 0;
        begin[work.experts] = grouped_clamp(offset[work.experts], work.rows_cap);
    }
}

#endif
