/* cases_product.c: cases of dense and grouped matrix products and of attention. T and S are the
 * tokens and the patches of the micro-batch. */
#include <stdlib.h>

#include "trainer/bench/cases.h"

static const text_dims *text(const bench_case *c)
{
    return &c->sizes->dims->text;
}

static const vision_dims *eye(const bench_case *c)
{
    return &c->sizes->dims->vision;
}

enum { Y = 1, DX = 2, DW = 4, BIAS = 8, RESIDUAL = 16 };
enum {
    LOGIT_ROWS = 1024
}; /* target rows that pass the head at once, about as many as in the model */

/* y [m, n] = x [m, k] Wt; DX: dx [m, k] = dy W; DW: dW [n, k] += dyt x. */
static void size_product(bench_case *c, int kind, int64_t m, int64_t n, int64_t k)
{
    double act = bench_act_bytes(c), acc = bench_acc_bytes(c);
    gemm_args *a = &c->args.gemm;
    if (kind & DW) {
        *a = (gemm_args){.m = n,
                         .n = k,
                         .k = m,
                         .trans_a = true,
                         .accumulate = true,
                         .c_acc = true,
                         .alpha = 1.0,
                         .lda = n,
                         .ldb = k,
                         .ldc = k};
        a->a = bench_act(c, m * n);
        a->b = bench_act(c, m * k);
        a->c = bench_acc(c, n * k);
        c->bytes = act * (double)(m * n + m * k) + 2 * acc * (double)(n * k);
    } else {
        bool dx = kind & DX;
        int64_t in = dx ? n : k, out = dx ? k : n;
        *a = (gemm_args){.m = m,
                         .n = out,
                         .k = in,
                         .trans_b = !dx,
                         .alpha = 1.0,
                         .lda = in,
                         .ldb = k,
                         .ldc = out};
        a->a = bench_act(c, m * in);
        a->b = bench_act(c, n * k);
        a->c = bench_act(c, m * out);
        if (kind & BIAS)
            a->bias = bench_act(c, out);
        if (kind & RESIDUAL)
            a->residual = bench_act(c, m * out);
        c->bytes = act * (double)(m * n + n * k + m * k + (a->residual ? m * n : 0));
    }
    c->flops = 2.0 * (double)m * (double)n * (double)k;
}

#define PRODUCT(name, kind, m, n, k)                                                               \
    static void name(bench_case *c)                                                                \
    {                                                                                              \
        const text_dims *t = text(c);                                                              \
        const vision_dims *v = eye(c);                                                             \
        (void)t;                                                                                   \
        (void)v;                                                                                   \
        size_product(c, (kind), (m), (n), (k));                                                    \
    }
#define T c->sizes->tokens
#define S c->sizes->patches
PRODUCT(gemm_q, Y, T, t->heads * t->head_dim, t->hidden)
PRODUCT(gemm_q_dx, DX, T, t->heads * t->head_dim, t->hidden)
PRODUCT(gemm_q_dw, DW, T, t->heads * t->head_dim, t->hidden)
PRODUCT(gemm_kv, Y, T, t->kv_heads * t->head_dim, t->hidden)
PRODUCT(gemm_o, Y | RESIDUAL, T, t->hidden, t->heads * t->head_dim)
PRODUCT(gemm_router, Y, T, t->experts, t->hidden)
PRODUCT(gemm_head, Y, LOGIT_ROWS, t->vocab, t->hidden)
PRODUCT(gemm_head_dw, DW, LOGIT_ROWS, t->vocab, t->hidden)
PRODUCT(gemm_patch, Y | BIAS, S, v->hidden, v->patch_bytes)
PRODUCT(gemm_vision_qkv, Y | BIAS, S, 3 * v->hidden, v->hidden)
PRODUCT(gemm_vision_fc1, Y | BIAS, S, v->intermediate, v->hidden)
PRODUCT(gemm_vision_fc2_dw, DW, S, v->hidden, v->intermediate)

/* A grouped product over the experts' rows, unevenly spread. wide: the product of gate and up,
 * otherwise that of down. */
static void grouped(bench_case *c, int mode, bool wide, double skew)
{
    const text_dims *t = text(c);
    int64_t e = t->experts, slots = T * t->top_k;
    int64_t k = wide ? t->hidden : t->expert_width, n = wide ? 2 * t->expert_width : t->hidden;
    int32_t *offset = malloc((size_t)(e + 1) * sizeof *offset);
    if (!offset) {
        c->st = FAIL(ST_NO_MEMORY, "bench: out of memory");
        return;
    }
    bench_loads(e, slots, skew, offset);
    c->args.grouped_gemm = (grouped_gemm_args){.mode = mode,
                                               .experts = e,
                                               .k = k,
                                               .n = n,
                                               .rows_cap = slots,
                                               .offset = bench_ints_of(c, offset, e + 1)};
    free(offset);
    grouped_gemm_args *a = &c->args.grouped_gemm;
    a->x = bench_act(c, slots * k);
    a->y = bench_act(c, slots * n);
    double moved = bench_act_bytes(c) * (double)(slots * (k + n));
    if (mode == GROUPED_WGRAD) {
        a->dw = bench_acc(c, e * k * n);
        moved += 2 * bench_acc_bytes(c) * (double)(e * k * n);
    } else {
        a->w = bench_act(c, e * k * n);
        moved += bench_act_bytes(c) * (double)(e * k * n);
    }
    c->bytes = moved;
    c->flops = 2.0 * (double)slots * (double)k * (double)n;
}

/* The product that the model's forward pass uses, which applies SwiGLU to its result. */
static void grouped_gated(bench_case *c)
{
    grouped(c, GROUPED_FWD, true, 3);
    grouped_gemm_args *a = &c->args.grouped_gemm;
    a->gated = bench_act(c, a->rows_cap * a->n / 2);
    c->bytes += bench_act_bytes(c) * (double)(a->rows_cap * a->n / 2);
}

#define GROUPED(name, mode, wide, skew)                                                            \
    static void name(bench_case *c)                                                                \
    {                                                                                              \
        grouped(c, (mode), (wide), (skew));                                                        \
    }
GROUPED(grouped_up, GROUPED_FWD, true, 3)
GROUPED(grouped_down, GROUPED_FWD, false, 3)
GROUPED(grouped_up_dx, GROUPED_DGRAD, true, 3)
GROUPED(grouped_down_dx, GROUPED_DGRAD, false, 3)
GROUPED(grouped_up_dw, GROUPED_WGRAD, true, 3)
GROUPED(grouped_down_dw, GROUPED_WGRAD, false, 3)
GROUPED(grouped_up_even, GROUPED_FWD, true, 1)
GROUPED(grouped_up_8, GROUPED_FWD, true, 8)
GROUPED(grouped_up_dw_8, GROUPED_WGRAD, true, 8)

/* The same rows as one dense product, to compare the grouped one with. */
PRODUCT(gemm_as_experts, Y, T * t->top_k, 2 * t->expert_width, t->hidden)

/* Attention over segments of `length` tokens. Its backward pass makes five products and its forward
 * pass two. */
static void attention(bench_case *c, bool vision, bool backward, int64_t length)
{
    const text_dims *t = text(c);
    const vision_dims *v = eye(c);
    int64_t n = vision ? S : T, heads = vision ? v->heads : t->heads;
    int64_t kv = vision ? v->heads : t->kv_heads;
    int64_t d = vision ? dims_vision_head_dim(c->sizes->dims) : t->head_dim;
    int64_t segments = (n + length - 1) / length;
    int32_t *cu = malloc((size_t)(segments + 1) * sizeof *cu);
    if (!cu) {
        c->st = FAIL(ST_NO_MEMORY, "bench: out of memory");
        return;
    }
    double pairs = 0.0;
    for (int64_t i = 0; i <= segments; i++)
        cu[i] = (int32_t)(i * length < n ? i * length : n);
    for (int64_t i = 0; i < segments; i++) {
        double l = (double)(cu[i + 1] - cu[i]);
        pairs += vision ? l * l : l * (l + 1) / 2;
    }
    const int32_t *cu_dev = bench_ints_of(c, cu, segments + 1);
    free(cu);
    void *q = bench_act(c, n * heads * d), *k = bench_act(c, n * kv * d);
    void *x = bench_act(c, n * kv * d), *o = bench_act(c, n * heads * d);
    void *lse = bench_acc(c, n * heads);
    double act = bench_act_bytes(c), rows = (double)n * (double)d;
    c->flops = (backward ? 5 : 2) * 2.0 * pairs * (double)heads * (double)d;
    c->bytes = act * rows * (double)(2 * heads + 2 * kv) * (backward ? 2 : 1);
    const attention_fwd_args f = {.tokens = n,
                                  .heads = heads,
                                  .kv_heads = kv,
                                  .head_dim = d,
                                  .segments = segments,
                                  .longest = length < n ? length : n,
                                  .causal = !vision,
                                  .scale = 0.1,
                                  .cu = cu_dev,
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
        c->args.attention_fwd = f;
        return;
    }
    attention_bwd_args *b = &c->args.attention_bwd;
    *b = attention_bwd_of(&f);
    b->do_ = bench_act(c, n * heads * d);
    b->dq = bench_act(c, n * heads * d);
    b->dk = bench_act(c, n * kv * d);
    b->dv = bench_act(c, n * kv * d);
    b->work = bench_acc(c, n * heads);
}

#define ATTENTION(name, vision, backward, length)                                                  \
    static void name(bench_case *c)                                                                \
    {                                                                                              \
        attention(c, (vision), (backward), (length));                                              \
    }
ATTENTION(attention_row, false, false, c->sizes->row)
ATTENTION(attention_row_bwd, false, true, c->sizes->row)
ATTENTION(attention_packed, false, false, c->sizes->document)
ATTENTION(attention_packed_bwd, false, true, c->sizes->document)
ATTENTION(attention_frames, true, false, c->sizes->frame)
ATTENTION(attention_frames_bwd, true, true, c->sizes->frame)

static int32_t first_row(const bench_sizes *z, int64_t i)
{
    return (int32_t)(i * z->document);
}

static int32_t all_rows(const bench_sizes *z, int64_t i)
{
    (void)i;
    return (int32_t)z->document;
}

/* Attention of the next token of several documents that are generated at once. */
static void attention_cached(bench_case *c)
{
    const text_dims *t = text(c);
    int64_t d = t->head_dim, n = T / c->sizes->document < 1 ? 1 : T / c->sizes->document;
    int64_t rows = n * c->sizes->document;
    c->args.attention_cached = (attention_cached_args){.queries = n,
                                                       .heads = t->heads,
                                                       .kv_heads = t->kv_heads,
                                                       .head_dim = d,
                                                       .rows = rows,
                                                       .scale = 0.1,
                                                       .first = bench_ints(c, n, first_row),
                                                       .length = bench_ints(c, n, all_rows),
                                                       .q = bench_act(c, n * t->heads * d),
                                                       .k = bench_act(c, rows * t->kv_heads * d),
                                                       .v = bench_act(c, rows * t->kv_heads * d),
                                                       .o = bench_act(c, n * t->heads * d)};
    c->flops = 4.0 * (double)(rows * t->heads * d);
    c->bytes = 2.0 * bench_act_bytes(c) * (double)((rows * t->kv_heads + n * t->heads) * d);
}

#define ROW(op, shape, make)                                                                       \
    {                                                                                              \
        BENCH_##op, #op, shape, make                                                               \
    }
const bench_row bench_products[] = {
    ROW(gemm, "q", gemm_q),
    ROW(gemm, "q dx", gemm_q_dx),
    ROW(gemm, "q dw", gemm_q_dw),
    ROW(gemm, "k", gemm_kv),
    ROW(gemm, "o, residual", gemm_o),
    ROW(gemm, "router", gemm_router),
    ROW(gemm, "head", gemm_head),
    ROW(gemm, "head dw", gemm_head_dw),
    ROW(gemm, "patches", gemm_patch),
    ROW(gemm, "vision qkv", gemm_vision_qkv),
    ROW(gemm, "vision fc1", gemm_vision_fc1),
    ROW(gemm, "vision fc2 dw", gemm_vision_fc2_dw),
    ROW(gemm, "gate up as one", gemm_as_experts),
    ROW(grouped_gemm, "gate up, load 3", grouped_up),
    ROW(grouped_gemm, "gated, load 3", grouped_gated),
    ROW(grouped_gemm, "gate up, load 1", grouped_up_even),
    ROW(grouped_gemm, "gate up, load 8", grouped_up_8),
    ROW(grouped_gemm, "down, load 3", grouped_down),
    ROW(grouped_gemm, "gate up dx, load 3", grouped_up_dx),
    ROW(grouped_gemm, "down dx, load 3", grouped_down_dx),
    ROW(grouped_gemm, "gate up dw, load 3", grouped_up_dw),
    ROW(grouped_gemm, "gate up dw, load 8", grouped_up_dw_8),
    ROW(grouped_gemm, "down dw, load 3", grouped_down_dw),
    ROW(attention_fwd, "text, whole rows", attention_row),
    ROW(attention_bwd, "text, whole rows", attention_row_bwd),
    ROW(attention_fwd, "text, packed", attention_packed),
    ROW(attention_bwd, "text, packed", attention_packed_bwd),
    ROW(attention_fwd, "vision", attention_frames),
    ROW(attention_bwd, "vision", attention_frames_bwd),
    ROW(attention_cached, "text, documents", attention_cached),
    {.op_name = NULL},
};
