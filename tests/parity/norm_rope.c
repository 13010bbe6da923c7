/* SPDX-License-Identifier: Apache-2.0 */
/* norm_rope.c: cases of RMSNorm over heads followed by their rotation. Tolerances are those of
 * norm.c, with the two products of the rotation included: 16 eps forward, 64 eps backward. */
#include "tests/parity/parity.h"

typedef struct heads {
    int64_t rows, heads, d;
    /* up: the gradient from the layers above, which makes the loss a scalar. */
    double *x, *w, *c, *s, *up;
} heads;

enum { WIDEST = 128 };
static const double EPS = 1e-6;

/* Computes y [d] of head index, counted over all rows, and returns its rstd. */
static double head_loop(const heads *sizes, int64_t index, double *y)
{
    const int64_t d = sizes->d, half = d / 2;
    const double *x = sizes->x + index * d, *c = sizes->c + index / sizes->heads * half,
                 *s = sizes->s + index / sizes->heads * half;
    double square = 0;
    for (int64_t j = 0; j < d; j++)
        square += x[j] * x[j] / (double)d;
    const double r = 1 / sqrt(square + EPS);
    for (int64_t j = 0; j < half; j++) {
        double low = sizes->w[j] * x[j] * r, high = sizes->w[j + half] * x[j + half] * r;
        y[j] = low * c[j] - high * s[j];
        y[j + half] = high * c[j] + low * s[j];
    }
    return r;
}

/* The same as the published model rounds it: RMSNorm's two roundings, angles in bf16, and in a
 * rotation both products and their sum. */
static void head_order(const parity *test, const heads *sizes, int64_t index, double rstd,
                       double *y)
{
    const int64_t half = sizes->d / 2;
    const double *x = sizes->x + index * sizes->d;
    for (int64_t j = 0; j < half; j++) {
        double c = parity_round(test, sizes->c[index / sizes->heads * half + j]);
        double s = parity_round(test, sizes->s[index / sizes->heads * half + j]);
        double low = parity_round(test, sizes->w[j] * parity_round(test, x[j] * rstd));
        double high =
            parity_round(test, sizes->w[j + half] * parity_round(test, x[j + half] * rstd));
        y[j] = parity_round(test, parity_round(test, low * c) - parity_round(test, high * s));
        y[j + half] =
            parity_round(test, parity_round(test, high * c) + parity_round(test, low * s));
    }
}

static double heads_loss(const void *of)
{
    const heads *sizes = of;
    double sum = 0, y[WIDEST];
    for (int64_t i = 0; i < sizes->rows * sizes->heads; i++) {
        head_loop(sizes, i, y);
        for (int64_t j = 0; j < sizes->d; j++)
            sum += y[j] * sizes->up[i * sizes->d + j];
    }
    return sum;
}

enum { IN_PLACE = 1, ZEROS = 2 };

typedef struct inputs {
    tensor x, w, c, s;
} inputs;

/* shape: rows, heads, head_dim, flags */
static heads draw_heads(parity *test, const int64_t *shape, inputs *in)
{
    const int64_t n = shape[0] * shape[1] * shape[2], angles = shape[0] * shape[2] / 2;
    in->x = parity_tensor(test, n, shape[3] & ZEROS ? 0 : 2);
    in->w = parity_tensor(test, shape[2], 1);
    in->c = parity_tensor_acc(test, angles, 1);
    in->s = parity_tensor_acc(test, angles, 1);
    return (heads){shape[0], shape[1], shape[2], in->x.ref, in->w.ref, in->c.ref, in->s.ref, NULL};
}

static norm_rope_fwd_args make_forward(const heads *sizes, const inputs *in, void *out, void *rstd)
{
    return (norm_rope_fwd_args){.rows = sizes->rows,
                                .heads = sizes->heads,
                                .head_dim = sizes->d,
                                .eps = EPS,
                                .x = in->x.dev,
                                .w = in->w.dev,
                                .cos = in->c.dev,
                                .sin = in->s.dev,
                                .y = out,
                                .rstd = rstd};
}

static void fwd_case(parity *test, const int64_t *shape)
{
    inputs in;
    heads sizes = draw_heads(test, shape, &in);
    tensor y = parity_tensor(test, in.x.n, 1),
           rstd = parity_tensor_acc(test, sizes.rows * sizes.heads, 1);
    double *wy = parity_zeros(test, y.n), *wrstd = parity_zeros(test, rstd.n);
    double *order = parity_zeros(test, y.n);
    for (int64_t i = 0; i < rstd.n; i++) {
        wrstd[i] = head_loop(&sizes, i, wy + i * sizes.d);
        head_order(test, &sizes, i, wrstd[i], order + i * sizes.d);
    }
    norm_rope_fwd_args args = make_forward(&sizes, &in, y.dev, rstd.dev);
    PARITY_RUN(test, op_norm_rope_fwd(test->queue, &args));
    parity_expect_order(test, "y", y, wy, order, 16);
    parity_expect(test, "rstd", rstd, wrstd, 16);
}

static void bwd_case(parity *test, const int64_t *shape)
{
    inputs in;
    heads sizes = draw_heads(test, shape, &in);
    tensor dy = parity_tensor(test, in.x.n, 1), dx = parity_tensor(test, in.x.n, 1);
    tensor dw = parity_tensor_acc(test, sizes.d, 1);
    double *rstd = parity_zeros(test, sizes.rows * sizes.heads), y[WIDEST];
    for (int64_t i = 0; i < sizes.rows * sizes.heads; i++)
        rstd[i] = head_loop(&sizes, i, y);
    tensor trstd = parity_upload_acc(test, rstd, sizes.rows * sizes.heads);
    sizes.up = parity_copy(test, dy.ref, dy.n);
    if (shape[3] & IN_PLACE)
        dx = dy;
    PARITY_RUN(test, op_norm_rope_bwd(test->queue, &(norm_rope_bwd_args){.rows = sizes.rows,
                                                                         .heads = sizes.heads,
                                                                         .head_dim = sizes.d,
                                                                         .x = in.x.dev,
                                                                         .w = in.w.dev,
                                                                         .cos = in.c.dev,
                                                                         .sin = in.s.dev,
                                                                         .rstd = trstd.dev,
                                                                         .dy = dy.dev,
                                                                         .dx = dx.dev,
                                                                         .dw = dw.dev}));
    parity_gradient(test, "dx", dx, NULL, in.x.ref, heads_loss, &sizes, 64);
    parity_gradient(test, "dw", dw, dw.ref, in.w.ref, heads_loss, &sizes, 64);
}

/* Where the type of activations holds the value between them exactly, the two separate ops give the
 * same bits. */
static void apart_case(parity *test, const int64_t *shape)
{
    inputs in;
    heads sizes = draw_heads(test, shape, &in);
    const int64_t n = sizes.rows * sizes.heads;
    tensor y = parity_tensor(test, in.x.n, 1), want = parity_tensor(test, in.x.n, 1);
    tensor rstd = parity_tensor_acc(test, n, 1);
    if (in.x.dtype != rstd.dtype)
        return;
    norm_rope_fwd_args args = make_forward(&sizes, &in, y.dev, rstd.dev);
    rope_apply_args turn = {.rows = sizes.rows,
                            .heads = sizes.heads,
                            .head_dim = sizes.d,
                            .x_stride = sizes.heads * sizes.d,
                            .cos = in.c.dev,
                            .sin = in.s.dev,
                            .x = want.dev};
    assert_ok(op_norm_rope_fwd(test->queue, &args));
    assert_ok(op_rmsnorm_fwd(
        test->queue, &(rmsnorm_fwd_args){n, sizes.d, EPS, in.x.dev, in.w.dev, want.dev, rstd.dev}));
    assert_ok(op_rope_apply(test->queue, &turn));
    assert_memory_equal(parity_fetch(test, y), parity_fetch(test, want),
                        (size_t)y.n * sizeof(double));

    tensor dx = parity_tensor(test, in.x.n, 1), dw = parity_upload_acc(test, sizes.w, sizes.d);
    tensor dwant = parity_upload(test, dx.ref, dx.n),
           dw_want = parity_upload_acc(test, sizes.w, sizes.d);
    assert_ok(op_norm_rope_bwd(
        test->queue, &(norm_rope_bwd_args){sizes.rows, sizes.heads, sizes.d, in.x.dev, in.w.dev,
                                           in.c.dev, in.s.dev, rstd.dev, dx.dev, dx.dev, dw.dev}));
    turn.x = dwant.dev;
    turn.inverse = true;
    assert_ok(op_rope_apply(test->queue, &turn));
    assert_ok(
        op_rmsnorm_bwd(test->queue, &(rmsnorm_bwd_args){n, sizes.d, in.x.dev, in.w.dev, rstd.dev,
                                                        dwant.dev, dwant.dev, dw_want.dev, false}));
    assert_memory_equal(parity_fetch(test, dx), parity_fetch(test, dwant),
                        (size_t)dx.n * sizeof(double));
    assert_memory_equal(parity_fetch(test, dw), parity_fetch(test, dw_want),
                        (size_t)dw.n * sizeof(double));
}

static void refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(test, 8, 1);
    norm_rope_fwd_args args = {.rows = 1,
                               .heads = 1,
                               .head_dim = 3,
                               .x = x.dev,
                               .w = x.dev,
                               .cos = x.dev,
                               .sin = x.dev,
                               .y = x.dev,
                               .rstd = x.dev};
    assert_fails(ST_BAD_INPUT, op_norm_rope_fwd(test->queue, &args), "head_dim is 3");
    args.head_dim = 4;
    args.rows = INT64_C(1) << 30;
    args.heads = 2;
    assert_fails(ST_BAD_INPUT, op_norm_rope_fwd(test->queue, &args), "more than 2^31 - 1 heads");
}

const parity_case parity_norm_rope[] = {
    {"norm_rope_fwd", "empty", fwd_case, {0, 2, 8}},
    {"norm_rope_fwd", "one", fwd_case, {1, 1, 2}},
    {"norm_rope_fwd", "ragged", fwd_case, {7, 3, 22}},
    {"norm_rope_fwd", "debug", fwd_case, {9, 5, 32}},
    {"norm_rope_fwd", "odd pieces", fwd_case, {3, 11, 48}},
    {"norm_rope_fwd", "text", fwd_case, {5, 32, 128}},
    {"norm_rope_fwd", "text keys", fwd_case, {33, 4, 128}},
    {"norm_rope_fwd", "real", fwd_case, {2048, 8, 32}},
    {"norm_rope_fwd", "hostile zeros", fwd_case, {3, 2, 16, ZEROS}},
    {"norm_rope_fwd", "hostile", refuses, {0}},
    {"norm_rope_fwd", "apart", apart_case, {19, 4, 128}},
    {"norm_rope_fwd", "apart ragged", apart_case, {19, 3, 22}},
    {"norm_rope_bwd", "empty", bwd_case, {0, 2, 8}},
    {"norm_rope_bwd", "one", bwd_case, {1, 1, 2}},
    {"norm_rope_bwd", "ragged", bwd_case, {7, 3, 22}},
    {"norm_rope_bwd", "ragged in place", bwd_case, {90, 3, 22, IN_PLACE}},
    {"norm_rope_bwd", "debug", bwd_case, {9, 5, 32}},
    {"norm_rope_bwd", "odd pieces", bwd_case, {7, 11, 48}},
    {"norm_rope_bwd", "text", bwd_case, {9, 32, 128, IN_PLACE}},
    {"norm_rope_bwd", "text keys", bwd_case, {67, 4, 128}},
    {"norm_rope_bwd", "real", bwd_case, {2048, 8, 32}},
    {NULL},
};
