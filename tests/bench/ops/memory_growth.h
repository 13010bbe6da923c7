/* SPDX-License-Identifier: Apache-2.0 */
/* memory_growth.h: reads how much memory of a device each part of a run takes. */
#ifndef TESSERA_TESTS_BENCH_OPS_MEMORY_GROWTH_H
#define TESSERA_TESTS_BENCH_OPS_MEMORY_GROWTH_H

#include <stdio.h>

#include "common/conf/conf.h"

/* Prints how much of the device's memory training.steps steps at this depth (0: all layers) take,
 * each part with its plan (plan/memory.h). A difference between the two is no
 * error. */
WARN_UNUSED status bench_device_memory(const conf *options, int64_t layers, FILE *to);

#endif
