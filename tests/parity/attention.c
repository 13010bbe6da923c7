/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: cases of softmax attention inside segments.
 *
 * Tolerance: scores are sums of d products, the exponential doubles their error, and the sum over
 * keys averages it: 64 eps of the largest output. Gradients go through two more products: 256 eps.
 * In bf16 the results are compared with the order of the fused kernels that the published model
 * trains with: scores, maxima and sums in float; probabilities, the gradient of the scores and the
 * results rounded. A library's backward has an order of its own (attention_loops.h). */
#include "tests/parity/attention_loops.h"

static double attention_loss(const void *of)
{
    const attention *sizes = of;
    double sum = 0, out[128];
    for (int64_t segment = 0; segment < sizes->segments; segment++)
        for (int64_t token = sizes->cu[segment]; token < sizes->cu[segment + 1]; token++) {
            const visible seen = attention_sees(sizes, segment, token);
            const int64_t heads = attention_computes(sizes, token) ? sizes->heads : 0;
            for (int64_t head = 0; head < heads; head++) {
                attention_query(sizes, token, head, &seen, out, NULL);
                for (int64_t i = 0; i < sizes->d; i++)
                    sum += out[i] * sizes->up[token * sizes->o_stride + head * sizes->d + i];
            }
        }
    return sum;
}

enum {
    CAUSAL = 1,
    PACKED = 2,
    SHARP = 4,
    PIECES = 8,  /* only some of each segment's tokens are queries */
    TREES = 16,  /* some segments go on after another one */
    WIDE = 32,   /* all segments go on after the first one */
    FEW = 64,    /* the loop computes few of the queries, and gradients come from these alone */
    SPARE = 128, /* the last half of the segments is empty, as in a shape bucket that is not full */
    LAST = 256   /* only the last tokens of each segment are queries */
};

typedef struct built {
    attention sizes;
    tensor q, k, v; /* packed: all three inside one qkv, at these offsets */
    void *qkv;
    int32_t *cu, *cu_keys, *place, *prefix; /* on the device */
    int64_t longest;                        /* that a segment can have; 0: as many as there are */
} built;

/* Writes which tokens of a segment are queries from place[n] on, and returns how many there are
 * then: runs of 1 to 96 tokens, with runs of the same lengths between them that are no queries, and
 * none of every third segment; or, if `last`, the last ones of each. */
static int64_t place_queries(const attention *sizes, int64_t segment, bool last, int32_t *place,
                             int64_t n)
{
    enum { LAST_QUERIES = 40 };
    const int64_t end = sizes->cu[segment + 1];
    int64_t token = sizes->cu[segment];
    if (last && token < end - LAST_QUERIES)
        token = end - LAST_QUERIES;
    for (int64_t run = 1; token < end && (last || segment % 3 != 2); run = run % 90 + 7) {
        for (int64_t i = token; i < end && (last || i < token + run); i++)
            place[n++] = (int32_t)i;
        token = last ? end : token + 2 * run;
    }
    return n;
}

static void take_pieces(parity *test, built *made, bool last)
{
    attention *sizes = &made->sizes;
    int32_t *cu = parity_zero_ints(test, sizes->segments + 1),
            *place = parity_zero_ints(test, sizes->tokens + 1);
    int64_t n = 0;
    for (int64_t segment = 0; segment < sizes->segments; segment++) {
        n = place_queries(sizes, segment, last, place, n);
        cu[segment + 1] = (int32_t)n;
    }
    sizes->cu_keys = sizes->cu;
    sizes->keys = sizes->tokens;
    sizes->cu = cu;
    sizes->place = place;
    sizes->tokens = n + 3; /* and some tokens in no segment */
    made->q.n = sizes->tokens * sizes->q_stride;
    made->cu_keys = made->cu;
    made->cu = parity_ints(test, cu, sizes->segments + 1);
    made->place = parity_ints(test, place, sizes->tokens);
}

/* Makes trees: after one segment without branches, one with 1, one with 2, one with 3 and so on; or
 * a single one of all segments. */
static void grow_trees(parity *test, built *made, bool single)
{
    attention *sizes = &made->sizes;
    int32_t *prefix = parity_zero_ints(test, sizes->segments + 1);
    for (int64_t root = 0, branches = single ? sizes->segments : 0; root < sizes->segments;
         root += ++branches)
        for (int64_t i = root; i < sizes->segments && i <= root + branches; i++)
            prefix[i] = i == root ? -1 : (int32_t)root;
    sizes->prefix = prefix;
    made->prefix = parity_ints(test, prefix, sizes->segments);
}

/* shape: tokens, heads, kv_heads, head_dim, segments, tokens after the last segment, flags, the
 * most tokens that a segment can have */
static built build(parity *test, const int64_t *shape)
{
    enum { EVERY = 1024 }; /* with FEW */
    built made = {.sizes = {.tokens = shape[0] + shape[5],
                            .heads = shape[1],
                            .kv_heads = shape[2],
                            .d = shape[3],
                            .segments = shape[4],
                            .causal = shape[6] & CAUSAL,
                            .every = shape[6] & FEW ? EVERY : 0,
                            .scale = shape[6] & SHARP ? 20 : 1 / sqrt((double)shape[3])},
                  .longest = shape[7]};
    attention *sizes = &made.sizes;
    int32_t *cu = parity_zero_ints(test, sizes->segments + 1);
    const int64_t filled = shape[6] & SPARE ? (sizes->segments + 1) / 2 : sizes->segments;
    for (int64_t i = 1; i <= sizes->segments; i++) /* uneven segments; every fifth is empty */
        cu[i] = i >= filled  ? (int32_t)shape[0]
                : i % 5 == 4 ? cu[i - 1]
                             : (int32_t)(shape[0] * i / filled);
    int64_t q_width = sizes->heads * sizes->d, kv_width = sizes->kv_heads * sizes->d;
    bool packed = shape[6] & PACKED;
    sizes->q_stride = packed ? q_width + 2 * kv_width : q_width;
    sizes->k_stride = sizes->v_stride = packed ? sizes->q_stride : kv_width;
    sizes->o_stride = q_width;
    made.q = parity_tensor(test, sizes->tokens * sizes->q_stride, 2);
    made.k = packed ? made.q : parity_tensor(test, sizes->tokens * kv_width, 2);
    made.v = packed ? made.q : parity_tensor(test, sizes->tokens * kv_width, 2);
    sizes->q = made.q.ref;
    sizes->k = made.k.ref + (packed ? q_width : 0);
    sizes->v = made.v.ref + (packed ? q_width + kv_width : 0);
    sizes->cu = cu;
    made.cu = parity_ints(test, cu, sizes->segments + 1);
    sizes->row = parity_zeros(test, sizes->tokens);
    sizes->keys = sizes->tokens;
    if (shape[6] & (TREES | WIDE))
        grow_trees(test, &made, shape[6] & WIDE);
    test->once = shape[6] & LAST;
    if (shape[6] & (PIECES | LAST))
        take_pieces(test, &made, shape[6] & LAST);
    return made;
}

static void run_fwd(parity *test, built *made, tensor out, tensor lse)
{
    attention *sizes = &made->sizes;
    PARITY_RUN(test,
               op_attention_fwd(test->queue, &(attention_fwd_args){
                                                 .tokens = sizes->tokens,
                                                 .heads = sizes->heads,
                                                 .kv_heads = sizes->kv_heads,
                                                 .head_dim = sizes->d,
                                                 .segments = sizes->segments,
                                                 .longest = made->longest,
                                                 .causal = sizes->causal,
                                                 .scale = sizes->scale,
                                                 .cu = made->cu,
                                                 .keys = sizes->keys,
                                                 .cu_keys = made->cu_keys,
                                                 .place = made->place,
                                                 .prefix = made->prefix,
                                                 .q = parity_at(made->q, sizes->q - made->q.ref),
                                                 .k = parity_at(made->k, sizes->k - made->k.ref),
                                                 .v = parity_at(made->v, sizes->v - made->v.ref),
                                                 .q_stride = sizes->q_stride,
                                                 .k_stride = sizes->k_stride,
                                                 .v_stride = sizes->v_stride,
                                                 .o_stride = sizes->o_stride,
                                                 .o = out.dev,
                                                 .lse = lse.dev}));
}

/* Takes what came out of the queries that the loop does not compute for what was wanted. */
static void take_the_others(parity *test, const attention *sizes, tensor out, int64_t stride,
                            double *want, double *order)
{
    const double *got = parity_fetch(test, out);
    for (int64_t token = 0; token < sizes->tokens; token++)
        for (int64_t i = token * stride; i < (token + 1) * stride; i++)
            if (!attention_computes(sizes, token))
                want[i] = order[i] = got[i];
}

static void fwd_case(parity *test, const int64_t *shape)
{
    built made = build(test, shape);
    attention *sizes = &made.sizes;
    tensor out = parity_tensor(test, sizes->tokens * sizes->o_stride, 1);
    tensor lse = parity_tensor_acc(test, sizes->tokens * sizes->heads, 1);
    double *want = parity_zeros(test, out.n), *wlse = parity_zeros(test, lse.n);
    double *order = parity_zeros(test, out.n);
    for (int64_t segment = 0; segment < sizes->segments && parity_compares(test); segment++)
        for (int64_t token = sizes->cu[segment]; token < sizes->cu[segment + 1]; token++) {
            const visible seen = attention_sees(sizes, segment, token);
            const int64_t heads = attention_computes(sizes, token) ? sizes->heads : 0;
            for (int64_t head = 0; head < heads; head++) {
                int64_t at = token * sizes->o_stride + head * sizes->d;
                attention_query(sizes, token, head, &seen, order + at,
                                &(attention_order){.test = test});
                wlse[token * sizes->heads + head] =
                    attention_query(sizes, token, head, &seen, want + at, NULL);
            }
        }
    run_fwd(test, &made, out, lse);
    if (sizes->every) {
        take_the_others(test, sizes, out, sizes->o_stride, want, order);
        take_the_others(test, sizes, lse, sizes->heads, wlse, wlse);
    }
    /* Sharp scores reach 1000, and an error of 1000 eps there is an error of 1000 eps in e^x. */
    parity_expect_order(test, "o", out, want, order, shape[6] & SHARP ? 4096 : 64);
    parity_expect(test, "lse", lse, wlse, 64);
}

/* In float, compares with differences of the forward pass. In bf16 differences are too coarse, so
 * it compares with the loop of the backward pass, which the float runs check. */
static void expect_gradients(parity *test, built *made, const attention_order *rounded, tensor dq,
                             tensor dk, tensor dv)
{
    attention *sizes = &made->sizes;
    const bool packed = dk.dev == dq.dev;
    gradients exact = {.dq = parity_zeros(test, dq.n)}, order = {.dq = parity_zeros(test, dq.n)};
    exact.dk = packed ? exact.dq + (sizes->k - sizes->q) : parity_zeros(test, dk.n);
    exact.dv = packed ? exact.dq + (sizes->v - sizes->q) : parity_zeros(test, dv.n);
    order.dk = packed ? order.dq + (sizes->k - sizes->q) : parity_zeros(test, dk.n);
    order.dv = packed ? order.dq + (sizes->v - sizes->q) : parity_zeros(test, dv.n);
    if (parity_compares(test)) {
        attention_gradients(sizes, &exact, NULL);
        attention_gradients(sizes, &order, rounded);
    }
    for (int64_t i = 0; i < dq.n; i++)
        order.dq[i] = parity_round(test, order.dq[i]);
    for (int64_t i = 0; i < dk.n && !packed; i++) {
        order.dk[i] = parity_round(test, order.dk[i]);
        order.dv[i] = parity_round(test, order.dv[i]);
    }
    parity_expect_order(test, "dq", dq, exact.dq, order.dq, 256);
    if (!packed) {
        parity_expect_order(test, "dk", dk, exact.dk, order.dk, 256);
        parity_expect_order(test, "dv", dv, exact.dv, order.dv, 256);
    }
    if (dq.dtype == DT_BF16)
        return;
    parity_gradient(test, "dq", dq, NULL, made->q.ref, attention_loss, sizes, 256);
    if (packed)
        return;
    parity_gradient(test, "dk", dk, NULL, made->k.ref, attention_loss, sizes, 256);
    parity_gradient(test, "dv", dv, NULL, made->v.ref, attention_loss, sizes, 256);
}

/* The gradient of the output: 0 for a query that the loop does not compute. */
static tensor draw_upstream(parity *test, const attention *sizes)
{
    tensor drawn = parity_tensor(test, sizes->tokens * sizes->o_stride, 1);
    if (!sizes->every)
        return drawn;
    for (int64_t i = 0; i < drawn.n; i++)
        drawn.ref[i] *= attention_computes(sizes, i / sizes->o_stride);
    return parity_upload(test, drawn.ref, drawn.n);
}

static void bwd_case(parity *test, const int64_t *shape)
{
    built made = build(test, shape);
    attention *sizes = &made.sizes;
    bool packed = shape[6] & PACKED;
    tensor out = parity_tensor(test, sizes->tokens * sizes->o_stride, 1);
    tensor lse = parity_tensor_acc(test, sizes->tokens * sizes->heads, 1);
    tensor work = parity_tensor_acc(test, lse.n, 1), up = draw_upstream(test, sizes);
    bool bench = test->bench;
    test->bench = false;
    run_fwd(test, &made, out, lse);
    test->bench = bench;
    tensor dq = parity_tensor(test, made.q.n, 1);
    tensor dk = packed ? dq : parity_tensor(test, made.k.n, 1),
           dv = packed ? dq : parity_tensor(test, made.v.n, 1);
    sizes->up = up.ref;
    const int64_t before = test->queue->dev->counts.library_attention;
    PARITY_RUN(test,
               op_attention_bwd(test->queue,
                                &(attention_bwd_args){.tokens = sizes->tokens,
                                                      .heads = sizes->heads,
                                                      .kv_heads = sizes->kv_heads,
                                                      .head_dim = sizes->d,
                                                      .segments = sizes->segments,
                                                      .longest = made.longest,
                                                      .causal = sizes->causal,
                                                      .scale = sizes->scale,
                                                      .cu = made.cu,
                                                      .keys = sizes->keys,
                                                      .cu_keys = made.cu_keys,
                                                      .place = made.place,
                                                      .prefix = made.prefix,
                                                      .q = parity_at(made.q, sizes->q - made.q.ref),
                                                      .k = parity_at(made.k, sizes->k - made.k.ref),
                                                      .v = parity_at(made.v, sizes->v - made.v.ref),
                                                      .o = out.dev,
                                                      .lse = lse.dev,
                                                      .do_ = up.dev,
                                                      .q_stride = sizes->q_stride,
                                                      .k_stride = sizes->k_stride,
                                                      .v_stride = sizes->v_stride,
                                                      .o_stride = sizes->o_stride,
                                                      .dq = dq.dev,
                                                      .dk = parity_at(dk, sizes->k - made.k.ref),
                                                      .dv = parity_at(dv, sizes->v - made.v.ref),
                                                      .work = work.dev}));
    const bool library = test->queue->dev->counts.library_attention > before;
    const attention_order rounded = {.test = test, .scaled = library, .by_head = library};
    expect_gradients(test, &made, &rounded, dq, dk, dv);
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
static void expect_refused(parity *test, const attention_fwd_args *args, const char *words)
{
    if (test->queue->dev->backend->fixed_shapes)
        assert_ok(op_attention_fwd(test->queue, args));
    else
        assert_fails(ST_BAD_INPUT, op_attention_fwd(test->queue, args), words);
}

static void attention_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(test, 64, 1);
    attention_fwd_args args = small_call(x, parity_ints(test, (int32_t[]){0, 5}, 2), 1);
    expect_refused(test, &args,
                   "segment 0 is [0, 5), which is not an ascending range within 4 tokens");
    args.cu = parity_ints(test, (int32_t[]){1, 4}, 2);
    expect_refused(test, &args, "begins at 1");
    args.kv_heads = 3;
    assert_fails(ST_BAD_INPUT, op_attention_fwd(test->queue, &args), "multiple");
}

/* Refused are a prefix that comes later, a prefix that is itself a branch, and a branch that does
 * not stand beside the others of its prefix. */
static void prefix_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    static const int32_t bad[][4] = {
        {1, -1, -1, -1}, {-1, 0, 1, -1}, {-1, 0, -1, 0}, {-1, -1, 2, -1}, {-1, -1, -2, 4}};
    attention_fwd_args args =
        small_call(parity_tensor(test, 64, 1), parity_ints(test, (int32_t[]){0, 1, 2, 3, 4}, 5), 4);
    args.causal = true;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        args.prefix = parity_ints(test, bad[i], 4);
        expect_refused(test, &args, "has the prefix");
    }
}

/* Attention with cached keys: documents in one cache with gaps between them, and one query for
 * each. Every fifth document has nothing in the cache. With TREES, two of three documents have a
 * prefix, each of another length: the beginning of the first document, or of the rows after the
 * last one. shape: queries, heads, kv_heads, head_dim, longest document, flags */
static void cached_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], longest = shape[4];
    const bool trees = shape[5] & TREES;
    attention sizes = {.tokens = (n + trees) * (longest + 1) + 1,
                       .heads = shape[1],
                       .kv_heads = shape[2],
                       .d = shape[3],
                       .scale = shape[5] & SHARP ? 20 : 1 / sqrt((double)shape[3])};
    sizes.q_stride = sizes.o_stride = sizes.heads * sizes.d;
    sizes.k_stride = sizes.v_stride = sizes.kv_heads * sizes.d;
    tensor q = parity_tensor(test, n * sizes.q_stride, 2), out = parity_tensor(test, q.n, 1);
    tensor k = parity_tensor(test, sizes.tokens * sizes.k_stride, 2),
           v = parity_tensor(test, k.n, 2);
    int32_t *first = parity_zero_ints(test, n + 1), *length = parity_zero_ints(test, n + 1);
    int32_t *prefix = parity_zero_ints(test, n + 1), *n_prefix = parity_zero_ints(test, n + 1);
    double *want = parity_zeros(test, out.n);
    sizes.k = k.ref;
    sizes.v = v.ref;
    sizes.row = parity_zeros(test, sizes.tokens);
    for (int64_t i = 0; i < n; i++) {
        first[i] = (int32_t)(i * (longest + 1));
        length[i] = i == 0 ? (int32_t)longest : i % 5 == 4 ? 0 : (int32_t)(1 + i * 7 % longest);
        if (trees && i % 3) {
            prefix[i] = i % 3 == 1 ? 0 : (int32_t)(n * (longest + 1));
            n_prefix[i] = (int32_t)(longest - i * 5 % longest);
        }
        const visible seen = {prefix[i], n_prefix[i], first[i], n_prefix[i] + length[i]};
        /* The loop finds a query by its token's place, which is that of the last key it sees. */
        const int64_t end = first[i] + length[i], at = (end - 1) * sizes.q_stride;
        sizes.q = q.ref + i * sizes.q_stride - at;
        for (int64_t head = 0; head < sizes.heads && seen.n && parity_compares(test); head++)
            attention_query(&sizes, end - 1, head, &seen,
                            want + i * sizes.o_stride + head * sizes.d, NULL);
    }
    const attention_cached_args args = {.queries = n,
                                        .heads = sizes.heads,
                                        .kv_heads = sizes.kv_heads,
                                        .head_dim = sizes.d,
                                        .rows = sizes.tokens,
                                        .scale = sizes.scale,
                                        .first = parity_ints(test, first, n),
                                        .length = parity_ints(test, length, n),
                                        .prefix_first = trees ? parity_ints(test, prefix, n) : NULL,
                                        .prefix_length =
                                            trees ? parity_ints(test, n_prefix, n) : NULL,
                                        .q = q.dev,
                                        .k = k.dev,
                                        .v = v.dev,
                                        .o = out.dev};
    PARITY_RUN(test, op_attention_cached(test->queue, &args));
    parity_expect(test, "o", out, want, shape[5] & SHARP ? 4096 : 64);
}

static void cached_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(test, 64, 1), o = parity_tensor(test, 8, 1);
    attention_cached_args args = {.queries = 2,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .head_dim = 2,
                                  .rows = 16,
                                  .scale = 1,
                                  .first = parity_ints(test, (int32_t[]){0, 14}, 2),
                                  .length = parity_ints(test, (int32_t[]){3, 3}, 2),
                                  .q = x.dev,
                                  .k = x.dev,
                                  .v = x.dev,
                                  .o = o.dev};
    if (test->queue->dev->backend
            ->fixed_shapes) /* such a device cannot see it, and stays inside its arrays */
        assert_ok(op_attention_cached(test->queue, &args));
    else
        assert_fails(ST_BAD_INPUT, op_attention_cached(test->queue, &args),
                     "sees the rows [14, 17), but there are 16");
    args.prefix_first = args.first;
    args.prefix_length = args.length;
    args.first = parity_ints(test, (int32_t[]){0, 0}, 2);
    if (test->queue->dev->backend->fixed_shapes)
        assert_ok(op_attention_cached(test->queue, &args));
    else
        assert_fails(ST_BAD_INPUT, op_attention_cached(test->queue, &args),
                     "sees the rows [14, 17)");
    args.kv_heads = 3;
    assert_fails(ST_BAD_INPUT, op_attention_cached(test->queue, &args), "multiple");
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
    {"attention_fwd", "real document of 12288", fwd_case, {12288, 1, 1, 16, 1, 0, CAUSAL | FEW}},
    {"attention_fwd", "ragged pieces", fwd_case, {203, 2, 1, 8, 2, 2, CAUSAL | PIECES}},
    {"attention_fwd", "ragged pieces text", fwd_case, {330, 4, 2, 128, 5, 9, CAUSAL | PIECES}},
    {"attention_fwd", "ragged pieces full", fwd_case, {90, 2, 2, 16, 4, 1, PIECES}},
    {"attention_fwd", "ragged trees", fwd_case, {40, 4, 2, 6, 11, 5, CAUSAL | TREES}},
    {"attention_fwd", "ragged trees text", fwd_case, {330, 4, 2, 128, 6, 9, CAUSAL | TREES}},
    {"attention_fwd", "ragged tree of 279", fwd_case, {430, 2, 1, 16, 280, 9, CAUSAL | WIDE}},
    {"attention_fwd", "ragged trees crowd", fwd_case, {430, 2, 1, 64, 70, 20, CAUSAL | TREES}},
    /* blocks of queries that begin and end inside branches, and that are shortened */
    {"attention_fwd", "real trees", fwd_case, {1500, 4, 2, 32, 75, 20, CAUSAL | TREES}},
    {"attention_fwd", "ragged trees full", fwd_case, {90, 3, 3, 5, 6, 2, PACKED | TREES}},
    {"attention_fwd",
     "ragged trees pieces",
     fwd_case,
     {303, 2, 1, 8, 9, 2, CAUSAL | TREES | PIECES}},
    /* a shape bucket's edge: full to the last token, one token less, and segments to spare; and one
     * whose documents may be so long that cuDNN's backward takes its heads in groups */
    {"attention_fwd", "ragged bucket full", fwd_case, {96, 2, 1, 16, 3, 0, CAUSAL, 32}},
    {"attention_fwd", "ragged bucket less one", fwd_case, {95, 2, 1, 16, 3, 1, CAUSAL, 32}},
    {"attention_fwd", "ragged bucket spare", fwd_case, {97, 2, 1, 16, 12, 31, CAUSAL | SPARE, 97}},
    {"attention_fwd", "ragged bucket long", fwd_case, {120, 8, 4, 16, 2, 20, CAUSAL, 12288}},
    {"attention_fwd", "ragged ones", fwd_case, {24, 4, 2, 16, 20, 3, CAUSAL}},
    {"attention_fwd", "ragged one each", fwd_case, {3, 2, 1, 16, 3, 0, CAUSAL, 1}},
    {"attention_fwd", "ragged end of 12288", fwd_case, {12288, 1, 1, 8, 1, 0, CAUSAL | LAST}},
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
    {"attention_bwd", "real trees", bwd_case, {1500, 4, 2, 32, 75, 20, CAUSAL | TREES}},
    {"attention_bwd", "ragged pieces", bwd_case, {103, 2, 1, 8, 2, 2, CAUSAL | PIECES}},
    {"attention_bwd", "ragged pieces text", bwd_case, {200, 4, 2, 128, 4, 9, CAUSAL | PIECES}},
    {"attention_bwd", "ragged pieces full", bwd_case, {90, 2, 2, 16, 4, 1, PIECES}},
    {"attention_bwd", "ragged trees", bwd_case, {40, 4, 2, 6, 11, 5, CAUSAL | TREES}},
    {"attention_bwd", "ragged trees text", bwd_case, {150, 4, 2, 128, 6, 9, CAUSAL | TREES}},
    {"attention_bwd", "ragged tree of 279", bwd_case, {430, 2, 1, 16, 280, 9, CAUSAL | WIDE}},
    {"attention_bwd", "ragged trees crowd", bwd_case, {230, 2, 1, 64, 50, 20, CAUSAL | TREES}},
    {"attention_bwd", "ragged trees full", bwd_case, {90, 3, 3, 5, 6, 2, PACKED | TREES}},
    {"attention_bwd",
     "ragged trees pieces",
     bwd_case,
     {153, 2, 1, 8, 9, 2, CAUSAL | TREES | PIECES}},
    {"attention_bwd", "ragged bucket full", bwd_case, {96, 2, 1, 16, 3, 0, CAUSAL, 32}},
    {"attention_bwd", "ragged bucket less one", bwd_case, {95, 2, 1, 16, 3, 1, CAUSAL, 32}},
    {"attention_bwd", "ragged bucket spare", bwd_case, {97, 2, 1, 16, 12, 31, CAUSAL | SPARE, 97}},
    {"attention_bwd", "ragged head groups", bwd_case, {120, 8, 4, 16, 2, 20, CAUSAL, 12288}},
    {"attention_bwd", "ragged head groups full", bwd_case, {120, 10, 10, 24, 2, 20, 0, 12288}},
    {"attention_bwd", "ragged ones", bwd_case, {24, 4, 2, 16, 20, 3, CAUSAL}},
    {"attention_bwd", "ragged end of 12288", bwd_case, {12288, 1, 1, 8, 1, 0, CAUSAL | LAST}},
    {"attention_bwd", "real documents", bwd_case, {512, 8, 2, 32, 20, 0, CAUSAL}},
    {"attention_bwd", "real frames", bwd_case, {400, 4, 4, 24, 16, 0, PACKED}},
    {"attention_bwd", "real document of 12288", bwd_case, {12288, 1, 1, 16, 1, 0, CAUSAL | FEW}},
    {"attention_cached", "empty", cached_case, {0, 2, 1, 4, 3}},
    {"attention_cached", "one", cached_case, {1, 1, 1, 1, 1}},
    {"attention_cached", "ragged", cached_case, {11, 4, 2, 6, 40}},
    {"attention_cached", "ragged text", cached_case, {6, 4, 1, 128, 70}},
    {"attention_cached", "ragged 72", cached_case, {3, 2, 2, 72, 33}},
    {"attention_cached", "ragged trees", cached_case, {11, 4, 2, 6, 40, TREES}},
    {"attention_cached", "ragged trees text", cached_case, {6, 4, 1, 128, 70, TREES}},
    {"attention_cached", "real", cached_case, {32, 16, 2, 128, 700}},
    {"attention_cached", "hostile sharp", cached_case, {4, 2, 2, 8, 30, SHARP}},
    {"attention_cached", "hostile", cached_refuses, {0}},
    {NULL},
};
