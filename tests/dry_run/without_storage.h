/* SPDX-License-Identifier: Apache-2.0 */
/* without_storage.h: makes every CUDA device that a program opens a device of shapes (shapes.h). */
#ifndef TESSERA_TESTS_DRY_RUN_WITHOUT_STORAGE_H
#define TESSERA_TESTS_DRY_RUN_WITHOUT_STORAGE_H

#include "tests/dry_run/shapes.h"

extern const plan_device *without_storage_like; /* the GPU that the devices stand in for */

#endif
