/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.h: the only file through which the trainer reaches NVML, NVIDIA's management library, which
 * comes with every driver. It tells what a GPU is and how much of its memory is free before there
 * is a context; the CUDA runtime cannot be asked without making one. */
#ifndef TESSERA_TRAINER_DEVICE_NVML_H
#define TESSERA_TRAINER_DEVICE_NVML_H

#include <stddef.h>

#include "common/base/status.h"

/* Free bytes of the GPU on this PCI bus; `bus` is as cudaDeviceGetPCIBusId writes it. UNAVAILABLE
 * if the library or the GPU is not found. */
WARN_UNUSED status nvml_free_bytes(const char *bus, size_t *out);

typedef struct nvml_gpu {
    char name[96];
    size_t memory; /* bytes that processes may use: all but what the driver reserves */
    size_t unused; /* bytes of these that no process holds now */
    int sm;        /* compute capability, times ten; 0: the driver's library does not tell it */
    int visible;   /* how many GPUs this process may see, of which this is the first */
} nvml_gpu;

/* The first GPU that CUDA would show to this process. NVML itself shows all of them, so
 * CUDA_VISIBLE_DEVICES is read here: numbers, or UUIDs and beginnings of them, up to the first
 * entry that names no GPU. Limit: numbers are taken in the order of the PCI bus, which is CUDA's
 * own if CUDA_DEVICE_ORDER says so, or if all GPUs are of one kind. UNAVAILABLE with the reason
 * if the library, a GPU, or a visible one is not found. */
WARN_UNUSED status nvml_first_visible(nvml_gpu *out);

#endif
