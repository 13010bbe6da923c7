/* nvml.h: the one door to NVIDIA's management library, which comes with every driver: what of a
 * GPU's memory is free, asked before there is a context, which the runtime itself cannot do
 * without making one. */
#ifndef TESSERA_TRAINER_DEVICE_NVML_H
#define TESSERA_TRAINER_DEVICE_NVML_H

#include <stddef.h>

#include "common/base/status.h"

/* bus: as cudaDeviceGetPCIBusId writes it. UNAVAILABLE where the library or the GPU is not found.
 */
WARN_UNUSED status nvml_free_bytes(const char *bus, size_t *out);
/* Name of the machine's first GPU, and what of its memory a process may use: all but what the
 * driver reserves. UNAVAILABLE as above. */
WARN_UNUSED status nvml_first_gpu(char *name, unsigned size, size_t *out);

#endif
