/* SPDX-License-Identifier: Apache-2.0 */
/* waits.cuh: the clock by which kernels wait, and how they give up a wait that will never end. No
 * kernel waits for something else without a bound: the GPU would be lost to its process, and
 * nothing would say why. */
#ifndef TESSERA_TRAINER_OPS_CUDA_WAITS_CUH
#define TESSERA_TRAINER_OPS_CUDA_WAITS_CUH

#include <stdint.h>

#include "trainer/device/cuda.h"

static __device__ __forceinline__ int64_t device_ns()
{
#ifdef __CUDACC__
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    return simt_clock_ns();
#endif
}

/* Writes where the wait was to *stuck, in pinned memory, and traps: all work of the process on this
 * GPU fails, and the host's next wait says what *stuck says. */
static __device__ __forceinline__ void give_up_wait(kernel_stuck *stuck, kernel_stuck where)
{
    *stuck = where;
    __threadfence_system();
    __trap();
}

#endif
