/* SPDX-License-Identifier: Apache-2.0 */
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

typedef enum op_number {
#define OP(name) OP_##name,
#include "trainer/ops/ops.def"
    OPS
} op_number;

/* The kind of each op in the decoder's layers. Ops that the vision tower, the head or the optimiser
 * queue count for these instead (kind_here). A new op needs a line: without one this does not
 * compile. */
enum {
    KIND_gemm = PROFILE_DENSE,
    KIND_grouped_gemm = PROFILE_EXPERTS,
    KIND_dequantise = PROFILE_POINTWISE,
    KIND_dora_norm = PROFILE_POINTWISE,
    KIND_dora_fwd = PROFILE_POINTWISE,
    KIND_dora_bwd = PROFILE_POINTWISE,
    KIND_add = PROFILE_POINTWISE,
    KIND_scale = PROFILE_POINTWISE,
    KIND_bias_grad = PROFILE_POINTWISE,
    KIND_rmsnorm_fwd = PROFILE_POINTWISE,
    KIND_rmsnorm_bwd = PROFILE_POINTWISE,
    KIND_layernorm_fwd = PROFILE_POINTWISE,
    KIND_layernorm_bwd = PROFILE_POINTWISE,
    KIND_rope_text = PROFILE_ATTENTION,
    KIND_rope_vision = PROFILE_VISION,
    KIND_rope_apply = PROFILE_ATTENTION,
    KIND_norm_rope_fwd = PROFILE_ATTENTION,
    KIND_norm_rope_bwd = PROFILE_ATTENTION,
    KIND_attention_fwd = PROFILE_ATTENTION,
    KIND_attention_bwd = PROFILE_ATTENTION,
    KIND_attention_cached = PROFILE_ATTENTION,
    KIND_swiglu_fwd = PROFILE_POINTWISE,
    KIND_swiglu_bwd = PROFILE_POINTWISE,
    KIND_gelu_fwd = PROFILE_POINTWISE,
    KIND_gelu_bwd = PROFILE_POINTWISE,
    KIND_patch_input = PROFILE_VISION,
    KIND_rows_gather = PROFILE_POINTWISE,
    KIND_rows_scatter = PROFILE_POINTWISE,
    KIND_rows_weighted = PROFILE_VISION,
    KIND_rows_weighted_bwd = PROFILE_VISION,
    KIND_route_fwd = PROFILE_ROUTING,
    KIND_route_bwd = PROFILE_ROUTING,
    KIND_route_aux = PROFILE_ROUTING,
    KIND_permute = PROFILE_ROUTING,
    KIND_combine_fwd = PROFILE_ROUTING,
    KIND_combine_bwd = PROFILE_ROUTING,
    KIND_xent = PROFILE_HEAD,
    KIND_sum_squares = PROFILE_OPTIMIZER,
    KIND_step_finish = PROFILE_OPTIMIZER,
    KIND_unit_finish = PROFILE_OPTIMIZER,
    KIND_adamw = PROFILE_OPTIMIZER,
    KIND_peers_tell = PROFILE_COLLECTIVES,
    KIND_peers_meet = PROFILE_COLLECTIVES,
    KIND_exchange_plan = PROFILE_COLLECTIVES,
    KIND_exchange_rows = PROFILE_COLLECTIVES,
};

static const unsigned char kind_of_op[OPS] = {
#define OP(name) [OP_##name] = KIND_##name,
#include "trainer/ops/ops.def"
};

static profile_kind kind_here(const stream *queue, profile_kind kind)
{
    switch (queue->part) {
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

static profile_kind kind_of(const stream *queue, op_number op)
{
    if (queue->part == PART_MOE && (op == OP_swiglu_fwd || op == OP_swiglu_bwd))
        return PROFILE_EXPERTS;
    if (queue->part == PART_MOE && op == OP_rows_gather)
        return PROFILE_ROUTING;
    return kind_here(queue, (profile_kind)kind_of_op[op]);
}

/* Makes more marks, each with its two events. */
static status grow_marks(profile *profiler)
{
    int64_t cap = profiler->cap_marks + EVENTS_AT_ONCE / 2;
    mark *marks = realloc(profiler->marks, (size_t)cap * sizeof *marks);
    if (!marks)
        return FAIL(ST_NO_MEMORY, "no memory to profile %" PRId64 " calls of a step", cap);
    profiler->marks = marks;
    while (profiler->cap_marks < cap) {
        mark *stamp = &profiler->marks[profiler->cap_marks++];
        *stamp = (mark){0};
        TRY(profiler->v_below->event_new(profiler->queue->dev, &stamp->from));
        TRY(profiler->v_below->event_new(profiler->queue->dev, &stamp->to));
    }
    return ST_OK;
}

static status mark_new(profile *profiler, stream *queue, profile_kind kind, mark **out)
{
    if (profiler->n_marks == profiler->cap_marks)
        TRY(grow_marks(profiler));
    *out = &profiler->marks[profiler->n_marks++];
    (*out)->on = queue;
    (*out)->kind = kind;
    (*out)->what = NULL;
    return profiler->v_below->event_record(queue, (*out)->from);
}

/* Opens the mark of a call, unless the call is on another stream of the device, where only
 * collectives are measured, or inside another call. A collective may make copies, for example, and
 * a matrix product may clear its result first; both count as part of the outer call. */
static status mark_begin(profile *profiler, stream *queue, profile_kind kind, mark **out)
{
    *out = NULL;
    if (queue != profiler->queue || profiler->depth > 0)
        return ST_OK;
    profiler->depth++;
    return mark_new(profiler, queue, kind, out);
}

static status mark_end(profile *profiler, const mark *stamp)
{
    if (!stamp)
        return ST_OK;
    profiler->depth--;
    return profiler->v_below->event_record(stamp->on, stamp->to);
}

#define OP(name)                                                                                   \
    static status timed_##name(stream *s, const struct name##_args *a)                             \
    {                                                                                              \
        profile *profiler = (profile *)(uintptr_t)s->ops;                                          \
        mark *m;                                                                                   \
        TRY(mark_begin(profiler, s, kind_of(s, OP_##name), &m));                                   \
        TRY(profiler->ops_below->name(s, a));                                                      \
        return mark_end(profiler, m);                                                              \
    }
#include "trainer/ops/ops.def"

static profile *profile_of(const stream *queue)
{
    return (profile *)((char *)(uintptr_t)queue->dev->backend - offsetof(profile, backend));
}

/* A single thread queues calls, and it queues a whole collective before anything else. So one open
 * mark is enough for all streams. */
static status collective_begin(stream *queue, const char *what)
{
    profile *profiler = profile_of(queue);
    mark *stamp;
    if (profiler->depth++ == 0) {
        TRY(mark_new(profiler, queue, PROFILE_COLLECTIVES, &stamp));
        profiler->open = stamp - profiler->marks;
    }
    stamp = &profiler->marks[profiler->open];
    if (!stamp->what)
        stamp->what = what;
    return ST_OK;
}

static status collective_end(stream *queue)
{
    profile *profiler = profile_of(queue);
    profiler->depth--;
    const mark *stamp = &profiler->marks[profiler->open];
    return profiler->depth == 0 ? profiler->v_below->event_record(stamp->on, stamp->to) : ST_OK;
}

static const call_watch watch = {collective_begin, collective_end};

static status timed_to_device(stream *queue, void *dst, const void *src_host, size_t bytes)
{
    profile *profiler = profile_of(queue);
    mark *stamp;
    TRY(mark_begin(profiler, queue, kind_here(queue, PROFILE_POINTWISE), &stamp));
    TRY(profiler->v_below->to_device(queue, dst, src_host, bytes));
    return mark_end(profiler, stamp);
}

static status timed_copy(stream *queue, void *dst, const void *src, size_t bytes)
{
    profile *profiler = profile_of(queue);
    mark *stamp;
    TRY(mark_begin(profiler, queue, kind_here(queue, PROFILE_POINTWISE), &stamp));
    TRY(profiler->v_below->copy(queue, dst, src, bytes));
    return mark_end(profiler, stamp);
}

static status timed_zero(stream *queue, void *dst, size_t bytes)
{
    profile *profiler = profile_of(queue);
    mark *stamp;
    TRY(mark_begin(profiler, queue, kind_here(queue, PROFILE_POINTWISE), &stamp));
    TRY(profiler->v_below->zero(queue, dst, bytes));
    return mark_end(profiler, stamp);
}

status profile_new(stream *queue, profile **out)
{
    profile *profiler = calloc(1, sizeof *profiler);
    if (!profiler)
        return FAIL(ST_NO_MEMORY, "no memory for a profile");
    profiler->queue = queue;
    profiler->ops_below = queue->ops;
    profiler->v_below = queue->dev->backend;
#define OP(name) profiler->ops.name = profiler->ops_below->name ? timed_##name : NULL;
#include "trainer/ops/ops.def"
    profiler->backend = *profiler->v_below;
    profiler->backend.to_device = timed_to_device;
    profiler->backend.copy = timed_copy;
    profiler->backend.zero = timed_zero;
    status st = ST_OK;
    TRY_OR(failed, profiler->v_below->event_new(queue->dev, &profiler->first));
    TRY_OR(failed, profiler->v_below->event_new(queue->dev, &profiler->last));
    queue->ops = &profiler->ops;
    queue->dev->calls = &watch;
    queue->dev->backend = &profiler->backend;
    *out = profiler;
    return ST_OK;
failed:
    profile_free(&profiler);
    return st;
}

void profile_free(profile **held)
{
    profile *profiler = *held;
    if (!profiler)
        return;
    if (profiler->queue->ops == &profiler->ops) {
        profiler->queue->ops = profiler->ops_below;
        profiler->queue->dev->calls = NULL;
        profiler->queue->dev->backend = profiler->v_below;
    }
    for (int64_t i = 0; i < profiler->cap_marks; i++) {
        profiler->v_below->event_free(&profiler->marks[i].from);
        profiler->v_below->event_free(&profiler->marks[i].to);
    }
    profiler->v_below->event_free(&profiler->first);
    profiler->v_below->event_free(&profiler->last);
    free(profiler->marks);
    free(profiler);
    *held = NULL;
}

static status add_call(profile *profiler, const mark *stamp, int64_t ns)
{
    profile_sums *sums = &profiler->sums;
    int i = 0;
    while (i < sums->n_calls && strcmp(sums->call[i].what, stamp->what) != 0)
        i++;
    if (i == PROFILE_CALLS)
        return FAIL(ST_INTERNAL, "profile: there are more than %d names of collectives",
                    PROFILE_CALLS);
    if (i == sums->n_calls)
        sums->call[sums->n_calls++] = (profile_call){.what = stamp->what};
    profile_call *call = &sums->call[i];
    *(stamp->on == profiler->queue ? &call->exposed_ns : &call->aside_ns) += ns;
    return ST_OK;
}

status profile_begin(profile *profiler)
{
    if (!profiler)
        return ST_OK;
    profiler->n_marks = profiler->depth = 0;
    return profiler->v_below->event_record(profiler->queue, profiler->first);
}

status profile_end(profile *profiler, int64_t wait_ns)
{
    if (!profiler)
        return ST_OK;
    TRY(profiler->v_below->event_record(profiler->queue, profiler->last));
    TRY(profiler->v_below->event_wait(profiler->queue->dev, profiler->last));
    profile_sums step = {.steps = 1, .calls = profiler->n_marks};
    TRY(profiler->v_below->event_ns(profiler->first, profiler->last, &step.total_ns));
    int64_t rest = step.total_ns;
    for (int64_t i = 0; i < profiler->n_marks; i++) {
        const mark *stamp = &profiler->marks[i];
        int64_t ns;
        TRY(profiler->v_below->event_ns(stamp->from, stamp->to, &ns));
        if (stamp->what)
            TRY(add_call(profiler, stamp, ns));
        if (stamp->on != profiler->queue)
            continue; /* on another stream: beside the step, part of no sum */
        step.ns[stamp->kind] += ns;
        rest -= ns;
    }
    /* Timestamps are rounded, so the calls of a busy step may add up to slightly more than the
     * step. */
    rest = rest > 0 ? rest : 0;
    step.ns[PROFILE_WAIT] = wait_ns < rest ? wait_ns : rest;
    step.ns[PROFILE_IDLE] = rest - step.ns[PROFILE_WAIT];
    step.total_ns = 0;
    for (int k = 0; k < PROFILE_KINDS; k++) {
        profiler->sums.ns[k] += step.ns[k];
        profiler->sums.total_ns += step.ns[k];
    }
    profiler->sums.steps++;
    profiler->sums.calls += step.calls;
    return ST_OK;
}

void profile_reset(profile *profiler)
{
    if (profiler)
        profiler->sums = (profile_sums){0};
}

const profile_sums *profile_read(const profile *profiler)
{
    return &profiler->sums;
}

int64_t profile_beside_ns(const profile_sums *sums, const profile_call *call)
{
    int64_t exposed = 0, aside = 0;
    for (int i = 0; i < sums->n_calls; i++)
        if (!call || call == &sums->call[i]) {
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
