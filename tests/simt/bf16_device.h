/* SPDX-License-Identifier: Apache-2.0 */
/* bf16_device.h: which device test_model_bf16.c compares with the CPU: the harness, or a GPU. */
#ifndef TESSERA_TESTS_SIMT_BF16_DEVICE_H
#define TESSERA_TESTS_SIMT_BF16_DEVICE_H

#include "trainer/device/backend.h"

/* Opens the device. UNAVAILABLE: the test is skipped. */
WARN_UNUSED status bf16_device_open(device **out);

/* Whether the device lacks matrix products, which are then the CPU's, rounded to bf16. */
extern const bool bf16_device_lacks_products;

/* The presets of models to compare; the list ends with NULL. */
extern const char *const bf16_device_flavours[];

#endif
