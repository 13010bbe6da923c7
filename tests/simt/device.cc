/* device.cc: the implementation of device.h. Memory, copies and events are those of the CPU
 * backend. Its own are the op table, the types, and what trainer/device/cuda.h promises to
 * kernels. */
#include "tests/simt/device.h"

#include <stdio.h>
#include <stdlib.h>

#include "trainer/device/cuda.h"

extern "C" const struct ops_table ops_cuda;

enum { SCRATCH_ALIGN = 256 };

typedef struct simt_stream {
    stream base;
    void *scratch;
} simt_stream;

static status simt_open(const device_options *o, device **out)
{
    if (o->index != 0)
        return FAIL(ST_UNAVAILABLE, "there is no device %d: the harness is device 0", o->index);
    device *d = (device *)calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "out of memory for a device");
    d->backend = backend_simt();
    d->ops = &ops_cuda;
    snprintf(d->description, sizeof d->description, "SIMT harness");
    *out = d;
    return ST_OK;
}

static void simt_close(device *d)
{
    free(d);
}

static status simt_stream_new(device *d, stream **out)
{
    simt_stream *s = (simt_stream *)calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "out of memory for a stream");
    s->base.dev = d;
    s->base.ops = d->ops;
    *out = &s->base;
    return ST_OK;
}

static void simt_stream_free(stream **held)
{
    simt_stream *s = (simt_stream *)*held;
    if (!s)
        return;
    free(s->scratch);
    free(s);
    *held = NULL;
}

const backend_vtable *backend_simt(void)
{
    static backend_vtable v;
    v = backend_cpu;
    v.name = "simt";
    v.act = DT_BF16;
    v.acc = DT_F32;
    v.open = simt_open;
    v.close = simt_close;
    v.stream_new = simt_stream_new;
    v.stream_free = simt_stream_free;
    v.fixed_shapes = true;
    return &v;
}

const cuda_facts *cuda_facts_of(const stream *)
{
    static const cuda_facts small = {90, 3, 227 << 10, 1 << 20};
    return &small;
}

/* Every call gets a new block filled with NaN, so that accesses beyond it and reads of what was not
 * written are noticed. */
status cuda_scratch(stream *base, size_t bytes, void **out)
{
    simt_stream *s = (simt_stream *)base;
    free(s->scratch);
    s->scratch = NULL;
    if (bytes && posix_memalign(&s->scratch, SCRATCH_ALIGN, bytes) != 0)
        return FAIL(ST_NO_MEMORY, "out of memory: %zu bytes of scratch", bytes);
    if (bytes)
        memset(s->scratch, 0xff, bytes);
    *out = s->scratch;
    return ST_OK;
}
