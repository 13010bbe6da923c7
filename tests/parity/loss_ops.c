/* loss_ops.c: cases of cross entropy, gradient norm, the step's scale, and AdamW.
 *
 * Tolerance: a log-sum-exp over V numbers is off by 8 sqrt(V) + 8 eps at worst; the sum over
 * targets averages errors of equal sign at 64 eps. AdamW is a short formula: 16 eps. */
#include "tests/parity/parity.h"

enum { WEIGHTED = 1, TIES = 2, FAR = 4, BACKWARD = 8, ONLY_SUMS = 16 };

typedef struct chunk {
    int64_t n, vocab;
    double *z;
    const double *weight;
    const int32_t *label;
} chunk;

static double nll_loop(const double *z, int64_t n, int32_t label)
{
    double max = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < n; j++)
        max = z[j] > max ? z[j] : max;
    for (int64_t j = 0; j < n; j++)
        sum += exp(z[j] - max);
    return max + log(sum) - z[label];
}

static double chunk_loss(const void *of)
{
    const chunk *o = of;
    double sum = 0;
    for (int64_t i = 0; i < o->n; i++)
        if (o->label[i] >= 0)
            sum += o->weight[i] * nll_loop(o->z + i * o->vocab, o->vocab, o->label[i]);
    return sum;
}

/* Writes weight x (softmax - 1 at the label) to out [n, vocab], and 0 where a row has no label. */
static void slopes_loop(const chunk *o, double *out)
{
    for (int64_t i = 0; i < o->n; i++)
        for (int64_t j = 0; j < o->vocab && o->label[i] >= 0; j++) {
            double p = exp(-nll_loop(o->z + i * o->vocab, o->vocab, (int32_t)j));
            out[i * o->vocab + j] = o->weight[i] * (p - (j == o->label[i]));
        }
}

/* Copies bytes from the device, for what is not a tensor. */
static void fetch_bytes(parity *p, void *to, const void *dev, size_t bytes)
{
    assert_ok(p->s->dev->backend->to_host(p->s, to, dev, bytes));
    assert_ok(p->s->dev->backend->wait(p->s));
}

/* shape: n, vocabulary, flags */
static void xent_case(parity *p, const int64_t *shape)
{
    int64_t n = shape[0], v = shape[1], flags = shape[2];
    double *values = parity_zeros(p, n * v), *ones = parity_zeros(p, n);
    for (int64_t i = 0; i < n * v; i++)
        values[i] = flags & TIES ? (double)parity_below(p, 3)
                                 : parity_uniform(p, -4, 4) * (flags & FAR ? 1000 : 1);
    int32_t *label = parity_zero_ints(p, n), *wbest = parity_zero_ints(p, n);
    for (int64_t i = 0; i < n; i++) {
        label[i] = i % 4 == 3 ? -100 : (int32_t)parity_below(p, v);
        ones[i] = 1;
    }
    tensor z = parity_upload(p, values, n * v), weight = parity_tensor_acc(p, n, 1);
    tensor nll = parity_tensor_acc(p, n, 1);
    chunk o = {n, v, z.ref, flags & WEIGHTED ? weight.ref : ones, label};
    double *wnll = parity_zeros(p, n), sums[2] = {0.5, 0.25}, weights = sums[1];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < v; j++)
            wbest[i] = z.ref[i * v + j] > z.ref[i * v + wbest[i]] ? (int32_t)j : wbest[i];
        wnll[i] = label[i] < 0 ? 0 : nll_loop(z.ref + i * v, v, label[i]);
        weights += label[i] < 0 ? 0 : o.weight[i];
    }
    double *dev_sums = parity_bytes(p, sums, sizeof sums);
    int32_t *best = parity_ints(p, label, n);
    double loss = chunk_loss(&o) + sums[0];
    PARITY_RUN(
        p, op_xent(p->s, &(xent_args){n, v, parity_ints(p, label, n),
                                      flags & WEIGHTED ? weight.dev : NULL, z.dev, flags & BACKWARD,
                                      flags & ONLY_SUMS ? NULL : nll.dev,
                                      flags & ONLY_SUMS ? NULL : best, dev_sums, dev_sums + 1}));
    if (p->bench)
        return;
    double got[2], eps = p->s->dev->backend->acc == DT_F64 ? 2.3e-16 : 1.2e-7;
    fetch_bytes(p, got, dev_sums, sizeof got);
    double magnitude = fabs(loss) + (double)n * (flags & FAR ? 8000 : 8);
    assert_true(fabs(got[0] - loss) <= 64 * eps * magnitude);
    assert_true(fabs(got[1] - weights) <= 4 * eps * (double)(n + 1));
    if (flags & BACKWARD) {
        double *slopes = parity_zeros(p, z.n);
        if (z.n < 5000) /* differences would cost n x vocabulary^2 */
            slopes_loop(&o, slopes);
        if (z.n < 5000)
            parity_expect(p, "dlogits", z, slopes, 64);
        parity_gradient(p, "dlogits", z, NULL, z.ref, chunk_loss, &o, 64);
    } else {
        parity_expect(p, "logits", z, z.ref, 0);
    }
    if (flags & ONLY_SUMS)
        return;
    parity_expect(p, "nll", nll, wnll, 64);
    parity_expect_ints(p, "best", best, wbest, n);
}

static void xent_refuses(parity *p, const int64_t *shape)
{
    (void)shape;
    tensor z = parity_tensor(p, 8, 1);
    double sums[2] = {0}, *dev_sums = parity_bytes(p, sums, sizeof sums);
    xent_args a = {.n = 2,
                   .vocab = 4,
                   .label = parity_ints(p, (int32_t[]){1, 4}, 2),
                   .logits = z.dev,
                   .loss_sum = dev_sums,
                   .weight_sum = dev_sums + 1};
    if (p->s->dev->backend->fixed_shapes) { /* such a device cannot see it, and ignores the row */
        assert_ok(op_xent(p->s, &a));
        fetch_bytes(p, sums, dev_sums, sizeof sums);
        assert_true(sums[1] == 1);
        return;
    }
    assert_fails(ST_BAD_INPUT, op_xent(p->s, &a), "label 1 is 4, outside the vocabulary of 4");
}

/* Numbers the chunks of a list and uploads it. */
static optim_list upload_list(parity *p, optim_tensor *tensors, int64_t n)
{
    optim_list l = {.n_tensors = n, .first_chunk = 3}; /* as part of a longer list */
    for (int64_t i = 0; i < n; i++) {
        tensors[i].first_chunk = l.first_chunk + l.n_chunks;
        l.n_chunks += (tensors[i].n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
    }
    l.tensor = parity_bytes(p, tensors, (size_t)n * sizeof *tensors);
    return l;
}

/* shape: elements of three tensors */
static void squares_case(parity *p, const int64_t *shape)
{
    optim_tensor tensors[3] = {0};
    double want = 0.5, got = 0.5, *total = parity_bytes(p, &got, sizeof got);
    for (int t = 0; t < 3; t++) {
        tensor x = parity_tensor_acc(p, shape[t], 3);
        tensors[t] = (optim_tensor){.n = x.n, .g = x.dev};
        for (int64_t i = 0; i < x.n; i++)
            want += x.ref[i] * x.ref[i];
    }
    optim_list list = upload_list(p, tensors, 3);
    PARITY_RUN(p, op_sum_squares(p->s, &(sum_squares_args){list, total}));
    fetch_bytes(p, &got, total, sizeof got);
    if (!p->bench) /* both backends sum in double */
        assert_true(fabs(got - want) <= 1e-12 * want);
    p->bits ^= (uint64_t)(got * 0x1p30);
}

/* shape: sum of squares, weight, max_norm * 10; the expected results were computed by hand */
static void finish_case(parity *p, const int64_t *shape)
{
    double square = shape[0] < 0 ? NAN : (double)shape[0], weight = (double)shape[1];
    double max = (double)shape[2] / 10;
    step_scalars init = {.lr = 3, .skip = 7, .grad_scale = 7, .grad_norm = 7}, got;
    step_scalars *step = parity_bytes(p, &init, sizeof init);
    PARITY_RUN(p, op_step_finish(p->s, &(step_finish_args){max, parity_bytes(p, &square, 8),
                                                           parity_bytes(p, &weight, 8), step}));
    fetch_bytes(p, &got, step, sizeof got);
    assert_true(got.lr == 3);
    if (weight <= 0 || isnan(square)) {
        assert_true(got.skip != 0);
        return;
    }
    double norm = sqrt(square) / weight;
    assert_true(got.skip == 0);
    assert_true(fabs(got.grad_norm - norm) <= 1e-14 * norm);
    double clipped = max > 0 && norm > max ? max / norm : 1;
    assert_true(fabs(got.grad_scale - clipped / weight) <= 1e-14);
}

typedef struct updated {
    tensor p, m, v, g, act;
    double *wp, *wm, *wv, *wact; /* the expected values */
} updated;

/* Draws a parameter and takes one step on it, as a plain loop. */
static updated adamw_loop(parity *p, const step_scalars *t, const optim_tensor *x)
{
    int64_t n = x->n;
    double *squares = parity_zeros(p, n), lr = t->lr * x->lr_factor;
    for (int64_t i = 0; i < n; i++)
        squares[i] = parity_uniform(p, 0, 0.1);
    updated u = {.p = parity_tensor_acc(p, n, 1),
                 .m = parity_tensor_acc(p, n, 0.1),
                 .v = parity_upload_acc(p, squares, n),
                 .g = parity_tensor_acc(p, n, 8),
                 .act = parity_tensor(p, n, 1)};
    u.wp = parity_copy(p, u.p.ref, n);
    u.wm = parity_copy(p, u.m.ref, n);
    u.wv = parity_copy(p, u.v.ref, n);
    u.wact = parity_copy(p, u.act.ref, n);
    for (int64_t i = 0; i < n && !(t->skip != 0); i++) {
        double g = u.g.ref[i] * t->grad_scale;
        u.wm[i] = t->beta1 * u.m.ref[i] + (1 - t->beta1) * g;
        u.wv[i] = t->beta2 * u.v.ref[i] + (1 - t->beta2) * g * g;
        double update = u.wm[i] / t->bias1 / (sqrt(u.wv[i] / t->bias2) + t->eps);
        u.wp[i] = u.p.ref[i] - lr * (update + x->decay * u.p.ref[i]);
        u.wact[i] = u.wp[i];
    }
    return u;
}

/* shape: elements of two parameters, skip */
static void adamw_case(parity *p, const int64_t *shape)
{
    step_scalars t = {.lr = 1e-2,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .bias1 = 1 - pow(0.9, 3),
                      .bias2 = 1 - pow(0.95, 3),
                      .grad_scale = 0.125,
                      .skip = (double)shape[2]};
    optim_tensor tensors[] = {{.n = shape[0], .lr_factor = 0.5, .decay = 0.1},
                              {.n = shape[1], .lr_factor = 1}};
    updated u[2];
    for (int i = 0; i < 2; i++) {
        optim_tensor *x = &tensors[i];
        u[i] = adamw_loop(p, &t, x);
        x->p = u[i].p.dev, x->m = u[i].m.dev, x->v = u[i].v.dev, x->g = u[i].g.dev;
        x->p_act = u[i].act.dtype == u[i].p.dtype ? NULL : u[i].act.dev;
    }
    optim_list list = upload_list(p, tensors, 2);
    PARITY_RUN(p, op_adamw(p->s, &(adamw_args){list, parity_bytes(p, &t, sizeof t)}));
    for (int i = 0; i < 2; i++) {
        parity_expect(p, "p", u[i].p, u[i].wp, 16);
        parity_expect(p, "m", u[i].m, u[i].wm, 16);
        parity_expect(p, "v", u[i].v, u[i].wv, 16);
        if (tensors[i].p_act)
            parity_expect(p, "p_act", u[i].act, u[i].wact, 16);
    }
}

const parity_case parity_loss[] = {
    {"xent", "empty", xent_case, {0, 5, 0}},
    {"xent", "one", xent_case, {1, 1, BACKWARD}},
    {"xent", "ragged", xent_case, {9, 13, WEIGHTED}},
    {"xent", "ragged backward", xent_case, {9, 13, WEIGHTED | BACKWARD}},
    {"xent", "ragged sums", xent_case, {9, 13, WEIGHTED | BACKWARD | ONLY_SUMS}},
    {"xent", "real", xent_case, {128, 2048, 0}},
    {"xent", "real backward", xent_case, {128, 2048, BACKWARD}},
    {"xent", "real odd", xent_case, {5, 8191, WEIGHTED | BACKWARD}},
    {"xent", "real rows in two parts", xent_case, {2, 90008, WEIGHTED | BACKWARD}},
    {"xent", "hostile ties", xent_case, {16, 40, TIES}},
    {"xent", "hostile far", xent_case, {16, 40, FAR}},
    {"xent", "hostile", xent_refuses, {0}},
    {"sum_squares", "empty", squares_case, {0, 0, 0}},
    {"sum_squares", "one", squares_case, {0, 1, 0}},
    {"sum_squares", "ragged", squares_case, {16385, 3, 32768}},
    {"sum_squares", "real", squares_case, {1000000, 2048, 30000}},
    {"step_finish", "empty", finish_case, {4, 0, 10}},
    {"step_finish", "one", finish_case, {0, 1, 10}},
    {"step_finish", "ragged below", finish_case, {4, 8, 10}},
    {"step_finish", "ragged above", finish_case, {400, 8, 10}},
    {"step_finish", "ragged unclipped", finish_case, {400, 8, 0}},
    {"step_finish", "hostile nan", finish_case, {-1, 8, 10}},
    {"adamw", "empty", adamw_case, {0, 0, 0}},
    {"adamw", "one", adamw_case, {1, 0, 0}},
    {"adamw", "ragged", adamw_case, {1001, 16390, 0}},
    {"adamw", "ragged skip", adamw_case, {1001, 7, 1}},
    {"adamw", "real", adamw_case, {1000000, 2048, 0}},
    {NULL},
};
