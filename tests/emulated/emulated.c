/* SPDX-License-Identifier: Apache-2.0 */
/* emulated.c: the functions of the emulated device (emulated.h) and its table of ops. Each queues a
 * node; queue.c runs the nodes. */
#include "tests/emulated/emulated.h"

#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "tests/emulated/meetings.h"
#include "tests/emulated/queue.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"

enum { PINNED_MAX = 64 };

typedef struct emulated_stream {
    stream base;
    emulated_handle handle;
    lane *queue; /* its lane; the device keeps it longer, since other lanes may follow it */
    graph *into; /* the capture that it takes part in; NULL: none */
    int branch;  /* its number among the lanes of that capture */
} emulated_stream;

typedef struct emulated_device {
    device base;
    backend_vtable backend;
    device *cpu;
    queue_set streams;
    emulated_stream *stream[QUEUE_STREAMS]; /* the streams of these lanes; NULL: freed */
    bool broken;                            /* some work failed, and all later work is dropped */
    struct {
        char *at;
        size_t bytes;
    } pinned[PINNED_MAX];
    int n_pinned;
    graph *capture; /* in progress; NULL: none */
    event *events;  /* all events that exist */
    meeting *meetings;
    int64_t captured; /* number of nodes in the last graph */
    struct {
        unsigned ways;
        int64_t after, uses;
        bool memory;   /* it fails for lack of memory */
    } breaks[CHOICES]; /* emulated_break */
    size_t never;      /* emulated_refuse */
} emulated_device;

static emulated_device *device_of(const stream *queue)
{
    return (emulated_device *)queue->dev;
}

static status queue_node(stream *base, const node *added)
{
    emulated_stream *queue = (emulated_stream *)base;
    return lane_add(queue->into ? &queue->into->branch[queue->branch] : queue->queue, added);
}

static status refuse_in_capture(const emulated_device *dev, const char *what)
{
    return dev->capture ? FAIL(ST_BAD_DEVICE, "emulated: %s while a step is captured", what)
                        : ST_OK;
}

static status queue_meeting(stream *queue, const peers_meet_args *args)
{
    emulated_device *dev = device_of(queue);
    node meets;
    TRY(meeting_new(args, dev->streams.hands, &dev->meetings, &meets));
    return queue_node(queue, &meets);
}

void emulated_break(device *dev, int choice, unsigned ways, int64_t after, bool memory)
{
    ((emulated_device *)dev)->breaks[choice].ways = ways;
    ((emulated_device *)dev)->breaks[choice].after = after;
    ((emulated_device *)dev)->breaks[choice].memory = memory;
}

void emulated_refuse(device *dev, size_t bytes)
{
    ((emulated_device *)dev)->never = bytes;
}

/* Fails if the way in use is one of those that emulated_break has named. */
static status use_way(emulated_device *dev, int choice)
{
    const int way = dev->base.choices.way[choice];
    if (dev->breaks[choice].uses++ < dev->breaks[choice].after ||
        !(dev->breaks[choice].ways >> way & 1))
        return ST_OK;
    return FAIL(dev->breaks[choice].memory ? ST_NO_MEMORY : ST_BAD_DEVICE,
                "emulated: %s by %s is broken", choice_name(choice), choice_way(choice, way));
}

static status use_op(const stream *queue, const char *name, const void *args)
{
    emulated_device *dev = device_of(queue);
    if (strcmp(name, "attention_fwd") == 0)
        return use_way(dev, choice_attention(((const attention_fwd_args *)args)->causal, false));
    if (strcmp(name, "attention_bwd") == 0)
        return use_way(dev, choice_attention(((const attention_bwd_args *)args)->causal, true));
    return strcmp(name, "grouped_gemm") == 0 ? use_way(dev, CHOICE_EXPERTS) : ST_OK;
}

/* ---- the op table ---- */

#define OP(name)                                                                                   \
    static status run_##name(stream *cpu, const void *args)                                        \
    {                                                                                              \
        return cpu->ops->name(cpu, args);                                                          \
    }                                                                                              \
    static status queue_##name(stream *s, const struct name##_args *a)                             \
    {                                                                                              \
        node n = {.kind = NODE_RUN, .run = run_##name};                                            \
        if (strcmp(#name, "peers_meet") == 0)                                                      \
            return queue_meeting(s, (const void *)a);                                              \
        TRY(use_op(s, #name, a));                                                                  \
        _Static_assert(sizeof *a <= QUEUE_ARGS_MAX, "QUEUE_ARGS_MAX");                             \
        memcpy(n.args, a, sizeof *a);                                                              \
        return queue_node(s, &n);                                                                  \
    }
#include "trainer/ops/ops.def"

static const ops_table ops_emulated = {
#define OP(name) .name = queue_##name,
#include "trainer/ops/ops.def"
};

/* ---- the device ---- */

static status emulated_alloc(device *base, size_t bytes, void **out)
{
    emulated_device *dev = (emulated_device *)base;
    TRY(refuse_in_capture(dev, "an allocation"));
    base->counts.allocations++;
    if (bytes == dev->never && bytes > 0)
        return FAIL(ST_NO_MEMORY, "emulated: no %zu bytes", bytes);
    return dev->cpu->backend->alloc(dev->cpu, bytes, out);
}

static void emulated_release(device *base, void *memory)
{
    device *cpu = ((emulated_device *)base)->cpu;
    cpu->backend->release(cpu, memory);
}

static status emulated_alloc_host(device *base, size_t bytes, void **out)
{
    emulated_device *dev = (emulated_device *)base;
    if (dev->n_pinned == PINNED_MAX)
        return FAIL(ST_INTERNAL, "emulated: PINNED_MAX");
    TRY(emulated_alloc(base, bytes, out));
    dev->pinned[dev->n_pinned].at = *out;
    dev->pinned[dev->n_pinned++].bytes = bytes;
    return ST_OK;
}

static void emulated_release_host(device *base, void *memory)
{
    emulated_device *dev = (emulated_device *)base;
    for (int i = 0; i < dev->n_pinned; i++)
        if (dev->pinned[i].at == memory)
            dev->pinned[i] = dev->pinned[--dev->n_pinned];
    emulated_release(base, memory);
}

static bool is_pinned(const emulated_device *dev, const char *at, size_t bytes)
{
    for (int i = 0; i < dev->n_pinned; i++)
        if (at >= dev->pinned[i].at && at + bytes <= dev->pinned[i].at + dev->pinned[i].bytes)
            return true;
    return false;
}

static bool add_outside(emulated_handle *handle, bool (*poll)(void *work, bool first),
                        void (*drop)(void *work), void *work)
{
    emulated_stream *queue = handle->stream;
    node added = {.kind = NODE_OUTSIDE, .poll = poll, .drop = drop, .work = work};
    return queue_node(&queue->base, &added) == ST_OK;
}

static const void *capture_of(const emulated_handle *handle)
{
    return ((const emulated_stream *)handle->stream)->into;
}

static status emulated_stream_new(device *base, stream **out)
{
    emulated_device *dev = (emulated_device *)base;
    emulated_stream *queue = calloc(1, sizeof *queue);
    if (!queue)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    if (dev->streams.count == QUEUE_STREAMS) {
        free(queue);
        return FAIL(ST_INTERNAL, "emulated: QUEUE_STREAMS");
    }
    queue->handle = (emulated_handle){dev->streams.count, queue, add_outside, capture_of};
    queue->base = (stream){.dev = base, .ops = base->ops, .handle = &queue->handle};
    queue->queue = &dev->streams.lane[dev->streams.count];
    dev->stream[dev->streams.count++] = queue;
    *out = &queue->base;
    return ST_OK;
}

/* What is queued still happens, as in CUDA. The error, if there is one, was reported before. */
static void emulated_stream_free(stream **held)
{
    emulated_stream *queue = (emulated_stream *)*held;
    if (!queue)
        return;
    emulated_device *dev = device_of(&queue->base);
    if (!dev->capture && !dev->broken &&
        queue_pass(&dev->streams, queue->queue, queue_end(queue->queue)) != ST_OK) {
        dev->broken = true;
        status_clear();
    }
    dev->stream[queue->handle.number] = NULL;
    free(queue);
    *held = NULL;
}

static status emulated_wait(stream *queue)
{
    emulated_device *dev = device_of(queue);
    TRY(refuse_in_capture(dev, "waiting for a stream"));
    queue->dev->counts.waits++;
    device_wait_begins(queue->dev);
    lane *on = ((emulated_stream *)queue)->queue;
    return device_wait_ended(queue->dev, queue_pass(&dev->streams, on, queue_end(on)));
}

static status emulated_copy(stream *queue, void *dst, const void *src, size_t bytes)
{
    return queue_node(queue, &(node){.kind = NODE_COPY, .dst = dst, .src = src, .bytes = bytes});
}

/* As in CUDA, pageable memory is read before the call returns. */
static status emulated_to_device(stream *queue, void *dst, const void *src, size_t bytes)
{
    if (is_pinned(device_of(queue), src, bytes))
        return emulated_copy(queue, dst, src, bytes);
    TRY(refuse_in_capture(device_of(queue), "a copy from memory that is not pinned"));
    void *own = malloc(bytes ? bytes : 1);
    if (!own)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    memcpy(own, src, bytes);
    return queue_node(queue,
                      &(node){.kind = NODE_SHIPMENT, .dst = dst, .src = own, .bytes = bytes});
}

/* As in CUDA, a copy to pageable memory may wait, and here it does. */
static status emulated_to_host(stream *queue, void *dst, const void *src, size_t bytes)
{
    if (is_pinned(device_of(queue), dst, bytes))
        return emulated_copy(queue, dst, src, bytes);
    TRY(emulated_copy(queue, dst, src, bytes));
    return emulated_wait(queue);
}

static status emulated_zero(stream *queue, void *dst, size_t bytes)
{
    return queue_node(queue, &(node){.kind = NODE_ZERO, .dst = dst, .bytes = bytes});
}

static status emulated_event_new(device *dev, event **out)
{
    TRY(refuse_in_capture((emulated_device *)dev, "a new event"));
    event *moment = calloc(1, sizeof *moment);
    if (!moment)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    moment->next = ((emulated_device *)dev)->events;
    ((emulated_device *)dev)->events = moment;
    *out = moment;
    return ST_OK;
}

static void emulated_event_free(event **moment)
{
    *moment = NULL;
}

/* An event on a stream that is being captured is a place in the graph. */
static status emulated_event_record(stream *base, event *moment)
{
    emulated_stream *queue = (emulated_stream *)base;
    if (queue->into) {
        moment->in = queue->into;
        moment->branch = queue->branch;
        moment->at = queue->into->branch[queue->branch].count;
        return ST_OK;
    }
    TRY(refuse_in_capture(device_of(base), "an event on a stream outside of it"));
    moment->in = NULL;
    moment->on = queue->queue;
    TRY(queue_node(base, &(node){.kind = NODE_RECORD, .event = moment}));
    moment->at = queue_end(moment->on);
    return ST_OK;
}

/* A stream that follows an event of the capture becomes part of it. */
static status follow_inside(emulated_stream *queue, const event *moment)
{
    graph *recorded = device_of(&queue->base)->capture;
    if (moment->in != recorded)
        return FAIL(ST_BAD_DEVICE, "emulated: a captured stream follows an event from outside");
    if (!queue->into) {
        if (recorded->count == QUEUE_BRANCHES)
            return FAIL(ST_INTERNAL, "emulated: QUEUE_BRANCHES");
        queue->into = recorded;
        queue->branch = recorded->count++;
    }
    return queue_node(
        &queue->base,
        &(node){.kind = NODE_FOLLOW_INSIDE, .branch = moment->branch, .place = moment->at});
}

static status emulated_event_follow(stream *queue, event *moment)
{
    if (device_of(queue)->capture)
        return follow_inside((emulated_stream *)queue, moment);
    if (moment->in)
        return FAIL(ST_BAD_DEVICE, "emulated: an event that a capture recorded is followed");
    if (!moment->on) /* CUDA ignores it too */
        return ST_OK;
    return queue_node(queue, &(node){.kind = NODE_FOLLOW, .on = moment->on, .place = moment->at});
}

static status emulated_event_wait(device *base, event *moment)
{
    emulated_device *dev = (emulated_device *)base;
    TRY(refuse_in_capture(dev, "waiting for an event"));
    if (moment->in)
        return FAIL(ST_BAD_DEVICE, "emulated: an event that a capture recorded is waited for");
    base->counts.event_waits++;
    device_wait_begins(base);
    status st = moment->on ? queue_pass(&dev->streams, moment->on, moment->at) : ST_OK;
    return device_wait_ended(base, st);
}

static status emulated_event_ns(event *from, event *to, int64_t *out_ns)
{
    *out_ns = to->ns - from->ns;
    return ST_OK;
}

static status emulated_capture_begin(stream *base)
{
    emulated_stream *queue = (emulated_stream *)base;
    emulated_device *dev = device_of(base);
    if (dev->capture)
        return FAIL(ST_INTERNAL, "emulated: a capture inside a capture");
    queue->into = calloc(1, sizeof *queue->into);
    if (!queue->into)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    queue->into->count = 1;
    queue->branch = 0;
    dev->capture = queue->into;
    return ST_OK;
}

static status emulated_capture_end(stream *base, graph **out)
{
    emulated_device *dev = device_of(base);
    graph *recorded = dev->capture;
    base->dev->counts.captures++;
    dev->capture = NULL;
    *out = NULL;
    for (int i = 0; i < dev->streams.count; i++)
        if (dev->stream[i])
            dev->stream[i]->into = NULL;
    const status st = use_way(dev, CHOICE_GRAPHS);
    if (st != ST_OK) {
        queue_graph_free(recorded);
        return st;
    }
    if (!queue_is_joined(recorded)) {
        queue_graph_free(recorded);
        return FAIL(ST_BAD_DEVICE, "emulated: a stream of the capture was not joined again");
    }
    dev->captured = 0;
    for (int branch = 0; branch < recorded->count; branch++)
        dev->captured += recorded->branch[branch].count;
    *out = recorded;
    return ST_OK;
}

int64_t emulated_captured(const device *dev)
{
    return ((const emulated_device *)dev)->captured;
}

static status emulated_graph_launch(stream *queue, graph *recorded)
{
    return queue_node(queue, &(node){.kind = NODE_LAUNCH, .graph = recorded});
}

static void emulated_graph_free(graph **recorded)
{
    if (*recorded)
        queue_graph_free(*recorded);
    *recorded = NULL;
}

static status emulated_memory(device *dev, size_t *out_used, size_t *out_total)
{
    device *cpu = ((emulated_device *)dev)->cpu;
    return cpu->backend->memory(cpu, out_used, out_total);
}

static status emulated_available(device *dev, size_t *out)
{
    device *cpu = ((emulated_device *)dev)->cpu;
    return cpu->backend->available(cpu, out);
}

static void emulated_close(device *base)
{
    emulated_device *dev = (emulated_device *)base;
    for (int i = 0; i < dev->streams.count; i++)
        queue_lane_done(&dev->streams.lane[i]);
    for (event *next; dev->events; dev->events = next) {
        next = dev->events->next;
        free(dev->events);
    }
    meetings_free(&dev->meetings);
    if (dev->streams.hands)
        dev->cpu->backend->stream_free(&dev->streams.hands);
    device_close(&dev->cpu);
    free(dev);
}

static const backend_vtable emulated = {
    .name = "emulated",
    .close = emulated_close,
    .alloc = emulated_alloc,
    .release = emulated_release,
    .alloc_host = emulated_alloc_host,
    .release_host = emulated_release_host,
    .stream_new = emulated_stream_new,
    .stream_free = emulated_stream_free,
    .to_device = emulated_to_device,
    .to_host = emulated_to_host,
    .copy = emulated_copy,
    .zero = emulated_zero,
    .wait = emulated_wait,
    .event_new = emulated_event_new,
    .event_free = emulated_event_free,
    .event_record = emulated_event_record,
    .event_follow = emulated_event_follow,
    .event_wait = emulated_event_wait,
    .event_ns = emulated_event_ns,
    .memory = emulated_memory,
    .available = emulated_available,
    .fixed_shapes = true,
};

status emulated_open(int ahead, bool graphs, device **out)
{
    emulated_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    dev->backend = emulated;
    dev->backend.ahead = ahead;
    dev->base.backend = &dev->backend;
    dev->base.ops = &ops_emulated;
    if (graphs) {
        dev->backend.capture_begin = emulated_capture_begin;
        dev->backend.capture_end = emulated_capture_end;
        dev->backend.graph_launch = emulated_graph_launch;
        dev->backend.graph_free = emulated_graph_free;
    }
    status st = device_open(BACKEND_CPU, &(device_options){.threads = 2}, &dev->cpu);
    if (st == ST_OK) {
        dev->backend.act = dev->cpu->backend->act;
        dev->backend.acc = dev->cpu->backend->acc;
        st = dev->cpu->backend->stream_new(dev->cpu, &dev->streams.hands);
    }
    if (st != ST_OK) {
        emulated_close(&dev->base);
        return st;
    }
    dev->base.multiprocessors = EMULATED_MULTIPROCESSORS;
    memcpy(dev->base.memory_name, dev->cpu->memory_name, sizeof dev->base.memory_name);
    *out = &dev->base;
    return ST_OK;
}
