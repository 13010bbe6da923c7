/* SPDX-License-Identifier: Apache-2.0 */
/* route.cuh: what the kernels of route.h share: limits, their check, and the number of valid
 * tokens. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ROUTE_CUH
#define TESSERA_TRAINER_OPS_CUDA_ROUTE_CUH

#include "trainer/ops/cuda/kernel_launch.cuh"

enum { EXPERTS_MAX = 1024 };
static const unsigned WHOLE_WARP = 0xffffffffu;

static inline status route_check(int64_t experts, int64_t top_k, int64_t top_k_max)
{
    if (experts <= 0 || experts > EXPERTS_MAX || top_k <= 0 || top_k > experts || top_k > top_k_max)
        return FAIL(ST_BAD_INPUT,
                    "route: top_k is %lld of %lld experts; 1 <= top_k <= %lld and top_k <= experts "
                    "<= %d must hold",
                    (long long)top_k, (long long)experts, (long long)top_k_max, EXPERTS_MAX);
    return ST_OK;
}

static inline status cuda_clear(stream *queue, void *p, size_t bytes)
{
    CUDA_TRY(cudaMemsetAsync(p, 0, bytes, cuda_handle(queue)), ST_BAD_DEVICE, "zeroing");
    return ST_OK;
}

/* The number of tokens before the padding. */
static __device__ __forceinline__ int64_t valid_tokens(int64_t tokens, const int32_t *n_valid)
{
    if (!n_valid)
        return tokens;
    return *n_valid < 0 ? 0 : *n_valid < tokens ? *n_valid : tokens;
}

#endif
