/* shapes.h: a device of shapes alone: no memory, no arithmetic. What is allocated is an address
 * range that nobody may touch, ops do nothing, copies to the device go nowhere and copies from it
 * bring zeros. A run of any size then makes all its calls, and what they were asked for can be
 * counted (trainer train --dry-run). Sizes are those of the CUDA backend: bf16 and float, fixed
 * shapes.
 *
 * Copies are refused whose bytes do not lie in one allocation. Pinned memory is real, and so are
 * copies between two pieces of it. */
#ifndef TESSERA_TRAINER_DEVICE_SHAPES_H
#define TESSERA_TRAINER_DEVICE_SHAPES_H

#include "trainer/device/backend.h"
#include "trainer/device/emulated_handle.h"

extern const backend_vtable backend_shapes;
enum { BACKEND_SHAPES = 16 }; /* for device_open; of no option, beside training.backend's values */

/* Where bytes lie: all of them in one allocation. */
typedef enum shapes_place { SHAPES_NOWHERE, SHAPES_HOLLOW, SHAPES_PINNED } shapes_place;

/* What a stream's handle is: for a library that is asked to move what is on such a device
 * (parallel/nccl_double) and has to tell what there is to be moved. */
typedef struct shapes_handle {
    emulated_handle base; /* without `add`, by which it is known */
    const device *device;
    shapes_place (*place)(const device *d, const void *p, size_t bytes);
} shapes_handle;

/* Do the bytes lie in one allocation of a device of shapes? */
bool shapes_hold(const device *d, const void *p, size_t bytes);
/* Allocations of exactly so many bytes as were asked for, pinned memory apart. */
int shapes_allocations(const device *d, size_t bytes);
/* Bytes of all of them. */
size_t shapes_bytes(const device *d);

#endif
