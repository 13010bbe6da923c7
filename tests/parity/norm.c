/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c: cases of RMSNorm and LayerNorm. Tolerance: the forward pass is a mean of n squares, a
 * root and three products, 16 eps; the backward pass also has sums over rows, 64 eps. */
#include "tests/parity/parity.h"

typedef struct norm {
    int64_t rows, n;
    double eps;
    bool layer;
    /* up: the gradient from the layers above, which makes the loss a scalar. */
    double *x, *w, *b, *up;
} norm;

/* y [rows, n], mean and rstd [rows] (NULL: not wanted) */
static void norm_loop(const norm *work, double *y, double *mean, double *rstd)
{
    for (int64_t i = 0; i < work->rows; i++) {
        const double *x = work->x + i * work->n;
        double mu = 0, square = 0;
        for (int64_t j = 0; j < work->n && work->layer; j++)
            mu += x[j] / (double)work->n;
        for (int64_t j = 0; j < work->n; j++)
            square += (x[j] - mu) * (x[j] - mu) / (double)work->n;
        double r = 1 / sqrt(square + work->eps);
        for (int64_t j = 0; j < work->n; j++)
            y[i * work->n + j] = work->w[j] * (x[j] - mu) * r + (work->layer ? work->b[j] : 0);
        if (rstd)
            rstd[i] = r;
        if (mean)
            mean[i] = mu;
    }
}

/* RMSNorm as the published model rounds it: once after the normalisation, and again after the
 * weight. */
static void rms_order(const parity *test, const norm *work, const double *rstd, double *y)
{
    for (int64_t i = 0; i < work->rows * work->n; i++)
        y[i] = parity_round(test, work->w[i % work->n] *
                                      parity_round(test, work->x[i] * rstd[i / work->n]));
}

/* An example in which the two roundings of the published model and our single one differ. */
static void order_golden(parity *test, const int64_t *shape)
{
    (void)shape;
    static const double twice[] = {0.5859375, -0.953125, 0.265625, 0.4765625};
    static const double once[] = {0.58203125, -0.953125, 0.265625, 0.478515625};
    double xs[] = {1, -2, 0.5, 3}, ws[] = {1.1, 0.9, 1, 0.3}, y[4], rstd;
    tensor x = parity_upload(test, xs, 4), w = parity_upload(test, ws, 4),
           out = parity_tensor(test, 4, 1);
    if (x.dtype != DT_BF16)
        return;
    norm work = {1, 4, 1e-6, false, x.ref, w.ref, NULL, NULL};
    norm_loop(&work, y, NULL, &rstd);
    rms_order(test, &work, &rstd, y);
    assert_memory_equal(y, twice, sizeof twice);
    PARITY_RUN(
        test, op_rmsnorm_fwd(test->queue, &(rmsnorm_fwd_args){1, 4, work.eps, x.dev, w.dev, out.dev,
                                                              parity_tensor_acc(test, 1, 1).dev}));
    assert_memory_equal(parity_fetch(test, out), once, sizeof once);
}

enum { WIDEST = 5144 };

static double norm_loss(const void *of)
{
    const norm *work = of;
    double sum = 0, y[WIDEST];
    for (int64_t i = 0; i < work->rows; i++) {
        norm row = *work;
        row.rows = 1;
        row.x = work->x + i * work->n;
        norm_loop(&row, y, NULL, NULL);
        for (int64_t j = 0; j < work->n; j++)
            sum += y[j] * work->up[i * work->n + j];
    }
    return sum;
}

enum { LAYER = 1, ACCUMULATE = 2, IN_PLACE = 4, ZEROS = 8, HUGE_ROWS = 16 };

static norm draw_norm(parity *test, const int64_t *shape, tensor *x, tensor *w, tensor *b)
{
    int64_t rows = shape[0], n = shape[1];
    double scale = shape[2] & ZEROS ? 0 : shape[2] & HUGE_ROWS ? 1e15 : 2;
    *x = parity_tensor(test, rows * n, scale);
    *w = parity_tensor(test, n, 1);
    *b = parity_tensor(test, n, 1);
    return (norm){rows, n, 1e-6, shape[2] & LAYER, x->ref, w->ref, b->ref, NULL};
}

/* shape: rows, n, flags */
static void fwd_case(parity *test, const int64_t *shape)
{
    tensor x, w, b;
    norm work = draw_norm(test, shape, &x, &w, &b);
    tensor y = parity_tensor(test, work.rows * work.n, 1),
           mean = parity_tensor_acc(test, work.rows, 1);
    tensor rstd = parity_tensor_acc(test, work.rows, 1);
    double *wy = parity_zeros(test, y.n), *wmean = parity_zeros(test, work.rows);
    double *wrstd = parity_zeros(test, work.rows);
    norm_loop(&work, wy, wmean, wrstd);
    if (shape[2] & IN_PLACE)
        y.dev = x.dev;
    if (work.layer) {
        PARITY_RUN(test,
                   op_layernorm_fwd(test->queue,
                                    &(layernorm_fwd_args){work.rows, work.n, work.eps, x.dev, w.dev,
                                                          b.dev, y.dev, mean.dev, rstd.dev}));
        /* The mean is of n numbers up to 2, and is itself near 0. */
        parity_expect(test, "mean", mean, wmean, 64);
    } else {
        PARITY_RUN(test,
                   op_rmsnorm_fwd(test->queue, &(rmsnorm_fwd_args){work.rows, work.n, work.eps,
                                                                   x.dev, w.dev, y.dev, rstd.dev}));
    }
    double *order = parity_zeros(test, y.n);
    rms_order(test, &work, wrstd, order);
    parity_expect_order(test, "y", y, wy, work.layer ? NULL : order, 16);
    parity_expect(test, "rstd", rstd, wrstd, 16);
}

static void bwd_case(parity *test, const int64_t *shape)
{
    tensor x, w, b;
    norm work = draw_norm(test, shape, &x, &w, &b);
    bool acc = shape[2] & ACCUMULATE;
    tensor dy = parity_tensor(test, work.rows * work.n, 1),
           dx = parity_tensor(test, work.rows * work.n, 1);
    tensor dw = parity_tensor_acc(test, work.n, 1), db = parity_tensor_acc(test, work.n, 1);
    double *y = parity_zeros(test, x.n), *mean = parity_zeros(test, work.rows);
    double *rstd = parity_zeros(test, work.rows);
    norm_loop(&work, y, mean, rstd);
    tensor tmean = parity_upload_acc(test, mean, work.rows),
           trstd = parity_upload_acc(test, rstd, work.rows);
    work.up = parity_copy(test, dy.ref, dy.n);
    if (shape[2] & IN_PLACE)
        dx = dy;
    if (work.layer)
        PARITY_RUN(test, op_layernorm_bwd(test->queue,
                                          &(layernorm_bwd_args){work.rows, work.n, x.dev, w.dev,
                                                                tmean.dev, trstd.dev, dy.dev,
                                                                dx.dev, dw.dev, db.dev, acc}));
    else
        PARITY_RUN(test, op_rmsnorm_bwd(test->queue, &(rmsnorm_bwd_args){work.rows, work.n, x.dev,
                                                                         w.dev, trstd.dev, dy.dev,
                                                                         dx.dev, dw.dev, acc}));
    parity_gradient(test, "dx", dx, acc ? dx.ref : NULL, x.ref, norm_loss, &work, 64);
    parity_gradient(test, "dw", dw, dw.ref, w.ref, norm_loss, &work, 64);
    if (work.layer)
        parity_gradient(test, "db", db, db.ref, b.ref, norm_loss, &work, 64);
}

const parity_case parity_norm[] = {
    {"rmsnorm_fwd", "empty", fwd_case, {0, 8, 0}},
    {"rmsnorm_fwd", "one", fwd_case, {1, 1, 0}},
    {"rmsnorm_fwd", "ragged", fwd_case, {7, 13, IN_PLACE}},
    {"rmsnorm_fwd", "real hidden", fwd_case, {2048, 128, 0}},
    {"rmsnorm_fwd", "real heads", fwd_case, {16384, 32, 0}},
    {"rmsnorm_fwd", "hostile zeros", fwd_case, {3, 9, ZEROS}},
    {"rmsnorm_fwd", "hostile huge", fwd_case, {3, 9, HUGE_ROWS}},
    {"rmsnorm_fwd", "head", fwd_case, {37, 128, 0}},
    {"rmsnorm_fwd", "hidden", fwd_case, {9, 2048, IN_PLACE}},
    {"rmsnorm_fwd", "widest", fwd_case, {2, WIDEST, 0}},
    {"rmsnorm_fwd", "golden roundings", order_golden, {0}},
    {"rmsnorm_bwd", "empty", bwd_case, {0, 8, 0}},
    {"rmsnorm_bwd", "one", bwd_case, {1, 2, 0}},
    {"rmsnorm_bwd", "ragged", bwd_case, {7, 13, IN_PLACE}},
    {"rmsnorm_bwd", "ragged add", bwd_case, {133, 5, ACCUMULATE}},
    {"rmsnorm_bwd", "real hidden", bwd_case, {2048, 128, 0}},
    {"rmsnorm_bwd", "real heads", bwd_case, {16384, 32, IN_PLACE}},
    {"rmsnorm_bwd", "head", bwd_case, {117, 128, ACCUMULATE}},
    {"rmsnorm_bwd", "hidden", bwd_case, {19, 2048, ACCUMULATE}},
    {"rmsnorm_bwd", "parts", bwd_case, {400, 200, 0}},
    {"rmsnorm_bwd", "widest", bwd_case, {2, WIDEST, 0}},
    {"layernorm_fwd", "empty", fwd_case, {0, 8, LAYER}},
    {"layernorm_fwd", "one", fwd_case, {1, 2, LAYER}},
    {"layernorm_fwd", "ragged", fwd_case, {7, 13, LAYER | IN_PLACE}},
    {"layernorm_fwd", "real", fwd_case, {2000, 96, LAYER}},
    {"layernorm_fwd", "real merged", fwd_case, {500, 384, LAYER}},
    {"layernorm_fwd", "hostile zeros", fwd_case, {3, 9, LAYER | ZEROS}},
    {"layernorm_fwd", "patch", fwd_case, {11, 1152, LAYER}},
    {"layernorm_fwd", "merged", fwd_case, {3, 4608, LAYER | IN_PLACE}},
    {"layernorm_bwd", "empty", bwd_case, {0, 8, LAYER}},
    {"layernorm_bwd", "one", bwd_case, {1, 3, LAYER}},
    {"layernorm_bwd", "ragged", bwd_case, {7, 13, LAYER | IN_PLACE}},
    {"layernorm_bwd", "ragged add", bwd_case, {133, 5, LAYER | ACCUMULATE}},
    {"layernorm_bwd", "real", bwd_case, {2000, 96, LAYER}},
    {"layernorm_bwd", "real merged", bwd_case, {500, 384, LAYER}},
    {"layernorm_bwd", "patch", bwd_case, {19, 1152, LAYER | ACCUMULATE}},
    {"layernorm_bwd", "merged", bwd_case, {9, 4608, LAYER | IN_PLACE}},
    {NULL},
};
