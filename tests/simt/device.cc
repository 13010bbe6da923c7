/* SPDX-License-Identifier: Apache-2.0 */
/* device.cc: the implementation of device.h. Memory, copies and events are those of the CPU
 * backend. Its own are the op table, the types, and what trainer/device/cuda.h promises to
 * kernels. */
#include "tests/simt/device.h"

#include <stdio.h>
#include <stdlib.h>

#include "trainer/device/cuda.h"

extern "C" const struct ops_table ops_cuda;

enum { SCRATCH_ALIGN = 256 };

static kernel_stuck stuck; /* a program has one harness */

typedef struct simt_stream {
    stream base;
    void *scratch;
} simt_stream;

static status simt_open(const device_options *options, device **out)
{
    if (options->index != 0)
        return FAIL(ST_UNAVAILABLE, "there is no device %d: the harness is device 0",
                    options->index);
    device *dev = (device *)calloc(1, sizeof *dev);
    if (!dev)
        return FAIL(ST_NO_MEMORY, "out of memory for a device");
    dev->backend = backend_simt();
    dev->ops = &ops_cuda;
    snprintf(dev->description, sizeof dev->description, "SIMT harness");
    stuck = {};
    *out = dev;
    return ST_OK;
}

static void simt_close(device *dev)
{
    free(dev);
}

static status simt_stream_new(device *dev, stream **out)
{
    simt_stream *own = (simt_stream *)calloc(1, sizeof *own);
    if (!own)
        return FAIL(ST_NO_MEMORY, "out of memory for a stream");
    own->base.dev = dev;
    own->base.ops = dev->ops;
    *out = &own->base;
    return ST_OK;
}

static void simt_stream_free(stream **held)
{
    simt_stream *own = (simt_stream *)*held;
    if (!own)
        return;
    free(own->scratch);
    free(own);
    *held = NULL;
}

/* As on a GPU: after a kernel has given up a wait, every wait of the host says so. */
static status simt_wait(stream *queue)
{
    return stuck.kernel == STUCK_NOWHERE
               ? backend_cpu.wait(queue)
               : kernel_stuck_failed(&stuck, "wait", cudaErrorLaunchFailure,
                                     cudaGetErrorString(cudaErrorLaunchFailure));
}

const backend_vtable *backend_simt(void)
{
    static backend_vtable backend;
    backend = backend_cpu;
    backend.name = "simt";
    backend.act = DT_BF16;
    backend.acc = DT_F32;
    backend.open = simt_open;
    backend.close = simt_close;
    backend.stream_new = simt_stream_new;
    backend.stream_free = simt_stream_free;
    backend.wait = simt_wait;
    backend.fixed_shapes = true;
    return &backend;
}

const cuda_facts *cuda_facts_of(const stream *)
{
    static const cuda_facts small = {90, 3, 227 << 10, 1 << 20, &stuck, 2};
    return &small;
}

/* Every call gets a new block filled with NaN, so that accesses beyond it and reads of what was not
 * written are noticed. */
status cuda_scratch(stream *base, size_t bytes, void **out)
{
    simt_stream *own = (simt_stream *)base;
    free(own->scratch);
    own->scratch = NULL;
    if (bytes && posix_memalign(&own->scratch, SCRATCH_ALIGN, bytes) != 0)
        return FAIL(ST_NO_MEMORY, "out of memory: %zu bytes of scratch", bytes);
    if (bytes)
        memset(own->scratch, 0xff, bytes);
    *out = own->scratch;
    return ST_OK;
}
