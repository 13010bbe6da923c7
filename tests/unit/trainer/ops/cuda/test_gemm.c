/* SPDX-License-Identifier: Apache-2.0 */
/* test_gemm.c: what gemm.c asks of cuBLASLt, computed on the host by cublas_host.h: every form of
 * the contract gives the right product, one plan is made per shape, nothing is leaked, and bad
 * sizes are refused. Letters: a, w the factors of a product; c the product; m, n, k its rows,
 * columns and summed axis; x memory that no product reads. */
#include "tests/harness.h"

#include <stdlib.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/ops/cuda/cublas_host.h"
#include "trainer/device/cuda_device.h"
#include "trainer/model/dims/convert.h"
#include "trainer/ops/table.h"

status cuda_gemm(stream *queue, const gemm_args *args);

/* The device is plain memory. */
static char scratch[1 << 16];
static size_t scratch_asked;

status cuda_scratch(stream *queue, size_t bytes, void **out)
{
    (void)queue;
    assert_true(bytes <= sizeof scratch);
    scratch_asked = bytes;
    *out = scratch;
    return ST_OK;
}

static status host_copy(stream *queue, void *dst, const void *src, size_t bytes)
{
    (void)queue;
    memcpy(dst, src, bytes);
    return ST_OK;
}

static status host_zero(stream *queue, void *dst, size_t bytes)
{
    (void)queue;
    memset(dst, 0, bytes);
    return ST_OK;
}

static const backend_vtable backend = {
    .name = "host", .act = DT_BF16, .acc = DT_F32, .copy = host_copy, .zero = host_zero};

typedef struct bench {
    cuda_device cuda;
    stream queue;
} bench;

static void open_bench(bench *setup)
{
    *setup = (bench){.cuda.base.backend = &backend};
    setup->queue = (stream){.dev = &setup->cuda.base};
    cublas_host = (struct cublas_host){0};
}

static void close_bench(bench *setup)
{
    if (setup->cuda.kept[KEPT_GEMM].data)
        setup->cuda.kept[KEPT_GEMM].done(setup->cuda.kept[KEPT_GEMM].data);
    assert_int_equal(cublas_host.alive, 0);
}

enum { SIDE = 8, PAD = 3, CELLS = (SIDE + PAD) * (SIDE + PAD) };

typedef struct form {
    bool trans_a, trans_b, accumulate, c_acc, bias, residual;
    int64_t m, n, k, pad;
} form;

static double draw_value(rng_key key, int64_t index)
{
    return (double)(int64_t)(rng_u64(key, (uint64_t)index) % 17) / 8 - 1; /* exact in bf16 */
}

/* Checks one product of numbers so small that they are exact in every type; the result must be
 * equal bit for bit. */
static void check_form(bench *setup, const form *how)
{
    double a[CELLS], w[CELLS], c[CELLS], added[CELLS], bias[SIDE], got[CELLS];
    uint16_t a16[CELLS], w16[CELLS], bias16[SIDE], c16[CELLS], added16[CELLS];
    float c32[CELLS];
    rng_key key = rng_key_make(harness_seed(), "gemm");
    for (int64_t i = 0; i < CELLS; i++) {
        a[i] = draw_value(key, i);
        w[i] = draw_value(key, CELLS + i);
        c[i] = draw_value(key, 2 * CELLS + i);
        added[i] = draw_value(key, 3 * CELLS + i);
    }
    for (int64_t i = 0; i < SIDE; i++)
        bias[i] = draw_value(key, 4 * CELLS + i);
    convert_from_double(a16, DT_BF16, a, CELLS);
    convert_from_double(w16, DT_BF16, w, CELLS);
    convert_from_double(bias16, DT_BF16, bias, SIDE);
    convert_from_double(c16, DT_BF16, c, CELLS);
    convert_from_double(added16, DT_BF16, added, CELLS);
    convert_from_double(c32, DT_F32, c, CELLS);
    gemm_args args = {.m = how->m,
                      .n = how->n,
                      .k = how->k,
                      .trans_a = how->trans_a,
                      .trans_b = how->trans_b,
                      .accumulate = how->accumulate,
                      .c_acc = how->c_acc,
                      .alpha = 0.5,
                      .a = a16,
                      .b = w16,
                      .bias = how->bias ? bias16 : NULL,
                      .residual = how->residual ? added16 : NULL,
                      .c = how->c_acc ? (void *)c32 : (void *)c16,
                      .lda = (how->trans_a ? how->m : how->k) + how->pad,
                      .ldb = (how->trans_b ? how->k : how->n) + how->pad,
                      .ldc = how->n + how->pad};
    assert_ok(cuda_gemm(&setup->queue, &args));
    convert_to_double(got, args.c, how->c_acc ? DT_F32 : DT_BF16, CELLS);
    for (int64_t i = 0; i < how->m; i++) {
        for (int64_t j = 0; j < how->n; j++) {
            double sum = 0, want;
            uint16_t rounded;
            for (int64_t x = 0; x < how->k; x++)
                sum += a[how->trans_a ? x * args.lda + i : i * args.lda + x] *
                       w[how->trans_b ? j * args.ldb + x : x * args.ldb + j];
            want = 0.5 * sum + (how->accumulate ? c[i * args.ldc + j] : 0) +
                   (how->bias ? bias[j] : 0) + (how->residual ? added[i * args.ldc + j] : 0);
            convert_from_double(&rounded, DT_BF16, &want, 1);
            if (!how->c_acc)
                convert_to_double(&want, &rounded, DT_BF16, 1);
            assert_true(got[i * args.ldc + j] == want);
            c[i * args.ldc + j] = want;
        }
    }
    for (int64_t i = 0; i < CELLS; i++) /* what is not part of the result stays as it was */
        assert_true(got[i] == c[i]);
}

static void test_gemm__every_form(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    for (int bits = 0; bits < 64; bits++) {
        form how = {bits & 1, bits & 2, bits & 4, bits & 8, bits & 16, bits & 32, 5, 7, 6, 0};
        if ((how.bias && how.c_acc) || (how.residual && (how.c_acc || how.accumulate)))
            continue;
        check_form(&setup, &how);
        how.pad = PAD;
        check_form(&setup, &how);
        how.k = how.bias && (how.accumulate || how.residual) ? how.k : 0;
        check_form(&setup, &how);
        how.m = 0;
        check_form(&setup, &how);
        how.m = how.n = how.k = 1;
        how.pad = 0;
        check_form(&setup, &how);
    }
    assert_int_equal(scratch_asked, CUBLAS_HOST_WORKSPACE);
    close_bench(&setup);
}

static void test_gemm__one_plan_per_shape(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    form how = {.trans_b = true, .m = 4, .n = 8, .k = 8};
    for (int i = 0; i < 5; i++)
        check_form(&setup, &how);
    assert_int_equal(cublas_host.products, 5);
    assert_int_equal(cublas_host.asked, 1);
    assert_int_equal(setup.cuda.base.counts.allocations, 1);
    for (how.m = 1; how.m <= SIDE; how.m++) /* more plans than the list has room for at first */
        for (how.n = 1; how.n <= SIDE; how.n++)
            for (how.k = 1; how.k <= 2; how.k++)
                check_form(&setup, &how);
    assert_int_equal(cublas_host.asked, 1 + 2 * SIDE * SIDE);
    close_bench(&setup);
}

/* The heuristic must not be told a better alignment than an address has. */
static void test_gemm__tells_alignment_and_order(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    _Alignas(256) uint16_t x[3][512] = {0};
    gemm_args args = {.m = 8,
                      .n = 8,
                      .k = 8,
                      .alpha = 1,
                      .a = x[0] + 8,
                      .b = x[1] + 1,
                      .c = x[2],
                      .lda = 8,
                      .ldb = 8,
                      .ldc = 8};
    assert_ok(cuda_gemm(&setup.queue, &args));
    assert_int_equal(cublas_host.align[0], 2); /* the library's first operand is setup */
    assert_int_equal(cublas_host.align[1], 16);
    assert_int_equal(cublas_host.align[2], 256);
    assert_int_equal(cublas_host.schemes, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    args.residual = x[2] + 68; /* cuBLASLt's C is the residual, its D is our c */
    assert_ok(cuda_gemm(&setup.queue, &args));
    assert_int_equal(cublas_host.align[2], 8);
    assert_int_equal(cublas_host.align[3], 256);
    assert_int_equal(cublas_host.asked, 2);
    args.residual = NULL;
    args.b = x[1];
    assert_ok(cuda_gemm(&setup.queue, &args));
    assert_int_equal(cublas_host.asked, 3);
    close_bench(&setup);
}

static void test_gemm__names_what_it_cannot_do(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    uint16_t x[64] = {0};
    gemm_args args = {
        .m = 2, .n = 3, .k = 4, .alpha = 1, .a = x, .b = x, .c = x, .lda = 4, .ldb = 3, .ldc = 3};
    cublas_host.refuse = true;
    assert_fails(ST_BAD_DEVICE, cuda_gemm(&setup.queue, &args), "no algorithm for m 2 n 3 k 4");
    cublas_host.refuse = false;
    args.bias = x;
    args.c_acc = true;
    assert_fails(ST_BAD_INPUT, cuda_gemm(&setup.queue, &args), "a bias goes with a bf16 result");
    args.c_acc = false;
    args.accumulate = true;
    args.k = 0;
    assert_fails(ST_BAD_INPUT, cuda_gemm(&setup.queue, &args), "K = 0");
    args.k = 4;
    args.bias = NULL;
    args.residual = x + 8;
    assert_fails(ST_BAD_INPUT, cuda_gemm(&setup.queue, &args), "residual");
    assert_int_equal(cublas_host.products, 0);
    close_bench(&setup);
}

/* Bad sizes are refused as on the CPU, before the library is asked. */
static void test_gemm__refuses_sizes(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    uint16_t x[64] = {0};
    const gemm_args good = {
        .m = 4, .n = 4, .k = 4, .alpha = 1, .a = x, .b = x, .c = x, .lda = 4, .ldb = 4, .ldc = 4};
    gemm_args args = good;
    int64_t *stride[] = {&args.lda, &args.ldb, &args.ldc}, *size[] = {&args.m, &args.n, &args.k};
    for (int i = 0; i < 3; i++) {
        args = good;
        *stride[i] = 3;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&setup.queue, &args),
                     "shorter than the rows of 4, 4, 4");
        *stride[i] = INT64_C(1) << 31;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&setup.queue, &args), "must fit 31 bits");
        args = good;
        *size[i] = -1;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&setup.queue, &args), "must fit 31 bits");
        *size[i] = INT64_C(1) << 31;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&setup.queue, &args), "must fit 31 bits");
    }
    assert_int_equal(cublas_host.asked, 0);
    close_bench(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm__every_form),
        cmocka_unit_test(test_gemm__one_plan_per_shape),
        cmocka_unit_test(test_gemm__tells_alignment_and_order),
        cmocka_unit_test(test_gemm__names_what_it_cannot_do),
        cmocka_unit_test(test_gemm__refuses_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
