/* instead_of_cuda.c: a program that links this file with --wrap=device_open gets the emulated
 * device when it asks for CUDA. The device has the name of an H200, queues one step besides the one
 * that is reported, and captures steps. */
#include <stdio.h>

#include "common/conf/conf.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/open.h"

status __real_device_open(int kind, const device_options *o, device **out);
status __wrap_device_open(int kind, const device_options *o, device **out);

status __wrap_device_open(int kind, const device_options *o, device **out)
{
    device *d;
    size_t total;
    if (kind != BACKEND_CUDA)
        return __real_device_open(kind, o, out);
    TRY(emulated_open(1, true, &d));
    snprintf(d->description, sizeof d->description, "NVIDIA H200, emulated");
    *out = d;
    return d->backend->memory(d, &d->used_at_open, &total);
}
