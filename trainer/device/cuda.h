/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h: what the CUDA ops may ask of their stream: its handle, facts about the GPU, and scratch
 * memory. They fail with FAIL and TRY of common/base/status.h, as all code does.
 *
 * Ops that call a library need more: cuda_device.h. The host build of the kernels (tests/simt)
 * supplies its own cuda_runtime.h and implements the functions below itself. */
#ifndef TESSERA_TRAINER_DEVICE_CUDA_H
#define TESSERA_TRAINER_DEVICE_CUDA_H

#include <cuda_runtime.h>

#include "trainer/device/backend.h"
#include "trainer/device/kernel_stuck.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Calls a function of the CUDA runtime. If it fails, returns `code`; the note says that `what` was
 * tried, and has the error's number and CUDA's text for it. */
#define CUDA_TRY(call, code, what)                                                                 \
    do {                                                                                           \
        cudaError_t cuda_error_ = (call);                                                          \
        if (cuda_error_ != cudaSuccess)                                                            \
            return FAIL((code), "%s: CUDA error %d, %s", (what), (int)cuda_error_,                 \
                        cudaGetErrorString(cuda_error_));                                          \
    } while (0)

static inline cudaStream_t cuda_handle(const stream *queue)
{
    return (cudaStream_t)queue->handle;
}

/* A later turn begins about 5 us after a block has ended: 0.4 to 0.7 % of the 2 to 4 ms that such a
 * kernel takes. A kernel of NCCL that holds multiprocessors at its start then delays it by a
 * quarter of its time at most, in place of all of it. Arithmetic, not measured. */
enum { TURNS_BESIDE = 4 };

typedef struct cuda_facts {
    int sm;              /* compute capability times ten: 90 is 9.0 */
    int multiprocessors; /* streaming multiprocessors; 132 on an H200 */
    int shared_bytes;    /* the most dynamic shared memory that a block may ask for */
    int64_t l2_bytes;
    kernel_stuck *stuck; /* pinned, so that it can be read after the kernel has trapped */
    /* How many times the blocks of a kernel that could stay on the GPU to its end fill the GPU: 1,
     * or more where kernels of collectives take multiprocessors meanwhile. */
    int turns;
} cuda_facts;

/* Facts about the stream's GPU, read when it was opened. */
const cuda_facts *cuda_facts_of(const stream *stream);

/* At least `bytes` of device memory, aligned to 256. It is the stream's, its contents are
 * undefined, and work that is queued before the next cuda_scratch on this stream may use it.
 * Scratch grows when a larger shape comes for the first time. While a step is captured it must not,
 * and such a request is INTERNAL. Captured graphs may hold the address of an older block, so older
 * blocks stay until the stream is freed. NO_MEMORY if the GPU has none left. */
WARN_UNUSED status cuda_scratch(stream *stream, size_t bytes, void **out);

#ifdef __cplusplus
}
#endif

#endif
