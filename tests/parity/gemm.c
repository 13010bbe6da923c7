/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.c: cases of dense and grouped products, against triple loops.
 *
 * Tolerance: K products of numbers below 1, summed in the number type, are off by at most K eps of
 * the sum of magnitudes; random signs make that about sqrt(K). 8 sqrt(K) + 8 eps of the largest
 * result leaves room, and a wrong index never passes. */
#include "tests/parity/parity.h"

static double sum_tolerance(int64_t k)
{
    return 8 * sqrt((double)k) + 8;
}

enum { TRANS_A = 1, TRANS_B = 2, ACCUMULATE = 4, BIAS = 8, C_ACC = 16, PAD = 32, RESIDUAL = 64 };

/* shape: m, n, k, flags */
static void gemm_case(parity *test, const int64_t *shape)
{
    int64_t m = shape[0], n = shape[1], k = shape[2], flags = shape[3];
    bool ta = flags & TRANS_A, tb = flags & TRANS_B, acc = flags & ACCUMULATE;
    int64_t pad = flags & PAD ? 3 : 0;
    int64_t lda = (ta ? m : k) + pad, ldb = (tb ? k : n) + pad, ldc = n + pad;
    tensor a = parity_tensor(test, (ta ? k : m) * lda, 1),
           b = parity_tensor(test, (tb ? n : k) * ldb, 1);
    tensor c =
        flags & C_ACC ? parity_tensor_acc(test, m * ldc, 1) : parity_tensor(test, m * ldc, 1);
    tensor bias = parity_tensor(test, n, 1), residual = parity_tensor(test, m * ldc, 1);
    double alpha = flags & PAD ? 0.5 : 1, *want = parity_copy(test, c.ref, c.n);
    /* The product with its bias is rounded, and then the sum of it and the residual. Some
     * algorithms of cuBLASLt round the product and what it is added to, and then the sum with the
     * bias: on an H200 c[12] of "ragged b" was -2.6875 = round(round(alpha a b) + bias) where one
     * rounding gives -2.671875, and the errors of "ragged ab" had that order's root mean
     * square, 3.453e-3. */
    double *order = parity_copy(test, c.ref, c.n), *bias_last = parity_copy(test, c.ref, c.n);
    for (int64_t i = 0; i < m && parity_compares(test); i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t term = 0; term < k; term++)
                sum += a.ref[ta ? term * lda + i : i * lda + term] *
                       b.ref[tb ? j * ldb + term : term * ldb + j];
            double product = alpha * sum + (flags & BIAS ? bias.ref[j] : 0);
            double more =
                (acc ? c.ref[i * ldc + j] : 0) + (flags & RESIDUAL ? residual.ref[i * ldc + j] : 0);
            want[i * ldc + j] = product + more;
            order[i * ldc + j] = parity_round(test, product) + more;
            const double added = flags & BIAS ? bias.ref[j] : 0;
            bias_last[i * ldc + j] =
                parity_round(test, parity_round(test, alpha * sum + more) + added);
            if (!(flags & C_ACC))
                order[i * ldc + j] = parity_round(test, order[i * ldc + j]);
        }
    PARITY_RUN(test,
               op_gemm(test->queue, &(gemm_args){.m = m,
                                                 .n = n,
                                                 .k = k,
                                                 .trans_a = ta,
                                                 .trans_b = tb,
                                                 .accumulate = acc,
                                                 .c_acc = flags & C_ACC,
                                                 .alpha = alpha,
                                                 .a = a.dev,
                                                 .b = b.dev,
                                                 .bias = flags & BIAS ? bias.dev : NULL,
                                                 .residual = flags & RESIDUAL ? residual.dev : NULL,
                                                 .c = c.dev,
                                                 .lda = lda,
                                                 .ldb = ldb,
                                                 .ldc = ldc}));
    parity_expect_either(test, "c", c, want, order, flags & BIAS ? bias_last : NULL,
                         sum_tolerance(k));
}

static void gemm_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(test, 16, 1);
    gemm_args args = {.m = 4,
                      .n = 4,
                      .k = 4,
                      .alpha = 1,
                      .a = x.dev,
                      .b = x.dev,
                      .c = x.dev,
                      .lda = 3,
                      .ldb = 4,
                      .ldc = 4};
    assert_fails(ST_BAD_INPUT, op_gemm(test->queue, &args), "the row strides 3, 4, 4");
    args.lda = 4;
    args.k = INT64_C(1) << 31;
    assert_fails(ST_BAD_INPUT, op_gemm(test->queue, &args), "must fit 31 bits");
    args.k = 4;
    args.residual = args.c;
    assert_fails(ST_BAD_INPUT, op_gemm(test->queue, &args), "residual");
}

/* Draws the numbers of rows per expert: they are uneven, and some are 0. */
static int32_t *draw_offsets(parity *test, int64_t experts, int64_t rows)
{
    int32_t *offset = parity_zero_ints(test, experts + 1);
    for (int64_t i = 0; i < rows; i++) {
        int64_t expert = parity_below(test, experts);
        offset[(expert % 3 == 1 ? 0 : expert) + 1]++;
    }
    for (int64_t expert = 0; expert < experts; expert++)
        offset[expert + 1] += offset[expert];
    return offset;
}

/* shape: experts, k, n, rows, spare rows, mode */
static void grouped_case(parity *test, const int64_t *shape)
{
    int64_t experts = shape[0], k = shape[1], n = shape[2], rows = shape[3], cap = rows + shape[4];
    int mode = (int)shape[5];
    int32_t *offset = draw_offsets(test, experts, rows);
    tensor x = parity_tensor(test, cap * k, 1), y = parity_tensor(test, cap * n, 1);
    tensor w = parity_tensor(test, experts * k * n, 1);
    tensor dw = parity_tensor_acc(test, experts * k * n, 1);
    double *wx = parity_copy(test, x.ref, x.n), *wy = parity_copy(test, y.ref, y.n);
    double *wdw = parity_copy(test, dw.ref, dw.n), *order = parity_zeros(test, dw.n);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < k && mode == GROUPED_DGRAD; i++)
            wx[row * k + i] = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t j = 0; j < n && mode == GROUPED_FWD; j++)
            wy[row * n + j] = 0;
    for (int64_t expert = 0; expert < experts && parity_compares(test); expert++)
        for (int64_t row = offset[expert]; row < offset[expert + 1]; row++)
            for (int64_t i = 0; i < k; i++)
                for (int64_t j = 0; j < n; j++) {
                    int64_t at = (expert * k + i) * n + j;
                    if (mode == GROUPED_FWD)
                        wy[row * n + j] += x.ref[row * k + i] * w.ref[at];
                    else if (mode == GROUPED_DGRAD)
                        wx[row * k + i] += y.ref[row * n + j] * w.ref[at];
                    else
                        wdw[at] += x.ref[row * k + i] * y.ref[row * n + j];
                }
    PARITY_RUN(
        test, op_grouped_gemm(test->queue,
                              &(grouped_gemm_args){.mode = mode,
                                                   .experts = experts,
                                                   .k = k,
                                                   .n = n,
                                                   .rows_cap = cap,
                                                   .offset = parity_ints(test, offset, experts + 1),
                                                   .x = x.dev,
                                                   .w = mode == GROUPED_WGRAD ? NULL : w.dev,
                                                   .y = y.dev,
                                                   .dw = mode == GROUPED_WGRAD ? dw.dev : NULL}));
    double tolerance = sum_tolerance(mode == GROUPED_FWD ? k : mode == GROUPED_DGRAD ? n : rows);
    parity_expect(test, "x", x, wx, tolerance);
    parity_expect(test, "y", y, wy, tolerance);
    for (int64_t i = 0; i < dw.n; i++) /* a bf16 gradient, summed in float */
        order[i] = dw.ref[i] + parity_round(test, wdw[i] - dw.ref[i]);
    parity_expect_order(test, "dw", dw, wdw, order, tolerance);
}

/* Computes gated [rows, n / 2], once from the exact products (want) and once as the published model
 * does (order): gate and up rounded, SiLU rounded, and its product with up rounded. Both start as
 * what gated holds already. */
static void gated_loops(parity *test, const int64_t *shape, const int32_t *offset, const double *x,
                        const double *w, double *want, double *order)
{
    const int64_t k = shape[1], n = shape[2], half = n / 2;
    double *y = parity_zeros(test, n);
    for (int64_t expert = 0; expert < shape[0]; expert++)
        for (int64_t row = offset[expert]; row < offset[expert + 1]; row++) {
            memset(y, 0, (size_t)n * sizeof *y);
            for (int64_t i = 0; i < k; i++)
                for (int64_t j = 0; j < n; j++)
                    y[j] += x[row * k + i] * w[(expert * k + i) * n + j];
            for (int64_t j = 0; j < half; j++) {
                double g = parity_round(test, y[j]), u = parity_round(test, y[j + half]);
                want[row * half + j] = y[j] / (1 + exp(-y[j])) * y[j + half];
                order[row * half + j] =
                    parity_round(test, parity_round(test, g / (1 + exp(-g))) * u);
            }
        }
}

/* shape: experts, k, n, rows, spare rows, whether y is wanted. y must have the bits of the plain
 * product, and gated those that swiglu_fwd makes from that y. */
static void gated_case(parity *test, const int64_t *shape)
{
    int64_t experts = shape[0], k = shape[1], n = shape[2], rows = shape[3], cap = rows + shape[4];
    int32_t *borders = draw_offsets(test, experts, rows);
    int32_t *offset = parity_ints(test, borders, experts + 1);
    tensor x = parity_tensor(test, cap * k, 1), w = parity_tensor(test, experts * k * n, 1);
    tensor y = parity_tensor(test, cap * n, 1), gated = parity_tensor(test, cap * n / 2, 1);
    tensor wy = parity_upload(test, y.ref, y.n), wgated = parity_upload(test, gated.ref, gated.n);
    grouped_gemm_args args = {.mode = GROUPED_FWD,
                              .experts = experts,
                              .k = k,
                              .n = n,
                              .rows_cap = cap,
                              .offset = offset,
                              .x = x.dev,
                              .w = w.dev,
                              .y = wy.dev};
    assert_ok(op_grouped_gemm(test->queue, &args));
    assert_ok(op_swiglu_fwd(test->queue, &(swiglu_fwd_args){.rows = cap,
                                                            .width = n / 2,
                                                            .n_valid = offset + experts,
                                                            .x = wy.dev,
                                                            .y = wgated.dev}));
    args.y = y.dev;
    args.gated = gated.dev;
    args.y_dropped = !shape[5];
    PARITY_RUN(test, op_grouped_gemm(test->queue, &args));
    double *want = parity_copy(test, gated.ref, gated.n),
           *order = parity_copy(test, gated.ref, gated.n);
    gated_loops(test, shape, borders, x.ref, w.ref, want, order);
    parity_expect_order(test, "gated", gated, want, order, 4 * sum_tolerance(k));
    parity_expect(test, "gated", gated, parity_fetch(test, wgated), 0);
    if (shape[5])
        parity_expect(test, "y", y, parity_fetch(test, wy), 0);
}

static void gated_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    int32_t offset[] = {0, 1};
    tensor x = parity_tensor(test, 64, 1);
    grouped_gemm_args args = {.mode = GROUPED_FWD,
                              .experts = 1,
                              .k = 4,
                              .n = 3,
                              .rows_cap = 1,
                              .offset = parity_ints(test, offset, 2),
                              .x = x.dev,
                              .w = x.dev,
                              .y = x.dev,
                              .gated = x.dev};
    assert_fails(ST_BAD_INPUT, op_grouped_gemm(test->queue, &args), "even N");
    args.n = 4;
    args.mode = GROUPED_DGRAD;
    assert_fails(ST_BAD_INPUT, op_grouped_gemm(test->queue, &args), "must be the forward one");
}

/* Invalid offsets are refused where the host reads them. A device that reads them itself must stay
 * inside x and y, which builds with sanitizers watch. */
static void grouped_refuses(parity *test, const int64_t *shape)
{
    (void)shape;
    tensor x = parity_tensor(test, 16, 1);
    int32_t past[] = {0, 2, 5}, back[] = {0, 3, 2};
    grouped_gemm_args args = {.mode = GROUPED_FWD,
                              .experts = 2,
                              .k = 4,
                              .n = 4,
                              .rows_cap = 4,
                              .offset = past,
                              .x = x.dev,
                              .w = parity_tensor(test, 32, 1).dev,
                              .y = parity_tensor(test, 16, 1).dev};
    if (strcmp(test->queue->dev->backend->name, "cpu") != 0) {
        args.offset = parity_ints(test, past, 3);
        assert_ok(op_grouped_gemm(test->queue, &args));
        args.offset = parity_ints(test, back, 3);
        assert_ok(op_grouped_gemm(test->queue, &args));
        return;
    }
    assert_fails(ST_BAD_INPUT, op_grouped_gemm(test->queue, &args), "expert 1 has the rows [2, 5)");
    args.offset = back;
    assert_fails(ST_BAD_INPUT, op_grouped_gemm(test->queue, &args), "expert 1 has the rows [3, 2)");
}

const parity_case parity_gemm[] = {
    {"gemm", "empty m", gemm_case, {0, 5, 4, 0}},
    {"gemm", "empty n", gemm_case, {5, 0, 4, 0}},
    {"gemm", "empty k", gemm_case, {5, 7, 0, 0}},
    {"gemm", "empty k bias", gemm_case, {5, 7, 0, BIAS | PAD}},
    {"gemm", "empty k accumulate", gemm_case, {5, 7, 0, ACCUMULATE | C_ACC | PAD}},
    {"gemm", "empty k residual", gemm_case, {5, 7, 0, RESIDUAL | PAD}},
    {"gemm", "one", gemm_case, {1, 1, 1, BIAS | ACCUMULATE}},
    {"gemm", "ragged", gemm_case, {37, 29, 53, PAD}},
    {"gemm", "ragged a", gemm_case, {37, 29, 53, TRANS_A | PAD}},
    {"gemm", "ragged b", gemm_case, {37, 29, 53, TRANS_B | BIAS | PAD}},
    {"gemm", "ragged ab", gemm_case, {37, 29, 53, TRANS_A | TRANS_B | BIAS | ACCUMULATE | PAD}},
    {"gemm", "ragged residual", gemm_case, {37, 29, 53, TRANS_B | BIAS | RESIDUAL | PAD}},
    {"gemm", "ragged cut residual", gemm_case, {331, 257, 99, TRANS_B | RESIDUAL | PAD}},
    {"gemm", "ragged cut", gemm_case, {331, 257, 99, TRANS_B | BIAS | PAD}},
    {"gemm", "real q", gemm_case, {2048, 256, 128, TRANS_B}},
    {"gemm", "real qkv", gemm_case, {2000, 288, 96, TRANS_B | BIAS}},
    {"gemm", "real patch", gemm_case, {1000, 96, 1536, TRANS_B | BIAS}},
    {"gemm", "real dw", gemm_case, {96, 288, 2000, TRANS_A | ACCUMULATE | C_ACC}},
    {"gemm", "real dw patch", gemm_case, {96, 1536, 1000, TRANS_A | ACCUMULATE | C_ACC}},
    {"gemm", "real head", gemm_case, {128, 2048, 128, TRANS_B}},
    {"gemm", "real router", gemm_case, {2048, 16, 128, TRANS_B}},
    {"gemm", "hostile", gemm_refuses, {0}},
    {"grouped_gemm", "empty", grouped_case, {4, 5, 6, 0, 3, GROUPED_FWD}},
    {"grouped_gemm", "empty dgrad", grouped_case, {4, 5, 6, 0, 3, GROUPED_DGRAD}},
    {"grouped_gemm", "empty wgrad", grouped_case, {4, 5, 6, 0, 3, GROUPED_WGRAD}},
    {"grouped_gemm", "one", grouped_case, {1, 1, 1, 1, 0, GROUPED_FWD}},
    {"grouped_gemm", "ragged fwd", grouped_case, {7, 13, 11, 50, 9, GROUPED_FWD}},
    {"grouped_gemm", "ragged dgrad", grouped_case, {7, 13, 11, 50, 9, GROUPED_DGRAD}},
    {"grouped_gemm", "ragged wgrad", grouped_case, {7, 13, 11, 50, 9, GROUPED_WGRAD}},
    {"grouped_gemm", "ragged tiles fwd", grouped_case, {3, 72, 136, 300, 5, GROUPED_FWD}},
    {"grouped_gemm", "ragged tiles dgrad", grouped_case, {3, 136, 72, 300, 5, GROUPED_DGRAD}},
    {"grouped_gemm", "ragged tiles wgrad", grouped_case, {3, 136, 136, 300, 5, GROUPED_WGRAD}},
    {"grouped_gemm", "real fwd", grouped_case, {8, 128, 96, 2048, 100, GROUPED_FWD}},
    {"grouped_gemm", "real dgrad", grouped_case, {8, 128, 96, 2048, 100, GROUPED_DGRAD}},
    {"grouped_gemm", "real wgrad", grouped_case, {8, 128, 96, 2048, 100, GROUPED_WGRAD}},
    {"grouped_gemm", "gated", gated_case, {7, 16, 48, 50, 9, 1}},
    {"grouped_gemm", "gated alone", gated_case, {7, 16, 48, 50, 9, 0}},
    {"grouped_gemm", "gated ragged", gated_case, {5, 13, 22, 300, 3, 1}},
    {"grouped_gemm", "gated tiles", gated_case, {3, 72, 272, 300, 5, 1}},
    {"grouped_gemm", "gated no rows", gated_case, {3, 8, 16, 0, 5, 1}},
    {"grouped_gemm", "hostile", grouped_refuses, {0}},
    {"grouped_gemm", "hostile gated", gated_refuses, {0}},
    {NULL},
};
