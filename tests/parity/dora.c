/* SPDX-License-Identifier: Apache-2.0 */
/* dora.c: cases of adapted rows' lengths and of what is done with them. */
#include "tests/parity/parity.h"

static void norm_case(parity *test, const int64_t *shape)
{
    const int64_t out = shape[0], in = shape[1], rank = shape[2];
    tensor w = parity_tensor(test, out * in, 1), a = parity_tensor(test, rank * in, 1);
    tensor b = parity_tensor(test, out * rank, 1), norm = parity_tensor(test, out, 1);
    double *want = parity_zeros(test, out);
    for (int64_t j = 0; j < out; j++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = w.ref[j * in + i];
            for (int64_t k = 0; k < rank; k++)
                sum += 0.75 * b.ref[j * rank + k] * a.ref[k * in + i];
            want[j] += sum * sum;
        }
        want[j] = sqrt(want[j]);
    }
    PARITY_RUN(test, op_dora_norm(test->queue, &(dora_norm_args){.out = out,
                                                                 .in = in,
                                                                 .rank = rank,
                                                                 .scale = 0.75,
                                                                 .w = w.dev,
                                                                 .a = a.dev,
                                                                 .b = b.dev,
                                                                 .norm = norm.dev}));
    parity_expect(test, "norm", norm, want, 8 * sqrt((double)in) + 8);
}

/* Positive numbers away from 0, as lengths are. */
static tensor lengths(parity *test, int64_t n)
{
    double *values = parity_zeros(test, n);
    for (int64_t i = 0; i < n; i++)
        values[i] = parity_uniform(test, 0.5, 2);
    return parity_upload(test, values, n);
}

static void fwd_case(parity *test, const int64_t *shape)
{
    const int64_t rows = shape[0], n = shape[1], stride = n + shape[2];
    const bool residual = shape[3];
    tensor z = parity_tensor(test, rows * n, 1), m = lengths(test, n), norm = lengths(test, n);
    tensor from = parity_tensor(test, rows * n, 1), y = parity_tensor(test, rows * stride, 1);
    double *want = parity_copy(test, y.ref, rows * stride);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            want[i * stride + j] =
                m.ref[j] / norm.ref[j] * z.ref[i * n + j] + (residual ? from.ref[i * n + j] : 0);
    PARITY_RUN(test,
               op_dora_fwd(test->queue, &(dora_fwd_args){.rows = rows,
                                                         .n = n,
                                                         .y_stride = stride,
                                                         .z = z.dev,
                                                         .m = m.dev,
                                                         .norm = norm.dev,
                                                         .residual = residual ? from.dev : NULL,
                                                         .y = y.dev}));
    parity_expect(test, "y", y, want, 4);
}

static void bwd_case(parity *test, const int64_t *shape)
{
    const int64_t rows = shape[0], n = shape[1], stride = n + shape[2];
    tensor dy = parity_tensor(test, rows * stride, 1), z = parity_tensor(test, rows * n, 1);
    tensor m = lengths(test, n), norm = lengths(test, n), dm = parity_tensor_acc(test, n, 1);
    double *want = parity_zeros(test, rows * n), *sums = parity_copy(test, dm.ref, n);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            const double up = dy.ref[i * stride + j];
            want[i * n + j] = m.ref[j] / norm.ref[j] * up;
            sums[j] += up * z.ref[i * n + j] / norm.ref[j];
        }
    PARITY_RUN(test, op_dora_bwd(test->queue, &(dora_bwd_args){.rows = rows,
                                                               .n = n,
                                                               .dy_stride = stride,
                                                               .dy = dy.dev,
                                                               .z = z.dev,
                                                               .m = m.dev,
                                                               .norm = norm.dev,
                                                               .dz = z.dev,
                                                               .dm = dm.dev}));
    if (test->bench)
        return;
    parity_expect(test, "dz", z, want, 4);
    parity_expect(test, "dm", dm, sums, 8 * sqrt((double)rows) + 8);
}

const parity_case parity_dora[] = {
    {"dora_norm", "empty", norm_case, {0, 8, 2}},
    {"dora_norm", "one", norm_case, {1, 1, 1}},
    {"dora_norm", "ragged", norm_case, {37, 131, 3}},
    {"dora_norm", "real", norm_case, {512, 2048, 16}},
    {"dora_fwd", "empty", fwd_case, {0, 8, 0, 0}},
    {"dora_fwd", "one", fwd_case, {1, 1, 0, 1}},
    {"dora_fwd", "ragged", fwd_case, {5, 131, 7, 0}},
    {"dora_fwd", "vectors", fwd_case, {9, 128, 64, 1}},
    {"dora_fwd", "real", fwd_case, {512, 2048, 0, 1}},
    {"dora_bwd", "empty", bwd_case, {0, 8, 0}},
    {"dora_bwd", "one", bwd_case, {1, 1, 0}},
    {"dora_bwd", "ragged", bwd_case, {5, 131, 7}},
    {"dora_bwd", "parts", bwd_case, {600, 72, 8}},
    {"dora_bwd", "real", bwd_case, {2000, 288, 0}},
    {NULL},
};
