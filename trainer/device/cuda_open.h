/* cuda_open.h: opens a GPU for cuda.c, and closes it. Opening finds the GPU, reads its facts,
 * decides whose kernels attention and the experts use, and makes the context. Internal to
 * trainer/device. */
#ifndef TESSERA_TRAINER_DEVICE_CUDA_OPEN_H
#define TESSERA_TRAINER_DEVICE_CUDA_OPEN_H

#include "trainer/device/cuda_device.h"

/* Opens *out; the caller sets its backend and its op table. ST_UNAVAILABLE if there is no driver,
 * no such GPU or none new enough for the kernels, and if options ask for kernels that it cannot
 * run; then *out is untouched. */
WARN_UNUSED status cuda_open_gpu(const device_options *options, cuda_device **out);
/* Frees what ops kept, and the device. Its arrays and streams have been released before. */
void cuda_free(cuda_device *cuda);

#endif
