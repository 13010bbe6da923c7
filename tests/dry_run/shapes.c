/* SPDX-License-Identifier: Apache-2.0 */
/* shapes.c: the list of allocations, the checks of copies, and ops that do nothing (shapes.h). */
#include "tests/dry_run/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "trainer/parallel/comm/comm.h"

enum { BLOCKS_MAX = 256 }; /* a run makes about thirty, all at its start */

typedef struct block {
    char *at;
    size_t bytes; /* as requested */
    bool pinned;  /* real memory of the host */
    bool on_host; /* hollow, and would be on the host */
} block;

typedef struct shapes_device {
    device base;
    block list[BLOCKS_MAX];
    int count, streams;
    size_t memory;                /* as claimed; 0: more than any run takes */
    const void *known_at, *known; /* shapes_know */
    size_t known_bytes;
} shapes_device;

typedef struct shapes_stream {
    stream base;
    shapes_handle handle;
} shapes_stream;

struct event {
    int recorded;
};

static const shapes_device *as_shapes(const device *dev)
{
    return (const shapes_device *)dev;
}

static shapes_place place_of(const device *dev, const void *array, size_t bytes)
{
    const shapes_device *all = as_shapes(dev);
    const char *at = array;
    for (int i = 0; i < all->count; i++) {
        const block *region = &all->list[i];
        if (at >= region->at && bytes <= region->bytes &&
            (size_t)(at - region->at) <= region->bytes - bytes)
            return region->pinned ? SHAPES_PINNED : SHAPES_HOLLOW;
    }
    return bytes == 0 ? SHAPES_HOLLOW : SHAPES_NOWHERE;
}

bool shapes_hold(const device *dev, const void *array, size_t bytes)
{
    return bytes == 0 || place_of(dev, array, bytes) == SHAPES_HOLLOW;
}

/* Whether it stands for memory of the device itself. */
static bool is_hollow(const block *of)
{
    return !of->pinned && !of->on_host;
}

int shapes_allocations(const device *dev, size_t bytes)
{
    int count = 0;
    for (int i = 0; i < as_shapes(dev)->count; i++)
        count += is_hollow(&as_shapes(dev)->list[i]) && as_shapes(dev)->list[i].bytes == bytes;
    return count;
}

size_t shapes_bytes(const device *dev)
{
    size_t sum = 0;
    for (int i = 0; i < as_shapes(dev)->count; i++)
        sum += is_hollow(&as_shapes(dev)->list[i]) ? as_shapes(dev)->list[i].bytes : 0;
    return sum;
}

size_t shapes_host_bytes(const device *dev)
{
    size_t sum = 0;
    for (int i = 0; i < as_shapes(dev)->count; i++)
        sum += as_shapes(dev)->list[i].on_host ? as_shapes(dev)->list[i].bytes : 0;
    return sum;
}

static status check_copy(const stream *queue, const void *dst, size_t bytes, const char *what)
{
    if (shapes_hold(queue->dev, dst, bytes))
        return ST_OK;
    return FAIL(ST_INTERNAL, "%s: %zu bytes do not lie in one allocation of the device", what,
                bytes);
}

static status shapes_open(const device_options *options, device **out)
{
    (void)options;
    shapes_device *shapes = calloc(1, sizeof *shapes);
    if (!shapes)
        return FAIL(ST_NO_MEMORY, "out of memory while the device of shapes was opened");
    shapes->base.backend = &backend_shapes;
    shapes->base.ops = &ops_shapes;
    shapes->base.host_ranks = 1;
    snprintf(shapes->base.description, sizeof shapes->base.description, "shapes alone, no storage");
    *out = &shapes->base;
    return ST_OK;
}

status shapes_device_open(const plan_device *like, device **out)
{
    TRY(shapes_open(NULL, out));
    if (!like)
        return ST_OK;
    ((shapes_device *)*out)->memory = (size_t)like->memory;
    (*out)->multiprocessors = like->multiprocessors;
    if (!like->cudnn)
        choices_without_cudnn(&(*out)->choices);
    return ST_OK;
}

void shapes_know(device *dev, const void *array, const void *values, size_t bytes)
{
    shapes_device *shapes = (shapes_device *)dev;
    shapes->known_at = array;
    shapes->known = values;
    shapes->known_bytes = bytes;
}

static void shapes_close(device *dev)
{
    free(dev);
}

static status take_block(device *base, size_t bytes, bool pinned, bool on_host, void **out)
{
    shapes_device *shapes = (shapes_device *)base;
    if (shapes->count == BLOCKS_MAX)
        return FAIL(ST_INTERNAL, "shapes: more than %d allocations", BLOCKS_MAX);
    void *array = mmap(NULL, bytes ? bytes : 1, pinned ? PROT_READ | PROT_WRITE : PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (array == MAP_FAILED)
        return FAIL(ST_NO_MEMORY, "the address space has no room for %zu bytes", bytes);
    base->counts.allocations++;
    shapes->list[shapes->count++] = (block){array, bytes, pinned, on_host};
    *out = array;
    return ST_OK;
}

/* Host values go through the stage of the NCCL engine, and they are real on every device. */
static status shapes_alloc(device *dev, size_t bytes, void **out)
{
    return take_block(dev, bytes, bytes == COMM_STAGE_BYTES, false, out);
}

static status shapes_alloc_host(device *dev, size_t bytes, void **out)
{
    return take_block(dev, bytes, true, false, out);
}

static status shapes_host_array(device *dev, size_t bytes, void **out)
{
    return take_block(dev, bytes, false, true, out);
}

static void shapes_release(device *base, void *array)
{
    shapes_device *shapes = (shapes_device *)base;
    for (int i = 0; i < shapes->count; i++)
        if (shapes->list[i].at == array) {
            munmap(array, shapes->list[i].bytes ? shapes->list[i].bytes : 1);
            shapes->list[i] = shapes->list[--shapes->count];
            return;
        }
}

static status shapes_stream_new(device *dev, stream **out)
{
    shapes_stream *own = calloc(1, sizeof *own);
    if (!own)
        return FAIL(ST_NO_MEMORY, "out of memory for a stream");
    own->handle = (shapes_handle){{.number = ((shapes_device *)dev)->streams++}, dev, place_of};
    own->base = (stream){.dev = dev, .ops = dev->ops, .handle = &own->handle};
    *out = &own->base;
    return ST_OK;
}

static void shapes_stream_free(stream **queue)
{
    free(*queue);
    *queue = NULL;
}

static status shapes_to_device(stream *queue, void *dst, const void *src, size_t bytes)
{
    if (place_of(queue->dev, dst, bytes) == SHAPES_PINNED) {
        memmove(dst, src, bytes);
        return ST_OK;
    }
    return check_copy(queue, dst, bytes, "copy to the device");
}

static status shapes_to_host(stream *queue, void *dst, const void *src, size_t bytes)
{
    if (place_of(queue->dev, src, bytes) == SHAPES_PINNED) {
        memmove(dst, src, bytes);
        return ST_OK;
    }
    const shapes_device *shapes = as_shapes(queue->dev);
    if (bytes && src == shapes->known_at && bytes == shapes->known_bytes)
        memcpy(dst, shapes->known, bytes);
    else if (bytes)
        memset(dst, 0, bytes);
    return check_copy(queue, src, bytes, "copy from the device");
}

static status shapes_copy(stream *queue, void *dst, const void *src, size_t bytes)
{
    TRY(check_copy(queue, src, bytes, "copy on the device, from"));
    return check_copy(queue, dst, bytes, "copy on the device, to");
}

static status shapes_zero(stream *queue, void *dst, size_t bytes)
{
    return check_copy(queue, dst, bytes, "clearing");
}

static status shapes_wait(stream *queue)
{
    queue->dev->counts.waits++;
    device_wait_begins(queue->dev);
    return device_wait_ended(queue->dev, ST_OK);
}

static status shapes_event_new(device *dev, event **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    return *out ? ST_OK : FAIL(ST_NO_MEMORY, "out of memory for an event");
}

static void shapes_event_free(event **moment)
{
    free(*moment);
    *moment = NULL;
}

static status shapes_event_record(stream *queue, event *moment)
{
    (void)queue;
    moment->recorded++;
    return ST_OK;
}

static status waited(const event *moment)
{
    return moment->recorded ? ST_OK
                            : FAIL(ST_INTERNAL, "a wait for an event that was never recorded");
}

static status shapes_event_follow(stream *queue, event *moment)
{
    (void)queue;
    return waited(moment);
}

static status shapes_event_wait(device *dev, event *moment)
{
    dev->counts.event_waits++;
    device_wait_begins(dev);
    return device_wait_ended(dev, waited(moment));
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
static status shapes_memory(device *dev, size_t *out_used, size_t *out_total)
{
    *out_used = shapes_bytes(dev);
    *out_total = as_shapes(dev)->memory ? as_shapes(dev)->memory : SIZE_MAX / 2;
    return ST_OK;
}

static status shapes_available(device *dev, size_t *out)
{
    size_t used, total;
    TRY(shapes_memory(dev, &used, &total));
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
    .host_array = shapes_host_array,
    .release_host_array = shapes_release,
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
    .fixed_shapes = true,
    .ahead = 1,
};

#define OP(name)                                                                                   \
    static status nothing_##name(stream *s, const struct name##_args *a)                           \
    {                                                                                              \
        (void)s;                                                                                   \
        (void)a;                                                                                   \
        return ST_OK;                                                                              \
    }
#include "trainer/ops/ops.def"

const ops_table ops_shapes = {
#define OP(name) .name = nothing_##name,
#include "trainer/ops/ops.def"
};
