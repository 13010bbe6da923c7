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

/* C[r, 0..n) = alpha * sum_{i < k} A(r, i) B[i, 0..n) (+ C if add), r < ROWS;
 * A(r, i) = a[r * a_row + i * a_k], n a multiple of LANES. */
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
        for (int r = 0; r < ROWS; r++) {
            lanes *out = (lanes *)(c + r * c_stride + j);
            *out = add ? *out + alpha * sums[r] : alpha * sums[r];
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

/* Computes the rows [r, r + rows) and columns [0, n) of C, summed over [k0, k1). rows is ROWS or 1.
 */
static inline void some_rows(const product *p, int64_t r, int64_t rows, int64_t n, int64_t k0,
                             int64_t k1)
{
    const real *a = p->a + r * p->a_row + k0 * p->a_k, *b = p->b + k0 * p->b_stride;
    real *c = p->c + r * p->c_stride;
    if (rows == ROWS)
        block_rows(a, p->a_row, p->a_k, k1 - k0, b, p->b_stride, n, p->alpha, p->add, c,
                   p->c_stride);
    else
        single_row(a, p->a_k, k1 - k0, b, p->b_stride, n, p->alpha, p->add, c);
}

static int64_t rows_at(int64_t r, int64_t n)
{
    return n - r >= ROWS ? ROWS : 1;
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
static void compute_scores(const head_view *w, const real *x, int64_t stride,
                           const real *y_transposed, real alpha, real *s)
{
    product p = {x, stride, 1, y_transposed, SHORT_KEYS, s, SHORT_KEYS, alpha, false};
    for (int64_t r = 0, rows; r < w->n; r += rows) {
        rows = rows_at(r, w->n);
        some_rows(&p, r, rows, whole_lanes(head_keys(w, r + rows - 1)), 0, w->d);
    }
}

/* out [n, d] = alpha s x over the keys that each query sees. s is 0 where a block of rows reads
 * further than one of its rows sees. */
static void mix_rows(const head_view *w, const real *s, const real *x, int64_t stride, real alpha,
                     real *out, int64_t out_stride)
{
    product p = {s, SHORT_KEYS, 1, x, stride, out, out_stride, alpha, false};
    for (int64_t r = 0, rows; r < w->n; r += rows) {
        rows = rows_at(r, w->n);
        some_rows(&p, r, rows, w->d, 0, head_keys(w, r + rows - 1));
    }
}

/* out [n keys, d] += alpha s^T x over the queries that see each key. */
static void mix_back(const head_view *w, const real *s, const real *x, int64_t stride, real alpha,
                     real *out, int64_t out_stride)
{
    product p = {s, 1, SHORT_KEYS, x, stride, out, out_stride, alpha, true};
    for (int64_t r = 0, rows; r < w->n; r += rows) {
        rows = rows_at(r, w->n);
        some_rows(&p, r, rows, w->d, w->causal ? r : 0, w->n);
    }
}

/* Clears the scores that a row does not see but that its block of rows may read. */
static void blank(const head_view *w, real *row, int64_t seen)
{
    memset(row + seen, 0, (size_t)(w->n - seen) * sizeof *row);
}

void SHORT_HEAD_FWD(const head_view *w, real *o, real *lse, real *scratch)
{
    real *k_t = scratch, *s = scratch + SHORT_DIM * SHORT_KEYS;
    transpose(k_t, w->k, w->k_stride, w->n, w->d);
    compute_scores(w, w->q, w->q_stride, k_t, w->scale, s);
    for (int64_t i = 0; i < w->n; i++) {
        real *row = s + i * SHORT_KEYS;
        int64_t seen = head_keys(w, i);
        lse[i * w->lse_stride] = HEAD_SOFTMAX_ROW(row, seen);
        blank(w, row, seen);
    }
    mix_rows(w, s, w->v, w->v_stride, 1, o, w->o_stride);
}

void SHORT_HEAD_BWD(const head_view *w, const head_grads *g, real *scratch)
{
    real *k_t = scratch, *v_t = k_t + SHORT_DIM * SHORT_KEYS;
    real *prob = v_t + SHORT_DIM * SHORT_KEYS, *ds = prob + SHORT_KEYS * SHORT_KEYS;
    HEAD_DOTS(w, g);
    transpose(k_t, w->k, w->k_stride, w->n, w->d);
    transpose(v_t, w->v, w->v_stride, w->n, w->d);
    compute_scores(w, w->q, w->q_stride, k_t, w->scale, prob);
    compute_scores(w, g->do_, w->o_stride, v_t, 1, ds);
    for (int64_t i = 0; i < w->n; i++) {
        real *p = prob + i * SHORT_KEYS, *x = ds + i * SHORT_KEYS;
        const real dot = g->dot[i * w->lse_stride];
        int64_t seen = head_keys(w, i);
        HEAD_PROBABILITY(p, g->lse[i * w->lse_stride], seen);
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] = p[j] * (x[j] - dot);
        blank(w, p, seen);
        blank(w, x, seen);
    }
    mix_back(w, prob, g->do_, w->o_stride, 1, g->dv, w->v_stride);
    mix_rows(w, ds, w->k, w->k_stride, w->scale, g->dq, w->q_stride);
    mix_back(w, ds, w->q, w->q_stride, w->scale, g->dk, w->k_stride);
}
