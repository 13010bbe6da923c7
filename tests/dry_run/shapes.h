/* SPDX-License-Identifier: Apache-2.0 */
/* shapes.h: a device that knows only shapes: it has neither memory nor arithmetic. An allocation is
 * a range of addresses that no code may touch, ops do nothing, copies to the device go nowhere, and
 * copies from it bring zeros.
 *
 * With it a run of any size makes all its calls on a small machine, so that tests can count what it
 * would allocate and send. Types and shapes are those of the CUDA backend: bf16 and float, fixed
 * shapes.
 *
 * A copy must lie within one allocation; anything else is INTERNAL. Pinned memory is real, and
 * copies between two pieces of it move bytes. */
#ifndef TESSERA_TESTS_DRY_RUN_SHAPES_H
#define TESSERA_TESTS_DRY_RUN_SHAPES_H

#include "tests/emulated/emulated_handle.h"
#include "trainer/ops/table.h"
#include "trainer/plan/plan_device.h"

extern const backend_vtable backend_shapes;
extern const ops_table ops_shapes; /* every op accepts its arguments and does nothing */

/* Opens the device, which claims to have as much memory as `like`, as many multiprocessors, and
 * cuDNN's attention if that has it. like NULL: more memory than any run takes. Close it with
 * device_close. */
WARN_UNUSED status shapes_device_open(const plan_device *like, device **out);

/* Where a run of bytes lies. HOLLOW and PINNED mean that all of them lie in one allocation. */
typedef enum shapes_place { SHAPES_NOWHERE, SHAPES_HOLLOW, SHAPES_PINNED } shapes_place;

/* What stream.handle points to on a device of shapes. A library that is asked to move memory of
 * such a device (tests/nccl/double) uses it to see whether there are bytes to move. */
typedef struct shapes_handle {
    emulated_handle base; /* its `add` is NULL, which marks a shapes_handle */
    const device *device;
    shapes_place (*place)(const device *device, const void *array, size_t bytes);
} shapes_handle;

/* Whether the bytes lie in one hollow allocation of the device (0 bytes always do). */
bool shapes_hold(const device *device, const void *array, size_t bytes);
/* From now on a copy of exactly so many bytes from `array` brings these instead of zeros. The
 * device keeps the last such pair; `values` is borrowed. */
void shapes_know(device *device, const void *array, const void *values, size_t bytes);
/* The number of allocations of exactly `bytes`, without pinned memory. */
int shapes_allocations(const device *device, size_t bytes);
/* The sum of all allocations in bytes, pinned memory and arrays on the host not counted. */
size_t shapes_bytes(const device *device);
/* The sum of the arrays on the host (device_host_array), which are as hollow. */
size_t shapes_host_bytes(const device *device);

#endif
