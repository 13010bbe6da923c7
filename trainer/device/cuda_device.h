/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_device.h: the inside of the CUDA backend, for trainer/device and for the ops that call
 * libraries. Kernels need only cuda.h. */
#ifndef TESSERA_TRAINER_DEVICE_CUDA_DEVICE_H
#define TESSERA_TRAINER_DEVICE_CUDA_DEVICE_H

#include "trainer/device/cuda.h"

/* What an op keeps for the life of the device, such as a library's handle or plans by shape. `done`
 * frees it when the device is closed. */
typedef struct cuda_kept {
    void *data;
    void (*done)(void *data);
} cuda_kept;

enum { KEPT_GEMM, KEPT_ATTENTION, KEPT_COUNT };

typedef struct cuda_device {
    device base;
    device_options options;
    cuda_facts facts;
    bool cudnn;       /* attention may use cuDNN */
    bool host_arrays; /* arrays of the device may rest in host memory */
    /* Reasons already in the log why a call did not use cuDNN, a bit for each. */
    unsigned attention_told;
    cuda_kept kept[KEPT_COUNT];
} cuda_device;

/* Blocks grow by doubling, then by an eighth, so few are enough. */
enum { CUDA_SCRATCH_BLOCKS = 24 };

typedef struct cuda_stream {
    stream base;
    bool capturing;
    int blocks;
    /* Scratch; the last block is the largest and the one in use. */
    void *block[CUDA_SCRATCH_BLOCKS];
    size_t block_bytes;
} cuda_stream;

/* Opens *out; the caller sets its backend and its op table. ST_UNAVAILABLE if there is no driver,
 * no such GPU or none new enough for the kernels, and if options ask for kernels that it cannot
 * run; then *out is untouched. */
WARN_UNUSED status cuda_open_gpu(const device_options *options, cuda_device **out);
/* Frees what ops kept, and the device. Its arrays and streams have been released before. */
void cuda_free(cuda_device *cuda);

#endif
