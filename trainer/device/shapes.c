/* shapes.c: the list of allocations, and the checks of copies (shapes.h). */
#include "trainer/device/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS_MAX = 256 }; /* a run makes about thirty, all at its start */

typedef struct block {
    char *at;
    size_t bytes; /* as requested */
    bool pinned;  /* real memory of the host */
} block;

typedef struct shapes_device {
    device base;
    block list[BLOCKS_MAX];
    int count, streams;
    size_t memory; /* device_claims.memory */
} shapes_device;

typedef struct shapes_stream {
    stream base;
    shapes_handle handle;
} shapes_stream;

struct event {
    int recorded;
};

static const shapes_device *as_shapes(const device *d)
{
    return (const shapes_device *)d;
}

static shapes_place place_of(const device *d, const void *p, size_t bytes)
{
    const shapes_device *all = as_shapes(d);
    const char *at = p;
    for (int i = 0; i < all->count; i++) {
        const block *b = &all->list[i];
        if (at >= b->at && bytes <= b->bytes && (size_t)(at - b->at) <= b->bytes - bytes)
            return b->pinned ? SHAPES_PINNED : SHAPES_HOLLOW;
    }
    return bytes == 0 ? SHAPES_HOLLOW : SHAPES_NOWHERE;
}

bool shapes_hold(const device *d, const void *p, size_t bytes)
{
    return bytes == 0 || place_of(d, p, bytes) == SHAPES_HOLLOW;
}

int shapes_allocations(const device *d, size_t bytes)
{
    int n = 0;
    for (int i = 0; i < as_shapes(d)->count; i++)
        n += !as_shapes(d)->list[i].pinned && as_shapes(d)->list[i].bytes == bytes;
    return n;
}

size_t shapes_bytes(const device *d)
{
    size_t sum = 0;
    for (int i = 0; i < as_shapes(d)->count; i++)
        sum += as_shapes(d)->list[i].pinned ? 0 : as_shapes(d)->list[i].bytes;
    return sum;
}

static status check_copy(const stream *s, const void *p, size_t bytes, const char *what)
{
    if (shapes_hold(s->dev, p, bytes))
        return ST_OK;
    return FAIL(ST_INTERNAL, "%s: %zu bytes do not lie in one allocation of the device", what,
                bytes);
}

static status shapes_open(const device_options *o, device **out)
{
    shapes_device *d = calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "out of memory while the device of shapes was opened");
    d->base.backend = &backend_shapes;
    d->memory = o->claims.memory;
    d->base.multiprocessors = o->claims.multiprocessors;
    snprintf(d->base.description, sizeof d->base.description, "shapes alone, no storage");
    *out = &d->base;
    return ST_OK;
}

static void shapes_close(device *d)
{
    free(d);
}

static status take_block(device *base, size_t bytes, bool pinned, void **out)
{
    shapes_device *d = (shapes_device *)base;
    if (d->count == BLOCKS_MAX)
        return FAIL(ST_INTERNAL, "shapes: more than %d allocations", BLOCKS_MAX);
    void *p = mmap(NULL, bytes ? bytes : 1, pinned ? PROT_READ | PROT_WRITE : PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return FAIL(ST_NO_MEMORY, "the address space has no room for %zu bytes", bytes);
    base->counts.allocations++;
    d->list[d->count++] = (block){p, bytes, pinned};
    *out = p;
    return ST_OK;
}

static status shapes_alloc(device *d, size_t bytes, void **out)
{
    return take_block(d, bytes, false, out);
}

static status shapes_alloc_host(device *d, size_t bytes, void **out)
{
    return take_block(d, bytes, true, out);
}

static void shapes_release(device *base, void *p)
{
    shapes_device *d = (shapes_device *)base;
    for (int i = 0; i < d->count; i++)
        if (d->list[i].at == p) {
            munmap(p, d->list[i].bytes ? d->list[i].bytes : 1);
            d->list[i] = d->list[--d->count];
            return;
        }
}

static status shapes_stream_new(device *d, stream **out)
{
    shapes_stream *s = calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "out of memory for a stream");
    s->handle = (shapes_handle){{.number = ((shapes_device *)d)->streams++}, d, place_of};
    s->base = (stream){.dev = d, .ops = d->ops, .handle = &s->handle};
    *out = &s->base;
    return ST_OK;
}

static void shapes_stream_free(stream **s)
{
    free(*s);
    *s = NULL;
}

static status shapes_to_device(stream *s, void *dst, const void *src, size_t bytes)
{
    if (place_of(s->dev, dst, bytes) == SHAPES_PINNED) {
        memmove(dst, src, bytes);
        return ST_OK;
    }
    return check_copy(s, dst, bytes, "copy to the device");
}

static status shapes_to_host(stream *s, void *dst, const void *src, size_t bytes)
{
    if (place_of(s->dev, src, bytes) == SHAPES_PINNED) {
        memmove(dst, src, bytes);
        return ST_OK;
    }
    if (bytes)
        memset(dst, 0, bytes);
    return check_copy(s, src, bytes, "copy from the device");
}

static status shapes_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    TRY(check_copy(s, src, bytes, "copy on the device, from"));
    return check_copy(s, dst, bytes, "copy on the device, to");
}

static status shapes_zero(stream *s, void *dst, size_t bytes)
{
    return check_copy(s, dst, bytes, "clearing");
}

static status shapes_wait(stream *s)
{
    s->dev->counts.waits++;
    device_wait_begins(s->dev);
    return device_wait_ended(s->dev, ST_OK);
}

static status shapes_event_new(device *d, event **out)
{
    (void)d;
    *out = calloc(1, sizeof **out);
    return *out ? ST_OK : FAIL(ST_NO_MEMORY, "out of memory for an event");
}

static void shapes_event_free(event **e)
{
    free(*e);
    *e = NULL;
}

static status shapes_event_record(stream *s, event *e)
{
    (void)s;
    e->recorded++;
    return ST_OK;
}

static status waited(const event *e)
{
    return e->recorded ? ST_OK : FAIL(ST_INTERNAL, "a wait for an event that was never recorded");
}

static status shapes_event_follow(stream *s, event *e)
{
    (void)s;
    return waited(e);
}

static status shapes_event_wait(device *d, event *e)
{
    d->counts.event_waits++;
    device_wait_begins(d);
    return device_wait_ended(d, waited(e));
}

static status shapes_event_ns(event *from, event *to, int64_t *out_ns)
{
    (void)from;
    (void)to;
    *out_ns = 0;
    return ST_OK;
}

/* Claims as much memory as it was opened with. Whether a real card has that much is for trainer
 * plan to say. */
static status shapes_memory(device *d, size_t *out_used, size_t *out_total)
{
    *out_used = shapes_bytes(d);
    *out_total = as_shapes(d)->memory ? as_shapes(d)->memory : SIZE_MAX / 2;
    return ST_OK;
}

static status shapes_available(device *d, size_t *out)
{
    size_t used, total;
    TRY(shapes_memory(d, &used, &total));
    *out = used < total ? total - used : 0;
    return ST_OK;
}

const backend_vtable backend_shapes = {
    .name = "shapes",
    .act = DT_BF16,
    .acc = DT_F32,
    .open = shapes_open,
    .close = shapes_close,
    .alloc = shapes_alloc,
    .release = shapes_release,
    .alloc_host = shapes_alloc_host,
    .release_host = shapes_release,
    .stream_new = shapes_stream_new,
    .stream_free = shapes_stream_free,
    .to_device = shapes_to_device,
    .to_host = shapes_to_host,
    .copy = shapes_copy,
    .zero = shapes_zero,
    .wait = shapes_wait,
    .event_new = shapes_event_new,
    .event_free = shapes_event_free,
    .event_record = shapes_event_record,
    .event_follow = shapes_event_follow,
    .event_wait = shapes_event_wait,
    .event_ns = shapes_event_ns,
    .memory = shapes_memory,
    .available = shapes_available,
    .no_storage = true,
    .fixed_shapes = true,
    .ahead = 1,
};
