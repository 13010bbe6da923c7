/* cuda.h: what the CUDA ops may ask of their stream: its handle, facts of the GPU, scratch memory,
 * and how to fail: FAIL and TRY of common/base/status.h, as everywhere.
 *
 * Ops that call a library need more: cuda_device.h. The host build of the kernels (tests/simt)
 * gives its own cuda_runtime.h and answers the same calls. */
#ifndef TESSERA_TRAINER_DEVICE_CUDA_H
#define TESSERA_TRAINER_DEVICE_CUDA_H

#include <cuda_runtime.h>

#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fails with what was tried and CUDA's words. */
#define CUDA_TRY(call, code, what)                                                                 \
    do {                                                                                           \
        cudaError_t cuda_error_ = (call);                                                          \
        if (cuda_error_ != cudaSuccess)                                                            \
            return FAIL((code), "%s: CUDA error %d, %s", (what), (int)cuda_error_,                 \
                        cudaGetErrorString(cuda_error_));                                          \
    } while (0)

static inline cudaStream_t cuda_handle(const stream *s)
{
    return (cudaStream_t)s->handle;
}

typedef struct cuda_facts {
    int sm;              /* 90: compute capability 9.0 */
    int multiprocessors; /* 132 on an H200 */
    int shared_bytes;    /* most dynamic shared memory a block may ask for */
    int64_t l2_bytes;
} cuda_facts;

const cuda_facts *cuda_facts_of(const stream *s);

/* At least `bytes` of device memory, aligned to 256, until the next cuda_scratch on this stream;
 * contents undefined. It grows when a larger shape comes first, which while a step is captured is
 * an error; blocks that graphs may know stay until the stream goes. NO_MEMORY where the GPU has
 * none. */
WARN_UNUSED status cuda_scratch(stream *s, size_t bytes, void **out);

#ifdef __cplusplus
}
#endif

#endif
