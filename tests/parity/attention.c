/* attention.c: cases of softmax attention inside segments.
 *
 * Tolerance: scores are sums of d products, the exponential doubles their error, and the sum over
 * keys averages it: 64 eps of the largest output. Gradients go through two more products: 256 eps.
 * In bf16 the results are compared with the order of the fused kernels that the published model
 * trains with: scores, maxima and sums in float; probabilities, the gradient of the scores and the
 * results rounded. */
#include "tests/parity/parity.h"

typedef struct attention {
    int64_t tokens, heads, kv_heads, d, segments;
    bool causal;
    double scale;
    const int32_t *cu;
    int64_t keys; /* rows of k and v */
    /* Set only where the queries are some of a segment's tokens, not all; else NULL. */
    const int32_t *cu_keys, *place;
    const int32_t *prefix;        /* NULL: no segment has one */
    double *q, *k, *v, *up, *row; /* row: room for the scores of one query */
    int64_t q_stride, k_stride, v_stride, o_stride;
} attention;

/* The borders of the keys. The function below gives the key that belongs to query t itself. */
static const int32_t *key_borders(const attention *o)
{
    return o->cu_keys ? o->cu_keys : o->cu;
}

static int64_t self_of(const attention *o, int64_t t)
{
    return o->place ? o->place[t] : t;
}

/* The keys that a query sees: those of its segment's prefix and then those of its own. */
typedef struct visible {
    int64_t prefix, n_prefix, own, n;
} visible;

static visible query_sees(const attention *o, int64_t segment, int64_t t)
{
    const int32_t *borders = key_borders(o);
    visible seen = {.own = borders[segment]};
    if (o->prefix && o->prefix[segment] >= 0) {
        seen.prefix = borders[o->prefix[segment]];
        seen.n_prefix = borders[o->prefix[segment] + 1] - seen.prefix;
    }
    const int64_t end = o->causal ? self_of(o, t) + 1 : borders[segment + 1];
    seen.n = seen.n_prefix + end - seen.own;
    return seen;
}

static int64_t visible_key(const visible *seen, int64_t n)
{
    return n < seen->n_prefix ? seen->prefix + n : seen->own + n - seen->n_prefix;
}

/* Writes the scores of query (t, h) over the keys that it sees to row. Returns their log-sum-exp.
 */
static double score_loop(const attention *o, int64_t t, int64_t h, const visible *seen)
{
    double max = -HUGE_VAL, sum = 0;
    const double *q = o->q + t * o->q_stride + h * o->d;
    for (int64_t j = 0; j < seen->n; j++) {
        const double *k =
            o->k + visible_key(seen, j) * o->k_stride + h / (o->heads / o->kv_heads) * o->d;
        double x = 0;
        for (int64_t i = 0; i < o->d; i++)
            x += q[i] * k[i];
        o->row[j] = x * o->scale;
        max = o->row[j] > max ? o->row[j] : max;
    }
    for (int64_t j = 0; j < seen->n; j++)
        sum += exp(o->row[j] - max);
    return max + log(sum);
}

/* One query's output [d] and log-sum-exp. With `rounding`, the probabilities relative to the
 * largest are rounded, and so is the output. */
static double query_rounded(const attention *o, int64_t t, int64_t h, const visible *seen,
                            double *out, const parity *rounding)
{
    double lse = score_loop(o, t, h, seen), max = -HUGE_VAL;
    memset(out, 0, (size_t)o->d * sizeof *out);
    for (int64_t j = 0; j < seen->n && rounding; j++)
        max = o->row[j] > max ? o->row[j] : max;
    for (int64_t j = 0; j < seen->n; j++) {
        const double *v =
            o->v + visible_key(seen, j) * o->v_stride + h / (o->heads / o->kv_heads) * o->d;
        double weight = exp(o->row[j] - lse);
        if (rounding)
            weight = parity_round(rounding, exp(o->row[j] - max)) * exp(max - lse);
        for (int64_t i = 0; i < o->d; i++)
            out[i] += weight * v[i];
    }
    for (int64_t i = 0; i < o->d && rounding; i++)
        out[i] = parity_round(rounding, out[i]);
    return lse;
}

static double query_loop(const attention *o, int64_t t, int64_t h, const visible *seen, double *out)
{
    return query_rounded(o, t, h, seen, out, NULL);
}

typedef struct gradients {
    double *dq, *dk, *dv; /* what is computed is added; strides of q, k, v */
} gradients;

/* Adds one query's part of the gradients, by the formulas of trainer/model/equations.md. */
static void query_gradients(const attention *o, int64_t t, int64_t h, const visible *seen,
                            const gradients *to, const parity *rounding)
{
    double out[128], dot = 0;
    double lse = query_rounded(o, t, h, seen, out, rounding);
    const double *up = o->up + t * o->o_stride + h * o->d;
    const int64_t at_q = t * o->q_stride + h * o->d, kv = h / (o->heads / o->kv_heads) * o->d;
    for (int64_t i = 0; i < o->d; i++)
        dot += out[i] * up[i];
    for (int64_t j = 0; j < seen->n; j++) {
        const int64_t key = visible_key(seen, j);
        const int64_t at_k = key * o->k_stride + kv, at_v = key * o->v_stride + kv;
        double p = exp(o->row[j] - lse), dp = 0;
        for (int64_t i = 0; i < o->d; i++)
            dp += up[i] * o->v[at_v + i];
        double ds = p * (dp - dot);
        ds = rounding ? parity_round(rounding, ds) : ds;
        p = rounding ? parity_round(rounding, p) : p;
        for (int64_t i = 0; i < o->d; i++) {
            to->dv[at_v + i] += p * up[i];
            to->dq[at_q + i] += o->scale * ds * o->k[at_k + i];
            to->dk[at_k + i] += o->scale * ds * o->q[at_q + i];
        }
    }
}

static void gradients_loop(const attention *o, const gradients *to, const parity *rounding)
{
    for (int64_t s = 0; s < o->segments; s++)
        for (int64_t t = o->cu[s]; t < o->cu[s + 1]; t++) {
            const visible seen = query_sees(o, s, t);
            for (int64_t h = 0; h < o->heads; h++)
                query_gradients(o, t, h, &seen, to, rounding);
        }
}

static double attention_loss(const void *of)
{
    const attention *o = of;
    double sum = 0, out[128];
    for (int64_t s = 0; s < o->segments; s++)
        for (int64_t t = o->cu[s]; t < o->cu[s + 1]; t++) {
            const visible seen = query_sees(o, s, t);
            for (int64_t h = 0; h < o->heads; h++) {
                query_loop(o, t, h, &seen, out);
                for (int64_t i = 0; i < o->d; i++)
                    sum += out[i] * o->up[t * o->o_stride + h * o->d + i];
            }
        }
    return sum;
}

enum {
    CAUSAL = 1,
    PACKED = 2,
    SHARP = 4,
    PIECES = 8, /* only some of each segment's tokens are queries */
    TREES = 16  /* some segments go on after another one */
};

typedef struct built {
    attention o;
    tensor q, k, v; /* packed: all three inside one qkv, at these offsets */
    void *qkv;
    int32_t *cu, *cu_keys, *place, *prefix; /* on the device */
} built;

/* Makes queries of runs of 1 to 96 tokens, with runs of the same lengths between them that are no
 * queries. Every third segment has no query at all. */
static void take_pieces(parity *p, built *b)
{
    attention *o = &b->o;
    int32_t *cu = parity_zero_ints(p, o->segments + 1), *place = parity_zero_ints(p, o->tokens + 1);
    int64_t n = 0;
    for (int64_t s = 0; s < o->segments; s++) {
        for (int64_t t = o->cu[s], run = 1; t < o->cu[s + 1]; t += 2 * run, run = run % 90 + 7)
            for (int64_t i = t; i < t + run && i < o->cu[s + 1] && s % 3 != 2; i++)
                place[n++] = (int32_t)i;
        cu[s + 1] = (int32_t)n;
    }
    o->cu_keys = o->cu;
    o->keys = o->tokens;
    o->cu = cu;
    o->place = place;
    o->tokens = n + 3; /* and some tokens in no segment */
    b->q.n = o->tokens * o->q_stride;
    b->cu_keys = b->cu;
    b->cu = parity_ints(p, cu, o->segments + 1);
    b->place = parity_ints(p, place, o->tokens);
}

/* Makes trees: after one segment without branches, one with 1, one with 2, one with 3 and so on. */
static void grow_trees(parity *p, built *b)
{
    attention *o = &b->o;
    int32_t *prefix = parity_zero_ints(p, o->segments + 1);
    for (int64_t root = 0, branches = 0; root < o->segments; root += ++branches)
        for (int64_t i = root; i < o->segments && i <= root + branches; i++)
            prefix[i] = i == root ? -1 : (int32_t)root;
    o->prefix = prefix;
    b->prefix = parity_ints(p, prefix, o->segments);
}

/* shape: tokens, heads, kv_heads, head_dim, segments, tokens after the last segment, flags */
static built build(parity *p, const int64_t *full)
{
    /* A processor that stands in for tensor cores is slow, so long cases are cut to a tenth. */
    bool shorter = p->s->dev->backend->fixed_shapes && strncmp(p->name, "real", 4) == 0;
    int64_t shape[PARITY_SHAPE];
    memcpy(shape, full, sizeof shape);
    shape[0] /= shorter ? 10 : 1;
    shape[4] = shorter ? (shape[4] + 9) / 10 : shape[4];
    built b = {.o = {.tokens = shape[0] + shape[5],
                     .heads = shape[1],
                     .kv_heads = shape[2],
                     .d = shape[3],
                     .segments = shape[4],
                     .causal = shape[6] & CAUSAL,
                     .scale = shape[6] & SHARP ? 20 : 1 / sqrt((double)shape[3])}};
    attention *o = &b.o;
    int32_t *cu = parity_zero_ints(p, o->segments + 1);
    for (int64_t i = 1; i <= o->segments; i++) /* uneven segments; every fifth is empty */
        cu[i] = i == o->segments ? (int32_t)shape[0]
                : i % 5 == 4     ? cu[i - 1]
                                 : (int32_t)(shape[0] * i / o->segments);
    int64_t q_width = o->heads * o->d, kv_width = o->kv_heads * o->d;
    bool packed = shape[6] & PACKED;
    o->q_stride = packed ? q_width + 2 * kv_width : q_width;
    o->k_stride = o->v_stride = packed ? o->q_stride : kv_width;
    o->o_stride = q_width;
    b.q = parity_tensor(p, o->tokens * o->q_stride, 2);
    b.k = packed ? b.q : parity_tensor(p, o->tokens * kv_width, 2);
    b.v = packed ? b.q : parity_tensor(p, o->tokens * kv_width, 2);
    o->q = b.q.ref;
    o->k = b.k.ref + (packed ? q_width : 0);
    o->v = b.v.ref + (packed ? q_width + kv_width : 0);
    o->cu = cu;
    b.cu = parity_ints(p, cu, o->segments + 1);
    o->row = parity_zeros(p, o->tokens);
    o->keys = o->tokens;
    if (shape[6] & TREES)
        grow_trees(p, &b);
    if (shape[6] & PIECES)
        take_pieces(p, &b);
    return b;
}

static void run_fwd(parity *p, built *b, tensor out, tensor lse)
{
    attention *o = &b->o;
    PARITY_RUN(p,
               op_attention_fwd(p->s, &(attention_fwd_args){.tokens = o->tokens,
                                                            .heads = o->heads,
                                                            .kv_heads = o->kv_heads,
                                                            .head_dim = o->d,
                                                            .segments = o->segments,
                                                            .causal = o->causal,
                                                            .scale = o->scale,
                                                            .cu = b->cu,
                                                            .keys = o->keys,
                                                            .cu_keys = b->cu_keys,
                                                            .place = b->place,
                                                            .prefix = b->prefix,
                                                            .q = parity_at(b->q, o->q - b->q.ref),
                                                            .k = parity_at(b->k, o->k - b->k.ref),
                                                            .v = parity_at(b->v, o->v - b->v.ref),
                                                            .q_stride = o->q_stride,
                                                            .k_stride = o->k_stride,
                                                            .v_stride = o->v_stride,
                                                            .o_stride = o->o_stride,
                                                            .o = out.dev,
                                                            .lse = lse.dev}));
}

static void fwd_case(parity *p, const int64_t *shape)
{
    built b = build(p, shape);
    attention *o = &b.o;
    tensor out = parity_tensor(p, o->tokens * o->o_stride, 1);
    tensor lse = parity_tensor_acc(p, o->tokens * o->heads, 1);
    double *want = parity_zeros(p, out.n), *wlse = parity_zeros(p, lse.n);
    double *order = parity_zeros(p, out.n);
    for (int64_t s = 0; s < o->segments && !p->bench; s++)
        for (int64_t t = o->cu[s]; t < o->cu[s + 1]; t++) {
            const visible seen = query_sees(o, s, t);
            for (int64_t h = 0; h < o->heads; h++) {
                int64_t at = t * o->o_stride + h * o->d;
                query_rounded(o, t, h, &seen, order + at, p);
                wlse[t * o->heads + h] = query_loop(o, t, h, &seen, want + at);
            }
        }
    run_fwd(p, &b, out, lse);
    /* Sharp scores reach 1000, and an error of 1000 eps there is an error of 1000 eps in e^x. */
    parity_expect_order(p, "o", out, want, order, shape[6] & SHARP ? 4096 : 64);
    parity_expect(p, "lse", lse, wlse, 64);
}

/* In float, compares with differences of the forward pass. In bf16 differences are too coarse, so
 * it compares with the loop of the backward pass, which the float runs check. */
static void expect_gradients(parity *p, built *b, tensor dq, tensor dk, tensor dv)
{
    attention *o = &b->o;
    const bool packed = dk.dev == dq.dev;
    gradients exact = {.dq = parity_zeros(p, dq.n)}, order = {.dq = parity_zeros(p, dq.n)};
    exact.dk = packed ? exact.dq + (o->k - o->q) : parity_zeros(p, dk.n);
    exact.dv = packed ? exact.dq + (o->v - o->q) : parity_zeros(p, dv.n);
    order.dk = packed ? order.dq + (o->k - o->q) : parity_zeros(p, dk.n);
    order.dv = packed ? order.dq + (o->v - o->q) : parity_zeros(p, dv.n);
    if (!p->bench) {
        gradients_loop(o, &exact, NULL);
        gradients_loop(o, &order, p);
    }
    for (int64_t i = 0; i < dq.n; i++)
        order.dq[i] = parity_round(p, order.dq[i]);
    for (int64_t i = 0; i < dk.n && !packed; i++) {
        order.dk[i] = parity_round(p, order.dk[i]);
        order.dv[i] = parity_round(p, order.dv[i]);
    }
    parity_expect_order(p, "dq", dq, exact.dq, order.dq, 256);
    if (!packed) {
        parity_expect_order(p, "dk", dk, exact.dk, order.dk, 256);
        parity_expect_order(p, "dv", dv, exact.dv, order.dv, 256);
    }
    if (dq.dtype == DT_BF16)
        return;
    parity_gradient(p, "dq", dq, NULL, b->q.ref, attention_loss, o, 256);
    if (packed)
        return;
    parity_gradient(p, "dk", dk, NULL, b->k.ref, attention_loss, o, 256);
    parity_gradient(p, "dv", dv, NULL, b->v.ref, attention_loss, o, 256);
}

static void bwd_case(parity *p, const int64_t *shape)
{
    built b = build(p, shape);
    attention *o = &b.o;
    bool packed = shape[6] & PACKED;
    tensor out = parity_tensor(p, o->tokens * o->o_stride, 1);
    tensor lse = parity_tensor_acc(p, o->tokens * o->heads, 1);
    tensor work = parity_tensor_acc(p, lse.n, 1), up = parity_tensor(p, out.n, 1);
    bool bench = p->bench;
    p->bench = false;
    run_fwd(p, &b, out, lse);
    p->bench = bench;
    tensor dq = parity_tensor(p, b.q.n, 1);
    tensor dk = packed ? dq : parity_tensor(p, b.k.n, 1),
           dv = packed ? dq : parity_tensor(p, b.v.n, 1);
    o->up = up.ref;
    PARITY_RUN(p, op_attention_bwd(p->s, &(attention_bwd_args){.tokens = o->tokens,
                                                               .heads = o->heads,
                                                               .kv_heads = o->kv_heads,
                                                               .head_dim = o->d,
                                                               .segments = o->segments,
                                                               .causal = o->causal,
                                                               .scale = o->scale,
                                                               .cu = b.cu,
                                                               .keys = o->keys,
                                                               .cu_keys = b.cu_keys,
                                                               .place = b.place,
                                                               .prefix = b.prefix,
                                                               .q = parity_at(b.q, o->q - b.q.ref),
                                                               .k = parity_at(b.k, o->k - b.k.ref),
                                                               .v = parity_at(b.v, o->v - b.v.ref),
                                                               .o = out.dev,
                                                               .lse = lse.dev,
                                                               .do_ = up.dev,
                                                               .q_stride = o->q_stride,
                                                               .k_stride = o->k_stride,
                                                               .v_stride = o->v_stride,
                                                               .o_stride = o->o_stride,
                                                               .dq = dq.dev,
                                                               .dk = parity_at(dk, o->k - b.k.ref),
                                                               .dv = parity_at(dv, o->v - b.v.ref),
                                                               .work = work.dev}));
    expect_gradients(p, &b, dq, dk, dv);
}

/* A call over four tokens of two heads, with these borders of segments. */
static attention_fwd_args small_call(tensor x, const int32_t *cu, int64_t segments)
{
    return (attention_fwd_args){.tokens = 4,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 2,
                                .segments = segments,
                                .cu = cu,
                                .q = x.dev,
                                .k = x.dev,
                                .v = x.dev,
                                .q_stride = 4,
                                .k_stride = 4,
                                .v_stride = 4,
                                .o_stride = 4,
                                .o = x.dev,
                                .lse = x.dev};
}

/* A device that cannot see what is wrong stays inside its arrays. */
static void expect_refused(parity *p, const attention_fwd_args *args, const char *words)
{
    if (p->s->dev->backend->fixed_shapes)
        assert_ok(op_attention_fwd(p->s, args));
    else
        assert_fails(ST_BAD_INPUT, op_attention_fwd(p->s, args), words);
}

static void attention_refuses(parity *p, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(p, 64, 1);
    attention_fwd_args a = small_call(x, parity_ints(p, (int32_t[]){0, 5}, 2), 1);
    expect_refused(p, &a, "segment 0 is [0, 5), which is not an ascending range within 4 tokens");
    a.cu = parity_ints(p, (int32_t[]){1, 4}, 2);
    expect_refused(p, &a, "begins at 1");
    a.kv_heads = 3;
    assert_fails(ST_BAD_INPUT, op_attention_fwd(p->s, &a), "multiple");
}

/* Refused are a prefix that comes later, a prefix that is itself a branch, and a branch that does
 * not stand beside the others of its prefix. */
static void prefix_refuses(parity *p, const int64_t *shape)
{
    (void)shape;
    static const int32_t bad[][4] = {
        {1, -1, -1, -1}, {-1, 0, 1, -1}, {-1, 0, -1, 0}, {-1, -1, 2, -1}, {-1, -1, -2, 4}};
    attention_fwd_args a =
        small_call(parity_tensor(p, 64, 1), parity_ints(p, (int32_t[]){0, 1, 2, 3, 4}, 5), 4);
    a.causal = true;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a.prefix = parity_ints(p, bad[i], 4);
        expect_refused(p, &a, "has the prefix");
    }
}

/* Attention with cached keys: documents in one cache with gaps between them, and one query for
 * each. Every fifth document has nothing in the cache. shape: queries, heads, kv_heads, head_dim,
 * longest document, flags */
static void cached_case(parity *p, const int64_t *shape)
{
    int64_t n = shape[0], longest = shape[4];
    attention o = {.tokens = n * (longest + 1) + 1,
                   .heads = shape[1],
                   .kv_heads = shape[2],
                   .d = shape[3],
                   .scale = shape[5] & SHARP ? 20 : 1 / sqrt((double)shape[3])};
    o.q_stride = o.o_stride = o.heads * o.d;
    o.k_stride = o.v_stride = o.kv_heads * o.d;
    tensor q = parity_tensor(p, n * o.q_stride, 2), out = parity_tensor(p, q.n, 1);
    tensor k = parity_tensor(p, o.tokens * o.k_stride, 2), v = parity_tensor(p, k.n, 2);
    int32_t *first = parity_zero_ints(p, n + 1), *length = parity_zero_ints(p, n + 1);
    double *want = parity_zeros(p, out.n);
    o.k = k.ref;
    o.v = v.ref;
    o.row = parity_zeros(p, o.tokens);
    for (int64_t i = 0; i < n; i++) {
        first[i] = (int32_t)(i * (longest + 1));
        length[i] = i == 0 ? (int32_t)longest : i % 5 == 4 ? 0 : (int32_t)(1 + i * 7 % longest);
        /* The loop finds a query by its token's place, which is that of the last key it sees. */
        const int64_t end = first[i] + length[i], at = (end - 1) * o.q_stride;
        o.q = q.ref + i * o.q_stride - at;
        for (int64_t h = 0; h < o.heads && length[i] && !p->bench; h++)
            query_loop(&o, end - 1, h, &(visible){.own = first[i], .n = length[i]},
                       want + i * o.o_stride + h * o.d);
    }
    PARITY_RUN(
        p, op_attention_cached(p->s, &(attention_cached_args){.queries = n,
                                                              .heads = o.heads,
                                                              .kv_heads = o.kv_heads,
                                                              .head_dim = o.d,
                                                              .rows = o.tokens,
                                                              .scale = o.scale,
                                                              .first = parity_ints(p, first, n),
                                                              .length = parity_ints(p, length, n),
                                                              .q = q.dev,
                                                              .k = k.dev,
                                                              .v = v.dev,
                                                              .o = out.dev}));
    parity_expect(p, "o", out, want, shape[5] & SHARP ? 4096 : 64);
}

static void cached_refuses(parity *p, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(p, 64, 1), o = parity_tensor(p, 8, 1);
    attention_cached_args a = {.queries = 2,
                               .heads = 2,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .rows = 16,
                               .scale = 1,
                               .first = parity_ints(p, (int32_t[]){0, 14}, 2),
                               .length = parity_ints(p, (int32_t[]){3, 3}, 2),
                               .q = x.dev,
                               .k = x.dev,
                               .v = x.dev,
                               .o = o.dev};
    if (p->s->dev->backend
            ->fixed_shapes) /* such a device cannot see it, and stays inside its arrays */
        assert_ok(op_attention_cached(p->s, &a));
    else
        assert_fails(ST_BAD_INPUT, op_attention_cached(p->s, &a),
                     "sees the rows [14, 17), but there are 16");
    a.kv_heads = 3;
    assert_fails(ST_BAD_INPUT, op_attention_cached(p->s, &a), "multiple");
}

const parity_case parity_attention[] = {
    {"attention_fwd", "empty", fwd_case, {0, 2, 1, 4, 0, 3, CAUSAL}},
    {"attention_fwd", "one", fwd_case, {1, 1, 1, 1, 1, 0, CAUSAL}},
    {"attention_fwd", "ragged", fwd_case, {40, 4, 2, 6, 11, 5, CAUSAL}},
    {"attention_fwd", "ragged full packed", fwd_case, {40, 3, 3, 5, 6, 2, PACKED}},
    {"attention_fwd", "ragged blocks", fwd_case, {150, 2, 1, 8, 1, 2, CAUSAL}},
    {"attention_fwd", "ragged blocks full", fwd_case, {203, 2, 1, 8, 2, 2, 0}},
    {"attention_fwd", "ragged short", fwd_case, {107, 4, 2, 16, 6, 5, CAUSAL}},
    {"attention_fwd", "ragged short full", fwd_case, {107, 4, 2, 24, 6, 5, PACKED}},
    {"attention_fwd", "ragged both ways", fwd_case, {65 + 64, 2, 1, 8, 2, 1, CAUSAL}},
    {"attention_fwd", "ragged text", fwd_case, {130, 4, 2, 128, 6, 9, CAUSAL}},
    {"attention_fwd", "ragged frames", fwd_case, {140, 2, 2, 72, 2, 3, PACKED}},
    {"attention_fwd", "ragged crowd", fwd_case, {130, 2, 1, 64, 40, 70, CAUSAL}},
    {"attention_fwd", "real documents", fwd_case, {2048, 8, 2, 32, 80, 30, CAUSAL}},
    {"attention_fwd", "real frames", fwd_case, {1600, 4, 4, 24, 64, 0, PACKED}},
    {"attention_fwd", "real long", fwd_case, {1024, 8, 2, 32, 1, 0, CAUSAL}},
    {"attention_fwd", "ragged pieces", fwd_case, {203, 2, 1, 8, 2, 2, CAUSAL | PIECES}},
    {"attention_fwd", "ragged pieces text", fwd_case, {330, 4, 2, 128, 5, 9, CAUSAL | PIECES}},
    {"attention_fwd", "ragged pieces full", fwd_case, {90, 2, 2, 16, 4, 1, PIECES}},
    {"attention_fwd", "ragged trees", fwd_case, {40, 4, 2, 6, 11, 5, CAUSAL | TREES}},
    {"attention_fwd", "ragged trees text", fwd_case, {330, 4, 2, 128, 6, 9, CAUSAL | TREES}},
    {"attention_fwd", "ragged trees crowd", fwd_case, {430, 2, 1, 64, 70, 20, CAUSAL | TREES}},
    {"attention_fwd", "ragged trees full", fwd_case, {90, 3, 3, 5, 6, 2, PACKED | TREES}},
    {"attention_fwd",
     "ragged trees pieces",
     fwd_case,
     {303, 2, 1, 8, 9, 2, CAUSAL | TREES | PIECES}},
    {"attention_fwd", "hostile sharp", fwd_case, {30, 2, 2, 8, 2, 0, CAUSAL | SHARP}},
    {"attention_fwd", "hostile", attention_refuses, {0}},
    {"attention_fwd", "hostile prefixes", prefix_refuses, {0}},
    {"attention_bwd", "empty", bwd_case, {0, 2, 1, 4, 0, 3, CAUSAL}},
    {"attention_bwd", "one", bwd_case, {2, 1, 1, 1, 1, 0, CAUSAL}},
    {"attention_bwd", "ragged", bwd_case, {40, 4, 2, 6, 11, 5, CAUSAL}},
    {"attention_bwd", "ragged full packed", bwd_case, {40, 3, 3, 5, 6, 2, PACKED}},
    {"attention_bwd", "ragged blocks", bwd_case, {150, 2, 1, 8, 1, 2, CAUSAL}},
    {"attention_bwd", "ragged blocks full", bwd_case, {140, 2, 1, 8, 2, 2, 0}},
    {"attention_bwd", "ragged short", bwd_case, {107, 4, 2, 16, 6, 5, CAUSAL}},
    {"attention_bwd", "ragged short full", bwd_case, {107, 4, 2, 24, 6, 5, 0}},
    {"attention_bwd", "ragged both ways", bwd_case, {65 + 64, 2, 1, 8, 2, 1, CAUSAL}},
    {"attention_bwd", "ragged text", bwd_case, {100, 4, 2, 128, 6, 9, CAUSAL}},
    {"attention_bwd", "ragged frames", bwd_case, {100, 2, 2, 72, 2, 3, PACKED}},
    {"attention_bwd", "ragged crowd", bwd_case, {130, 2, 1, 64, 40, 70, CAUSAL}},
    {"attention_bwd", "ragged pieces", bwd_case, {103, 2, 1, 8, 2, 2, CAUSAL | PIECES}},
    {"attention_bwd", "ragged pieces text", bwd_case, {200, 4, 2, 128, 4, 9, CAUSAL | PIECES}},
    {"attention_bwd", "ragged pieces full", bwd_case, {90, 2, 2, 16, 4, 1, PIECES}},
    {"attention_bwd", "ragged trees", bwd_case, {40, 4, 2, 6, 11, 5, CAUSAL | TREES}},
    {"attention_bwd", "ragged trees text", bwd_case, {150, 4, 2, 128, 6, 9, CAUSAL | TREES}},
    {"attention_bwd", "ragged trees crowd", bwd_case, {230, 2, 1, 64, 50, 20, CAUSAL | TREES}},
    {"attention_bwd", "ragged trees full", bwd_case, {90, 3, 3, 5, 6, 2, PACKED | TREES}},
    {"attention_bwd",
     "ragged trees pieces",
     bwd_case,
     {153, 2, 1, 8, 9, 2, CAUSAL | TREES | PIECES}},
    {"attention_bwd", "real documents", bwd_case, {512, 8, 2, 32, 20, 0, CAUSAL}},
    {"attention_bwd", "real frames", bwd_case, {400, 4, 4, 24, 16, 0, PACKED}},
    {"attention_cached", "empty", cached_case, {0, 2, 1, 4, 3}},
    {"attention_cached", "one", cached_case, {1, 1, 1, 1, 1}},
    {"attention_cached", "ragged", cached_case, {11, 4, 2, 6, 40}},
    {"attention_cached", "ragged text", cached_case, {6, 4, 1, 128, 70}},
    {"attention_cached", "ragged 72", cached_case, {3, 2, 2, 72, 33}},
    {"attention_cached", "real", cached_case, {32, 16, 2, 128, 700}},
    {"attention_cached", "hostile sharp", cached_case, {4, 2, 2, 8, 30, SHARP}},
    {"attention_cached", "hostile", cached_refuses, {0}},
    {NULL},
};
