/* route.c: cases of the router, the sort by expert, the weighted sum of experts' outputs, and the
 * load-balancing loss. Tolerance: softmax of a short row 16 eps; sums of K rows 16 eps; dot
 * products as in gemm.c. */
#include "tests/parity/parity.h"

typedef struct router {
    int64_t tokens, experts, k, valid;
    bool norm;
    double *z, *up;        /* z: logits; up: gradient with respect to the weights */
    const int32_t *expert; /* the choice, a constant for the gradient */
    const double *f;       /* aux: share of each expert's slots */
    int32_t *samples;      /* how many samples have each token; NULL: one */
} router;

static int32_t samples_of(const router *o, int64_t t)
{
    return o->samples ? o->samples[t] : 1;
}

/* The valid tokens, each as often as samples have it. */
static double count_samples(const router *o)
{
    double n = 0;
    for (int64_t t = 0; t < o->valid; t++)
        n += samples_of(o, t);
    return n;
}

static void softmax_loop(const double *z, double *p, int64_t n)
{
    double max = -HUGE_VAL, sum = 0;
    for (int64_t e = 0; e < n; e++)
        max = z[e] > max ? z[e] : max;
    for (int64_t e = 0; e < n; e++)
        sum += exp(z[e] - max);
    for (int64_t e = 0; e < n; e++)
        p[e] = exp(z[e] - max) / sum;
}

/* Chooses the k largest, and of equal ones the lower index first; their weights go to w [k]. */
static void choose_loop(const double *p, int64_t n, int64_t k, bool norm, int32_t *expert,
                        double *w)
{
    double sum = 0;
    for (int64_t i = 0; i < k; i++) {
        expert[i] = -1;
        for (int64_t e = 0; e < n; e++) {
            bool taken = false;
            for (int64_t j = 0; j < i; j++)
                taken = taken || expert[j] == e;
            if (!taken && (expert[i] < 0 || p[e] > p[expert[i]]))
                expert[i] = (int32_t)e;
        }
        w[i] = p[expert[i]];
        sum += w[i];
    }
    for (int64_t i = 0; i < k && norm; i++)
        w[i] /= sum;
}

enum { NORM = 1, TIES = 2, FAR = 4, SHARED = 8 };

/* shape: tokens, experts, k, valid tokens or -1, flags. With TIES the logits are whole numbers of
 * few values. */
static router draw_router(parity *p, const int64_t *shape, tensor *z, int32_t **n_valid)
{
    router o = {.tokens = shape[0], .experts = shape[1], .k = shape[2], .norm = shape[4] & NORM};
    double *values = parity_zeros(p, o.tokens * o.experts);
    for (int64_t i = 0; i < o.tokens * o.experts; i++)
        values[i] = shape[4] & TIES ? (double)parity_below(p, 3)
                                    : parity_uniform(p, -3, 3) * (shape[4] & FAR ? 100 : 1);
    *z = parity_upload(p, values, o.tokens * o.experts);
    o.samples = shape[4] & SHARED ? parity_zero_ints(p, o.tokens) : NULL;
    for (int64_t t = 0; t < o.tokens && o.samples; t++)
        o.samples[t] = (int32_t)(1 + t / 3 % 5);
    o.valid = shape[3] < 0 ? o.tokens : shape[3];
    int32_t valid32 = (int32_t)o.valid;
    *n_valid = parity_ints(p, &valid32, 1);
    o.z = z->ref;
    return o;
}

typedef struct routed {
    tensor weight, probs;
    int32_t *expert, *count; /* on the device */
    double *w, *prob;        /* expected values */
    int32_t *e, *n;
} routed;

static routed expect_route(parity *p, const router *o)
{
    routed r = {.weight = parity_tensor_acc(p, o->tokens * o->k, 1),
                .probs = parity_tensor_acc(p, o->tokens * o->experts, 1),
                .w = parity_zeros(p, o->tokens * o->k),
                .prob = parity_zeros(p, o->tokens * o->experts),
                .e = parity_zero_ints(p, o->tokens * o->k),
                .n = parity_zero_ints(p, o->experts)};
    r.expert = parity_ints(p, r.e, o->tokens * o->k);
    r.count = parity_ints(p, r.n, o->experts);
    for (int64_t t = 0; t < o->tokens; t++) {
        softmax_loop(o->z + t * o->experts, r.prob + t * o->experts, o->experts);
        if (t < o->valid)
            choose_loop(r.prob + t * o->experts, o->experts, o->k, o->norm, r.e + t * o->k,
                        r.w + t * o->k);
        for (int64_t i = 0; i < o->k; i++) {
            if (t < o->valid)
                r.n[r.e[t * o->k + i]] += samples_of(o, t);
            else
                r.e[t * o->k + i] = -1;
        }
    }
    return r;
}

static void run_route(parity *p, const router *o, const tensor *z, const int32_t *n_valid,
                      routed *r)
{
    const int32_t *samples = o->samples ? parity_ints(p, o->samples, o->tokens) : NULL;
    PARITY_RUN(p, op_route_fwd(p->s, &(route_fwd_args){o->tokens, o->experts, o->k, o->norm,
                                                       n_valid, z->dev, r->expert, r->weight.dev,
                                                       r->probs.dev, r->count, samples}));
}

static void fwd_case(parity *p, const int64_t *shape)
{
    tensor z;
    int32_t *n_valid;
    router o = draw_router(p, shape, &z, &n_valid);
    routed r = expect_route(p, &o);
    run_route(p, &o, &z, n_valid, &r);
    parity_expect(p, "probs", r.probs, r.prob, 16);
    parity_expect_ints(p, "expert", r.expert, r.e, o.tokens * o.k);
    double *order = parity_zeros(p, r.weight.n); /* the roundings of the published model */
    for (int64_t i = 0; i < r.weight.n; i++)
        order[i] = parity_round(p, r.w[i]);
    parity_expect_order(p, "weight", r.weight, r.w, order, 16);
    parity_expect_ints(p, "count", r.count, r.n, o.experts);
}

static double route_loss(const void *of)
{
    const router *o = of;
    double sum = 0, prob[256];
    for (int64_t t = 0; t < o->valid; t++) {
        double scale = 0;
        softmax_loop(o->z + t * o->experts, prob, o->experts);
        for (int64_t i = 0; i < o->k; i++)
            scale += o->norm ? prob[o->expert[t * o->k + i]] : 0;
        for (int64_t i = 0; i < o->k; i++)
            sum += o->up[t * o->k + i] * prob[o->expert[t * o->k + i]] / (o->norm ? scale : 1);
    }
    return sum;
}

static void bwd_case(parity *p, const int64_t *shape)
{
    tensor z;
    int32_t *n_valid;
    router o = draw_router(p, shape, &z, &n_valid);
    routed r = expect_route(p, &o);
    r.weight = parity_upload_acc(p, r.w, o.tokens * o.k);
    r.probs = parity_upload_acc(p, r.prob, o.tokens * o.experts);
    tensor dw = parity_tensor_acc(p, o.tokens * o.k, 1), dz = parity_tensor(p, z.n, 1);
    PARITY_RUN(p, op_route_bwd(p->s, &(route_bwd_args){o.tokens, o.experts, o.k, o.norm, n_valid,
                                                       parity_ints(p, r.e, o.tokens * o.k),
                                                       r.weight.dev, r.probs.dev, dw.dev, dz.dev}));
    o.expert = r.e;
    o.up = dw.ref;
    parity_gradient(p, "dlogits", dz, NULL, z.ref, route_loss, &o, 32);
}

static void route_golden(parity *p, const int64_t *shape)
{
    (void)shape;
    static const double z[] = {2, -1, 0.5, 1.5, 0, 3};
    static const double prob[] = {0.21127958, 0.01051899, 0.04714285,
                                  0.12814754, 0.02859358, 0.57431745};
    tensor tz = parity_upload(p, z, 6), w = parity_tensor_acc(p, 2, 1);
    tensor probs = parity_tensor_acc(p, 6, 1);
    static const int32_t chosen[] = {5, 0}, counted[] = {1, 0, 0, 0, 0, 1}, one = 1;
    int32_t *n_valid = parity_ints(p, &one, 1);
    int32_t *expert = parity_ints(p, parity_zero_ints(p, 2), 2);
    int32_t *count = parity_ints(p, parity_zero_ints(p, 6), 6);
    PARITY_RUN(p, op_route_fwd(p->s, &(route_fwd_args){1, 6, 2, true, n_valid, tz.dev, expert,
                                                       w.dev, probs.dev, count}));
    double *gw = parity_fetch(p, w), *gp = parity_fetch(p, probs);
    parity_expect_ints(p, "expert", expert, chosen, 2);
    parity_expect_ints(p, "count", count, counted, 6);
    assert_true(fabs(gw[0] - 0.73105858) < 1e-7 && fabs(gw[1] - 0.26894142) < 1e-7);
    for (int e = 0; e < 6; e++)
        assert_true(fabs(gp[e] - prob[e]) < 1e-7);
}

static void route_refuses(parity *p, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(p, 16, 1);
    int32_t *ints = parity_ints(p, parity_zero_ints(p, 16), 16);
    route_fwd_args a = {2, 4, 5, true, ints, x.dev, ints, x.dev, x.dev, ints};
    assert_fails(ST_BAD_INPUT, op_route_fwd(p->s, &a), "top_k is 5 of 4 experts");
}

/* E sum_e f_e P_e times up[0], over the rows of all layers. The shares f count as constants. */
static double aux_loss(const void *of)
{
    const router *o = of;
    double sum = 0, prob[256];
    for (int64_t t = 0; t < o->tokens; t++) {
        softmax_loop(o->z + t * o->experts, prob, o->experts);
        for (int64_t e = 0; e < o->experts; e++)
            sum += samples_of(o, t) * (double)o->experts * o->f[e] * prob[e] / count_samples(o);
    }
    return sum * o->up[0];
}

/* Runs the three phases over `layers` slices of z [layers * tokens, E], in which all tokens are
 * valid. Writes aux; dz is added to the numbers that it starts with. */
static void run_aux(parity *p, const router *o, int64_t layers, const routed *r, tensor aux,
                    tensor scale, tensor dz)
{
    int64_t n = o->tokens / layers;
    int32_t valid32 = (int32_t)n, *n_valid = parity_ints(p, &valid32, 1);
    double *zeros = parity_zeros(p, o->experts);
    tensor total = parity_upload_acc(p, zeros, o->experts);
    tensor sum = parity_upload_acc(p, zeros, o->experts);
    const double each = count_samples(o) / (double)layers;
    tensor all_valid = parity_upload_acc(p, &each, 1);
    const int32_t *samples = o->samples ? parity_ints(p, o->samples, o->tokens) : NULL;
    for (int phase = AUX_ADD_STATS; phase <= AUX_GRAD; phase++)
        for (int64_t l = 0; l < (phase == AUX_FINISH ? 1 : layers); l++) {
            int32_t *count = parity_zero_ints(p, o->experts);
            for (int64_t i = l * n * o->k; i < (l + 1) * n * o->k; i++)
                count[r->e[i]] += samples_of(o, i / o->k);
            route_aux_args a = {.phase = phase,
                                .tokens = n,
                                .experts = o->experts,
                                .n_layers = layers,
                                .n_valid = n_valid,
                                .all_valid = samples ? all_valid.dev : NULL,
                                .samples = samples ? samples + l * n : NULL,
                                .count = parity_ints(p, count, o->experts),
                                .probs = parity_at(r->probs, l * n * o->experts),
                                .count_total = total.dev,
                                .prob_sum = sum.dev,
                                .aux = aux.dev,
                                .scale = scale.dev,
                                .dlogits = parity_at(dz, l * n * o->experts)};
            PARITY_RUN(p, op_route_aux(p->s, &a));
        }
}

/* shape: tokens of all layers, experts, k, -1, flags, layers */
static void aux_case(parity *p, const int64_t *shape)
{
    tensor z;
    int32_t *n_valid;
    router o = draw_router(p, shape, &z, &n_valid);
    routed r = expect_route(p, &o);
    r.probs = parity_upload_acc(p, r.prob, z.n);
    double up = 0.25, *f = parity_zeros(p, o.experts);
    for (int64_t e = 0; e < o.experts && o.tokens; e++)
        f[e] = (double)r.n[e] / count_samples(&o);
    tensor aux = parity_tensor_acc(p, 1, 1), dz = parity_tensor(p, z.n, 1e-2);
    run_aux(p, &o, shape[5], &r, aux, parity_upload_acc(p, &up, 1), dz);
    o.f = f;
    double one = 1;
    o.up = &one;
    double want = aux_loss(&o);
    parity_expect(p, "aux", aux, &want, 64);
    o.up = &up;
    parity_gradient(p, "dlogits", dz, dz.ref, z.ref, aux_loss, &o, 32);
}

static void aux_golden(parity *p, const int64_t *shape)
{
    (void)shape;
    static const double z[] = {2,  -1,  0.5,  1.5, 0,   3,    0, 1, 2,
                               -1, 0.5, 0.25, 1,   1.5, -0.5, 0, 2, 0.5};
    static const double want[] = {0.01656834,  0.00783755,  0.00369690,  -0.07538249, 0.00224228,
                                  0.04503742,  -0.00754824, 0.10525857,  -0.05577437, -0.01979888,
                                  -0.01244494, -0.00969213, -0.01981505, 0.13476751,  -0.00442134,
                                  -0.04464980, -0.05386289, -0.01201844};
    tensor tz = parity_upload(p, z, 18);
    router o = {.tokens = 3, .experts = 6, .k = 2, .valid = 3, .norm = true, .z = tz.ref};
    routed r = expect_route(p, &o);
    r.probs = parity_upload_acc(p, r.prob, 18);
    double one = 1;
    tensor aux = parity_tensor_acc(p, 1, 1), dz = parity_upload(p, parity_zeros(p, 18), 18);
    run_aux(p, &o, 1, &r, aux, parity_upload_acc(p, &one, 1), dz);
    assert_true(fabs(*parity_fetch(p, aux) - 2.160412505) < 5e-7);
    /* The expected numbers have 8 digits, so 2e-7. */
    parity_expect(p, "dlogits", dz, want, p->s->dev->backend->acc == DT_F64 ? 7e9 : 13);
}

/* shape: tokens, experts, k, and n: every n-th token has no expert (0: all have one). shape[6]: one
 * more than the expert that all slots choose (0: they choose at random). */
static int32_t *draw_choice(parity *p, const int64_t *shape)
{
    int32_t *expert = parity_zero_ints(p, shape[0] * shape[2]);
    for (int64_t t = 0; t < shape[0]; t++)
        for (int64_t i = 0; i < shape[2]; i++)
            expert[t * shape[2] + i] = shape[3] && t % shape[3] == 0 ? -1
                                       : shape[6]                    ? (int32_t)shape[6] - 1
                                                  : (int32_t)parity_below(p, shape[1]);
    return expert;
}

typedef struct sorted {
    int32_t *offset, *slot_row, *row_token;
} sorted;

/* The definition: experts ascend, and the rows of an expert are in the order of their slots. */
static sorted sort_loop(parity *p, const int64_t *shape, const int32_t *expert)
{
    int64_t slots = shape[0] * shape[2];
    sorted o = {parity_zero_ints(p, shape[1] + 1), parity_zero_ints(p, slots),
                parity_zero_ints(p, slots)};
    int32_t row = 0;
    for (int32_t e = -1; e < shape[1]; e++) {
        for (int64_t i = 0; i < slots; i++)
            if (expert[i] == e && e < 0) {
                o.slot_row[i] = -1;
            } else if (expert[i] == e) {
                o.slot_row[i] = row;
                o.row_token[row++] = (int32_t)(i / shape[2]);
            }
        o.offset[e + 1] = row;
    }
    for (; row < slots; row++)
        o.row_token[row] = -1;
    return o;
}

static void permute_case(parity *p, const int64_t *shape)
{
    int64_t slots = shape[0] * shape[2];
    int32_t *expert = draw_choice(p, shape);
    sorted want = sort_loop(p, shape, expert);
    int32_t *offset = parity_ints(p, parity_zero_ints(p, shape[1] + 1), shape[1] + 1);
    int32_t *slot_row = parity_ints(p, expert, slots), *row_token = parity_ints(p, expert, slots);
    PARITY_RUN(p, op_permute(p->s, &(permute_args){shape[0], shape[1], shape[2],
                                                   parity_ints(p, expert, slots), offset, slot_row,
                                                   row_token}));
    parity_expect_ints(p, "offset", offset, want.offset, shape[1] + 1);
    parity_expect_ints(p, "slot_row", slot_row, want.slot_row, slots);
    parity_expect_ints(p, "row_token", row_token, want.row_token, slots);
}

static void permute_refuses(parity *p, const int64_t *shape)
{
    (void)shape;
    int32_t *expert = parity_ints(p, (int32_t[]){0, 4}, 2);
    int32_t *offset = parity_ints(p, parity_zero_ints(p, 5), 5);
    int32_t *slot_row = parity_ints(p, parity_zero_ints(p, 2), 2);
    int32_t *row_token = parity_ints(p, parity_zero_ints(p, 2), 2);
    permute_args a = {2, 4, 1, expert, offset, slot_row, row_token};
    if (p->s->dev->backend->fixed_shapes) { /* such a device cannot see it, and drops the slot */
        static const int32_t ends[] = {0, 1, 1, 1, 1}, rows[] = {0, -1}, tokens[] = {0, -1};
        assert_ok(op_permute(p->s, &a));
        parity_expect_ints(p, "offset", offset, ends, 5);
        parity_expect_ints(p, "slot_row", slot_row, rows, 2);
        parity_expect_ints(p, "row_token", row_token, tokens, 2);
        return;
    }
    assert_fails(ST_BAD_INPUT, op_permute(p->s, &a), "slot 1 wants expert 4 of 4");
}

/* shape: tokens, experts, k, n (every n-th token has no expert), width, in place (2: without
 * weights, 3: with a residual) */
static void combine_case(parity *p, const int64_t *shape)
{
    int64_t n = shape[0], k = shape[2], w = shape[4], slots = n * k;
    sorted order = sort_loop(p, shape, draw_choice(p, shape));
    tensor weight = parity_tensor_acc(p, slots, 1), o = parity_tensor(p, slots * w, 1);
    tensor y = parity_tensor(p, n * w, 1), x = shape[5] == 3 ? parity_tensor(p, n * w, 1) : y;
    int32_t *slot_row = parity_ints(p, order.slot_row, slots);
    if (strcmp(p->op, "combine_fwd") == 0) {
        double *want = parity_copy(p, y.ref, y.n);
        bool plain = shape[5] == 2, residual = shape[5] == 1 || shape[5] == 3;
        for (int64_t i = 0; i < n * w; i++) {
            want[i] = residual ? x.ref[i] : 0;
            for (int64_t j = i / w * k; j < (i / w + 1) * k; j++)
                if (order.slot_row[j] >= 0)
                    want[i] += (plain ? 1 : weight.ref[j]) * o.ref[order.slot_row[j] * w + i % w];
        }
        PARITY_RUN(p, op_combine_fwd(p->s, &(combine_fwd_args){n, k, w, slot_row,
                                                               plain ? NULL : weight.dev, o.dev,
                                                               residual ? x.dev : NULL, y.dev}));
        parity_expect(p, "y", y, want, 16);
        return;
    }
    tensor do_ = shape[5] ? o : parity_tensor(p, o.n, 1), dweight = parity_tensor_acc(p, slots, 1);
    double *wo = parity_copy(p, do_.ref, do_.n), *wd = parity_zeros(p, slots);
    for (int64_t i = 0; i < slots * w; i++) {
        int64_t row = order.slot_row[i / w];
        if (row < 0)
            continue;
        wo[row * w + i % w] = weight.ref[i / w] * y.ref[i / w / k * w + i % w];
        wd[i / w] += o.ref[row * w + i % w] * y.ref[i / w / k * w + i % w];
    }
    PARITY_RUN(p, op_combine_bwd(p->s, &(combine_bwd_args){n, k, w, slot_row, weight.dev, o.dev,
                                                           y.dev, do_.dev, dweight.dev}));
    parity_expect(p, "do", do_, wo, 4);
    parity_expect(p, "dweight", dweight, wd, 8 * sqrt((double)w) + 8);
}

const parity_case parity_route[] = {
    {"route_fwd", "empty", fwd_case, {0, 4, 2, -1, NORM}},
    {"route_fwd", "one", fwd_case, {1, 1, 1, -1, NORM}},
    {"route_fwd", "ragged", fwd_case, {19, 7, 3, 11, NORM}},
    {"route_fwd", "ragged raw", fwd_case, {19, 7, 3, 11, 0}},
    {"route_fwd", "real", fwd_case, {2048, 16, 2, 2000, NORM}},
    {"route_fwd", "real 128", fwd_case, {512, 128, 8, -1, NORM}},
    {"route_fwd", "real padding", fwd_case, {100, 128, 8, 0, NORM}},
    {"route_fwd", "ragged 1000", fwd_case, {9, 1000, 20, 7, NORM}},
    {"route_fwd", "ragged shared", fwd_case, {59, 7, 3, 51, NORM | SHARED}},
    {"route_fwd", "hostile ties", fwd_case, {40, 8, 4, -1, NORM | TIES}},
    {"route_fwd", "hostile far", fwd_case, {40, 8, 1, -1, NORM | FAR}},
    {"route_fwd", "hostile", route_refuses, {0}},
    {"route_fwd", "golden", route_golden, {0}},
    {"route_bwd", "empty", bwd_case, {0, 4, 2, -1, NORM}},
    {"route_bwd", "one", bwd_case, {1, 2, 1, -1, 0}},
    {"route_bwd", "ragged", bwd_case, {19, 7, 3, 11, NORM}},
    {"route_bwd", "ragged raw", bwd_case, {19, 7, 3, 11, 0}},
    {"route_bwd", "real 128", bwd_case, {70, 128, 8, 68, NORM}},
    {"route_bwd", "ragged 200", bwd_case, {5, 200, 20, 4, 0}},
    {"route_bwd", "real", bwd_case, {2048, 16, 2, 2000, NORM}},
    {"route_aux", "empty", aux_case, {0, 4, 2, -1, NORM, 1}},
    {"route_aux", "one", aux_case, {1, 2, 1, -1, NORM, 1}},
    {"route_aux", "ragged", aux_case, {39, 7, 3, -1, NORM, 3}},
    {"route_aux", "ragged shared", aux_case, {39, 7, 3, -1, NORM | SHARED, 3}},
    {"route_aux", "real", aux_case, {2048, 16, 2, -1, NORM, 2}},
    {"route_aux", "golden", aux_golden, {0}},
    {"permute", "empty", permute_case, {0, 4, 2, 0}},
    {"permute", "one", permute_case, {1, 1, 1, 0}},
    {"permute", "ragged", permute_case, {19, 7, 3, 4}},
    {"permute", "ragged all skipped", permute_case, {5, 7, 3, 1}},
    {"permute", "real", permute_case, {2048, 16, 2, 0}},
    {"permute", "real 128", permute_case, {700, 128, 8, 5}},
    {"permute", "hostile one expert", permute_case, {300, 128, 8, 0, 0, 0, 101}},
    {"permute", "hostile many experts", permute_case, {301, 1024, 8, 7}},
    {"permute", "hostile", permute_refuses, {0}},
    {"combine_fwd", "empty", combine_case, {0, 4, 2, 0, 5, 0}},
    {"combine_fwd", "one", combine_case, {1, 1, 1, 0, 1, 0}},
    {"combine_fwd", "ragged", combine_case, {19, 7, 3, 4, 13, 0}},
    {"combine_fwd", "ragged residual in place", combine_case, {19, 7, 3, 4, 13, 1}},
    {"combine_fwd", "ragged residual", combine_case, {19, 7, 3, 4, 13, 3}},
    {"combine_fwd", "ragged without weights", combine_case, {19, 7, 3, 4, 13, 2}},
    {"combine_fwd", "real", combine_case, {2048, 16, 2, 0, 128, 1}},
    {"combine_fwd", "real 8 of 128", combine_case, {20, 128, 8, 6, 2048, 1}},
    {"combine_bwd", "real 8 of 128", combine_case, {20, 128, 8, 6, 2048, 1}},
    {"combine_bwd", "empty", combine_case, {0, 4, 2, 0, 5, 0}},
    {"combine_bwd", "one", combine_case, {1, 1, 1, 0, 1, 0}},
    {"combine_bwd", "ragged", combine_case, {19, 7, 3, 4, 13, 0}},
    {"combine_bwd", "ragged in place", combine_case, {19, 7, 3, 4, 13, 1}},
    {"combine_bwd", "real", combine_case, {2048, 16, 2, 0, 128, 1}},
    {NULL},
};
