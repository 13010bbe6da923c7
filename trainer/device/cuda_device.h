/* cuda_device.h: the inside of the CUDA backend, for trainer/device and the ops that call
 * libraries. Kernels need only cuda.h. */
#ifndef TESSERA_TRAINER_DEVICE_CUDA_DEVICE_H
#define TESSERA_TRAINER_DEVICE_CUDA_DEVICE_H

#include "trainer/device/cuda.h"

/* What an op keeps for the device's life: a library's handle, plans by shape. */
typedef struct cuda_kept {
    void *data;
    void (*done)(void *data);
} cuda_kept;

enum { KEPT_GEMM, KEPT_ATTENTION, KEPT_COUNT };

typedef struct cuda_device {
    device base;
    device_options options;
    cuda_facts facts;
    bool cudnn;              /* attention may be cuDNN's */
    unsigned attention_told; /* why it was not: a bit for each reason that is in the log */
    cuda_kept kept[KEPT_COUNT];
} cuda_device;

enum { CUDA_SCRATCH_BLOCKS = 24 }; /* each at least twice the one before */

typedef struct cuda_stream {
    stream base;
    bool capturing;
    int blocks;
    void *block[CUDA_SCRATCH_BLOCKS]; /* scratch; the last is the largest and in use */
    size_t block_bytes;
} cuda_stream;

#endif
