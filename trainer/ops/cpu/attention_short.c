/* SPDX-License-Identifier: Apache-2.0 */
/* attention_short.c: attention in a segment of at most SHORT_KEYS tokens.
 *
 * OpenBLAS spends most of so small a product on its way in and out (a document of 25 tokens with
 * heads of width 32 has 20,000 multiply-adds). All six products of forward and backward come down
 * to one kernel here: ROWS rows of C, LANES columns at a time, summed over k in registers. B is
 * read along its rows; where its transpose is meant, k and v are transposed once and padded with
 * zeros to whole vectors. A causal row stops at its last key, rounded up to the block. */
#include <string.h>

#include "trainer/ops/cpu/attention_head.h"

typedef real lanes __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real))));

enum { ROWS = 4 }; /* 4 sums of 8 floats, a row of B and a broadcast fit in 16 AVX registers */

/* C[line, 0..n) = alpha * sum_{i < k} A(line, i) B[i, 0..n) (+ C if add), line < ROWS;
 * A(line, i) = a[line * a_row + i * a_k], n a multiple of LANES. */
static inline void block_rows(const real *a, int64_t a_row, int64_t a_k, int64_t k, const real *b,
                              int64_t b_stride, int64_t n, real alpha, bool add, real *c,
                              int64_t c_stride)
{
    for (int64_t j = 0; j < n; j += LANES) {
        lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
        for (int64_t i = 0; i < k; i++) {
            const real *x = a + i * a_k;
            lanes y = *(const lanes *)(b + i * b_stride + j);
            s0 += x[0] * y;
            s1 += x[a_row] * y;
            s2 += x[2 * a_row] * y;
            s3 += x[3 * a_row] * y;
        }
        lanes sums[ROWS] = {s0, s1, s2, s3};
        for (int line = 0; line < ROWS; line++) {
            lanes *out = (lanes *)(c + line * c_stride + j);
            *out = add ? *out + alpha * sums[line] : alpha * sums[line];
        }
    }
}

/* The same for a single row, where fewer than ROWS are left. */
static inline void single_row(const real *a, int64_t a_k, int64_t k, const real *b,
                              int64_t b_stride, int64_t n, real alpha, bool add, real *c)
{
    for (int64_t j = 0; j < n; j += LANES) {
        lanes sum = {0}, *out = (lanes *)(c + j);
        for (int64_t i = 0; i < k; i++)
            sum += a[i * a_k] * *(const lanes *)(b + i * b_stride + j);
        *out = add ? *out + alpha * sum : alpha * sum;
    }
}

/* The operands of a product C = alpha A B; the callers below walk over the rows of A and C. */
typedef struct product {
    const real *a;
    int64_t a_row, a_k;
    const real *b;
    int64_t b_stride;
    real *c;
    int64_t c_stride;
    real alpha;
    bool add;
} product;

/* Computes the rows [line, line + rows) and columns [0, n) of C, summed over [k0, k1). rows is ROWS
 * or 1.
 */
static inline void some_rows(const product *work, int64_t line, int64_t rows, int64_t n, int64_t k0,
                             int64_t k1)
{
    const real *a = work->a + line * work->a_row + k0 * work->a_k,
               *b = work->b + k0 * work->b_stride;
    real *c = work->c + line * work->c_stride;
    if (rows == ROWS)
        block_rows(a, work->a_row, work->a_k, k1 - k0, b, work->b_stride, n, work->alpha, work->add,
                   c, work->c_stride);
    else
        single_row(a, work->a_k, k1 - k0, b, work->b_stride, n, work->alpha, work->add, c);
}

static int64_t rows_at(int64_t line, int64_t n)
{
    return n - line >= ROWS ? ROWS : 1;
}

static int64_t whole_lanes(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* out [d, SHORT_KEYS] = x [n, d] transposed, zeros up to whole lanes. */
static void transpose(real *out, const real *x, int64_t stride, int64_t n, int64_t d)
{
    int64_t wide = whole_lanes(n);
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j < n; j++)
            out[i * SHORT_KEYS + j] = x[j * stride + i];
        for (int64_t j = n; j < wide; j++)
            out[i * SHORT_KEYS + j] = 0;
    }
}

/* s [n, SHORT_KEYS] = alpha x y^T, y given transposed, up to the last key each row block sees. */
static void compute_scores(const head_view *view, const real *x, int64_t stride,
                           const real *y_transposed, real alpha, real *s)
{
    product work = {x, stride, 1, y_transposed, SHORT_KEYS, s, SHORT_KEYS, alpha, false};
    for (int64_t i = 0, rows; i < view->n; i += rows) {
        rows = rows_at(i, view->n);
        some_rows(&work, i, rows, whole_lanes(head_keys(view, i + rows - 1)), 0, view->d);
    }
}

/* out [n, d] = alpha s x over the keys that each query sees. s is 0 where a block of rows reads
 * further than one of its rows sees. */
static void mix_rows(const head_view *view, const real *s, const real *x, int64_t stride,
                     real alpha, real *out, int64_t out_stride)
{
    product work = {s, SHORT_KEYS, 1, x, stride, out, out_stride, alpha, false};
    for (int64_t i = 0, rows; i < view->n; i += rows) {
        rows = rows_at(i, view->n);
        some_rows(&work, i, rows, view->d, 0, head_keys(view, i + rows - 1));
    }
}

/* out [n keys, d] += alpha s^T x over the queries that see each key. */
static void mix_back(const head_view *view, const real *s, const real *x, int64_t stride,
                     real alpha, real *out, int64_t out_stride)
{
    product work = {s, 1, SHORT_KEYS, x, stride, out, out_stride, alpha, true};
    for (int64_t i = 0, rows; i < view->n; i += rows) {
        rows = rows_at(i, view->n);
        some_rows(&work, i, rows, view->d, view->causal ? i : 0, view->n);
    }
}

/* Clears the scores that a row does not see but that its block of rows may read. */
static void blank(const head_view *view, real *row, int64_t seen)
{
    memset(row + seen, 0, (size_t)(view->n - seen) * sizeof *row);
}

void SHORT_HEAD_FWD(const head_view *view, real *o, real *lse, real *scratch)
{
    real *k_t = scratch, *s = scratch + SHORT_DIM * SHORT_KEYS;
    transpose(k_t, view->k, view->k_stride, view->n, view->d);
    compute_scores(view, view->q, view->q_stride, k_t, view->scale, s);
    for (int64_t i = 0; i < view->n; i++) {
        real *row = s + i * SHORT_KEYS;
        int64_t seen = head_keys(view, i);
        lse[i * view->lse_stride] = HEAD_SOFTMAX_ROW(row, seen);
        blank(view, row, seen);
    }
    mix_rows(view, s, view->v, view->v_stride, 1, o, view->o_stride);
}

void SHORT_HEAD_BWD(const head_view *view, const head_grads *grads, real *scratch)
{
    real *k_t = scratch, *v_t = k_t + SHORT_DIM * SHORT_KEYS;
    real *prob = v_t + SHORT_DIM * SHORT_KEYS, *ds = prob + SHORT_KEYS * SHORT_KEYS;
    HEAD_DOTS(view, grads);
    transpose(k_t, view->k, view->k_stride, view->n, view->d);
    transpose(v_t, view->v, view->v_stride, view->n, view->d);
    compute_scores(view, view->q, view->q_stride, k_t, view->scale, prob);
    compute_scores(view, grads->do_, view->o_stride, v_t, 1, ds);
    for (int64_t i = 0; i < view->n; i++) {
        real *p = prob + i * SHORT_KEYS, *x = ds + i * SHORT_KEYS;
        const real dot = grads->dot[i * view->lse_stride];
        int64_t seen = head_keys(view, i);
        HEAD_PROBABILITY(p, grads->lse[i * view->lse_stride], seen);
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] = p[j] * (x[j] - dot);
        blank(view, p, seen);
        blank(view, x, seen);
    }
    mix_back(view, prob, grads->do_, view->o_stride, 1, grads->dv, view->v_stride);
    mix_rows(view, ds, view->k, view->k_stride, view->scale, grads->dq, view->q_stride);
    mix_back(view, ds, view->q, view->q_stride, view->scale, grads->dk, view->k_stride);
}
