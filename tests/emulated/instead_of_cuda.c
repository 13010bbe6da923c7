/* instead_of_cuda.c: a program that links this file with --wrap=device_open gets the emulated
 * device when it asks for CUDA. The device has the name of an H200, queues one step besides the one
 * that is reported, and captures steps. */
#include <stdio.h>

#include "common/conf/conf.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/open.h"

status __real_device_open(int kind, const device_options *options, device **out);
status __wrap_device_open(int kind, const device_options *options, device **out);

status __wrap_device_open(int kind, const device_options *options, device **out)
{
    device *dev;
    size_t total;
    if (kind != BACKEND_CUDA)
        return __real_device_open(kind, options, out);
    TRY(emulated_open(1, true, &dev));
    snprintf(dev->description, sizeof dev->description, "NVIDIA H200, emulated");
    *out = dev;
    return dev->backend->memory(dev, &dev->used_at_open, &total);
}
