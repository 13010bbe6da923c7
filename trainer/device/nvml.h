/* nvml.h: the only file through which the trainer reaches NVML, NVIDIA's management library, which
 * comes with every driver. It tells how much of a GPU's memory is free before there is a context;
 * the CUDA runtime cannot be asked without making one. */
#ifndef TESSERA_TRAINER_DEVICE_NVML_H
#define TESSERA_TRAINER_DEVICE_NVML_H

#include <stddef.h>

#include "common/base/status.h"

/* Free bytes of the GPU on this PCI bus; `bus` is as cudaDeviceGetPCIBusId writes it. UNAVAILABLE
 * where the library or the GPU is not found. */
WARN_UNUSED status nvml_free_bytes(const char *bus, size_t *out);
/* The name of the machine's first GPU (at most `size` bytes with the final zero), and in *out the
 * bytes of its memory that processes may use: all but what the driver reserves. UNAVAILABLE as
 * above. */
WARN_UNUSED status nvml_first_gpu(char *name, unsigned size, size_t *out);

#endif
