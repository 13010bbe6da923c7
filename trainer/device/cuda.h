/* cuda.h: the inside of the CUDA backend, for trainer/device and the ops that call libraries.
 * Kernels need only cuda_stream.h. */
#ifndef TESSERA_DEVICE_CUDA_H
#define TESSERA_DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "trainer/device/cuda_stream.h"

typedef struct cuda_device {
    device base;
    device_options options;
    cuda_facts facts;
    size_t used_before; /* of the GPU, by others, before this process had a context */
} cuda_device;

enum { CUDA_SCRATCH_BLOCKS = 24 }; /* each at least twice the one before */

typedef struct cuda_stream {
    stream base;
    bool capturing;
    int blocks;
    void *block[CUDA_SCRATCH_BLOCKS]; /* scratch; the last is the largest and in use */
    size_t block_bytes;
} cuda_stream;

/* Fails with the call and CUDA's words. */
#define CUDA_TRY(code, what, call)                                                                 \
    do {                                                                                           \
        cudaError_t cuda_error_ = (call);                                                          \
        if (cuda_error_ != cudaSuccess)                                                            \
            return FAIL((code), "%s: CUDA error %d, %s", (what), (int)cuda_error_,                 \
                        cudaGetErrorString(cuda_error_));                                          \
    } while (0)

#endif
