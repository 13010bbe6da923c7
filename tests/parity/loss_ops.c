/* SPDX-License-Identifier: Apache-2.0 */
/* loss_ops.c: cases of cross entropy, gradient norm, the step's scale.
 *
 * Tolerance: a log-sum-exp over V numbers is off by 8 sqrt(V) + 8 eps at worst; the sum over
 * targets averages errors of equal sign at 64 eps.  */
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
    const chunk *range = of;
    double sum = 0;
    for (int64_t i = 0; i < range->n; i++)
        if (range->label[i] >= 0)
            sum += range->weight[i] *
                   nll_loop(range->z + i * range->vocab, range->vocab, range->label[i]);
    return sum;
}

/* Writes weight x (softmax - 1 at the label) to out [n, vocab], and 0 where a row has no label. */
static void slopes_loop(const chunk *range, double *out)
{
    for (int64_t i = 0; i < range->n; i++)
        for (int64_t j = 0; j < range->vocab && range->label[i] >= 0; j++) {
            double p = exp(-nll_loop(range->z + i * range->vocab, range->vocab, (int32_t)j));
            out[i * range->vocab + j] = range->weight[i] * (p - (j == range->label[i]));
        }
}

/* Copies bytes from the device, for what is not a tensor. */
static void fetch_bytes(parity *test, void *to, const void *dev, size_t bytes)
{
    assert_ok(test->queue->dev->backend->to_host(test->queue, to, dev, bytes));
    assert_ok(test->queue->dev->backend->wait(test->queue));
}

/* shape: n, vocabulary, flags */
static void xent_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], vocab = shape[1], flags = shape[2];
    double *values = parity_zeros(test, n * vocab), *ones = parity_zeros(test, n);
    for (int64_t i = 0; i < n * vocab; i++)
        values[i] = flags & TIES ? (double)parity_below(test, 3)
                                 : parity_uniform(test, -4, 4) * (flags & FAR ? 1000 : 1);
    int32_t *label = parity_zero_ints(test, n), *wbest = parity_zero_ints(test, n);
    for (int64_t i = 0; i < n; i++) {
        label[i] = i % 4 == 3 ? -100 : (int32_t)parity_below(test, vocab);
        ones[i] = 1;
    }
    tensor z = parity_upload(test, values, n * vocab), weight = parity_tensor_acc(test, n, 1);
    tensor nll = parity_tensor_acc(test, n, 1);
    chunk range = {n, vocab, z.ref, flags & WEIGHTED ? weight.ref : ones, label};
    double *wnll = parity_zeros(test, n), sums[2] = {0.5, 0.25}, weights = sums[1];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < vocab; j++)
            wbest[i] = z.ref[i * vocab + j] > z.ref[i * vocab + wbest[i]] ? (int32_t)j : wbest[i];
        wnll[i] = label[i] < 0 ? 0 : nll_loop(z.ref + i * vocab, vocab, label[i]);
        weights += label[i] < 0 ? 0 : range.weight[i];
    }
    double *dev_sums = parity_bytes(test, sums, sizeof sums);
    int32_t *best = parity_ints(test, label, n);
    double loss = chunk_loss(&range) + sums[0];
    PARITY_RUN(test,
               op_xent(test->queue,
                       &(xent_args){n, vocab, parity_ints(test, label, n),
                                    flags & WEIGHTED ? weight.dev : NULL, z.dev, flags & BACKWARD,
                                    flags & ONLY_SUMS ? NULL : nll.dev,
                                    flags & ONLY_SUMS ? NULL : best, dev_sums, dev_sums + 1}));
    if (test->bench)
        return;
    double got[2], eps = test->queue->dev->backend->acc == DT_F64 ? 2.3e-16 : 1.2e-7;
    fetch_bytes(test, got, dev_sums, sizeof got);
    const double logits = flags & FAR ? 8000 : 8; /* the largest, and their log-sum-exp */
    double magnitude = fabs(loss) + (double)n * logits;
    assert_true(fabs(got[0] - loss) <= 64 * eps * magnitude);
    assert_true(fabs(got[1] - weights) <= 4 * eps * (double)(n + 1));
    if (flags & BACKWARD) {
        double *slopes = parity_zeros(test, z.n);
        if (z.n < 5000) /* differences would cost n x vocabulary^2 */
            slopes_loop(&range, slopes);
        if (z.n < 5000)
            parity_expect(test, "dlogits", z, slopes, 64);
        parity_gradient(test, "dlogits", z, NULL, z.ref, chunk_loss, &range, 64);
    } else {
        parity_expect(test, "logits", z, z.ref, 0);
    }
    if (flags & ONLY_SUMS)
        return;
    parity_expect_difference(test, "nll", nll, wnll, 64, logits);
    parity_expect_ints(test, "best", best, wbest, n);
}

static void xent_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor z = parity_tensor(test, 8, 1);
    double sums[2] = {0}, *dev_sums = parity_bytes(test, sums, sizeof sums);
    xent_args args = {.n = 2,
                      .vocab = 4,
                      .label = parity_ints(test, (int32_t[]){1, 4}, 2),
                      .logits = z.dev,
                      .loss_sum = dev_sums,
                      .weight_sum = dev_sums + 1};
    if (test->queue->dev->backend
            ->fixed_shapes) { /* such a device cannot see it, and ignores the row */
        assert_ok(op_xent(test->queue, &args));
        fetch_bytes(test, sums, dev_sums, sizeof sums);
        assert_true(sums[1] == 1);
        return;
    }
    assert_fails(ST_BAD_INPUT, op_xent(test->queue, &args),
                 "label 1 is 4, outside the vocabulary of 4");
}

/* shape: elements of three tensors */
static void squares_case(parity *test, const int64_t *shape)
{
    optim_tensor tensors[3] = {0};
    double want = 0.5, got = 0.5, *total = parity_bytes(test, &got, sizeof got);
    for (int part = 0; part < 3; part++) {
        tensor x = parity_tensor_acc(test, shape[part], 3);
        tensors[part] = (optim_tensor){.n = x.n, .g = x.dev};
        for (int64_t i = 0; i < x.n; i++)
            want += x.ref[i] * x.ref[i];
    }
    optim_list list = parity_optim_list(test, tensors, 3);
    PARITY_RUN(test, op_sum_squares(test->queue, &(sum_squares_args){list, total}));
    fetch_bytes(test, &got, total, sizeof got);
    if (!test->bench) /* both backends sum in double */
        assert_true(fabs(got - want) <= 1e-12 * want);
    test->bits ^= (uint64_t)(got * 0x1p30);
}

/* shape: sum of squares, weight, max_norm * 10; the expected results were computed by hand */
static void finish_case(parity *test, const int64_t *shape)
{
    double square = shape[0] < 0 ? NAN : (double)shape[0], weight = (double)shape[1];
    double max = (double)shape[2] / 10;
    step_scalars init = {.lr = 3, .skip = 7, .grad_scale = 7, .grad_norm = 7}, got;
    step_scalars *step = parity_bytes(test, &init, sizeof init);
    PARITY_RUN(test, op_step_finish(test->queue,
                                    &(step_finish_args){max, parity_bytes(test, &square, 8),
                                                        parity_bytes(test, &weight, 8), step}));
    fetch_bytes(test, &got, step, sizeof got);
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

enum { FIRST = 1, LAST = 2, UNITS_GROUPS = 3, UNITS = 7, UNIT = 5 };

/* What unit_finish is given and gives. */
typedef struct unit_numbers {
    double squares[UNITS_GROUPS], loss, weight, after_group[UNITS_GROUPS];
    double unit_squares[UNITS], share[UNITS];
    step_scalars step;
} unit_numbers;

static unit_numbers run_unit(parity *test, const unit_numbers *in, int flags, double max_norm)
{
    unit_numbers got = *in, *dev = parity_bytes(test, in, sizeof *in);
    const unit_finish_args args = {.unit = UNIT,
                                   .groups = UNITS_GROUPS,
                                   .units = UNITS,
                                   .first = flags & FIRST,
                                   .last = flags & LAST,
                                   .max_norm = max_norm,
                                   .squares = dev->squares,
                                   .loss = &dev->loss,
                                   .weight = &dev->weight,
                                   .after_group = dev->after_group,
                                   .unit_squares = dev->unit_squares,
                                   .share = dev->share,
                                   .step = &dev->step};
    PARITY_RUN(test, op_unit_finish(test->queue, &args));
    fetch_bytes(test, &got, dev, sizeof got);
    return got;
}

static void expect_near(double got, double want)
{
    assert_true(fabs(got - want) <= 1e-14 * fabs(want));
}

/* The shares after a step: all, as in a first step, or a tenth of the way from those before. */
static void expect_shares(const unit_numbers *got, const unit_numbers *in, double all, double moved)
{
    for (int i = 0; i < UNITS; i++) {
        const double squares = i == UNIT ? 25 : in->unit_squares[i];
        expect_near(got->share[i], in->share[i] + moved * (squares / all - in->share[i]));
    }
}

/* A unit of 9 + 16 + 0 squares after others of 4, 4 and 11, with a weight of 2; shape: flags. */
static void unit_case(parity *test, const int64_t *shape)
{
    const bool first = shape[0] & FIRST, last = shape[0] & LAST;
    const unit_numbers in = {.squares = {9, 16, 0},
                             .loss = 3,
                             .weight = 2,
                             .after_group = {4, 8, 19},
                             .unit_squares = {0, 0, 0, 0, 0, 3, 19},
                             .step = {.lr = 3, .skip = first ? 7 : 0, .grad_norm = 7}};
    unit_numbers got = run_unit(test, &in, (int)shape[0], 10);
    assert_true(got.step.lr == 3 && got.step.skip == 0 && got.step.stopped == 0);
    for (int j = 0; j < UNITS_GROUPS && !test->bench; j++)
        expect_near(got.after_group[j], (j == 0 ? 9 : 25) + (first ? 0 : in.after_group[j]));
    if (test->bench)
        return;
    expect_near(got.step.grad_scale, 0.5); /* its own norm is 2.5 */
    expect_near(got.step.grad_norm, last ? sqrt(first ? 25 : 44) / 2 : 7);
    assert_true(got.step.share == 0 && got.unit_squares[UNIT] == 25);
    expect_shares(&got, &in, first ? 25 : 44, last ? 1 : 0);
    got = run_unit(test, &in, (int)shape[0], 1); /* clipped by its own norm, the first of a run */
    expect_near(got.step.grad_scale, 0.2);
    unit_numbers later = in; /* then by what the units so far make of the whole */
    later.share[UNIT] = 0.25;
    later.share[6] = 0.5;
    later.share[0] = 0.25;
    later.step.share = first ? 7 : 0.5;
    got = run_unit(test, &later, (int)shape[0], 1);
    expect_near(got.step.share, first ? 0.25 : 0.75);
    expect_near(got.step.grad_scale, 1 / sqrt((first ? 25 : 44) / got.step.share));
    expect_shares(&got, &later, first ? 25 : 44, last ? 0.1 : 0);
    got = run_unit(test, &later, (int)shape[0], 0);
    expect_near(got.step.grad_scale, 0.5);
}

/* Numbers with which nothing more may be updated. */
static void unit_stops(parity *test, const int64_t *shape)
{
    (void)shape;
    const unit_numbers good = {
        .squares = {9, 16, 0}, .loss = 3, .weight = 2, .share = {[0] = 0.25, [UNIT] = 0.75}};
    unit_numbers bad = good, got;
    bad.squares[1] = NAN;
    got = run_unit(test, &bad, LAST, 10);
    assert_true(got.step.skip != 0 && got.step.stopped == UNIT + 1);
    assert_memory_equal(got.share, bad.share, sizeof got.share);
    assert_true(!isfinite(got.step.grad_norm));
    bad = good;
    bad.step.skip = 1;
    bad.step.stopped = 9; /* the first such unit stays the one that is named */
    bad.squares[1] = INFINITY;
    got = run_unit(test, &bad, 0, 10);
    assert_true(got.step.skip != 0 && got.step.stopped == 9);
    const double no_loss[] = {NAN, -INFINITY, 3, 3}, no_weight[] = {2, 2, 0, -INFINITY};
    for (int i = 0; i < 4; i++) {
        bad = good;
        bad.loss = no_loss[i];
        bad.weight = no_weight[i];
        got = run_unit(test, &bad, FIRST, 10);
        assert_true(got.step.skip != 0 && got.step.stopped == 0 && got.step.grad_scale == 0);
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
    {"unit_finish", "one", unit_case, {FIRST | LAST}},
    {"unit_finish", "ragged first", unit_case, {FIRST}},
    {"unit_finish", "ragged middle", unit_case, {0}},
    {"unit_finish", "ragged last", unit_case, {LAST}},
    {"unit_finish", "hostile", unit_stops, {0}},
    {NULL},
};
