/* SPDX-License-Identifier: Apache-2.0 */
/* route.c: cases of the router, the sort by expert, the weighted sum of experts' outputs, and the
 * load-balancing loss. Tolerance: softmax of a short row 16 eps; sums of K rows 16 eps; dot
 * products as in gemm.c. */
#include "tests/parity/parity.h"

typedef struct router {
    int64_t tokens, experts, k, valid;
    bool norm;
    double *z, *up;        /* z: logits; up: gradient with respect to the weights */
    const int32_t *expert; /* the choice, a constant for the gradient */
    const double *share;   /* aux: share of each expert's slots */
    int32_t *samples;      /* how many samples have each token; NULL: one */
} router;

static int32_t samples_of(const router *work, int64_t token)
{
    return work->samples ? work->samples[token] : 1;
}

/* The valid tokens, each as often as samples have it. */
static double count_samples(const router *work)
{
    double count = 0;
    for (int64_t token = 0; token < work->valid; token++)
        count += samples_of(work, token);
    return count;
}

static void softmax_loop(const double *z, double *p, int64_t n)
{
    double max = -HUGE_VAL, sum = 0;
    for (int64_t expert = 0; expert < n; expert++)
        max = z[expert] > max ? z[expert] : max;
    for (int64_t expert = 0; expert < n; expert++)
        sum += exp(z[expert] - max);
    for (int64_t expert = 0; expert < n; expert++)
        p[expert] = exp(z[expert] - max) / sum;
}

/* Chooses the k largest, and of equal ones the lower index first; their weights go to w [k]. */
static void choose_loop(const double *p, int64_t n, int64_t k, bool norm, int32_t *expert,
                        double *w)
{
    double sum = 0;
    for (int64_t i = 0; i < k; i++) {
        expert[i] = -1;
        for (int64_t best = 0; best < n; best++) {
            bool taken = false;
            for (int64_t j = 0; j < i; j++)
                taken = taken || expert[j] == best;
            if (!taken && (expert[i] < 0 || p[best] > p[expert[i]]))
                expert[i] = (int32_t)best;
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
static router draw_router(parity *test, const int64_t *shape, tensor *z, int32_t **n_valid)
{
    router work = {.tokens = shape[0], .experts = shape[1], .k = shape[2], .norm = shape[4] & NORM};
    double *values = parity_zeros(test, work.tokens * work.experts);
    for (int64_t i = 0; i < work.tokens * work.experts; i++)
        values[i] = shape[4] & TIES ? (double)parity_below(test, 3)
                                    : parity_uniform(test, -3, 3) * (shape[4] & FAR ? 100 : 1);
    *z = parity_upload(test, values, work.tokens * work.experts);
    work.samples = shape[4] & SHARED ? parity_zero_ints(test, work.tokens) : NULL;
    for (int64_t token = 0; token < work.tokens && work.samples; token++)
        work.samples[token] = (int32_t)(1 + token / 3 % 5);
    work.valid = shape[3] < 0 ? work.tokens : shape[3];
    int32_t valid32 = (int32_t)work.valid;
    *n_valid = parity_ints(test, &valid32, 1);
    work.z = z->ref;
    return work;
}

typedef struct routed {
    tensor weight, probs;
    int32_t *expert, *count; /* on the device */
    double *w, *prob;        /* expected values */
    int32_t *chosen, *n;
} routed;

static routed expect_route(parity *test, const router *work)
{
    routed routes = {.weight = parity_tensor_acc(test, work->tokens * work->k, 1),
                     .probs = parity_tensor_acc(test, work->tokens * work->experts, 1),
                     .w = parity_zeros(test, work->tokens * work->k),
                     .prob = parity_zeros(test, work->tokens * work->experts),
                     .chosen = parity_zero_ints(test, work->tokens * work->k),
                     .n = parity_zero_ints(test, work->experts)};
    routes.expert = parity_ints(test, routes.chosen, work->tokens * work->k);
    routes.count = parity_ints(test, routes.n, work->experts);
    for (int64_t token = 0; token < work->tokens; token++) {
        softmax_loop(work->z + token * work->experts, routes.prob + token * work->experts,
                     work->experts);
        if (token < work->valid)
            choose_loop(routes.prob + token * work->experts, work->experts, work->k, work->norm,
                        routes.chosen + token * work->k, routes.w + token * work->k);
        for (int64_t i = 0; i < work->k; i++) {
            if (token < work->valid)
                routes.n[routes.chosen[token * work->k + i]] += samples_of(work, token);
            else
                routes.chosen[token * work->k + i] = -1;
        }
    }
    return routes;
}

static void run_route(parity *test, const router *work, const tensor *z, const int32_t *n_valid,
                      routed *routes)
{
    const int32_t *samples = work->samples ? parity_ints(test, work->samples, work->tokens) : NULL;
    PARITY_RUN(test,
               op_route_fwd(test->queue,
                            &(route_fwd_args){work->tokens, work->experts, work->k, work->norm,
                                              n_valid, z->dev, routes->expert, routes->weight.dev,
                                              routes->probs.dev, routes->count, samples}));
}

static void fwd_case(parity *test, const int64_t *shape)
{
    tensor z;
    int32_t *n_valid;
    router work = draw_router(test, shape, &z, &n_valid);
    routed routes = expect_route(test, &work);
    run_route(test, &work, &z, n_valid, &routes);
    parity_expect(test, "probs", routes.probs, routes.prob, 16);
    parity_expect_ints(test, "expert", routes.expert, routes.chosen, work.tokens * work.k);
    double *order = parity_zeros(test, routes.weight.n); /* the roundings of the published model */
    for (int64_t i = 0; i < routes.weight.n; i++)
        order[i] = parity_round(test, routes.w[i]);
    parity_expect_order(test, "weight", routes.weight, routes.w, order, 16);
    parity_expect_ints(test, "count", routes.count, routes.n, work.experts);
}

static double route_loss(const void *of)
{
    const router *work = of;
    double sum = 0, prob[256];
    for (int64_t token = 0; token < work->valid; token++) {
        double scale = 0;
        softmax_loop(work->z + token * work->experts, prob, work->experts);
        for (int64_t i = 0; i < work->k; i++)
            scale += work->norm ? prob[work->expert[token * work->k + i]] : 0;
        for (int64_t i = 0; i < work->k; i++)
            sum += work->up[token * work->k + i] * prob[work->expert[token * work->k + i]] /
                   (work->norm ? scale : 1);
    }
    return sum;
}

static void bwd_case(parity *test, const int64_t *shape)
{
    tensor z;
    int32_t *n_valid;
    router work = draw_router(test, shape, &z, &n_valid);
    routed routes = expect_route(test, &work);
    routes.weight = parity_upload_acc(test, routes.w, work.tokens * work.k);
    routes.probs = parity_upload_acc(test, routes.prob, work.tokens * work.experts);
    tensor dw = parity_tensor_acc(test, work.tokens * work.k, 1), dz = parity_tensor(test, z.n, 1);
    PARITY_RUN(
        test, op_route_bwd(test->queue,
                           &(route_bwd_args){work.tokens, work.experts, work.k, work.norm, n_valid,
                                             parity_ints(test, routes.chosen, work.tokens * work.k),
                                             routes.weight.dev, routes.probs.dev, dw.dev, dz.dev}));
    work.expert = routes.chosen;
    work.up = dw.ref;
    parity_gradient(test, "dlogits", dz, NULL, z.ref, route_loss, &work, 32);
}

static void route_golden(parity *test, const int64_t *shape)
{
    (void)shape;
    static const double z[] = {2, -1, 0.5, 1.5, 0, 3};
    static const double prob[] = {0.21127958, 0.01051899, 0.04714285,
                                  0.12814754, 0.02859358, 0.57431745};
    tensor tz = parity_upload(test, z, 6), w = parity_tensor_acc(test, 2, 1);
    tensor probs = parity_tensor_acc(test, 6, 1);
    static const int32_t chosen[] = {5, 0}, counted[] = {1, 0, 0, 0, 0, 1}, one = 1;
    int32_t *n_valid = parity_ints(test, &one, 1);
    int32_t *expert = parity_ints(test, parity_zero_ints(test, 2), 2);
    int32_t *count = parity_ints(test, parity_zero_ints(test, 6), 6);
    PARITY_RUN(test, op_route_fwd(test->queue, &(route_fwd_args){1, 6, 2, true, n_valid, tz.dev,
                                                                 expert, w.dev, probs.dev, count}));
    double *gw = parity_fetch(test, w), *gp = parity_fetch(test, probs);
    parity_expect_ints(test, "expert", expert, chosen, 2);
    parity_expect_ints(test, "count", count, counted, 6);
    assert_true(fabs(gw[0] - 0.73105858) < 1e-7 && fabs(gw[1] - 0.26894142) < 1e-7);
    for (int i = 0; i < 6; i++)
        assert_true(fabs(gp[i] - prob[i]) < 1e-7);
}

static void route_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(test, 16, 1);
    int32_t *ints = parity_ints(test, parity_zero_ints(test, 16), 16);
    route_fwd_args args = {2, 4, 5, true, ints, x.dev, ints, x.dev, x.dev, ints};
    assert_fails(ST_BAD_INPUT, op_route_fwd(test->queue, &args), "top_k is 5 of 4 experts");
}

/* E sum_e f_e P_e times up[0], over the rows of all layers. The shares f count as constants. */
static double aux_loss(const void *of)
{
    const router *work = of;
    double sum = 0, prob[256];
    for (int64_t token = 0; token < work->tokens; token++) {
        softmax_loop(work->z + token * work->experts, prob, work->experts);
        for (int64_t expert = 0; expert < work->experts; expert++)
            sum += samples_of(work, token) * (double)work->experts * work->share[expert] *
                   prob[expert] / count_samples(work);
    }
    return sum * work->up[0];
}

/* Runs the three phases over `layers` slices of z [layers * tokens, E], in which all tokens are
 * valid. Writes aux; dz is added to the numbers that it starts with. */
static void run_aux(parity *test, const router *work, int64_t layers, const routed *routes,
                    tensor aux, tensor scale, tensor dz)
{
    int64_t n = work->tokens / layers;
    int32_t valid32 = (int32_t)n, *n_valid = parity_ints(test, &valid32, 1);
    double *zeros = parity_zeros(test, work->experts);
    tensor total = parity_upload_acc(test, zeros, work->experts);
    tensor sum = parity_upload_acc(test, zeros, work->experts);
    const double each = count_samples(work) / (double)layers;
    tensor all_valid = parity_upload_acc(test, &each, 1);
    const int32_t *samples = work->samples ? parity_ints(test, work->samples, work->tokens) : NULL;
    for (int phase = AUX_ADD_STATS; phase <= AUX_GRAD; phase++)
        for (int64_t layer = 0; layer < (phase == AUX_FINISH ? 1 : layers); layer++) {
            int32_t *count = parity_zero_ints(test, work->experts);
            for (int64_t i = layer * n * work->k; i < (layer + 1) * n * work->k; i++)
                count[routes->chosen[i]] += samples_of(work, i / work->k);
            route_aux_args args = {.phase = phase,
                                   .tokens = n,
                                   .experts = work->experts,
                                   .n_layers = layers,
                                   .n_valid = n_valid,
                                   .all_valid = samples ? all_valid.dev : NULL,
                                   .samples = samples ? samples + layer * n : NULL,
                                   .count = parity_ints(test, count, work->experts),
                                   .probs = parity_at(routes->probs, layer * n * work->experts),
                                   .count_total = total.dev,
                                   .prob_sum = sum.dev,
                                   .aux = aux.dev,
                                   .scale = scale.dev,
                                   .dlogits = parity_at(dz, layer * n * work->experts)};
            PARITY_RUN(test, op_route_aux(test->queue, &args));
        }
}

/* shape: tokens of all layers, experts, k, -1, flags, layers */
static void aux_case(parity *test, const int64_t *shape)
{
    tensor z;
    int32_t *n_valid;
    router work = draw_router(test, shape, &z, &n_valid);
    routed routes = expect_route(test, &work);
    routes.probs = parity_upload_acc(test, routes.prob, z.n);
    double up = 0.25, *share = parity_zeros(test, work.experts);
    for (int64_t expert = 0; expert < work.experts && work.tokens; expert++)
        share[expert] = (double)routes.n[expert] / count_samples(&work);
    tensor aux = parity_tensor_acc(test, 1, 1), dz = parity_tensor(test, z.n, 1e-2);
    run_aux(test, &work, shape[5], &routes, aux, parity_upload_acc(test, &up, 1), dz);
    work.share = share;
    double one = 1;
    work.up = &one;
    double want = aux_loss(&work);
    parity_expect(test, "aux", aux, &want, 64);
    work.up = &up;
    parity_gradient(test, "dlogits", dz, dz.ref, z.ref, aux_loss, &work, 32);
}

static void aux_golden(parity *test, const int64_t *shape)
{
    (void)shape;
    static const double z[] = {2,  -1,  0.5,  1.5, 0,   3,    0, 1, 2,
                               -1, 0.5, 0.25, 1,   1.5, -0.5, 0, 2, 0.5};
    static const double want[] = {0.01656834,  0.00783755,  0.00369690,  -0.07538249, 0.00224228,
                                  0.04503742,  -0.00754824, 0.10525857,  -0.05577437, -0.01979888,
                                  -0.01244494, -0.00969213, -0.01981505, 0.13476751,  -0.00442134,
                                  -0.04464980, -0.05386289, -0.01201844};
    tensor tz = parity_upload(test, z, 18);
    router work = {.tokens = 3, .experts = 6, .k = 2, .valid = 3, .norm = true, .z = tz.ref};
    routed routes = expect_route(test, &work);
    routes.probs = parity_upload_acc(test, routes.prob, 18);
    double one = 1;
    tensor aux = parity_tensor_acc(test, 1, 1),
           dz = parity_upload(test, parity_zeros(test, 18), 18);
    run_aux(test, &work, 1, &routes, aux, parity_upload_acc(test, &one, 1), dz);
    assert_true(fabs(*parity_fetch(test, aux) - 2.160412505) < 5e-7);
    /* The expected numbers have 8 digits, so 2e-7. */
    parity_expect(test, "dlogits", dz, want, test->queue->dev->backend->acc == DT_F64 ? 7e9 : 13);
}

/* shape: tokens, experts, k, and n: every n-th token has no expert (0: all have one). shape[6]: one
 * more than the expert that all slots choose (0: they choose at random). */
static int32_t *draw_choice(parity *test, const int64_t *shape)
{
    int32_t *expert = parity_zero_ints(test, shape[0] * shape[2]);
    for (int64_t place = 0; place < shape[0]; place++)
        for (int64_t i = 0; i < shape[2]; i++)
            expert[place * shape[2] + i] = shape[3] && place % shape[3] == 0 ? -1
                                           : shape[6]                        ? (int32_t)shape[6] - 1
                                                      : (int32_t)parity_below(test, shape[1]);
    return expert;
}

typedef struct sorted {
    int32_t *offset, *slot_row, *row_token;
} sorted;

/* The definition: experts ascend, and the rows of an expert are in the order of their slots. */
static sorted sort_loop(parity *test, const int64_t *shape, const int32_t *expert)
{
    int64_t slots = shape[0] * shape[2];
    sorted order = {parity_zero_ints(test, shape[1] + 1), parity_zero_ints(test, slots),
                    parity_zero_ints(test, slots)};
    int32_t row = 0;
    for (int32_t j = -1; j < shape[1]; j++) {
        for (int64_t i = 0; i < slots; i++)
            if (expert[i] == j && j < 0) {
                order.slot_row[i] = -1;
            } else if (expert[i] == j) {
                order.slot_row[i] = row;
                order.row_token[row++] = (int32_t)(i / shape[2]);
            }
        order.offset[j + 1] = row;
    }
    for (; row < slots; row++)
        order.row_token[row] = -1;
    return order;
}

static void permute_case(parity *test, const int64_t *shape)
{
    int64_t slots = shape[0] * shape[2];
    int32_t *expert = draw_choice(test, shape);
    sorted want = sort_loop(test, shape, expert);
    int32_t *offset = parity_ints(test, parity_zero_ints(test, shape[1] + 1), shape[1] + 1);
    int32_t *slot_row = parity_ints(test, expert, slots),
            *row_token = parity_ints(test, expert, slots);
    PARITY_RUN(test, op_permute(test->queue, &(permute_args){shape[0], shape[1], shape[2],
                                                             parity_ints(test, expert, slots),
                                                             offset, slot_row, row_token}));
    parity_expect_ints(test, "offset", offset, want.offset, shape[1] + 1);
    parity_expect_ints(test, "slot_row", slot_row, want.slot_row, slots);
    parity_expect_ints(test, "row_token", row_token, want.row_token, slots);
}

static void permute_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    int32_t *expert = parity_ints(test, (int32_t[]){0, 4}, 2);
    int32_t *offset = parity_ints(test, parity_zero_ints(test, 5), 5);
    int32_t *slot_row = parity_ints(test, parity_zero_ints(test, 2), 2);
    int32_t *row_token = parity_ints(test, parity_zero_ints(test, 2), 2);
    permute_args args = {2, 4, 1, expert, offset, slot_row, row_token};
    if (test->queue->dev->backend
            ->fixed_shapes) { /* such a device cannot see it, and drops the slot */
        static const int32_t ends[] = {0, 1, 1, 1, 1}, rows[] = {0, -1}, tokens[] = {0, -1};
        assert_ok(op_permute(test->queue, &args));
        parity_expect_ints(test, "offset", offset, ends, 5);
        parity_expect_ints(test, "slot_row", slot_row, rows, 2);
        parity_expect_ints(test, "row_token", row_token, tokens, 2);
        return;
    }
    assert_fails(ST_BAD_INPUT, op_permute(test->queue, &args), "slot 1 wants expert 4 of 4");
}

/* shape: tokens, experts, k, n (every n-th token has no expert), width, in place (2: without
 * weights, 3: with a residual) */
static void combine_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], k = shape[2], width = shape[4], slots = n * k;
    sorted order = sort_loop(test, shape, draw_choice(test, shape));
    tensor weight = parity_tensor_acc(test, slots, 1), o = parity_tensor(test, slots * width, 1);
    tensor y = parity_tensor(test, n * width, 1),
           x = shape[5] == 3 ? parity_tensor(test, n * width, 1) : y;
    int32_t *slot_row = parity_ints(test, order.slot_row, slots);
    if (strcmp(test->op, "combine_fwd") == 0) {
        double *want = parity_copy(test, y.ref, y.n);
        bool plain = shape[5] == 2, residual = shape[5] == 1 || shape[5] == 3;
        for (int64_t i = 0; i < n * width; i++) {
            want[i] = residual ? x.ref[i] : 0;
            for (int64_t j = i / width * k; j < (i / width + 1) * k; j++)
                if (order.slot_row[j] >= 0)
                    want[i] +=
                        (plain ? 1 : weight.ref[j]) * o.ref[order.slot_row[j] * width + i % width];
        }
        PARITY_RUN(
            test, op_combine_fwd(test->queue, &(combine_fwd_args){n, k, width, slot_row,
                                                                  plain ? NULL : weight.dev, o.dev,
                                                                  residual ? x.dev : NULL, y.dev}));
        parity_expect(test, "y", y, want, 16);
        return;
    }
    tensor do_ = shape[5] ? o : parity_tensor(test, o.n, 1),
           dweight = parity_tensor_acc(test, slots, 1);
    double *wo = parity_copy(test, do_.ref, do_.n), *wd = parity_zeros(test, slots);
    for (int64_t i = 0; i < slots * width; i++) {
        int64_t row = order.slot_row[i / width];
        if (row < 0)
            continue;
        wo[row * width + i % width] =
            weight.ref[i / width] * y.ref[i / width / k * width + i % width];
        wd[i / width] += o.ref[row * width + i % width] * y.ref[i / width / k * width + i % width];
    }
    PARITY_RUN(
        test, op_combine_bwd(test->queue, &(combine_bwd_args){n, k, width, slot_row, weight.dev,
                                                              o.dev, y.dev, do_.dev, dweight.dev}));
    parity_expect(test, "do", do_, wo, 4);
    parity_expect(test, "dweight", dweight, wd, 8 * sqrt((double)width) + 8);
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
