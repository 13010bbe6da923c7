/* SPDX-License-Identifier: Apache-2.0 */
/* open.h: opens the device a run gets: a backend together with its op table. */
#ifndef TESSERA_TRAINER_OPS_OPEN_H
#define TESSERA_TRAINER_OPS_OPEN_H

#include "trainer/device/backend.h"

/* Opens a device and adds its ops. `kind` is BACKEND_* of conf.h. BACKEND_CUDA
 * fails with UNAVAILABLE and the reason if no GPU can be used. BACKEND_AUTO takes a GPU if
 * one can be used and all ops are there; otherwise it takes the CPU, writes the reason to the log
 * and keeps it in device.no_gpu. The caller closes the device with device_close. */
WARN_UNUSED status device_open(int kind, const device_options *options, device **out);

#endif
