/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: the harness as a device: memory of the host, activations in bf16, sums in float, and
 * the op table of the CUDA kernels. Work is done when a call returns. */
#ifndef TESSERA_TESTS_SIMT_DEVICE_H
#define TESSERA_TESTS_SIMT_DEVICE_H

#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

const backend_vtable *backend_simt(void);

#ifdef __cplusplus
}
#endif

#endif
