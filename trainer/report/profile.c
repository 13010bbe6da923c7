/* profile.c: puts a timed wrapper around every op, copy and collective of a stream. Each wrapped
 * call leaves a mark, which is a pair of events and a kind; profile_end reads all marks of the step
 * and adds their times up by kind. The wrappers of ops are generated from ops.def. */
#include "trainer/report/profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/ops/table.h"

enum { EVENTS_AT_ONCE = 1024 };

typedef struct mark {
    event *from, *to;
    stream *on;
    profile_kind kind;
    const char *what; /* the purpose of a collective, or of a wait for one; NULL for other calls */
} mark;

struct profile {
    ops_table ops; /* must be first: stream.ops points here, and so leads back to the profile */
    backend_vtable backend;
    stream *queue;
    const ops_table *ops_below;
    const backend_vtable *v_below;
    mark *marks; /* of the current step */
    int64_t n_marks, cap_marks;
    event *first, *last; /* the step's begin and end */
    int64_t depth; /* how many calls are open inside one another; the outermost has the mark */
    int64_t open;  /* index of the open collective's mark */
    profile_sums sums;
};

static const char *const names[PROFILE_KINDS] = {
    [PROFILE_IDLE] = "idle",
    [PROFILE_VISION] = "vision",
    [PROFILE_ATTENTION] = "attention",
    [PROFILE_DENSE] = "dense GEMM",
    [PROFILE_EXPERTS] = "experts",
    [PROFILE_ROUTING] = "routing",
    [PROFILE_POINTWISE] = "element-wise",
    [PROFILE_HEAD] = "head",
    [PROFILE_OPTIMIZER] = "optimiser",
    [PROFILE_COLLECTIVES] = "collectives",
    [PROFILE_WAIT] = "waiting for data",
};

const char *profile_kind_name(profile_kind kind)
{
    return names[kind];
}

typedef enum op_number {
#define OP(name) OP_##name,
#include "trainer/ops/ops.def"
    OPS
} op_number;

/* The kind of each op in the decoder's layers. Ops that the vision tower, the head or the optimiser
 * queue count for these instead (kind_here). */
static const unsigned char kind_of_op[OPS] = {
    [OP_gemm] = PROFILE_DENSE,
    [OP_grouped_gemm] = PROFILE_EXPERTS,
    [OP_add] = PROFILE_POINTWISE,
    [OP_scale] = PROFILE_POINTWISE,
    [OP_bias_grad] = PROFILE_POINTWISE,
    [OP_rmsnorm_fwd] = PROFILE_POINTWISE,
    [OP_rmsnorm_bwd] = PROFILE_POINTWISE,
    [OP_layernorm_fwd] = PROFILE_POINTWISE,
    [OP_layernorm_bwd] = PROFILE_POINTWISE,
    [OP_rope_text] = PROFILE_ATTENTION,
    [OP_rope_vision] = PROFILE_VISION,
    [OP_rope_apply] = PROFILE_ATTENTION,
    [OP_norm_rope_fwd] = PROFILE_ATTENTION,
    [OP_norm_rope_bwd] = PROFILE_ATTENTION,
    [OP_attention_fwd] = PROFILE_ATTENTION,
    [OP_attention_bwd] = PROFILE_ATTENTION,
    [OP_attention_cached] = PROFILE_ATTENTION,
    [OP_swiglu_fwd] = PROFILE_POINTWISE,
    [OP_swiglu_bwd] = PROFILE_POINTWISE,
    [OP_gelu_fwd] = PROFILE_POINTWISE,
    [OP_gelu_bwd] = PROFILE_POINTWISE,
    [OP_patch_input] = PROFILE_VISION,
    [OP_rows_gather] = PROFILE_POINTWISE,
    [OP_rows_scatter] = PROFILE_POINTWISE,
    [OP_rows_weighted] = PROFILE_VISION,
    [OP_rows_weighted_bwd] = PROFILE_VISION,
    [OP_route_fwd] = PROFILE_ROUTING,
    [OP_route_bwd] = PROFILE_ROUTING,
    [OP_route_aux] = PROFILE_ROUTING,
    [OP_permute] = PROFILE_ROUTING,
    [OP_combine_fwd] = PROFILE_ROUTING,
    [OP_combine_bwd] = PROFILE_ROUTING,
    [OP_xent] = PROFILE_HEAD,
    [OP_sum_squares] = PROFILE_OPTIMIZER,
    [OP_step_finish] = PROFILE_OPTIMIZER,
    [OP_adamw] = PROFILE_OPTIMIZER,
    [OP_paced_copy] = PROFILE_COLLECTIVES,
    [OP_paced_sum] = PROFILE_COLLECTIVES,
    [OP_peers_tell] = PROFILE_COLLECTIVES,
    [OP_peers_meet] = PROFILE_COLLECTIVES,
    [OP_exchange_plan] = PROFILE_COLLECTIVES,
    [OP_exchange_rows] = PROFILE_COLLECTIVES,
};

static profile_kind kind_here(const stream *s, profile_kind kind)
{
    switch (s->part) {
    case PART_VISION:
        return PROFILE_VISION;
    case PART_HEAD:
        return PROFILE_HEAD;
    case PART_OPTIMIZER:
        return PROFILE_OPTIMIZER;
    case PART_MOE: /* the only dense product here is the router's */
        if (kind == PROFILE_DENSE)
            return PROFILE_ROUTING;
        return kind;
    default:
        return kind;
    }
}

static profile_kind kind_of(const stream *s, op_number op)
{
    if (s->part == PART_MOE && (op == OP_swiglu_fwd || op == OP_swiglu_bwd))
        return PROFILE_EXPERTS;
    if (s->part == PART_MOE && op == OP_rows_gather)
        return PROFILE_ROUTING;
    return kind_here(s, (profile_kind)kind_of_op[op]);
}

/* Makes more marks, each with its two events. */
static status grow_marks(profile *p)
{
    int64_t cap = p->cap_marks + EVENTS_AT_ONCE / 2;
    mark *marks = realloc(p->marks, (size_t)cap * sizeof *marks);
    if (!marks)
        return FAIL(ST_NO_MEMORY, "no memory to profile %" PRId64 " calls of a step", cap);
    p->marks = marks;
    while (p->cap_marks < cap) {
        mark *m = &p->marks[p->cap_marks++];
        *m = (mark){0};
        TRY(p->v_below->event_new(p->queue->dev, &m->from));
        TRY(p->v_below->event_new(p->queue->dev, &m->to));
    }
    return ST_OK;
}

static status mark_new(profile *p, stream *s, profile_kind kind, mark **out)
{
    if (p->n_marks == p->cap_marks)
        TRY(grow_marks(p));
    *out = &p->marks[p->n_marks++];
    (*out)->on = s;
    (*out)->kind = kind;
    (*out)->what = NULL;
    return p->v_below->event_record(s, (*out)->from);
}

/* Opens the mark of a call, unless the call is on another stream of the device, where only
 * collectives are measured, or inside another call. A collective may make copies, for example, and
 * a matrix product may clear its result first; both count as part of the outer call. */
static status mark_begin(profile *p, stream *s, profile_kind kind, mark **out)
{
    *out = NULL;
    if (s != p->queue || p->depth > 0)
        return ST_OK;
    p->depth++;
    return mark_new(p, s, kind, out);
}

static status mark_end(profile *p, const mark *m)
{
    if (!m)
        return ST_OK;
    p->depth--;
    return p->v_below->event_record(m->on, m->to);
}

#define OP(name)                                                                                   \
    static status timed_##name(stream *s, const struct name##_args *a)                             \
    {                                                                                              \
        profile *p = (profile *)(uintptr_t)s->ops;                                                 \
        mark *m;                                                                                   \
        TRY(mark_begin(p, s, kind_of(s, OP_##name), &m));                                          \
        TRY(p->ops_below->name(s, a));                                                             \
        return mark_end(p, m);                                                                     \
    }
#include "trainer/ops/ops.def"

static profile *profile_of(const stream *s)
{
    return (profile *)((char *)(uintptr_t)s->dev->backend - offsetof(profile, backend));
}

/* A single thread queues calls, and it queues a whole collective before anything else. So one open
 * mark is enough for all streams. */
static status collective_begin(stream *s, const char *what)
{
    profile *p = profile_of(s);
    mark *m;
    if (p->depth++ == 0) {
        TRY(mark_new(p, s, PROFILE_COLLECTIVES, &m));
        p->open = m - p->marks;
    }
    m = &p->marks[p->open];
    if (!m->what)
        m->what = what;
    return ST_OK;
}

static status collective_end(stream *s)
{
    profile *p = profile_of(s);
    p->depth--;
    const mark *m = &p->marks[p->open];
    return p->depth == 0 ? p->v_below->event_record(m->on, m->to) : ST_OK;
}

static const call_watch watch = {collective_begin, collective_end};

static status timed_to_device(stream *s, void *dst, const void *src_host, size_t bytes)
{
    profile *p = profile_of(s);
    mark *m;
    TRY(mark_begin(p, s, kind_here(s, PROFILE_POINTWISE), &m));
    TRY(p->v_below->to_device(s, dst, src_host, bytes));
    return mark_end(p, m);
}

static status timed_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    profile *p = profile_of(s);
    mark *m;
    TRY(mark_begin(p, s, kind_here(s, PROFILE_POINTWISE), &m));
    TRY(p->v_below->copy(s, dst, src, bytes));
    return mark_end(p, m);
}

static status timed_zero(stream *s, void *dst, size_t bytes)
{
    profile *p = profile_of(s);
    mark *m;
    TRY(mark_begin(p, s, kind_here(s, PROFILE_POINTWISE), &m));
    TRY(p->v_below->zero(s, dst, bytes));
    return mark_end(p, m);
}

status profile_new(stream *s, profile **out)
{
    profile *p = calloc(1, sizeof *p);
    if (!p)
        return FAIL(ST_NO_MEMORY, "no memory for a profile");
    p->queue = s;
    p->ops_below = s->ops;
    p->v_below = s->dev->backend;
#define OP(name) p->ops.name = p->ops_below->name ? timed_##name : NULL;
#include "trainer/ops/ops.def"
    p->backend = *p->v_below;
    p->backend.to_device = timed_to_device;
    p->backend.copy = timed_copy;
    p->backend.zero = timed_zero;
    status st = ST_OK;
    TRY_OR(failed, p->v_below->event_new(s->dev, &p->first));
    TRY_OR(failed, p->v_below->event_new(s->dev, &p->last));
    s->ops = &p->ops;
    s->dev->calls = &watch;
    s->dev->backend = &p->backend;
    *out = p;
    return ST_OK;
failed:
    profile_free(&p);
    return st;
}

void profile_free(profile **held)
{
    profile *p = *held;
    if (!p)
        return;
    if (p->queue->ops == &p->ops) {
        p->queue->ops = p->ops_below;
        p->queue->dev->calls = NULL;
        p->queue->dev->backend = p->v_below;
    }
    for (int64_t i = 0; i < p->cap_marks; i++) {
        p->v_below->event_free(&p->marks[i].from);
        p->v_below->event_free(&p->marks[i].to);
    }
    p->v_below->event_free(&p->first);
    p->v_below->event_free(&p->last);
    free(p->marks);
    free(p);
    *held = NULL;
}

static status add_call(profile *p, const mark *m, int64_t ns)
{
    profile_sums *sums = &p->sums;
    int i = 0;
    while (i < sums->n_calls && strcmp(sums->call[i].what, m->what) != 0)
        i++;
    if (i == PROFILE_CALLS)
        return FAIL(ST_INTERNAL, "profile: there are more than %d names of collectives",
                    PROFILE_CALLS);
    if (i == sums->n_calls)
        sums->call[sums->n_calls++] = (profile_call){.what = m->what};
    profile_call *c = &sums->call[i];
    *(m->on == p->queue ? &c->exposed_ns : &c->aside_ns) += ns;
    return ST_OK;
}

status profile_begin(profile *p)
{
    if (!p)
        return ST_OK;
    p->n_marks = p->depth = 0;
    return p->v_below->event_record(p->queue, p->first);
}

status profile_end(profile *p, int64_t wait_ns)
{
    if (!p)
        return ST_OK;
    TRY(p->v_below->event_record(p->queue, p->last));
    TRY(p->v_below->event_wait(p->queue->dev, p->last));
    profile_sums step = {.steps = 1, .calls = p->n_marks};
    TRY(p->v_below->event_ns(p->first, p->last, &step.total_ns));
    int64_t rest = step.total_ns;
    for (int64_t i = 0; i < p->n_marks; i++) {
        const mark *m = &p->marks[i];
        int64_t ns;
        TRY(p->v_below->event_ns(m->from, m->to, &ns));
        if (m->what)
            TRY(add_call(p, m, ns));
        if (m->on != p->queue)
            continue; /* on another stream: beside the step, part of no sum */
        step.ns[m->kind] += ns;
        rest -= ns;
    }
    /* Timestamps are rounded, so the calls of a busy step may add up to slightly more than the
     * step. */
    rest = rest > 0 ? rest : 0;
    step.ns[PROFILE_WAIT] = wait_ns < rest ? wait_ns : rest;
    step.ns[PROFILE_IDLE] = rest - step.ns[PROFILE_WAIT];
    step.total_ns = 0;
    for (int k = 0; k < PROFILE_KINDS; k++) {
        p->sums.ns[k] += step.ns[k];
        p->sums.total_ns += step.ns[k];
    }
    p->sums.steps++;
    p->sums.calls += step.calls;
    return ST_OK;
}

void profile_reset(profile *p)
{
    if (p)
        p->sums = (profile_sums){0};
}

const profile_sums *profile_read(const profile *p)
{
    return &p->sums;
}

int64_t profile_beside_ns(const profile_sums *sums, const profile_call *c)
{
    int64_t exposed = 0, aside = 0;
    for (int i = 0; i < sums->n_calls; i++)
        if (!c || c == &sums->call[i]) {
            /* A collective that runs on the computing stream itself has no time aside. */
            aside += sums->call[i].aside_ns;
            exposed += sums->call[i].aside_ns > 0 ? sums->call[i].exposed_ns : 0;
        }
    return aside > exposed ? aside - exposed : 0;
}

static void print_calls(const profile_sums *sums, FILE *to)
{
    const double steps = sums->steps > 0 ? (double)sums->steps : 1.0;
    const double ms = 1e-6 / steps;
    for (int i = 0; i < sums->n_calls; i++)
        fprintf(to, "collective: %-32s exposed %10.3f ms, beside computing %10.3f ms\n",
                sums->call[i].what, (double)sums->call[i].exposed_ns * ms,
                (double)profile_beside_ns(sums, &sums->call[i]) * ms);
    if (sums->n_calls > 0)
        fprintf(to, "collective: %-32s exposed %10.3f ms, beside computing %10.3f ms\n", "all",
                (double)sums->ns[PROFILE_COLLECTIVES] * ms,
                (double)profile_beside_ns(sums, NULL) * ms);
}

void profile_print(const profile_sums *sums, FILE *to)
{
    double steps = sums->steps > 0 ? (double)sums->steps : 1.0;
    double total = sums->total_ns > 0 ? (double)sums->total_ns : 1.0;
    fprintf(to, "profile: %" PRId64 " steps, %.0f calls each\n", sums->steps,
            (double)sums->calls / steps);
    for (int k = 1; k <= PROFILE_KINDS; k++) { /* idle last */
        int kind = k % PROFILE_KINDS;
        fprintf(to, "profile: %-18s %12.3f ms %6.1f %%\n", names[kind],
                (double)sums->ns[kind] / steps * 1e-6, 100.0 * (double)sums->ns[kind] / total);
    }
    fprintf(to, "profile: %-18s %12.3f ms %6.1f %%\n", "step",
            (double)sums->total_ns / steps * 1e-6, 100.0);
    print_calls(sums, to);
}
