/* emulated.c: see emulated.h. */
#include "tests/emulated/emulated.h"

#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "trainer/ops/table.h"

enum { ARGS_MAX = 320, PINNED_MAX = 64 };

typedef struct emulated_stream emulated_stream;

struct event {
    emulated_stream *on; /* where it was recorded last */
    int64_t asked, done; /* records queued, records passed */
};

typedef enum kind { RUN, COPY, SHIPMENT, ZERO, RECORD, FOLLOW, LAUNCH } kind;

/* One thing queued. */
typedef struct node {
    kind kind;
    status (*run)(stream *cpu, const void *args);
    void *dst;
    const void *src; /* SHIPMENT: bytes of its own, copied when they were handed over */
    size_t bytes;
    event *event;
    int64_t turn; /* of the event */
    graph *graph;
    _Alignas(16) char args[ARGS_MAX];
} node;

typedef struct list {
    node *at;
    int64_t n, capacity;
} list;

struct graph {
    list nodes;
};

struct emulated_stream {
    stream base;
    list queue;
    int64_t passed; /* nodes that have run */
    graph *into;    /* capture under way */
};

typedef struct emulated_device {
    device base;
    backend_vtable v;
    device *cpu;
    stream *hands; /* the CPU's stream that does the work */
    struct {
        char *at;
        size_t bytes;
    } pinned[PINNED_MAX];
    int n_pinned;
    int64_t capturing; /* streams */
} emulated_device;

static emulated_device *device_of(const stream *s)
{
    return (emulated_device *)s->dev;
}

static status add(list *l, const node *n)
{
    if (l->n == l->capacity) {
        int64_t capacity = l->capacity ? 2 * l->capacity : 256;
        node *at = realloc(l->at, (size_t)capacity * sizeof *at);
        if (!at)
            return FAIL(ST_NO_MEMORY, "emulated: no memory");
        l->at = at;
        l->capacity = capacity;
    }
    l->at[l->n++] = *n;
    return ST_OK;
}

static status queue(stream *base, const node *n)
{
    emulated_stream *s = (emulated_stream *)base;
    return add(s->into ? &s->into->nodes : &s->queue, n);
}

static status refuse_in_capture(const emulated_device *d, const char *what)
{
    return d->capturing ? FAIL(ST_BAD_DEVICE, "emulated: %s while a step is captured", what)
                        : ST_OK;
}

/* ---- work ---- */

static status pass_next(emulated_stream *s);

static status do_node(emulated_stream *s, const node *n)
{
    stream *hands = device_of(&s->base)->hands;
    switch (n->kind) {
    case RUN:
        return n->run(hands, n->args);
    case COPY:
        memmove(n->dst, n->src, n->bytes);
        return ST_OK;
    case SHIPMENT:
        memcpy(n->dst, n->src, n->bytes);
        free((void *)n->src);
        return ST_OK;
    case ZERO:
        memset(n->dst, 0, n->bytes);
        return ST_OK;
    case RECORD:
        n->event->done = n->turn;
        return ST_OK;
    case FOLLOW:
        while (n->event->done < n->turn)
            TRY(pass_next(n->event->on));
        return ST_OK;
    default:
        for (int64_t i = 0; i < n->graph->nodes.n; i++)
            TRY(do_node(s, &n->graph->nodes.at[i]));
        return ST_OK;
    }
}

static status pass_next(emulated_stream *s)
{
    if (s->passed == s->queue.n)
        return FAIL(ST_INTERNAL, "emulated: an event is waited for that was not recorded");
    node n = s->queue.at[s->passed++];
    return do_node(s, &n);
}

static status pass_all(emulated_stream *s)
{
    while (s->passed < s->queue.n)
        TRY(pass_next(s));
    s->passed = s->queue.n = 0;
    return ST_OK;
}

/* ---- the op table ---- */

#define OP(name)                                                                                   \
    static status run_##name(stream *cpu, const void *args)                                        \
    {                                                                                              \
        return cpu->ops->name(cpu, args);                                                          \
    }                                                                                              \
    static status queue_##name(stream *s, const struct name##_args *a)                             \
    {                                                                                              \
        node n = {.kind = RUN, .run = run_##name};                                                 \
        _Static_assert(sizeof *a <= ARGS_MAX, "ARGS_MAX");                                         \
        memcpy(n.args, a, sizeof *a);                                                              \
        return queue(s, &n);                                                                       \
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
    return d->cpu->v->alloc(d->cpu, bytes, out);
}

static void emulated_release(device *base, void *p)
{
    device *cpu = ((emulated_device *)base)->cpu;
    cpu->v->release(cpu, p);
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

static status emulated_stream_new(device *d, stream **out)
{
    emulated_stream *s = calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    s->base = (stream){.dev = d, .ops = d->ops};
    *out = &s->base;
    return ST_OK;
}

static void emulated_stream_free(stream **held)
{
    emulated_stream *s = (emulated_stream *)*held;
    if (!s)
        return;
    for (int64_t i = s->passed; i < s->queue.n; i++)
        if (s->queue.at[i].kind == SHIPMENT)
            free((void *)s->queue.at[i].src);
    free(s->queue.at);
    free(s);
    *held = NULL;
}

static status emulated_wait(stream *s)
{
    TRY(refuse_in_capture(device_of(s), "waiting for a stream"));
    s->dev->counts.waits++;
    return pass_all((emulated_stream *)s);
}

static status emulated_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    return queue(s, &(node){.kind = COPY, .dst = dst, .src = src, .bytes = bytes});
}

/* Pageable memory is read before the call returns, as CUDA does. */
static status emulated_to_device(stream *s, void *dst, const void *src, size_t bytes)
{
    if (is_pinned(device_of(s), src, bytes))
        return emulated_copy(s, dst, src, bytes);
    TRY(refuse_in_capture(device_of(s), "a copy from memory that is not pinned"));
    void *own = malloc(bytes ? bytes : 1);
    if (!own)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    memcpy(own, src, bytes);
    return queue(s, &(node){.kind = SHIPMENT, .dst = dst, .src = own, .bytes = bytes});
}

/* To pageable memory: waits, as CUDA may. */
static status emulated_to_host(stream *s, void *dst, const void *src, size_t bytes)
{
    if (is_pinned(device_of(s), dst, bytes))
        return emulated_copy(s, dst, src, bytes);
    TRY(emulated_copy(s, dst, src, bytes));
    return emulated_wait(s);
}

static status emulated_zero(stream *s, void *dst, size_t bytes)
{
    return queue(s, &(node){.kind = ZERO, .dst = dst, .bytes = bytes});
}

static status emulated_event_new(device *d, event **out)
{
    TRY(refuse_in_capture((emulated_device *)d, "a new event"));
    event *e = calloc(1, sizeof *e);
    if (!e)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    *out = e;
    return ST_OK;
}

static void emulated_event_free(event **e)
{
    free(*e);
    *e = NULL;
}

static status emulated_event_record(stream *s, event *e)
{
    TRY(refuse_in_capture(device_of(s), "an event"));
    e->on = (emulated_stream *)s;
    return queue(s, &(node){.kind = RECORD, .event = e, .turn = ++e->asked});
}

static status emulated_event_follow(stream *s, event *e)
{
    TRY(refuse_in_capture(device_of(s), "an event"));
    return queue(s, &(node){.kind = FOLLOW, .event = e, .turn = e->asked});
}

static status emulated_event_wait(device *d, event *e)
{
    TRY(refuse_in_capture((emulated_device *)d, "waiting for an event"));
    d->counts.event_waits++;
    int64_t turn = e->asked;
    while (e->done < turn)
        TRY(pass_next(e->on));
    return ST_OK;
}

static status emulated_event_ns(event *from, event *to, int64_t *out_ns)
{
    (void)from;
    (void)to;
    *out_ns = 0;
    return ST_OK;
}

static status emulated_capture_begin(stream *base)
{
    emulated_stream *s = (emulated_stream *)base;
    if (s->into)
        return FAIL(ST_INTERNAL, "emulated: a capture inside a capture");
    s->into = calloc(1, sizeof *s->into);
    if (!s->into)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    device_of(base)->capturing++;
    return ST_OK;
}

static status emulated_capture_end(stream *base, graph **out)
{
    emulated_stream *s = (emulated_stream *)base;
    device_of(base)->capturing--;
    base->dev->counts.captures++;
    *out = s->into;
    s->into = NULL;
    return ST_OK;
}

static status emulated_graph_launch(stream *s, graph *g)
{
    return queue(s, &(node){.kind = LAUNCH, .graph = g});
}

static void emulated_graph_free(graph **g)
{
    if (*g)
        free((*g)->nodes.at);
    free(*g);
    *g = NULL;
}

static status emulated_memory(device *d, size_t *out_used, size_t *out_total)
{
    device *cpu = ((emulated_device *)d)->cpu;
    return cpu->v->memory(cpu, out_used, out_total);
}

static void emulated_close(device *base)
{
    emulated_device *d = (emulated_device *)base;
    if (d->hands)
        d->cpu->v->stream_free(&d->hands);
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
    .fixed_shapes = true,
};

status emulated_open(int ahead, bool graphs, device **out)
{
    emulated_device *d = calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    d->v = emulated;
    d->v.ahead = ahead;
    d->base.v = &d->v;
    d->base.ops = &ops_emulated;
    if (graphs) {
        d->v.capture_begin = emulated_capture_begin;
        d->v.capture_end = emulated_capture_end;
        d->v.graph_launch = emulated_graph_launch;
        d->v.graph_free = emulated_graph_free;
    }
    status st = device_open(BACKEND_CPU, &(device_options){.threads = 2}, &d->cpu);
    if (st == ST_OK) {
        d->v.act = d->cpu->v->act;
        d->v.acc = d->cpu->v->acc;
        st = d->cpu->v->stream_new(d->cpu, &d->hands);
    }
    if (st != ST_OK) {
        emulated_close(&d->base);
        return st;
    }
    *out = &d->base;
    return ST_OK;
}
