/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.c: cases of additions, bias gradients, activations and the input of patches. Tolerance:
 * 8 eps for straight formulas with an exponential (ours is within 2 units in the last place);
 * column sums as in gemm.c. */
#include "tests/parity/parity.h"

static void add_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0];
    const bool acc = shape[2];
    tensor (*make)(parity *, int64_t, double) = acc ? parity_tensor_acc : parity_tensor;
    tensor a = make(test, n, 1), b = make(test, n, 1), y = make(test, n, 1);
    double *want = parity_zeros(test, n);
    for (int64_t i = 0; i < n; i++)
        want[i] = a.ref[i] + (shape[1] ? b.ref[i] : y.ref[i]);
    PARITY_RUN(test,
               op_add(test->queue, &(add_args){n, a.dev, shape[1] ? b.dev : NULL, y.dev, acc}));
    parity_expect(test, "y", y, want, 1);
}

static void scale_case(parity *test, const int64_t *shape)
{
    tensor y = parity_tensor(test, shape[0], 1);
    double *want = parity_zeros(test, shape[0]);
    for (int64_t i = 0; i < shape[0]; i++)
        want[i] = 0.75 * y.ref[i];
    PARITY_RUN(test, op_scale(test->queue, &(scale_args){shape[0], 0.75, y.dev}));
    /* A timed op runs repeatedly and keeps scaling. */
    if (!test->bench)
        parity_expect(test, "y", y, want, 1);
}

static void bias_case(parity *test, const int64_t *shape)
{
    int64_t rows = shape[0], n = shape[1];
    tensor dy = parity_tensor(test, rows * n, 1), db = parity_tensor_acc(test, n, 1);
    double *want = parity_copy(test, db.ref, n);
    for (int64_t i = 0; i < rows * n; i++)
        want[i % n] += dy.ref[i];
    PARITY_RUN(test, op_bias_grad(test->queue, &(bias_grad_args){rows, n, dy.dev, db.dev}));
    parity_expect(test, "db", db, want, 8 * sqrt((double)rows) + 8);
}

typedef struct activation {
    double *x, *up;
    int64_t rows, width; /* width 0: GELU of `rows` elements */
    int kind;
} activation;

static double compute_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double compute_gelu(int kind, double x)
{
    if (kind == GELU_ERF)
        return 0.5 * x * erfc(-x / sqrt(2));
    /* (1 + tanh u) / 2 = sigmoid(2 u), which keeps its digits where tanh is close to -1 */
    return x * compute_sigmoid(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

/* The derivative of the GELU. */
static double gelu_slope(int kind, double x)
{
    if (kind == GELU_ERF)
        return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    double k0 = sqrt(2 / M_PI), k1 = 0.044715, value = tanh(k0 * (x + k1 * x * x * x));
    return 0.5 * (1 + value) + 0.5 * x * (1 - value * value) * k0 * (1 + 3 * k1 * x * x);
}

static double activation_at(const activation *work, int64_t index)
{
    if (work->width == 0)
        return compute_gelu(work->kind, work->x[index]);
    int64_t row = index / work->width, j = index % work->width;
    double g = work->x[row * 2 * work->width + j],
           u = work->x[row * 2 * work->width + work->width + j];
    return g * compute_sigmoid(g) * u;
}

static double activation_loss(const void *of)
{
    const activation *work = of;
    double sum = 0;
    for (int64_t i = 0; i < work->rows * (work->width ? work->width : 1); i++)
        sum += work->up[i] * activation_at(work, i);
    return sum;
}

/* shape: rows, width, valid rows or -1 for all, in place, scale of x */
static void swiglu_case(parity *test, const int64_t *shape)
{
    int64_t rows = shape[0], n = shape[1], valid = shape[2] < 0 ? rows : shape[2];
    bool bwd = strcmp(test->op, "swiglu_bwd") == 0;
    int32_t valid32 = (int32_t)valid;
    int32_t *n_valid = shape[2] < 0 ? NULL : parity_ints(test, &valid32, 1);
    tensor x = parity_tensor(test, rows * 2 * n, shape[4] ? (double)shape[4] : 4);
    tensor y = parity_tensor(test, rows * n, 1), dx = parity_tensor(test, x.n, 1);
    activation work = {x.ref, parity_copy(test, y.ref, y.n), rows, n, 0};
    if (bwd) {
        if (shape[3])
            dx = x;
        double *want = parity_copy(test, dx.ref, dx.n);
        PARITY_RUN(test, op_swiglu_bwd(test->queue,
                                       &(swiglu_bwd_args){rows, n, n_valid, x.dev, y.dev, dx.dev}));
        for (int64_t i = 0; i < valid * n; i++) { /* by the derivative's formula */
            int64_t at = i / n * 2 * n + i % n;
            double g = x.ref[at], u = x.ref[at + n], sg = compute_sigmoid(g);
            want[at] = y.ref[i] * u * sg * (1 + g * (1 - sg));
            want[at + n] = y.ref[i] * g * sg;
        }
        parity_expect(test, "dx", dx, want, 8);
        if (valid == rows && !shape[4] && x.n <= 5000) /* and by central differences */
            parity_gradient(test, "dx", dx, NULL, x.ref, activation_loss, &work, 8);
        return;
    }
    double *want = parity_copy(test, y.ref, y.n), *order = parity_copy(test, y.ref, y.n);
    /* The published model rounds SiLU, and then its product with up. */
    for (int64_t i = 0; i < valid * n; i++) {
        double g = x.ref[i / n * 2 * n + i % n], u = x.ref[i / n * 2 * n + n + i % n];
        want[i] = activation_at(&work, i);
        order[i] = parity_round(test, parity_round(test, g * compute_sigmoid(g)) * u);
    }
    PARITY_RUN(test,
               op_swiglu_fwd(test->queue, &(swiglu_fwd_args){rows, n, n_valid, x.dev, y.dev}));
    parity_expect_order(test, "y", y, want, order, 8);
}

/* shape: n, kind, in place, scale of x */
static void gelu_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0];
    int kind = (int)shape[1];
    double scale = shape[3] ? (double)shape[3] : 4;
    tensor x = parity_tensor(test, n, scale), y = parity_tensor(test, n, 1),
           dy = parity_tensor(test, n, 1);
    activation work = {x.ref, dy.ref, n, 0, kind};
    if (strcmp(test->op, "gelu_bwd") == 0) {
        tensor dx = shape[2] ? dy : parity_tensor(test, n, 1);
        PARITY_RUN(test,
                   op_gelu_bwd(test->queue, &(gelu_bwd_args){kind, n, x.dev, dy.dev, dx.dev}));
        double *up = parity_copy(test, dy.ref, n), *want = parity_zeros(test, n);
        for (int64_t i = 0; i < n; i++)
            want[i] = up[i] * gelu_slope(kind, x.ref[i]);
        parity_expect(test, "dx", dx, want, 16);
        if (n <= 5000) /* the formula itself is checked against differences */
            parity_gradient(test, "dx", dx, NULL, x.ref, activation_loss, &work, 16);
        return;
    }
    double *want = parity_zeros(test, n);
    for (int64_t i = 0; i < n; i++)
        want[i] = compute_gelu(kind, x.ref[i]);
    PARITY_RUN(test, op_gelu_fwd(test->queue, &(gelu_fwd_args){kind, n, x.dev, y.dev}));
    parity_expect(test, "y", y, want, 8);
}

static void gelu_golden(parity *test, const int64_t *shape)
{
    static const double x[] = {-3, -1, -0.5, 0.5, 1, 3};
    static const double want[2][6] = {
        {-0.003637392, -0.158808009, -0.154285990, 0.345714010, 0.841191991, 2.996362608},
        {-0.004049694, -0.158655254, -0.154268769, 0.345731231, 0.841344746, 2.995950306}};
    tensor in = parity_upload(test, x, 6), y = parity_tensor(test, 6, 1);
    PARITY_RUN(test, op_gelu_fwd(test->queue, &(gelu_fwd_args){(int)shape[0], 6, in.dev, y.dev}));
    double *got = parity_fetch(test, y);
    for (int i = 0; i < 6; i++) {
        double w = want[shape[0]][i], rounding = fabs(parity_round(test, w) - w);
        assert_true(fabs(got[i] - w) < 2.5e-7 * fmax(1, fabs(w)) + rounding);
    }
}

/* shape: patches, video */
static void patch_case(parity *test, const int64_t *shape)
{
    int64_t n = shape[0], bytes = shape[1] ? 1536 : 768;
    uint8_t *pixels = (uint8_t *)parity_zero_ints(test, n * bytes / 4);
    for (int64_t i = 0; i < n * bytes; i++)
        pixels[i] = (uint8_t)parity_below(test, 256);
    tensor out = parity_tensor(test, n * 1536, 1);
    double *want = parity_zeros(test, out.n);
    for (int64_t i = 0; i < out.n; i++) {
        int64_t patch = i / 1536, channel = i % 1536 / 512, frame = i % 512 / 256, at = i % 256;
        int64_t from = shape[1] ? (channel * 2 + frame) * 256 + at : channel * 256 + at;
        want[i] = (pixels[patch * bytes + from] - 127.5) / 127.5;
    }
    PARITY_RUN(test, op_patch_input(test->queue,
                                    &(patch_input_args){
                                        n, shape[1],
                                        parity_bytes(test, pixels, (size_t)(n * bytes)), out.dev}));
    parity_expect(test, "out", out, want, 1);
}

const parity_case parity_pointwise[] = {
    {"add", "empty", add_case, {0, 1}},
    {"add", "one", add_case, {1, 1}},
    {"add", "ragged onto", add_case, {37, 0}},
    {"add", "vectors", add_case, {4096, 1}},
    {"add", "real", add_case, {262144, 0}},
    {"add", "real three", add_case, {262144, 1}},
    {"add", "acc ragged onto", add_case, {37, 0, 1}},
    {"add", "acc onto", add_case, {262144, 0, 1}},
    {"add", "acc three", add_case, {4096, 1, 1}},
    {"scale", "empty", scale_case, {0}},
    {"scale", "one", scale_case, {1}},
    {"scale", "ragged", scale_case, {37}},
    {"scale", "vectors", scale_case, {4096}},
    {"scale", "real", scale_case, {262144}},
    {"bias_grad", "empty", bias_case, {0, 5}},
    {"bias_grad", "one", bias_case, {1, 1}},
    {"bias_grad", "ragged", bias_case, {77, 131}},
    {"bias_grad", "parts", bias_case, {9000, 16}},
    {"bias_grad", "real", bias_case, {2000, 288}},
    {"swiglu_fwd", "empty", swiglu_case, {0, 5, -1}},
    {"swiglu_fwd", "one", swiglu_case, {1, 1, -1}},
    {"swiglu_fwd", "ragged", swiglu_case, {9, 7, 5}},
    {"swiglu_fwd", "expert", swiglu_case, {7, 768, 6}},
    {"swiglu_fwd", "real", swiglu_case, {4096, 48, -1}},
    {"swiglu_fwd", "hostile far", swiglu_case, {9, 70, -1, 0, 2000}},
    {"swiglu_bwd", "empty", swiglu_case, {0, 5, -1}},
    {"swiglu_bwd", "one", swiglu_case, {1, 1, -1}},
    {"swiglu_bwd", "ragged", swiglu_case, {9, 7, 5}},
    {"swiglu_bwd", "ragged in place", swiglu_case, {9, 7, -1, 1}},
    {"swiglu_bwd", "expert in place", swiglu_case, {7, 768, 6, 1}},
    {"swiglu_bwd", "real", swiglu_case, {4096, 48, -1}},
    {"swiglu_bwd", "hostile far", swiglu_case, {9, 70, -1, 0, 2000}},
    {"gelu_fwd", "empty", gelu_case, {0, GELU_TANH}},
    {"gelu_fwd", "one", gelu_case, {1, GELU_TANH}},
    {"gelu_fwd", "ragged", gelu_case, {4099, GELU_TANH}},
    {"gelu_fwd", "ragged erf", gelu_case, {4099, GELU_ERF}},
    {"gelu_fwd", "vectors", gelu_case, {4304, GELU_TANH}},
    {"gelu_fwd", "vectors erf", gelu_case, {4608, GELU_ERF}},
    {"gelu_fwd", "real", gelu_case, {768000, GELU_TANH}},
    {"gelu_fwd", "real erf", gelu_case, {192000, GELU_ERF}},
    {"gelu_fwd", "hostile far", gelu_case, {1000, GELU_TANH, 0, 2000}},
    {"gelu_fwd", "hostile far erf", gelu_case, {1000, GELU_ERF, 0, 2000}},
    {"gelu_fwd", "golden tanh", gelu_golden, {GELU_TANH}},
    {"gelu_fwd", "golden erf", gelu_golden, {GELU_ERF}},
    {"gelu_bwd", "empty", gelu_case, {0, GELU_TANH}},
    {"gelu_bwd", "one", gelu_case, {1, GELU_TANH}},
    {"gelu_bwd", "ragged", gelu_case, {4099, GELU_TANH, 1}},
    {"gelu_bwd", "ragged erf", gelu_case, {4099, GELU_ERF, 1}},
    {"gelu_bwd", "vectors", gelu_case, {4304, GELU_TANH}},
    {"gelu_bwd", "vectors erf", gelu_case, {4608, GELU_ERF, 1}},
    {"gelu_bwd", "real", gelu_case, {768000, GELU_TANH}},
    {"gelu_bwd", "real erf", gelu_case, {192000, GELU_ERF}},
    {"patch_input", "empty", patch_case, {0, 0}},
    {"patch_input", "one", patch_case, {1, 1}},
    {"patch_input", "ragged", patch_case, {3, 0}},
    {"patch_input", "real", patch_case, {1000, 0}},
    {"patch_input", "real video", patch_case, {500, 1}},
    {NULL},
};
