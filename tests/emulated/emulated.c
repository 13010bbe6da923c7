/* emulated.c: the functions of the emulated device (emulated.h) and its table of ops. Each queues a
 * node; queue.c runs the nodes. */
#include "tests/emulated/emulated.h"

#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
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
    backend_vtable v;
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
    struct meeting *meetings;
    int64_t captured; /* number of nodes in the last graph */
} emulated_device;

static emulated_device *device_of(const stream *s)
{
    return (emulated_device *)s->dev;
}

static status queue_node(stream *base, const node *n)
{
    emulated_stream *s = (emulated_stream *)base;
    return lane_add(s->into ? &s->into->branch[s->branch] : s->queue, n);
}

static status refuse_in_capture(const emulated_device *d, const char *what)
{
    return d->capture ? FAIL(ST_BAD_DEVICE, "emulated: %s while a step is captured", what) : ST_OK;
}

/* A meeting with other processes. It is polled, so that other streams make progress meanwhile, and
 * it lives as long as the device, since a graph may run it again. */
typedef struct meeting {
    struct meeting *next;
    emulated_device *device;
    peers_meet_args args;
} meeting;

static bool have_come(const peers_meet_args *a)
{
    const char *own = a->peers.base[a->peers.rank];
    const uint32_t *arrived = (const uint32_t *)(const void *)(own + a->arrived);
    const uint32_t turn = *(const uint32_t *)(const void *)(own + a->met) + 1;
    bool all = true;
    for (int32_t r = 0; r < a->peers.size; r++)
        all &= (int32_t)(__atomic_load_n(&arrived[r], __ATOMIC_ACQUIRE) - turn) >= 0;
    return all || (a->stop && __atomic_load_n(a->stop, __ATOMIC_RELAXED));
}

static bool poll_meeting(void *work, bool first)
{
    const meeting *m = work;
    stream *hands = m->device->streams.hands;
    peers_meet_args a = m->args;
    const bool needed = !a.rounds || a.round == 0 || a.round < a.rounds[0];
    a.phase = m->args.phase & MEET_ARRIVE;
    if (first && hands->ops->peers_meet(hands, &a) != ST_OK)
        abort();
    a.phase = m->args.phase & MEET_WAIT;
    if (!needed || !a.phase)
        return true;
    return have_come(&a) && hands->ops->peers_meet(hands, &a) == ST_OK;
}

static status queue_meeting(stream *s, const peers_meet_args *a)
{
    emulated_device *d = device_of(s);
    meeting *m = malloc(sizeof *m);
    if (!m)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    *m = (meeting){d->meetings, d, *a};
    d->meetings = m;
    return queue_node(s, &(node){.kind = NODE_OUTSIDE, .poll = poll_meeting, .work = m});
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
    emulated_device *d = (emulated_device *)base;
    TRY(refuse_in_capture(d, "an allocation"));
    base->counts.allocations++;
    return d->cpu->backend->alloc(d->cpu, bytes, out);
}

static void emulated_release(device *base, void *p)
{
    device *cpu = ((emulated_device *)base)->cpu;
    cpu->backend->release(cpu, p);
}

static status emulated_alloc_host(device *base, size_t bytes, void **out)
{
    emulated_device *d = (emulated_device *)base;
    if (d->n_pinned == PINNED_MAX)
        return FAIL(ST_INTERNAL, "emulated: PINNED_MAX");
    TRY(emulated_alloc(base, bytes, out));
    d->pinned[d->n_pinned].at = *out;
    d->pinned[d->n_pinned++].bytes = bytes;
    return ST_OK;
}

static void emulated_release_host(device *base, void *p)
{
    emulated_device *d = (emulated_device *)base;
    for (int i = 0; i < d->n_pinned; i++)
        if (d->pinned[i].at == p)
            d->pinned[i] = d->pinned[--d->n_pinned];
    emulated_release(base, p);
}

static bool is_pinned(const emulated_device *d, const char *p, size_t bytes)
{
    for (int i = 0; i < d->n_pinned; i++)
        if (p >= d->pinned[i].at && p + bytes <= d->pinned[i].at + d->pinned[i].bytes)
            return true;
    return false;
}

static bool add_outside(emulated_handle *h, bool (*poll)(void *work, bool first), void *work)
{
    emulated_stream *s = h->stream;
    node n = {.kind = NODE_OUTSIDE, .poll = poll, .work = work};
    return queue_node(&s->base, &n) == ST_OK;
}

static const void *capture_of(const emulated_handle *h)
{
    return ((const emulated_stream *)h->stream)->into;
}

static status emulated_stream_new(device *base, stream **out)
{
    emulated_device *d = (emulated_device *)base;
    emulated_stream *s = calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    if (d->streams.n == QUEUE_STREAMS) {
        free(s);
        return FAIL(ST_INTERNAL, "emulated: QUEUE_STREAMS");
    }
    s->handle = (emulated_handle){d->streams.n, s, add_outside, capture_of};
    s->base = (stream){.dev = base, .ops = base->ops, .handle = &s->handle};
    s->queue = &d->streams.lane[d->streams.n];
    d->stream[d->streams.n++] = s;
    *out = &s->base;
    return ST_OK;
}

/* What is queued still happens, as in CUDA. The error, if there is one, was reported before. */
static void emulated_stream_free(stream **held)
{
    emulated_stream *s = (emulated_stream *)*held;
    if (!s)
        return;
    emulated_device *d = device_of(&s->base);
    if (!d->capture && !d->broken &&
        queue_pass(&d->streams, s->queue, queue_end(s->queue)) != ST_OK) {
        d->broken = true;
        status_clear();
    }
    d->stream[s->handle.number] = NULL;
    free(s);
    *held = NULL;
}

static status emulated_wait(stream *s)
{
    emulated_device *d = device_of(s);
    TRY(refuse_in_capture(d, "waiting for a stream"));
    s->dev->counts.waits++;
    device_wait_begins(s->dev);
    lane *l = ((emulated_stream *)s)->queue;
    return device_wait_ended(s->dev, queue_pass(&d->streams, l, queue_end(l)));
}

static status emulated_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    return queue_node(s, &(node){.kind = NODE_COPY, .dst = dst, .src = src, .bytes = bytes});
}

/* As in CUDA, pageable memory is read before the call returns. */
static status emulated_to_device(stream *s, void *dst, const void *src, size_t bytes)
{
    if (is_pinned(device_of(s), src, bytes))
        return emulated_copy(s, dst, src, bytes);
    TRY(refuse_in_capture(device_of(s), "a copy from memory that is not pinned"));
    void *own = malloc(bytes ? bytes : 1);
    if (!own)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    memcpy(own, src, bytes);
    return queue_node(s, &(node){.kind = NODE_SHIPMENT, .dst = dst, .src = own, .bytes = bytes});
}

/* As in CUDA, a copy to pageable memory may wait, and here it does. */
static status emulated_to_host(stream *s, void *dst, const void *src, size_t bytes)
{
    if (is_pinned(device_of(s), dst, bytes))
        return emulated_copy(s, dst, src, bytes);
    TRY(emulated_copy(s, dst, src, bytes));
    return emulated_wait(s);
}

static status emulated_zero(stream *s, void *dst, size_t bytes)
{
    return queue_node(s, &(node){.kind = NODE_ZERO, .dst = dst, .bytes = bytes});
}

static status emulated_event_new(device *d, event **out)
{
    TRY(refuse_in_capture((emulated_device *)d, "a new event"));
    event *e = calloc(1, sizeof *e);
    if (!e)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    e->next = ((emulated_device *)d)->events;
    ((emulated_device *)d)->events = e;
    *out = e;
    return ST_OK;
}

static void emulated_event_free(event **e)
{
    *e = NULL;
}

/* An event on a stream that is being captured is a place in the graph. */
static status emulated_event_record(stream *base, event *e)
{
    emulated_stream *s = (emulated_stream *)base;
    if (s->into) {
        e->in = s->into;
        e->branch = s->branch;
        e->at = s->into->branch[s->branch].n;
        return ST_OK;
    }
    TRY(refuse_in_capture(device_of(base), "an event on a stream outside of it"));
    e->in = NULL;
    e->on = s->queue;
    TRY(queue_node(base, &(node){.kind = NODE_RECORD, .event = e}));
    e->at = queue_end(e->on);
    return ST_OK;
}

/* A stream that follows an event of the capture becomes part of it. */
static status follow_inside(emulated_stream *s, const event *e)
{
    graph *g = device_of(&s->base)->capture;
    if (e->in != g)
        return FAIL(ST_BAD_DEVICE, "emulated: a captured stream follows an event from outside");
    if (!s->into) {
        if (g->n == QUEUE_BRANCHES)
            return FAIL(ST_INTERNAL, "emulated: QUEUE_BRANCHES");
        s->into = g;
        s->branch = g->n++;
    }
    return queue_node(&s->base,
                      &(node){.kind = NODE_FOLLOW_INSIDE, .branch = e->branch, .place = e->at});
}

static status emulated_event_follow(stream *s, event *e)
{
    if (device_of(s)->capture)
        return follow_inside((emulated_stream *)s, e);
    if (e->in)
        return FAIL(ST_BAD_DEVICE, "emulated: an event that a capture recorded is followed");
    if (!e->on) /* CUDA ignores it too */
        return ST_OK;
    return queue_node(s, &(node){.kind = NODE_FOLLOW, .on = e->on, .place = e->at});
}

static status emulated_event_wait(device *base, event *e)
{
    emulated_device *d = (emulated_device *)base;
    TRY(refuse_in_capture(d, "waiting for an event"));
    if (e->in)
        return FAIL(ST_BAD_DEVICE, "emulated: an event that a capture recorded is waited for");
    base->counts.event_waits++;
    device_wait_begins(base);
    status st = e->on ? queue_pass(&d->streams, e->on, e->at) : ST_OK;
    return device_wait_ended(base, st);
}

static status emulated_event_ns(event *from, event *to, int64_t *out_ns)
{
    *out_ns = to->ns - from->ns;
    return ST_OK;
}

static status emulated_capture_begin(stream *base)
{
    emulated_stream *s = (emulated_stream *)base;
    emulated_device *d = device_of(base);
    if (d->capture)
        return FAIL(ST_INTERNAL, "emulated: a capture inside a capture");
    s->into = calloc(1, sizeof *s->into);
    if (!s->into)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    s->into->n = 1;
    s->branch = 0;
    d->capture = s->into;
    return ST_OK;
}

static status emulated_capture_end(stream *base, graph **out)
{
    emulated_device *d = device_of(base);
    graph *g = d->capture;
    base->dev->counts.captures++;
    d->capture = NULL;
    *out = NULL;
    for (int i = 0; i < d->streams.n; i++)
        if (d->stream[i])
            d->stream[i]->into = NULL;
    if (!queue_is_joined(g)) {
        queue_graph_free(g);
        return FAIL(ST_BAD_DEVICE, "emulated: a stream of the capture was not joined again");
    }
    d->captured = 0;
    for (int b = 0; b < g->n; b++)
        d->captured += g->branch[b].n;
    *out = g;
    return ST_OK;
}

int64_t emulated_captured(const device *d)
{
    return ((const emulated_device *)d)->captured;
}

static status emulated_graph_launch(stream *s, graph *g)
{
    return queue_node(s, &(node){.kind = NODE_LAUNCH, .graph = g});
}

static void emulated_graph_free(graph **g)
{
    if (*g)
        queue_graph_free(*g);
    *g = NULL;
}

static status emulated_memory(device *d, size_t *out_used, size_t *out_total)
{
    device *cpu = ((emulated_device *)d)->cpu;
    return cpu->backend->memory(cpu, out_used, out_total);
}

static status emulated_available(device *d, size_t *out)
{
    device *cpu = ((emulated_device *)d)->cpu;
    return cpu->backend->available(cpu, out);
}

static void emulated_close(device *base)
{
    emulated_device *d = (emulated_device *)base;
    for (int i = 0; i < d->streams.n; i++)
        queue_lane_done(&d->streams.lane[i]);
    for (event *next; d->events; d->events = next) {
        next = d->events->next;
        free(d->events);
    }
    for (meeting *next; d->meetings; d->meetings = next) {
        next = d->meetings->next;
        free(d->meetings);
    }
    if (d->streams.hands)
        d->cpu->backend->stream_free(&d->streams.hands);
    device_close(&d->cpu);
    free(d);
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
    emulated_device *d = calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    d->v = emulated;
    d->v.ahead = ahead;
    d->base.backend = &d->v;
    d->base.ops = &ops_emulated;
    if (graphs) {
        d->v.capture_begin = emulated_capture_begin;
        d->v.capture_end = emulated_capture_end;
        d->v.graph_launch = emulated_graph_launch;
        d->v.graph_free = emulated_graph_free;
    }
    status st = device_open(BACKEND_CPU, &(device_options){.threads = 2}, &d->cpu);
    if (st == ST_OK) {
        d->v.act = d->cpu->backend->act;
        d->v.acc = d->cpu->backend->acc;
        st = d->cpu->backend->stream_new(d->cpu, &d->streams.hands);
    }
    if (st != ST_OK) {
        emulated_close(&d->base);
        return st;
    }
    d->base.multiprocessors = EMULATED_MULTIPROCESSORS;
    memcpy(d->base.memory_name, d->cpu->memory_name, sizeof d->base.memory_name);
    *out = &d->base;
    return ST_OK;
}
