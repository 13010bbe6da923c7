/* shapes.h: a device that knows only shapes: it has neither memory nor arithmetic. An allocation is
 * a range of addresses that no code may touch, ops do nothing, copies to the device go nowhere, and
 * copies from it bring zeros.
 *
 * With it a run of any size makes all its calls on a small machine, so that what it would allocate
 * and send can be counted (trainer train --dry-run). Types and shapes are those of the CUDA
 * backend: bf16 and float, fixed shapes.
 *
 * A copy must lie within one allocation; anything else is INTERNAL. Pinned memory is real, and
 * copies between two pieces of it move bytes. */
#ifndef TESSERA_TRAINER_DEVICE_SHAPES_H
#define TESSERA_TRAINER_DEVICE_SHAPES_H

#include "trainer/device/backend.h"
#include "trainer/device/emulated_handle.h"

extern const backend_vtable backend_shapes;
enum { BACKEND_SHAPES = 16 }; /* a kind for device_open; no value of training.backend chooses it */

/* Where a run of bytes lies. HOLLOW and PINNED mean that all of them lie in one allocation. */
typedef enum shapes_place { SHAPES_NOWHERE, SHAPES_HOLLOW, SHAPES_PINNED } shapes_place;

/* What stream.handle points to on a device of shapes. A library that is asked to move memory of
 * such a device (parallel/nccl_double) uses it to see whether there are bytes to move. */
typedef struct shapes_handle {
    emulated_handle base; /* its `add` is NULL, which marks a shapes_handle */
    const device *device;
    shapes_place (*place)(const device *device, const void *array, size_t bytes);
} shapes_handle;

/* Whether the bytes lie in one hollow allocation of the device (0 bytes always do). */
bool shapes_hold(const device *device, const void *array, size_t bytes);
/* The number of allocations of exactly `bytes`, without pinned memory. */
int shapes_allocations(const device *device, size_t bytes);
/* The sum of all allocations in bytes, pinned memory and arrays on the host not counted. */
size_t shapes_bytes(const device *device);
/* The sum of the arrays on the host (device_host_array), which are as hollow. */
size_t shapes_host_bytes(const device *device);

#endif
