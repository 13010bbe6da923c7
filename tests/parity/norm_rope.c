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

/* Computes y [d] of head i, counted over all rows, and returns its rstd. */
static double head_loop(const heads *o, int64_t i, double *y)
{
    const int64_t d = o->d, half = d / 2;
    const double *x = o->x + i * d, *c = o->c + i / o->heads * half,
                 *s = o->s + i / o->heads * half;
    double square = 0;
    for (int64_t j = 0; j < d; j++)
        square += x[j] * x[j] / (double)d;
    const double r = 1 / sqrt(square + EPS);
    for (int64_t j = 0; j < half; j++) {
        double low = o->w[j] * x[j] * r, high = o->w[j + half] * x[j + half] * r;
        y[j] = low * c[j] - high * s[j];
        y[j + half] = high * c[j] + low * s[j];
    }
    return r;
}

/* The same as the published model rounds it: RMSNorm's two roundings, angles in bf16, and in a
 * rotation both products and their sum. */
static void head_order(const parity *p, const heads *o, int64_t i, double rstd, double *y)
{
    const int64_t half = o->d / 2;
    const double *x = o->x + i * o->d;
    for (int64_t j = 0; j < half; j++) {
        double c = parity_round(p, o->c[i / o->heads * half + j]);
        double s = parity_round(p, o->s[i / o->heads * half + j]);
        double low = parity_round(p, o->w[j] * parity_round(p, x[j] * rstd));
        double high = parity_round(p, o->w[j + half] * parity_round(p, x[j + half] * rstd));
        y[j] = parity_round(p, parity_round(p, low * c) - parity_round(p, high * s));
        y[j + half] = parity_round(p, parity_round(p, high * c) + parity_round(p, low * s));
    }
}

static double heads_loss(const void *of)
{
    const heads *o = of;
    double sum = 0, y[WIDEST];
    for (int64_t i = 0; i < o->rows * o->heads; i++) {
        head_loop(o, i, y);
        for (int64_t j = 0; j < o->d; j++)
            sum += y[j] * o->up[i * o->d + j];
    }
    return sum;
}

enum { IN_PLACE = 1, ZEROS = 2 };

typedef struct inputs {
    tensor x, w, c, s;
} inputs;

/* shape: rows, heads, head_dim, flags */
static heads draw_heads(parity *p, const int64_t *shape, inputs *t)
{
    const int64_t n = shape[0] * shape[1] * shape[2], angles = shape[0] * shape[2] / 2;
    t->x = parity_tensor(p, n, shape[3] & ZEROS ? 0 : 2);
    t->w = parity_tensor(p, shape[2], 1);
    t->c = parity_tensor_acc(p, angles, 1);
    t->s = parity_tensor_acc(p, angles, 1);
    return (heads){shape[0], shape[1], shape[2], t->x.ref, t->w.ref, t->c.ref, t->s.ref, NULL};
}

static norm_rope_fwd_args make_forward(const heads *o, const inputs *t, void *y, void *rstd)
{
    return (norm_rope_fwd_args){.rows = o->rows,
                                .heads = o->heads,
                                .head_dim = o->d,
                                .eps = EPS,
                                .x = t->x.dev,
                                .w = t->w.dev,
                                .cos = t->c.dev,
                                .sin = t->s.dev,
                                .y = y,
                                .rstd = rstd};
}

static void fwd_case(parity *p, const int64_t *shape)
{
    inputs t;
    heads o = draw_heads(p, shape, &t);
    tensor y = parity_tensor(p, t.x.n, 1), rstd = parity_tensor_acc(p, o.rows * o.heads, 1);
    double *wy = parity_zeros(p, y.n), *wrstd = parity_zeros(p, rstd.n);
    double *order = parity_zeros(p, y.n);
    for (int64_t i = 0; i < rstd.n; i++) {
        wrstd[i] = head_loop(&o, i, wy + i * o.d);
        head_order(p, &o, i, wrstd[i], order + i * o.d);
    }
    norm_rope_fwd_args a = make_forward(&o, &t, y.dev, rstd.dev);
    PARITY_RUN(p, op_norm_rope_fwd(p->s, &a));
    parity_expect_order(p, "y", y, wy, order, 16);
    parity_expect(p, "rstd", rstd, wrstd, 16);
}

static void bwd_case(parity *p, const int64_t *shape)
{
    inputs t;
    heads o = draw_heads(p, shape, &t);
    tensor dy = parity_tensor(p, t.x.n, 1), dx = parity_tensor(p, t.x.n, 1);
    tensor dw = parity_tensor_acc(p, o.d, 1);
    double *rstd = parity_zeros(p, o.rows * o.heads), y[WIDEST];
    for (int64_t i = 0; i < o.rows * o.heads; i++)
        rstd[i] = head_loop(&o, i, y);
    tensor trstd = parity_upload_acc(p, rstd, o.rows * o.heads);
    o.up = parity_copy(p, dy.ref, dy.n);
    if (shape[3] & IN_PLACE)
        dx = dy;
    PARITY_RUN(p, op_norm_rope_bwd(p->s, &(norm_rope_bwd_args){.rows = o.rows,
                                                               .heads = o.heads,
                                                               .head_dim = o.d,
                                                               .x = t.x.dev,
                                                               .w = t.w.dev,
                                                               .cos = t.c.dev,
                                                               .sin = t.s.dev,
                                                               .rstd = trstd.dev,
                                                               .dy = dy.dev,
                                                               .dx = dx.dev,
                                                               .dw = dw.dev}));
    parity_gradient(p, "dx", dx, NULL, t.x.ref, heads_loss, &o, 64);
    parity_gradient(p, "dw", dw, dw.ref, t.w.ref, heads_loss, &o, 64);
}

/* Where the type of activations holds the value between them exactly, the two separate ops give the
 * same bits. */
static void apart_case(parity *p, const int64_t *shape)
{
    inputs t;
    heads o = draw_heads(p, shape, &t);
    const int64_t n = o.rows * o.heads;
    tensor y = parity_tensor(p, t.x.n, 1), want = parity_tensor(p, t.x.n, 1);
    tensor rstd = parity_tensor_acc(p, n, 1);
    if (t.x.dtype != rstd.dtype)
        return;
    norm_rope_fwd_args a = make_forward(&o, &t, y.dev, rstd.dev);
    rope_apply_args turn = {.rows = o.rows,
                            .heads = o.heads,
                            .head_dim = o.d,
                            .x_stride = o.heads * o.d,
                            .cos = t.c.dev,
                            .sin = t.s.dev,
                            .x = want.dev};
    assert_ok(op_norm_rope_fwd(p->s, &a));
    assert_ok(op_rmsnorm_fwd(
        p->s, &(rmsnorm_fwd_args){n, o.d, EPS, t.x.dev, t.w.dev, want.dev, rstd.dev}));
    assert_ok(op_rope_apply(p->s, &turn));
    assert_memory_equal(parity_fetch(p, y), parity_fetch(p, want), (size_t)y.n * sizeof(double));

    tensor dx = parity_tensor(p, t.x.n, 1), dw = parity_upload_acc(p, o.w, o.d);
    tensor dwant = parity_upload(p, dx.ref, dx.n), dw_want = parity_upload_acc(p, o.w, o.d);
    assert_ok(op_norm_rope_bwd(p->s, &(norm_rope_bwd_args){o.rows, o.heads, o.d, t.x.dev, t.w.dev,
                                                           t.c.dev, t.s.dev, rstd.dev, dx.dev,
                                                           dx.dev, dw.dev}));
    turn.x = dwant.dev;
    turn.inverse = true;
    assert_ok(op_rope_apply(p->s, &turn));
    assert_ok(op_rmsnorm_bwd(p->s, &(rmsnorm_bwd_args){n, o.d, t.x.dev, t.w.dev, rstd.dev,
                                                       dwant.dev, dwant.dev, dw_want.dev, false}));
    assert_memory_equal(parity_fetch(p, dx), parity_fetch(p, dwant), (size_t)dx.n * sizeof(double));
    assert_memory_equal(parity_fetch(p, dw), parity_fetch(p, dw_want),
                        (size_t)dw.n * sizeof(double));
}

static void refuses(parity *p, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(p, 8, 1);
    norm_rope_fwd_args a = {.rows = 1,
                            .heads = 1,
                            .head_dim = 3,
                            .x = x.dev,
                            .w = x.dev,
                            .cos = x.dev,
                            .sin = x.dev,
                            .y = x.dev,
                            .rstd = x.dev};
    assert_fails(ST_BAD_INPUT, op_norm_rope_fwd(p->s, &a), "head_dim is 3");
    a.head_dim = 4;
    a.rows = INT64_C(1) << 30;
    a.heads = 2;
    assert_fails(ST_BAD_INPUT, op_norm_rope_fwd(p->s, &a), "more than 2^31 - 1 heads");
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
