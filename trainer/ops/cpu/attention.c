/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: softmax attention inside segments on the CPU (attention.h).
 *
 * A block of at most BLOCK_Q queries meets all of its keys at once: first those of its prefix, if
 * it has one, then its own. Only the scores [BLOCK_Q, keys] of one block are held, so memory grows
 * with a segment's length and not with its square.
 *
 * A block may reach over several branches of one prefix. Branches are often shorter than a block,
 * and a product with all keys of the prefix for each of them alone would read those keys many
 * times, a few queries at a time. The block's own keys are then those of all these branches, of
 * which each query sees its branch's; the others count 0.
 *
 * A task is a segment without a prefix, or all branches of a prefix: in the forward with one query
 * head, in the backward with one key-value head, and a prefix's together with its branches', in
 * order, so no two threads add to the same place. Tasks are listed first, since the branches of a
 * large tree are one task among many segments. They are numbered by key-value head, then by
 * segment, then by query head: heads that read the same keys follow each other, and the tasks of a
 * large tree are in several of cpu_run's parts. */
#include <limits.h>
#include <string.h>

#include "trainer/ops/cpu/attention_head.h"
#include "trainer/ops/cpu/real_blas.h"

enum {
    BLOCK_Q = 64,
    SPAN =
        2 * BLOCK_Q, /* a block begins no further branch if it then had more own keys than this */
};

/* Checks that the borders of segments of `what` ascend from 0 and stay within `tokens`.
 * *out_longest is the length of the longest segment. */
static status borders_check(const char *what, const int32_t *cu, int64_t segments, int64_t tokens,
                            int64_t *out_longest)
{
    int64_t longest = 0;
    if (segments > 0 && cu[0] != 0)
        return FAIL(ST_BAD_INPUT,
                    "attention: the first segment of %s begins at %d; it must begin at 0", what,
                    cu[0]);
    for (int64_t i = 0; i < segments; i++) {
        if (cu[i + 1] < cu[i] || cu[i + 1] > tokens)
            return FAIL(ST_BAD_INPUT,
                        "attention: segment %lld is [%d, %d), which is not an ascending range "
                        "within %lld %s",
                        (long long)i, cu[i], cu[i + 1], (long long)tokens, what);
        if (cu[i + 1] - cu[i] > longest)
            longest = cu[i + 1] - cu[i];
    }
    *out_longest = longest;
    return ST_OK;
}

/* Checks that every query is a key of its segment, and comes after the query before it. */
static status places_check(const int32_t *cu, const int32_t *cu_keys, int64_t segments,
                           const int32_t *place)
{
    for (int64_t segment = 0; segment < segments; segment++)
        for (int64_t i = cu[segment]; i < cu[segment + 1]; i++)
            if (place[i] < cu_keys[segment] || place[i] >= cu_keys[segment + 1] ||
                (i > cu[segment] && place[i] <= place[i - 1]))
                return FAIL(ST_BAD_INPUT,
                            "attention: query %lld is at key %d, which is not inside [%d, %d) or "
                            "does not rise",
                            (long long)i, place[i], cu_keys[segment], cu_keys[segment + 1]);
    return ST_OK;
}

/* The arguments that forward and backward share. */
typedef struct attention_shape {
    int64_t tokens, heads, kv_heads, head_dim, segments, keys;
    const int32_t *cu, *cu_keys, *place, *prefix;
    const real *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, o_stride;
    bool causal;
    real scale;
} attention_shape;

/* args: an attention_fwd_args or an attention_bwd_args. */
/* clang-format off */
#define SHAPE_OF(args)                                                                             \
    {                                                                                              \
        .tokens = (args)->tokens, .heads = (args)->heads, .kv_heads = (args)->kv_heads,            \
        .head_dim = (args)->head_dim, .segments = (args)->segments,                                \
        .keys = (args)->cu_keys ? (args)->keys : (args)->tokens, .cu = (args)->cu,                 \
        .cu_keys = (args)->cu_keys ? (args)->cu_keys : (args)->cu,                                 \
        .place = (args)->cu_keys ? (args)->place : NULL, .prefix = (args)->prefix, .q = (args)->q, \
        .k = (args)->k, .v = (args)->v, .q_stride = (args)->q_stride,                              \
        .k_stride = (args)->k_stride, .v_stride = (args)->v_stride, .o_stride = (args)->o_stride,  \
        .causal = (args)->causal, .scale = (real)(args)->scale                                     \
    }
/* clang-format on */

static int64_t segment_keys(const int32_t *borders, int64_t segment)
{
    return borders[segment + 1] - borders[segment];
}

/* Checks that branches directly follow their prefix, and that prefixes have none themselves. Raises
 * *longest to the largest number of keys that a branch sees. */
static status prefixes_check(const int32_t *prefix, const int32_t *borders, int64_t segments,
                             int64_t *longest)
{
    for (int64_t i = 0; i < segments; i++) {
        const int32_t of = prefix[i];
        if (of == -1)
            continue;
        if (of < 0 || of >= i || prefix[of] != -1 || (of != i - 1 && prefix[i - 1] != of))
            return FAIL(ST_BAD_INPUT,
                        "attention: segment %lld has the prefix %d; a prefix is a segment without "
                        "one, directly before its branches",
                        (long long)i, of);
        *longest =
            max_i64(*longest, segment_keys(borders, of) + max_i64(segment_keys(borders, i), SPAN));
    }
    return ST_OK;
}

/* *out_longest is the largest number of keys that a segment's queries see. */
static status attention_check(const attention_shape *shape, int64_t *out_longest)
{
    if (shape->heads <= 0 || shape->kv_heads <= 0 || shape->heads % shape->kv_heads != 0 ||
        shape->head_dim <= 0 || shape->tokens > INT_MAX || shape->keys > INT_MAX)
        return FAIL(
            ST_BAD_INPUT,
            "attention: there are %lld query heads for %lld key-value heads of width %lld; the "
            "first number must be a multiple of the second",
            (long long)shape->heads, (long long)shape->kv_heads, (long long)shape->head_dim);
    TRY(borders_check(shape->place ? "queries" : "tokens", shape->cu, shape->segments,
                      shape->tokens, out_longest));
    if (shape->place) {
        TRY(borders_check("keys", shape->cu_keys, shape->segments, shape->keys, out_longest));
        TRY(places_check(shape->cu, shape->cu_keys, shape->segments, shape->place));
    }
    return shape->prefix
               ? prefixes_check(shape->prefix, shape->cu_keys, shape->segments, out_longest)
               : ST_OK;
}

/* The segment's prefix; -1: it has none. */
static int64_t prefix_of(const attention_shape *shape, int64_t segment)
{
    return shape->prefix ? shape->prefix[segment] : -1;
}

/* The segments of a task: one without a prefix, or all branches of a prefix. */
typedef struct segment_run {
    int64_t first, end;
} segment_run;

static segment_run run_at(const attention_shape *shape, int64_t segment)
{
    const int64_t before = prefix_of(shape, segment);
    segment_run run = {segment, segment + 1};
    while (before >= 0 && run.end < shape->segments && prefix_of(shape, run.end) == before)
        run.end++;
    return run;
}

/* Whether a run begins with this segment. */
static bool begins_run(const attention_shape *shape, int64_t segment)
{
    const int64_t before = prefix_of(shape, segment);
    return before < 0 || before == segment - 1;
}

/* Query `head` in the segments of a run. */
static head_view view_of(const attention_shape *shape, segment_run run, int64_t head)
{
    const int64_t head_dim = shape->head_dim, kv = head / (shape->heads / shape->kv_heads);
    const int64_t first = shape->cu[run.first], key = shape->cu_keys[run.first],
                  before = prefix_of(shape, run.first);
    head_view view = {.q = shape->q + first * shape->q_stride + head * head_dim,
                      .k = shape->k + key * shape->k_stride + kv * head_dim,
                      .v = shape->v + key * shape->v_stride + kv * head_dim,
                      .q_stride = shape->q_stride,
                      .k_stride = shape->k_stride,
                      .v_stride = shape->v_stride,
                      .o_stride = shape->o_stride,
                      .lse_stride = shape->heads,
                      .n = shape->cu[run.end] - first,
                      .d = head_dim,
                      .keys = shape->cu_keys[run.end] - key,
                      .cu = shape->cu + run.first,
                      .cu_keys = shape->cu_keys + run.first,
                      .segments = run.end - run.first,
                      .place = shape->place ? shape->place + first : NULL,
                      .first_key = key,
                      .causal = shape->causal,
                      .scale = shape->scale};
    if (before >= 0) {
        view.prefix_keys = segment_keys(shape->cu_keys, before);
        view.prefix_k = shape->k + shape->cu_keys[before] * shape->k_stride + kv * head_dim;
        view.prefix_v = shape->v + shape->cu_keys[before] * shape->v_stride + kv * head_dim;
    }
    return view;
}

/* Sets `width` columns of the rows [from, to) to 0. */
static void zero_rows(real *x, int64_t from, int64_t to, int64_t stride, int64_t width)
{
    for (int64_t i = from; i < to; i++)
        memset(x + i * stride, 0, (size_t)width * sizeof *x);
}

/* Own keys [from, to), counted from the view's first one. */
typedef struct key_range {
    int64_t from, to;
} key_range;

/* Which own keys a query sees. Queries are asked for in order; *segment is that of the query before
 * it, or 0, and becomes this one's. */
static key_range own_keys(const head_view *view, int64_t query, int64_t *segment)
{
    while (view->cu[*segment + 1] - view->cu[0] <= query)
        ++*segment;
    const int64_t from = view->cu_keys[*segment] - view->cu_keys[0];
    if (!view->causal)
        return (key_range){from, view->cu_keys[*segment + 1] - view->cu_keys[0]};
    return (key_range){from, view->place ? view->place[query] - view->first_key + 1
                                         : from + query - (view->cu[*segment] - view->cu[0]) + 1};
}

/* The queries [first, first + rows) of a head, and the columns of their scores: `keys` of them, of
 * which the first prefix_keys belong to the prefix and the others are the own keys from `from` on.
 * `segment` is that of the first query. */
typedef struct query_block {
    int64_t first, rows, keys, from, segment;
} query_block;

/* The block that begins with query `first`, which belongs to `segment` or a later one. */
static query_block block_at(const head_view *view, int64_t first, int64_t segment)
{
    key_range seen = own_keys(view, first, &segment);
    query_block block = {.first = first, .from = seen.from, .segment = segment};
    int64_t own = 0, at = segment;
    for (int64_t i = first; i < view->n && block.rows < BLOCK_Q; i++, block.rows++) {
        seen = own_keys(view, i, &at);
        if (at != segment && seen.to - block.from > SPAN)
            break;
        own = seen.to - block.from;
    }
    block.keys = view->prefix_keys + own;
    return block;
}

/* y [rows, keys] = alpha x [rows, d] z^T, for the rows of the block; z are the prefix's rows and
 * then the own ones, with the same stride. */
static void against_keys(const head_view *view, const query_block *block, real alpha, const real *x,
                         int64_t x_stride, const real *prefix_z, const real *z, int64_t z_stride,
                         real *y)
{
    if (view->prefix_keys > 0)
        blas_gemm(false, true, block->rows, view->prefix_keys, view->d, alpha, x, x_stride,
                  prefix_z, z_stride, 0, y, block->keys);
    blas_gemm(false, true, block->rows, block->keys - view->prefix_keys, view->d, alpha, x,
              x_stride, z + block->from * z_stride, z_stride, 0, y + view->prefix_keys,
              block->keys);
}

/* y [rows, d] = alpha s [rows, keys] z; z as above. */
static void sum_keys(const head_view *view, const query_block *block, real alpha, const real *s,
                     const real *prefix_z, const real *z, int64_t z_stride, real *y,
                     int64_t y_stride)
{
    if (view->prefix_keys > 0)
        blas_gemm(false, false, block->rows, view->d, view->prefix_keys, alpha, s, block->keys,
                  prefix_z, z_stride, 0, y, y_stride);
    blas_gemm(false, false, block->rows, view->d, block->keys - view->prefix_keys, alpha,
              s + view->prefix_keys, block->keys, z + block->from * z_stride, z_stride,
              view->prefix_keys > 0, y, y_stride);
}

/* z [keys, d] += alpha s^T x [rows, d]; z as above. */
static void add_to_keys(const head_view *view, const query_block *block, real alpha, const real *s,
                        const real *x, int64_t x_stride, real *prefix_z, real *z, int64_t z_stride)
{
    if (view->prefix_keys > 0)
        blas_gemm(true, false, view->prefix_keys, view->d, block->rows, alpha, s, block->keys, x,
                  x_stride, 1, prefix_z, z_stride);
    blas_gemm(true, false, block->keys - view->prefix_keys, view->d, block->rows, alpha,
              s + view->prefix_keys, block->keys, x, x_stride, 1, z + block->from * z_stride,
              z_stride);
}

static void score_block(const head_view *view, const query_block *block, real *s)
{
    against_keys(view, block, view->scale, view->q + block->first * view->q_stride, view->q_stride,
                 view->prefix_k, view->k, view->k_stride, s);
}

/* What a row of the block sees lies together while the row is worked on: the prefix's columns, and
 * then the columns of its own segment, which come to their place with begin_row and go back with
 * end_row. begin_row returns how many there are; end_row sets all other columns to 0. */
typedef struct block_row {
    real *s;
    int64_t from, own; /* the own columns that it sees: `own` of them, after `from` others */
} block_row;

static block_row begin_row(const head_view *view, const query_block *block, int64_t line, real *s,
                           int64_t *segment)
{
    const key_range seen = own_keys(view, block->first + line, segment);
    const block_row row = {s + line * block->keys, seen.from - block->from, seen.to - seen.from};
    real *own = row.s + view->prefix_keys;
    if (row.from > 0)
        memmove(own, own + row.from, (size_t)row.own * sizeof *s);
    return row;
}

static void end_row(const head_view *view, const query_block *block, const block_row *row)
{
    real *own = row->s + view->prefix_keys;
    const int64_t end = row->from + row->own;
    if (row->from > 0) {
        memmove(own + row->from, own, (size_t)row->own * sizeof *own);
        memset(own, 0, (size_t)row->from * sizeof *own);
    }
    memset(own + end, 0, (size_t)(block->keys - view->prefix_keys - end) * sizeof *own);
}

static void head_fwd(const head_view *view, real *o, real *lse, real *s)
{
    query_block block = {0};
    for (int64_t first = 0; first < view->n; first += block.rows) {
        block = block_at(view, first, block.segment);
        score_block(view, &block, s);
        int64_t segment = block.segment;
        for (int64_t i = 0; i < block.rows; i++) {
            const block_row row = begin_row(view, &block, i, s, &segment);
            lse[(first + i) * view->lse_stride] =
                HEAD_SOFTMAX_ROW(row.s, view->prefix_keys + row.own);
            end_row(view, &block, &row);
        }
        sum_keys(view, &block, 1, s, view->prefix_v, view->v, view->v_stride,
                 o + first * view->o_stride, view->o_stride);
    }
}

/* The average work of one head in one of `runs` tasks, in element operations: d multiply-adds for
 * each of its scores, `products` times. */
static int64_t task_work(const attention_shape *shape, int64_t runs, int64_t products)
{
    int64_t scores = 0;
    for (int64_t i = 0; i < shape->segments; i++) {
        const int64_t n = segment_keys(shape->cu, i);
        scores += n * n;
        if (prefix_of(shape, i) >= 0)
            scores += n * segment_keys(shape->cu, prefix_of(shape, i));
    }
    return runs > 0 ? scores / runs * (shape->head_dim * products / 4 + 8) : 0;
}

/* The arguments of a call, scratch with one area of `block` numbers per thread, and the segments
 * with which the tasks of a head begin. */
typedef struct heads_job {
    const attention_shape *shape;
    const void *args;
    real *scratch;
    int64_t block;
    int32_t *first; /* [runs] */
    int64_t runs;
} heads_job;

/* Takes scratch for the long and the short way of a head, the long one with `long_way` numbers, and
 * lists the tasks: segments without a prefix and, unless they belong to its task, the first branch
 * of each prefix. */
static status begin_job(stream *queue, heads_job *job, int64_t long_way, bool branches_apart)
{
    const attention_shape *shape = job->shape;
    void *scratch;
    job->block = max_i64(long_way, SHORT_SCRATCH);
    const size_t areas = (size_t)(cpu_threads(queue) * job->block) * sizeof(real);
    TRY(cpu_scratch(queue, areas + (size_t)shape->segments * sizeof *job->first, &scratch));
    job->scratch = scratch;
    job->first = (int32_t *)((char *)scratch + areas);
    for (int64_t i = 0; i < shape->segments; i++)
        if (branches_apart ? begins_run(shape, i) : prefix_of(shape, i) < 0)
            job->first[job->runs++] = (int32_t)i;
    return ST_OK;
}

static void heads_fwd(const void *context, part todo)
{
    const heads_job *job = context;
    const attention_fwd_args *args = job->args;
    const int64_t group = args->heads / args->kv_heads;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const int64_t kv = i / (job->runs * group), segment = job->first[i / group % job->runs],
                      head = kv * group + i % group, first = args->cu[segment];
        const head_view view = view_of(job->shape, run_at(job->shape, segment), head);
        (head_is_short(&view) ? SHORT_HEAD_FWD : head_fwd)(
            &view, (real *)args->o + first * args->o_stride + head * args->head_dim,
            (real *)args->lse + first * args->heads + head,
            job->scratch + todo.thread * job->block);
    }
}

status CPU_OP(attention_fwd)(stream *queue, const attention_fwd_args *args)
{
    const attention_shape shape = SHAPE_OF(args);
    int64_t longest;
    TRY(attention_check(&shape, &longest));
    heads_job job = {.shape = &shape, .args = args};
    TRY(begin_job(queue, &job, BLOCK_Q * longest, true));
    int64_t end = args->segments > 0 ? args->cu[args->segments] : 0;
    zero_rows(args->o, end, args->tokens, args->o_stride, args->heads * args->head_dim);
    zero_rows(args->lse, end, args->tokens, args->heads, args->heads);
    cpu_run(queue, job.runs * args->heads, task_work(&shape, job.runs, 2), heads_fwd, &job);
    return ST_OK;
}

/* Adds one query head's part to dk and dv, and writes its dq. scratch holds 2 * BLOCK_Q * keys
 * numbers, keys as many as a block can have. */
static void head_bwd(const head_view *view, const head_grads *grads, real *scratch)
{
    query_block block = {0};
    HEAD_DOTS(view, grads);
    for (int64_t first = 0; first < view->n; first += block.rows) {
        block = block_at(view, first, block.segment);
        real *p = scratch, *dp = scratch + block.rows * block.keys;
        const real *do_ = grads->do_ + first * view->o_stride,
                   *q = view->q + first * view->q_stride;
        score_block(view, &block, p);
        int64_t segment = block.segment;
        for (int64_t i = 0; i < block.rows; i++) {
            const block_row row = begin_row(view, &block, i, p, &segment);
            HEAD_PROBABILITY(row.s, grads->lse[(first + i) * view->lse_stride],
                             view->prefix_keys + row.own);
            end_row(view, &block, &row);
        }
        add_to_keys(view, &block, 1, p, do_, view->o_stride, grads->prefix_dv, grads->dv,
                    view->v_stride);
        against_keys(view, &block, 1, do_, view->o_stride, view->prefix_v, view->v, view->v_stride,
                     dp);
        for (int64_t i = 0; i < block.rows; i++) {
            real dot = grads->dot[(first + i) * view->lse_stride];
            real *x = dp + i * block.keys;
            const real *y = p + i * block.keys;
#pragma omp simd
            for (int64_t j = 0; j < block.keys; j++)
                x[j] = y[j] * (x[j] - dot);
        }
        sum_keys(view, &block, view->scale, dp, view->prefix_k, view->k, view->k_stride,
                 grads->dq + first * view->q_stride, view->q_stride);
        add_to_keys(view, &block, view->scale, dp, q, view->q_stride, grads->prefix_dk, grads->dk,
                    view->k_stride);
    }
}

/* The backward of one query head of a run. dk and dv already hold the sums of the earlier heads and
 * runs. */
static void query_head_bwd(const heads_job *job, segment_run run, int64_t head, real *scratch)
{
    const attention_bwd_args *args = job->args;
    const head_view view = view_of(job->shape, run, head);
    const int64_t first = args->cu[run.first],
                  at_o = first * args->o_stride + head * args->head_dim;
    const int64_t at_lse = first * args->heads + head;
    /* dq, dk and dv lie as q, k and v do. */
    real *dk = (real *)args->dk + (view.k - job->shape->k);
    real *dv = (real *)args->dv + (view.v - job->shape->v);
    const head_grads grads = {
        .o = (const real *)args->o + at_o,
        .lse = (const real *)args->lse + at_lse,
        .do_ = (const real *)args->do_ + at_o,
        .dq = (real *)args->dq + (view.q - job->shape->q),
        .dk = dk,
        .dv = dv,
        .prefix_dk = view.prefix_keys > 0 ? dk + (view.prefix_k - view.k) : NULL,
        .prefix_dv = view.prefix_keys > 0 ? dv + (view.prefix_v - view.v) : NULL,
        .dot = (real *)args->work + at_lse,
    };
    (head_is_short(&view) ? SHORT_HEAD_BWD : head_bwd)(&view, &grads, scratch);
}

/* A task is a segment without a prefix, with its branches, and a key-value head. */
static void heads_bwd(const void *context, part todo)
{
    const heads_job *job = context;
    const attention_shape *shape = job->shape;
    const int64_t group = shape->heads / shape->kv_heads;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const int64_t kv = i / job->runs, root = job->first[i % job->runs];
        const int64_t branch = root + 1;
        const bool is_prefix = branch < shape->segments && prefix_of(shape, branch) == root;
        const segment_run runs[] = {{root, root + 1},
                                    is_prefix ? run_at(shape, branch) : (segment_run){0, 0}};
        for (int part_of = 0; part_of < (is_prefix ? 2 : 1); part_of++)
            for (int64_t j = kv * group; j < (kv + 1) * group; j++)
                query_head_bwd(job, runs[part_of], j, job->scratch + todo.thread * job->block);
    }
}

status CPU_OP(attention_bwd)(stream *queue, const attention_bwd_args *args)
{
    const attention_shape shape = SHAPE_OF(args);
    int64_t longest;
    TRY(attention_check(&shape, &longest));
    const int64_t head_dim = args->head_dim, group = args->heads / args->kv_heads;
    heads_job job = {.shape = &shape, .args = args};
    TRY(begin_job(queue, &job, 2 * BLOCK_Q * longest, false));
    int64_t end = args->segments > 0 ? args->cu[args->segments] : 0;
    zero_rows(args->dq, end, args->tokens, args->q_stride, args->heads * head_dim);
    /* dk and dv are summed into, so they start from zero everywhere. */
    zero_rows(args->dk, 0, shape.keys, args->k_stride, args->kv_heads * head_dim);
    zero_rows(args->dv, 0, shape.keys, args->v_stride, args->kv_heads * head_dim);
    cpu_run(queue, job.runs * args->kv_heads, group * task_work(&shape, job.runs, 5), heads_bwd,
            &job);
    return ST_OK;
}
