/* SPDX-License-Identifier: Apache-2.0 */
/* cases.c: the arrays of a case, and the cases of dense and grouped matrix products and of
 * attention. Letters: T, S the tokens and the patches of the micro-batch; m, n, k the sizes of a
 * product; d the width of a head; q, k, x, o the arrays of attention, x for its values; Y the
 * product of the forward pass. */
#include <math.h>
#include <stdlib.h>

#include "trainer/bench/cases.h"
#include "trainer/report/speed.h"

static void *hold(bench_case *bench, size_t bytes)
{
    void *array = NULL;
    if (bench->counted)
        return NULL;
    if (bench->st == ST_OK && bench->n_held == BENCH_ARRAYS)
        bench->st = FAIL(ST_INTERNAL, "bench: a case has more than %d arrays", BENCH_ARRAYS);
    if (bench->st == ST_OK)
        bench->st = bench->queue->dev->backend->alloc(bench->queue->dev, bytes, &array);
    if (bench->st == ST_OK)
        bench->held[bench->n_held++] = array;
    return array;
}

static void *numbers(bench_case *bench, int64_t count, size_t size)
{
    void *array = hold(bench, (size_t)count * size);
    if (bench->st == ST_OK && !bench->counted)
        bench->st = speed_fill(bench->queue, array, count, size);
    return array;
}

void *bench_act(bench_case *bench, int64_t count)
{
    return numbers(bench, count, st_dtype_size(bench->queue->dev->backend->act));
}

void *bench_acc(bench_case *bench, int64_t count)
{
    return numbers(bench, count, st_dtype_size(bench->queue->dev->backend->acc));
}

void *bench_raw(bench_case *bench, int64_t bytes)
{
    return hold(bench, (size_t)bytes);
}

void *bench_upload(bench_case *bench, const void *host, size_t bytes)
{
    void *array = hold(bench, bytes);
    if (bench->counted)
        return NULL;
    if (bench->st == ST_OK)
        bench->st = bench->queue->dev->backend->to_device(bench->queue, array, host, bytes);
    if (bench->st == ST_OK)
        bench->st = bench->queue->dev->backend->wait(bench->queue);
    return array;
}

int32_t *bench_ints_of(bench_case *bench, const int32_t *host, int64_t count)
{
    return bench_upload(bench, host, (size_t)count * sizeof *host);
}

int32_t *bench_ints(bench_case *bench, int64_t count,
                    int32_t (*value)(const bench_sizes *sizes, int64_t index))
{
    int32_t *host = malloc((size_t)(count > 0 ? count : 1) * sizeof *host);
    if (!host) {
        if (bench->st == ST_OK)
            bench->st = FAIL(ST_NO_MEMORY, "no memory for the arguments of an op");
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        host[i] = value(bench->sizes, i);
    int32_t *array = bench_ints_of(bench, host, count);
    free(host);
    return array;
}

double bench_act_bytes(const bench_case *bench)
{
    return (double)st_dtype_size(bench->queue->dev->backend->act);
}

double bench_acc_bytes(const bench_case *bench)
{
    return (double)st_dtype_size(bench->queue->dev->backend->acc);
}

double count_act_bytes(const bench_case *bench, double elements)
{
    return bench_act_bytes(bench) * elements;
}

double count_acc_bytes(const bench_case *bench, double elements)
{
    return bench_acc_bytes(bench) * elements;
}

static const text_dims *text(const bench_case *bench)
{
    return &bench->sizes->dims->text;
}

static const vision_dims *vision_of(const bench_case *bench)
{
    return &bench->sizes->dims->vision;
}

enum { Y = 1, DX = 2, DW = 4, BIAS = 8, RESIDUAL = 16 };
enum {
    LOGIT_ROWS = 2048
}; /* target rows that pass the head at once, as in the model (decoder.h) */

/* y [m, n] = x [m, k] Wt; DX: dx [m, k] = dy W; DW: dW [n, k] += dyt x. */
static void size_product(bench_case *bench, int kind, int64_t m, int64_t n, int64_t k)
{
    double act = bench_act_bytes(bench), acc = bench_acc_bytes(bench);
    gemm_args *args = &bench->args.gemm;
    if (kind & DW) {
        *args = (gemm_args){.m = n,
                            .n = k,
                            .k = m,
                            .trans_a = true,
                            .accumulate = true,
                            .c_acc = true,
                            .alpha = 1.0,
                            .lda = n,
                            .ldb = k,
                            .ldc = k};
        args->a = bench_act(bench, m * n);
        args->b = bench_act(bench, m * k);
        args->c = bench_acc(bench, n * k);
        bench->bytes = act * (double)(m * n + m * k) + 2 * acc * (double)(n * k);
    } else {
        bool dx = kind & DX;
        int64_t in = dx ? n : k, out = dx ? k : n;
        *args = (gemm_args){.m = m,
                            .n = out,
                            .k = in,
                            .trans_b = !dx,
                            .alpha = 1.0,
                            .lda = in,
                            .ldb = k,
                            .ldc = out};
        args->a = bench_act(bench, m * in);
        args->b = bench_act(bench, n * k);
        args->c = bench_act(bench, m * out);
        if (kind & BIAS)
            args->bias = bench_act(bench, out);
        if (kind & RESIDUAL)
            args->residual = bench_act(bench, m * out);
        bench->bytes = act * (double)(m * n + n * k + m * k + (args->residual ? m * n : 0));
    }
    bench->flops = 2.0 * (double)m * (double)n * (double)k;
}

#define PRODUCT(name, kind, m, n, k)                                                               \
    static void name(bench_case *bench)                                                            \
    {                                                                                              \
        const text_dims *language = text(bench);                                                   \
        const vision_dims *tower = vision_of(bench);                                               \
        (void)language;                                                                            \
        (void)tower;                                                                               \
        size_product(bench, (kind), (m), (n), (k));                                                \
    }
#define T bench->sizes->tokens
#define S bench->sizes->patches
PRODUCT(gemm_q, Y, T, language->heads * language->head_dim, language->hidden)
PRODUCT(gemm_q_dx, DX, T, language->heads * language->head_dim, language->hidden)
PRODUCT(gemm_q_dw, DW, T, language->heads * language->head_dim, language->hidden)
PRODUCT(gemm_kv, Y, T, language->kv_heads * language->head_dim, language->hidden)
PRODUCT(gemm_o, Y | RESIDUAL, T, language->hidden, language->heads * language->head_dim)
PRODUCT(gemm_router, Y, T, language->experts, language->hidden)
PRODUCT(gemm_head, Y, LOGIT_ROWS, language->vocab, language->hidden)
PRODUCT(gemm_head_dx, DX, LOGIT_ROWS, language->vocab, language->hidden)
PRODUCT(gemm_head_dw, DW, LOGIT_ROWS, language->vocab, language->hidden)
PRODUCT(gemm_patch, Y | BIAS, S, tower->hidden, tower->patch_bytes)
PRODUCT(gemm_vision_qkv, Y | BIAS, S, 3 * tower->hidden, tower->hidden)
PRODUCT(gemm_vision_fc1, Y | BIAS, S, tower->intermediate, tower->hidden)
PRODUCT(gemm_vision_fc2_dw, DW, S, tower->hidden, tower->intermediate)

void bench_loads(int64_t experts, int64_t slots, double skew, int32_t *offset)
{
    /* Loads are proportional to r^expert; the r for which max / mean = skew is found by bisection.
     * Letters: r as in that formula. */
    double low = 0.0, high = 1.0;
    for (int i = 0; i < 60; i++) {
        double r = (low + high) / 2, sum = 0.0, term = 1.0;
        for (int64_t expert = 0; expert < experts; expert++, term *= r)
            sum += term;
        if ((double)experts / sum > skew)
            low = r;
        else
            high = r;
    }
    double sum = 0.0, term = 1.0, so_far = 0.0;
    for (int64_t expert = 0; expert < experts; expert++, term *= high)
        sum += term;
    term = 1.0;
    offset[0] = 0;
    for (int64_t expert = 0; expert < experts; expert++, term *= high) {
        so_far += term / sum * (double)slots;
        offset[expert + 1] = expert + 1 == experts ? (int32_t)slots : (int32_t)llround(so_far);
    }
}

void bench_grouped(bench_case *bench, int mode, bool wide, double skew)
{
    const text_dims *dims = text(bench);
    int64_t experts = dims->experts, slots = T * dims->top_k;
    int64_t k = wide ? dims->hidden : dims->expert_width,
            n = wide ? 2 * dims->expert_width : dims->hidden;
    int32_t *offset = malloc((size_t)(experts + 1) * sizeof *offset);
    if (!offset) {
        bench->st = FAIL(ST_NO_MEMORY, "bench: out of memory");
        return;
    }
    bench_loads(experts, slots, skew, offset);
    bench->args.grouped_gemm =
        (grouped_gemm_args){.mode = mode,
                            .experts = experts,
                            .k = k,
                            .n = n,
                            .rows_cap = slots,
                            .offset = bench_ints_of(bench, offset, experts + 1)};
    free(offset);
    grouped_gemm_args *args = &bench->args.grouped_gemm;
    args->x = bench_act(bench, slots * k);
    args->y = bench_act(bench, slots * n);
    double moved = bench_act_bytes(bench) * (double)(slots * (k + n));
    if (mode == GROUPED_WGRAD) {
        args->dw = bench_acc(bench, experts * k * n);
        moved += 2 * bench_acc_bytes(bench) * (double)(experts * k * n);
    } else {
        args->w = bench_act(bench, experts * k * n);
        moved += bench_act_bytes(bench) * (double)(experts * k * n);
    }
    bench->bytes = moved;
    bench->flops = 2.0 * (double)slots * (double)k * (double)n;
}

void bench_grouped_gated(bench_case *bench)
{
    bench_grouped(bench, GROUPED_FWD, true, 3);
    grouped_gemm_args *args = &bench->args.grouped_gemm;
    args->gated = bench_act(bench, args->rows_cap * args->n / 2);
    bench->bytes += bench_act_bytes(bench) * (double)(args->rows_cap * args->n / 2);
}

#define GROUPED(name, mode, wide, skew)                                                            \
    static void name(bench_case *bench)                                                            \
    {                                                                                              \
        bench_grouped(bench, (mode), (wide), (skew));                                              \
    }
GROUPED(grouped_up, GROUPED_FWD, true, 3)
GROUPED(grouped_down, GROUPED_FWD, false, 3)
GROUPED(grouped_up_dx, GROUPED_DGRAD, true, 3)
GROUPED(grouped_down_dx, GROUPED_DGRAD, false, 3)
GROUPED(grouped_up_dw, GROUPED_WGRAD, true, 3)
GROUPED(grouped_down_dw, GROUPED_WGRAD, false, 3)

/* The same rows as one dense product, to compare the grouped one with. */
PRODUCT(gemm_as_experts, Y, T * language->top_k, 2 * language->expert_width, language->hidden)

/* Segments of attention: their borders cu and prefixes [n + 1], NULL if none has one, and the pairs
 * of a query and a key that it sees. */
typedef struct bench_segments {
    int32_t *cu, *prefix;
    int64_t n;
    double pairs;
} bench_segments;

/* Segments of `length` tokens. */
static void plain_segments(bench_segments *out, int64_t tokens, int64_t length, bool causal)
{
    out->n = (tokens + length - 1) / length;
    for (int64_t i = 0; i <= out->n; i++)
        out->cu[i] = (int32_t)(i * length < tokens ? i * length : tokens);
    for (int64_t i = 0; i < out->n; i++) {
        const double own = (double)(out->cu[i + 1] - out->cu[i]);
        out->pairs += causal ? own * (own + 1) / 2 : own * own;
    }
}

enum { BRANCHES = 5, BRANCH_SHARE = 16 }; /* VQAv2: about 5 questions, of a 16th of their picture */

/* Prefixes of `length` tokens, each with BRANCHES branches; shorter ones where a row is too short
 * for that. What is left over is padding. */
static void tree_segments(bench_segments *out, int64_t tokens, int64_t length)
{
    length = 2 * length < tokens ? length : tokens / 2;
    const int64_t own = length / BRANCH_SHARE + 1, tree = length + BRANCHES * own;
    for (int64_t at = 0; at + tree <= tokens; at += tree) {
        const int64_t root = out->n;
        for (int64_t i = 0; i <= BRANCHES; i++, out->n++) {
            out->cu[out->n] = (int32_t)(at + (i ? length + (i - 1) * own : 0));
            out->prefix[out->n] = i ? (int32_t)root : -1;
        }
        out->cu[out->n] = (int32_t)(at + tree);
        out->pairs += (double)length * (double)(length + 1) / 2 +
                      BRANCHES * (double)own * ((double)length + (double)(own + 1) / 2);
    }
}

/* What attention is timed: of vision or text, its backward pass, with which kernels. ANY_ORDER: the
 * sums of the backward pass may be taken in any order. OWN: our own kernels, which alone take
 * segments with prefixes, even if none has one. TREES: prefixes with branches. */
enum { FORWARD = 0, VISION = 1, BACKWARD = 2, ANY_ORDER = 4, OWN = 8, TREES = 16 };

/* Attention over segments of `length` tokens, or prefixes of that length with branches. Its
 * backward pass makes five products and its forward pass two. */
static void attention(bench_case *bench, int what, int64_t length)
{
    const bool vision = what & VISION, backward = what & BACKWARD, trees = what & TREES;
    const text_dims *dims = text(bench);
    const vision_dims *tower = vision_of(bench);
    int64_t n = vision ? S : T, heads = vision ? tower->heads : dims->heads;
    int64_t kv = vision ? tower->heads : dims->kv_heads;
    int64_t d = vision ? dims_vision_head_dim(bench->sizes->dims) : dims->head_dim;
    const size_t most = (size_t)(2 * n / length + 4) * (BRANCHES + 1);
    bench_segments made = {.cu = calloc(most, sizeof *made.cu),
                           .prefix = calloc(most, sizeof *made.prefix)};
    if (!made.cu || !made.prefix) {
        bench->st = FAIL(ST_NO_MEMORY, "bench: out of memory");
        free(made.cu);
        free(made.prefix);
        return;
    }
    if (trees)
        tree_segments(&made, n, length);
    else
        plain_segments(&made, n, length, !vision);
    for (int64_t i = 0; i < made.n && !trees; i++)
        made.prefix[i] = -1;
    const int32_t *cu_dev = bench_ints_of(bench, made.cu, made.n + 1);
    const int32_t *prefix_dev =
        what & (TREES | OWN) ? bench_ints_of(bench, made.prefix, made.n) : NULL;
    free(made.cu);
    free(made.prefix);
    void *q = bench_act(bench, n * heads * d), *k = bench_act(bench, n * kv * d);
    void *x = bench_act(bench, n * kv * d), *o = bench_act(bench, n * heads * d);
    void *lse = bench_acc(bench, n * heads);
    double act = bench_act_bytes(bench), rows = (double)n * (double)d;
    bench->flops = (backward ? 5 : 2) * 2.0 * made.pairs * (double)heads * (double)d;
    bench->bytes = act * rows * (double)(2 * heads + 2 * kv) * (backward ? 2 : 1);
    const attention_fwd_args fwd = {.tokens = n,
                                    .heads = heads,
                                    .kv_heads = kv,
                                    .head_dim = d,
                                    .segments = made.n,
                                    .longest = length < n ? length : n,
                                    .causal = !vision,
                                    .scale = 0.1,
                                    .cu = cu_dev,
                                    .prefix = prefix_dev,
                                    .q = q,
                                    .k = k,
                                    .v = x,
                                    .q_stride = heads * d,
                                    .k_stride = kv * d,
                                    .v_stride = kv * d,
                                    .o_stride = heads * d,
                                    .o = o,
                                    .lse = lse};
    if (!backward) {
        bench->args.attention_fwd = fwd;
        return;
    }
    attention_bwd_args *bwd = &bench->args.attention_bwd;
    *bwd = attention_bwd_of(&fwd);
    bwd->any_order = what & ANY_ORDER;
    bwd->do_ = bench_act(bench, n * heads * d);
    bwd->dq = bench_act(bench, n * heads * d);
    bwd->dk = bench_act(bench, n * kv * d);
    bwd->dv = bench_act(bench, n * kv * d);
    bwd->work = bench_acc(bench, n * heads);
}

#define ATTENTION(name, what, length)                                                              \
    static void name(bench_case *bench)                                                            \
    {                                                                                              \
        attention(bench, (what), (length));                                                        \
    }
ATTENTION(attention_row, FORWARD, bench->sizes->row)
ATTENTION(attention_row_bwd, BACKWARD, bench->sizes->row)
ATTENTION(attention_row_any, BACKWARD | ANY_ORDER, bench->sizes->row)
ATTENTION(attention_row_own, BACKWARD | OWN, bench->sizes->row)
ATTENTION(attention_packed, FORWARD, bench->sizes->document)
ATTENTION(attention_packed_bwd, BACKWARD, bench->sizes->document)
ATTENTION(attention_packed_any, BACKWARD | ANY_ORDER, bench->sizes->document)
ATTENTION(attention_trees, TREES, bench->sizes->document)
ATTENTION(attention_trees_bwd, TREES | BACKWARD, bench->sizes->document)
ATTENTION(attention_frames, VISION, bench->sizes->frame)
ATTENTION(attention_frames_bwd, VISION | BACKWARD, bench->sizes->frame)
ATTENTION(attention_frames_any, VISION | BACKWARD | ANY_ORDER, bench->sizes->frame)
ATTENTION(attention_frames_own, VISION | BACKWARD | OWN, bench->sizes->frame)

const bench_row bench_products[] = {
    BENCH_ROW(gemm, "q", gemm_q),
    BENCH_ROW(gemm, "q dx", gemm_q_dx),
    BENCH_ROW(gemm, "q dw", gemm_q_dw),
    BENCH_ROW(gemm, "k", gemm_kv),
    BENCH_ROW(gemm, "o, residual", gemm_o),
    BENCH_ROW(gemm, "router", gemm_router),
    BENCH_ROW(gemm, "head, 2048 rows", gemm_head),
    BENCH_ROW(gemm, "head dx, 2048 rows", gemm_head_dx),
    BENCH_ROW(gemm, "head dw, 2048 rows", gemm_head_dw),
    BENCH_ROW(gemm, "patches", gemm_patch),
    BENCH_ROW(gemm, "vision qkv", gemm_vision_qkv),
    BENCH_ROW(gemm, "vision fc1", gemm_vision_fc1),
    BENCH_ROW(gemm, "vision fc2 dw", gemm_vision_fc2_dw),
    BENCH_ROW(gemm, "gate up as one", gemm_as_experts),
    BENCH_ROW(grouped_gemm, "gate up, load 3", grouped_up),
    BENCH_ROW(grouped_gemm, "gated, load 3", bench_grouped_gated),
    BENCH_ROW(grouped_gemm, "down, load 3", grouped_down),
    BENCH_ROW(grouped_gemm, "gate up dx, load 3", grouped_up_dx),
    BENCH_ROW(grouped_gemm, "down dx, load 3", grouped_down_dx),
    BENCH_ROW(grouped_gemm, "gate up dw, load 3", grouped_up_dw),
    BENCH_ROW(grouped_gemm, "down dw, load 3", grouped_down_dw),
    BENCH_ROW(attention_fwd, "text, whole rows", attention_row),
    BENCH_ROW(attention_bwd, "text, whole rows", attention_row_bwd),
    BENCH_ROW(attention_bwd, "text, whole rows, any order", attention_row_any),
    BENCH_ROW(attention_bwd, "text, whole rows, ours", attention_row_own),
    BENCH_ROW(attention_fwd, "text, packed", attention_packed),
    BENCH_ROW(attention_bwd, "text, packed", attention_packed_bwd),
    BENCH_ROW(attention_bwd, "text, packed, any order", attention_packed_any),
    BENCH_ROW(attention_fwd, "text, prefixes", attention_trees),
    BENCH_ROW(attention_bwd, "text, prefixes", attention_trees_bwd),
    BENCH_ROW(attention_fwd, "vision", attention_frames),
    BENCH_ROW(attention_bwd, "vision", attention_frames_bwd),
    BENCH_ROW(attention_bwd, "vision, any order", attention_frames_any),
    BENCH_ROW(attention_bwd, "vision, ours", attention_frames_own),
    {.op_name = NULL},
};
