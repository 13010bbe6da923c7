/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn.c: attention by cuDNN 9 on packed segments, forward and backward.
 *
 * A graph (attention_graphs.c) is compiled when a shape is first seen, and its plan is kept for the
 * life of the device. What the graph reads besides q, k and v (the lengths and the first elements
 * of segments) is computed on the device from cu before each run. So the host waits for nothing,
 * and a step can be captured.
 *
 * The library's deterministic backward keeps all of dp, segments x heads x longest^2 bf16. It runs
 * in as many parts, one after the other, as keep that small: groups of heads and, where these do
 * not suffice, runs of segments (attention_work.h). One plan serves all parts, and a last run that
 * has fewer segments is filled up with empty ones.
 *
 * A batch padded to capacities has empty segments at its end. NVIDIA documents segments without
 * tokens as supported since 9.25. Before that, rows of queries without a key come out as NaN
 * (cudnn-frontend, issue 943); there are none here, since queries and keys have the same length.
 * The parity cases have empty segments at every fifth place.
 *
 * Where the library is not asked, or has no engine for a shape, the log says so once with the
 * reason. If choices are strict, both are errors, except where our own kernels are the faster way.
 */
#include "trainer/ops/cuda/attention_cudnn.h"

#ifdef TESSERA_CUDNN

#include <math.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/device/cuda_device.h"
#include "trainer/ops/attention_work.h"
#include "trainer/ops/cuda/attention_batch.h"
#include "trainer/ops/cuda/attention_plans.h"

/* Why the library is not asked. TAKEN: it is. */
enum refusal { TAKEN, WIDTH, ALIGNMENT, SPARSE, MEMORY, GROUPED, REFUSALS };

static void put_tail(attention_pack_args *packed_args, int index, void *array, int64_t stride,
                     int64_t width)
{
    packed_args->tail[index] = array;
    packed_args->tail_stride[index] = stride;
    packed_args->tail_width[index] = width;
}

/* The address of head `head` in an array of bf16. */
static const void *head_of(const void *array, int64_t head, int64_t width)
{
    return (const uint16_t *)array + head * width;
}

static const float *row_of(const void *array, int64_t head)
{
    return (const float *)array + head;
}

static attention_shape shape_fwd(const attention_fwd_args *args)
{
    return (attention_shape){.segments = args->segments,
                             .longest = args->longest ? args->longest : args->tokens,
                             .heads = args->heads,
                             .kv_heads = args->kv_heads,
                             .head_dim = args->head_dim,
                             .q_stride = args->q_stride,
                             .k_stride = args->k_stride,
                             .v_stride = args->v_stride,
                             .o_stride = args->o_stride,
                             .lse_stride = args->heads,
                             .causal = args->causal};
}

static attention_fwd_args as_fwd(const attention_bwd_args *args)
{
    return (attention_fwd_args){.tokens = args->tokens,
                                .heads = args->heads,
                                .kv_heads = args->kv_heads,
                                .head_dim = args->head_dim,
                                .segments = args->segments,
                                .longest = args->longest,
                                .causal = args->causal,
                                .scale = args->scale,
                                .cu = args->cu,
                                .q = args->q,
                                .k = args->k,
                                .v = args->v,
                                .q_stride = args->q_stride,
                                .k_stride = args->k_stride,
                                .v_stride = args->v_stride,
                                .o_stride = args->o_stride,
                                .o = (void *)args->o,
                                .lse = (void *)args->lse};
}

static attention_parts parts_of(const attention_shape *shape, int64_t tokens)
{
    if (!shape->deterministic)
        return (attention_parts){1, 1, shape->segments};
    return attention_parts_of(tokens, shape->segments, shape->longest, shape->heads,
                              shape->kv_heads, shape->head_dim, shape->causal);
}

/* The shape of a part of the backward. */
static attention_shape shape_bwd(const stream *queue, const attention_bwd_args *args,
                                 attention_parts *out_parts)
{
    attention_fwd_args fwd = as_fwd(args);
    attention_shape shape = shape_fwd(&fwd);
    shape.deterministic =
        ((const cuda_device *)queue->dev)->options.deterministic && !args->any_order;
    const attention_parts parts = *out_parts = parts_of(&shape, args->tokens);
    if (parts.groups > 1) {
        int64_t copied = attention_copied_row(shape.heads, parts.groups);
        if (copied)
            shape.lse_stride = copied;
        shape.heads /= parts.groups;
        shape.kv_heads /= parts.groups;
    }
    shape.segments = parts.run;
    return shape;
}

static bool is_aligned(const void *array)
{
    return (uintptr_t)array % CUDNN_ALIGNMENT == 0;
}

static bool is_dense(const attention_fwd_args *args)
{
    return attention_is_dense(args->tokens, args->segments,
                              args->longest ? args->longest : args->tokens);
}

static enum refusal refusal_of(const attention_fwd_args *args)
{
    if (args->head_dim % ATTENTION_WIDTH_STEP != 0 || args->head_dim > ATTENTION_WIDTH_MAX)
        return WIDTH;
    if (args->q_stride % ATTENTION_WIDTH_STEP != 0 || args->k_stride % ATTENTION_WIDTH_STEP != 0 ||
        args->v_stride % ATTENTION_WIDTH_STEP != 0 || args->o_stride % ATTENTION_WIDTH_STEP != 0 ||
        !is_aligned(args->q) || !is_aligned(args->k) || !is_aligned(args->v) ||
        !is_aligned(args->o) || !is_aligned(args->lse))
        return ALIGNMENT;
    return is_dense(args) ? TAKEN : SPARSE;
}

static enum refusal refusal_of_bwd(const attention_bwd_args *args, const attention_shape *shape,
                                   const attention_parts *parts)
{
    attention_fwd_args fwd = as_fwd(args);
    enum refusal why = refusal_of(&fwd);
    if (why != TAKEN)
        return why;
    if (!is_aligned(args->do_) || !is_aligned(args->dq) || !is_aligned(args->dk) ||
        !is_aligned(args->dv) || !is_aligned(args->work))
        return ALIGNMENT;
    if (parts->groups == 0)
        return MEMORY;
    return args->heads == args->kv_heads || attention_packs_sums(shape) ? TAKEN : GROUPED;
}

static const char *const refusal_text[REFUSALS] = {
    [WIDTH] = "cuDNN needs a head width that is a multiple of 8 and at most 128",
    [ALIGNMENT] = "cuDNN needs rows that are aligned to 16 bytes",
    [SPARSE] = "cuDNN would launch too many empty blocks",
    [MEMORY] = "cuDNN's deterministic backward needs too much memory",
    [GROUPED] = "cuDNN packs the sums of grouped queries only for head widths that are a "
                "multiple of 16"};

/* Logs each reason once per direction, with the first shape that met it. */
static void log_refusal(const stream *queue, const attention_fwd_args *args, bool backward,
                        enum refusal why)
{
    cuda_device *cuda = (cuda_device *)queue->dev;
    unsigned bit = 1u << (2 * why + backward);
    if (cuda->attention_told & bit)
        return;
    cuda->attention_told |= bit;
    log_info("attention uses our own kernels direction=%s reason=\"%s\" segments=%lld tokens=%lld "
             "heads=%lld width=%lld",
             backward ? "backward" : "forward", refusal_text[why], (long long)args->segments,
             (long long)args->tokens, (long long)args->heads, (long long)args->head_dim);
}

/* Decides whether our own kernels may take a call that the library is not asked for. They always
 * may where it would launch too many empty blocks: there they are the faster way, and no fallback,
 * but noted. Ledger and checkpoint have that as far as the trial has met such shapes, since their
 * line is written before step 1 and is the same in all steps. Any other refusal is an error while
 * choices are strict, so the trial before step 1 moves to our kernels, on all ranks and with a
 * word, and a strict run ends. */
static status refuse_call(const stream *queue, const attention_fwd_args *args, bool backward,
                          enum refusal why)
{
    if (queue->dev->choices.strict && why != SPARSE)
        return FAIL(ST_UNAVAILABLE,
                    "attention of %lld segments, %lld tokens, %lld heads over %lld of width %lld: "
                    "%s",
                    (long long)args->segments, (long long)args->tokens, (long long)args->heads,
                    (long long)args->kv_heads, (long long)args->head_dim, refusal_text[why]);
    if (why == SPARSE)
        queue->dev->choices.also_ours |= (uint8_t)(1u << choice_attention(args->causal, backward));
    log_refusal(queue, args, backward, why);
    return ST_OK;
}

/* Whether this call may go to cuDNN at all: not if the device was opened without it (its
 * description says why), and not if there is nothing to compute. */
static bool is_asked(const stream *queue, const attention_fwd_args *args)
{
    return ((const cuda_device *)queue->dev)->cudnn && args->segments > 0 && args->tokens > 1;
}

status attention_cudnn_fwd(stream *queue, const attention_fwd_args *args, bool *out_done)
{
    attention_shape shape = shape_fwd(args);
    attention_plans *all;
    const cudnn_plan *plan;
    attention_batch bound = {0};
    *out_done = false;
    if (!is_asked(queue, args))
        return ST_OK;
    enum refusal why = refusal_of(args);
    if (why != TAKEN)
        return refuse_call(queue, args, false, why);
    TRY(attention_plans_of(queue, &all));
    TRY(attention_plan_for(queue, all, &shape, false, &plan));
    *out_done = plan != NULL;
    if (!plan)
        return ST_OK;
    TRY(attention_find_room(queue, &bound, &shape,
                            &(attention_room){.tokens = args->tokens, .runs = 1}, plan));
    attention_pack_args pack =
        attention_packing(&bound, &shape, args->tokens, args->cu, shape.segments);
    put_tail(&pack, 0, args->o, args->o_stride, args->heads * args->head_dim);
    pack.tail_f32 = args->lse;
    pack.f32_width = args->heads;
    TRY(cuda_attention_pack(queue, &pack));

    float scale = (float)args->scale, minus = -INFINITY;
    attention_hand held = {0};
    attention_give_batch(&held, &bound);
    attention_give(&held, ATTENTION_Q, args->q);
    attention_give(&held, ATTENTION_K, args->k);
    attention_give(&held, ATTENTION_V, args->v);
    attention_give(&held, ATTENTION_O, args->o);
    attention_give(&held, ATTENTION_LSE, args->lse);
    attention_give(&held, ATTENTION_SCALE, &scale);
    attention_give(&held, ATTENTION_MINUS, &minus);
    return cudnn_plan_run(plan, all->handle, held.n, held.uid, held.pointer, bound.library);
}

/* Copies the log-sums of the query heads from `query_head` on, if they are to be copied. */
static status copy_log_sums(stream *queue, const attention_bwd_args *args,
                            const attention_shape *shape, const attention_batch *bound,
                            int64_t query_head)
{
    const attention_columns_args lse = {.rows = args->tokens,
                                        .width = shape->heads,
                                        .from_stride = args->heads,
                                        .to_stride = shape->lse_stride,
                                        .from = row_of(args->lse, query_head),
                                        .to = bound->lse};
    return bound->lse ? cuda_attention_columns(queue, &lse) : ST_OK;
}

/* Runs one part: the segments of `bound`, and the key-value heads from `kv` on with their query
 * heads. */
static status run_part(const attention_bwd_args *args, const attention_batch *bound,
                       attention_plans *all, const cudnn_plan *plan, int64_t kv)
{
    int64_t head_dim = args->head_dim, query_head = kv * (args->heads / args->kv_heads);
    float scale = (float)args->scale, minus = -INFINITY, one = 1;
    attention_hand held = {0};
    attention_give_batch(&held, bound);
    attention_give(&held, ATTENTION_Q, head_of(args->q, query_head, head_dim));
    attention_give(&held, ATTENTION_K, head_of(args->k, kv, head_dim));
    attention_give(&held, ATTENTION_V, head_of(args->v, kv, head_dim));
    attention_give(&held, ATTENTION_O, head_of(args->o, query_head, head_dim));
    attention_give(&held, ATTENTION_LSE, bound->lse ? bound->lse : row_of(args->lse, query_head));
    attention_give(&held, ATTENTION_SCALE, &scale);
    attention_give(&held, ATTENTION_MINUS, &minus);
    attention_give(&held, ATTENTION_ONE, &one);
    attention_give(&held, ATTENTION_DO, head_of(args->do_, query_head, head_dim));
    attention_give(&held, ATTENTION_DQ, head_of(args->dq, query_head, head_dim));
    attention_give(&held, ATTENTION_DK, head_of(args->dk, kv, head_dim));
    attention_give(&held, ATTENTION_DV, head_of(args->dv, kv, head_dim));
    attention_give(&held, ATTENTION_SUM, bound->sum ? bound->sum : row_of(args->work, query_head));
    attention_give(&held, ATTENTION_DQ_SUM, bound->dq_sum);
    attention_give(&held, ATTENTION_DK_FULL, bound->dk_full);
    attention_give(&held, ATTENTION_DV_FULL, bound->dv_full);
    return cudnn_plan_run(plan, all->handle, held.n, held.uid, held.pointer, bound->library);
}

/* Writes the lists of every run, and zeros after the last segment. */
static status pack_runs(stream *queue, const attention_bwd_args *args, const attention_shape *shape,
                        const attention_batch *bound, const attention_parts *parts)
{
    for (int64_t run = 0; run < parts->runs; run++) {
        const attention_batch one = attention_run_of(bound, shape, run);
        const int64_t before = run * parts->run, left = args->segments - before;
        attention_pack_args pack = attention_packing(&one, shape, args->tokens, args->cu + before,
                                                     left < parts->run ? left : parts->run);
        if (run + 1 == parts->runs) {
            put_tail(&pack, 0, args->dq, args->q_stride, args->heads * args->head_dim);
            put_tail(&pack, 1, args->dk, args->k_stride, args->kv_heads * args->head_dim);
            put_tail(&pack, 2, args->dv, args->v_stride, args->kv_heads * args->head_dim);
        }
        TRY(cuda_attention_pack(queue, &pack));
    }
    return ST_OK;
}

static status run_parts(stream *queue, const attention_bwd_args *args, const attention_shape *shape,
                        const attention_batch *bound, attention_plans *all, const cudnn_plan *plan,
                        const attention_parts *parts)
{
    for (int64_t kv = 0; kv < args->kv_heads; kv += shape->kv_heads) {
        TRY(copy_log_sums(queue, args, shape, bound, kv * (args->heads / args->kv_heads)));
        for (int64_t run = 0; run < parts->runs; run++) {
            const attention_batch one = attention_run_of(bound, shape, run);
            TRY(run_part(args, &one, all, plan, kv));
        }
    }
    return ST_OK;
}

status attention_cudnn_bwd(stream *queue, const attention_bwd_args *args, bool *out_done)
{
    attention_parts parts;
    attention_fwd_args fwd = as_fwd(args);
    attention_shape shape = shape_bwd(queue, args, &parts);
    attention_plans *all;
    const cudnn_plan *plan;
    attention_batch bound = {0};
    *out_done = false;
    if (!is_asked(queue, &fwd))
        return ST_OK;
    enum refusal why = refusal_of_bwd(args, &shape, &parts);
    if (why != TAKEN)
        return refuse_call(queue, &fwd, true, why);
    TRY(attention_plans_of(queue, &all));
    TRY(attention_plan_for(queue, all, &shape, true, &plan));
    const attention_room wanted = {.tokens = args->tokens,
                                   .runs = parts.runs,
                                   .backward = true,
                                   .copies = attention_copied_row(args->heads, parts.groups) != 0};
    *out_done = plan != NULL;
    if (!plan)
        return ST_OK;
    TRY(attention_find_room(queue, &bound, &shape, &wanted, plan));
    if (bound.dq_sum) /* cuDNN's blocks add to it, so it starts at 0 */
        TRY(queue->dev->backend->zero(queue, bound.dq_sum, (size_t)bound.dq_sum_bytes));
    TRY(pack_runs(queue, args, &shape, &bound, &parts));
    return run_parts(queue, args, &shape, &bound, all, plan, &parts);
}

#else

status attention_cudnn_fwd(stream *queue, const attention_fwd_args *args, bool *out_done)
{
    (void)queue;
    (void)args;
    *out_done = false;
    return ST_OK;
}

status attention_cudnn_bwd(stream *queue, const attention_bwd_args *args, bool *out_done)
{
    (void)queue;
    (void)args;
    *out_done = false;
    return ST_OK;
}

#endif
