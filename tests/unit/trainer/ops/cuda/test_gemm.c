/* test_gemm.c: what gemm.c asks of cuBLASLt, computed on the host by cublas_host.h: every form of
 * the contract gives the right product, one plan is made per shape, nothing is leaked, and bad
 * sizes are refused. */
#include "tests/harness.h"

#include <stdlib.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/ops/cuda/cublas_host.h"
#include "trainer/device/cuda_device.h"
#include "trainer/model/convert.h"
#include "trainer/ops/table.h"

status cuda_gemm(stream *s, const gemm_args *g);

/* The device is plain memory. */
static char scratch[1 << 16];
static size_t scratch_asked;

status cuda_scratch(stream *s, size_t bytes, void **out)
{
    (void)s;
    assert_true(bytes <= sizeof scratch);
    scratch_asked = bytes;
    *out = scratch;
    return ST_OK;
}

static status host_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    memcpy(dst, src, bytes);
    return ST_OK;
}

static status host_zero(stream *s, void *dst, size_t bytes)
{
    (void)s;
    memset(dst, 0, bytes);
    return ST_OK;
}

static const backend_vtable backend = {
    .name = "host", .act = DT_BF16, .acc = DT_F32, .copy = host_copy, .zero = host_zero};

typedef struct bench {
    cuda_device d;
    stream s;
} bench;

static void open_bench(bench *b)
{
    *b = (bench){.d.base.backend = &backend};
    b->s = (stream){.dev = &b->d.base};
    cublas_host = (struct cublas_host){0};
}

static void close_bench(bench *b)
{
    if (b->d.kept[KEPT_GEMM].data)
        b->d.kept[KEPT_GEMM].done(b->d.kept[KEPT_GEMM].data);
    assert_int_equal(cublas_host.alive, 0);
}

enum { SIDE = 8, PAD = 3, CELLS = (SIDE + PAD) * (SIDE + PAD) };

typedef struct form {
    bool trans_a, trans_b, accumulate, c_acc, bias, residual;
    int64_t m, n, k, pad;
} form;

static double draw_value(rng_key key, int64_t i)
{
    return (double)(int64_t)(rng_u64(key, (uint64_t)i) % 17) / 8 - 1; /* exact in bf16 */
}

/* Checks one product of numbers so small that they are exact in every type; the result must be
 * equal bit for bit. */
static void check_form(bench *b, const form *f)
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
    gemm_args g = {.m = f->m,
                   .n = f->n,
                   .k = f->k,
                   .trans_a = f->trans_a,
                   .trans_b = f->trans_b,
                   .accumulate = f->accumulate,
                   .c_acc = f->c_acc,
                   .alpha = 0.5,
                   .a = a16,
                   .b = w16,
                   .bias = f->bias ? bias16 : NULL,
                   .residual = f->residual ? added16 : NULL,
                   .c = f->c_acc ? (void *)c32 : (void *)c16,
                   .lda = (f->trans_a ? f->m : f->k) + f->pad,
                   .ldb = (f->trans_b ? f->k : f->n) + f->pad,
                   .ldc = f->n + f->pad};
    assert_ok(cuda_gemm(&b->s, &g));
    convert_to_double(got, g.c, f->c_acc ? DT_F32 : DT_BF16, CELLS);
    for (int64_t i = 0; i < f->m; i++) {
        for (int64_t j = 0; j < f->n; j++) {
            double sum = 0, want;
            uint16_t rounded;
            for (int64_t x = 0; x < f->k; x++)
                sum += a[f->trans_a ? x * g.lda + i : i * g.lda + x] *
                       w[f->trans_b ? j * g.ldb + x : x * g.ldb + j];
            want = 0.5 * sum + (f->accumulate ? c[i * g.ldc + j] : 0) + (f->bias ? bias[j] : 0) +
                   (f->residual ? added[i * g.ldc + j] : 0);
            convert_from_double(&rounded, DT_BF16, &want, 1);
            if (!f->c_acc)
                convert_to_double(&want, &rounded, DT_BF16, 1);
            assert_true(got[i * g.ldc + j] == want);
            c[i * g.ldc + j] = want;
        }
    }
    for (int64_t i = 0; i < CELLS; i++) /* what is not part of the result stays as it was */
        assert_true(got[i] == c[i]);
}

static void test_gemm__every_form(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    for (int bits = 0; bits < 64; bits++) {
        form f = {bits & 1, bits & 2, bits & 4, bits & 8, bits & 16, bits & 32, 5, 7, 6, 0};
        if ((f.bias && f.c_acc) || (f.residual && (f.c_acc || f.accumulate)))
            continue;
        check_form(&b, &f);
        f.pad = PAD;
        check_form(&b, &f);
        f.k = f.bias && (f.accumulate || f.residual) ? f.k : 0;
        check_form(&b, &f);
        f.m = 0;
        check_form(&b, &f);
        f.m = f.n = f.k = 1;
        f.pad = 0;
        check_form(&b, &f);
    }
    assert_int_equal(scratch_asked, CUBLAS_HOST_WORKSPACE);
    close_bench(&b);
}

static void test_gemm__one_plan_per_shape(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    form f = {.trans_b = true, .m = 4, .n = 8, .k = 8};
    for (int i = 0; i < 5; i++)
        check_form(&b, &f);
    assert_int_equal(cublas_host.products, 5);
    assert_int_equal(cublas_host.asked, 1);
    assert_int_equal(b.d.base.counts.allocations, 1);
    for (f.m = 1; f.m <= SIDE; f.m++) /* more plans than the list has room for at first */
        for (f.n = 1; f.n <= SIDE; f.n++)
            for (f.k = 1; f.k <= 2; f.k++)
                check_form(&b, &f);
    assert_int_equal(cublas_host.asked, 1 + 2 * SIDE * SIDE);
    close_bench(&b);
}

/* The heuristic must not be told a better alignment than an address has. */
static void test_gemm__tells_alignment_and_order(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    _Alignas(256) uint16_t x[3][512] = {0};
    gemm_args g = {.m = 8,
                   .n = 8,
                   .k = 8,
                   .alpha = 1,
                   .a = x[0] + 8,
                   .b = x[1] + 1,
                   .c = x[2],
                   .lda = 8,
                   .ldb = 8,
                   .ldc = 8};
    assert_ok(cuda_gemm(&b.s, &g));
    assert_int_equal(cublas_host.align[0], 2); /* the library's first operand is b */
    assert_int_equal(cublas_host.align[1], 16);
    assert_int_equal(cublas_host.align[2], 256);
    assert_int_equal(cublas_host.schemes, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    g.residual = x[2] + 68; /* cuBLASLt's C is the residual, its D is our c */
    assert_ok(cuda_gemm(&b.s, &g));
    assert_int_equal(cublas_host.align[2], 8);
    assert_int_equal(cublas_host.align[3], 256);
    assert_int_equal(cublas_host.asked, 2);
    g.residual = NULL;
    g.b = x[1];
    assert_ok(cuda_gemm(&b.s, &g));
    assert_int_equal(cublas_host.asked, 3);
    close_bench(&b);
}

static void test_gemm__names_what_it_cannot_do(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    uint16_t x[64] = {0};
    gemm_args g = {
        .m = 2, .n = 3, .k = 4, .alpha = 1, .a = x, .b = x, .c = x, .lda = 4, .ldb = 3, .ldc = 3};
    cublas_host.refuse = true;
    assert_fails(ST_BAD_DEVICE, cuda_gemm(&b.s, &g), "no algorithm for m 2 n 3 k 4");
    cublas_host.refuse = false;
    g.bias = x;
    g.c_acc = true;
    assert_fails(ST_BAD_INPUT, cuda_gemm(&b.s, &g), "a bias goes with a bf16 result");
    g.c_acc = false;
    g.accumulate = true;
    g.k = 0;
    assert_fails(ST_BAD_INPUT, cuda_gemm(&b.s, &g), "K = 0");
    g.k = 4;
    g.bias = NULL;
    g.residual = x + 8;
    assert_fails(ST_BAD_INPUT, cuda_gemm(&b.s, &g), "residual");
    assert_int_equal(cublas_host.products, 0);
    close_bench(&b);
}

/* Bad sizes are refused as on the CPU, before the library is asked. */
static void test_gemm__refuses_sizes(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    uint16_t x[64] = {0};
    const gemm_args good = {
        .m = 4, .n = 4, .k = 4, .alpha = 1, .a = x, .b = x, .c = x, .lda = 4, .ldb = 4, .ldc = 4};
    gemm_args g = good;
    int64_t *stride[] = {&g.lda, &g.ldb, &g.ldc}, *size[] = {&g.m, &g.n, &g.k};
    for (int i = 0; i < 3; i++) {
        g = good;
        *stride[i] = 3;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&b.s, &g), "shorter than the rows of 4, 4, 4");
        *stride[i] = INT64_C(1) << 31;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&b.s, &g), "must fit 31 bits");
        g = good;
        *size[i] = -1;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&b.s, &g), "must fit 31 bits");
        *size[i] = INT64_C(1) << 31;
        assert_fails(ST_BAD_INPUT, cuda_gemm(&b.s, &g), "must fit 31 bits");
    }
    assert_int_equal(cublas_host.asked, 0);
    close_bench(&b);
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
