/* SPDX-License-Identifier: Apache-2.0 */
/* test_simt.c: tests of the harness itself: right kernels give the same numbers under every
 * schedule, and planted faults are found. Letters: x what a kernel reads or changes; y what it
 * writes; M, N, K the sizes of a product. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/simt/device.h"
#include "tests/simt/broken_kernels.h"
#include "tests/simt/simt.h"

enum { THREADS = 64, BLOCKS = 5 };

static device *dev;
static stream *queue;

static int setup_simt(void **state)
{
    (void)state;
    assert_ok(backend_simt()->open(&(device_options){0}, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    return 0;
}

static int teardown_simt(void **state)
{
    (void)state;
    dev->backend->stream_free(&queue);
    device_close(&dev);
    return 0;
}

static void reversed(int fault, int schedule, int *x)
{
    for (int i = 0; i < BLOCKS * THREADS; i++)
        x[i] = i;
    simt_schedule(schedule, 7);
    assert_ok(fault_run(queue, fault, x, NULL, (int64_t)BLOCKS * THREADS));
}

static void test_simt_barrier__every_schedule(void **state)
{
    (void)state;
    int x[BLOCKS * THREADS];
    for (int schedule = 0; schedule < SIMT_SCHEDULES; schedule++) {
        reversed(FAULT_NONE, schedule, x);
        for (int i = 0; i < BLOCKS * THREADS; i++)
            assert_int_equal(x[i], i / THREADS * THREADS + THREADS - 1 - i % THREADS);
    }
}

static void test_simt_barrier__missing_shows(void **state)
{
    (void)state;
    int x[SIMT_SCHEDULES][BLOCKS * THREADS];
    for (int schedule = 0; schedule < SIMT_SCHEDULES; schedule++)
        reversed(FAULT_NO_BARRIER, schedule, x[schedule]);
    for (int one = 0; one < SIMT_SCHEDULES; one++)
        for (int other = 0; other < one; other++)
            assert_memory_not_equal(x[one], x[other], sizeof x[one]);
}

static void test_simt_fault__is_reported(void **state)
{
    (void)state;
    static const struct {
        int fault;
        const char *words;
    } list[] = {
        {FAULT_SPLIT_BARRIER, "thread 63 is at the barrier broken_kernels.cu:"},
        {FAULT_EARLY_RETURN, "thread 5 has returned"},
        {FAULT_MISSING_LANE, "for lane 31, which has returned"},
        {FAULT_OUTSIDE_MASK, "lane 3 shuffles from lane 4"},
        {FAULT_TOO_MANY_THREADS, "is no launch"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        float x[THREADS] = {0};
        simt_schedule(SIMT_FORWARD, 0);
        assert_fails(ST_BAD_DEVICE, fault_run(queue, list[i].fault, x, NULL, THREADS),
                     list[i].words);
    }
    test_simt_barrier__every_schedule(NULL); /* the next launch works again */
}

static void test_simt_warp__operations(void **state)
{
    (void)state;
    for (int schedule = 0; schedule < SIMT_SCHEDULES; schedule++) {
        float x[6 * THREADS];
        for (int i = 0; i < THREADS; i++)
            x[i] = (float)i;
        simt_schedule(schedule, 3);
        assert_ok(fault_run(queue, FAULT_NONE_SUMS, x, NULL, 0));
        for (int i = 0; i < THREADS; i++) {
            assert_true(x[i] == 2016 && x[THREADS + i] == 4032);
            assert_true(x[2 * THREADS + i] == 16);
            assert_true(x[3 * THREADS + i] == (float)(i % 8 < 5 ? i + 3 : i));
            assert_true(x[4 * THREADS + i] == (float)(i % 8 < 3 ? i : i - 3));
            assert_true(x[5 * THREADS + i] == -9);
        }
    }
}

static void test_simt_bf16__nearest_even(void **state)
{
    (void)state;
    static const struct {
        float x;
        uint16_t want;
    } list[] = {{0, 0},
                {-0.0f, 0x8000},
                {1, 0x3f80},
                {0x1.01p0f, 0x3f80},     /* half way: down to even */
                {0x1.03p0f, 0x3f82},     /* half way: up to even */
                {0x1.010002p0f, 0x3f81}, /* just above */
                {-0x1.0100p0f, 0xbf80},
                {INFINITY, 0x7f80},
                {0x1.fffffep127f, 0x7f80}, /* beyond the largest */
                {0x1p-149f, 0},
                {NAN, 0x7fff}};
    enum { NUMBERS = sizeof list / sizeof *list };
    float x[NUMBERS];
    uint16_t y[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        x[i] = list[i].x;
    assert_ok(fault_run(queue, FAULT_NONE_BF16, x, y, NUMBERS));
    for (int i = 0; i < NUMBERS; i++)
        assert_int_equal(y[i], list[i].want);
}

/* A fused product is exact, so the difference to its rounded value is what rounding took. */
static void test_simt_fused__as_on_a_gpu(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("fma"))
        HARNESS_SKIP("this processor has no fused product and sum");
#endif
    const volatile float rounded = 0x1.000002p0f * 0x1.000002p0f;
    float x[2] = {0x1.000002p0f, rounded}, y[2];
    assert_ok(fault_run(queue, FAULT_NONE_FUSED, x, y, 0));
    assert_true(y[0] == 0x1p-46f);
    assert_true(y[1] == 0);
}

/* The fast functions are wrong in the last two places at most, somewhere in both, and 0 where they
 * flush. */
static void test_simt_fast__errs_as_on_a_gpu(void **state)
{
    (void)state;
    enum { NUMBERS = 64 };
    float x[NUMBERS] = {0, 0x1p-130f, -126.5f, -INFINITY, INFINITY, 0x1p127f}, y[2 * NUMBERS];
    double worst[2] = {0};
    for (int i = 6; i < NUMBERS; i++)
        x[i] = (float)i * 1.37f - 40;
    assert_ok(fault_run(queue, FAULT_NONE_FAST, x, y, NUMBERS));
    assert_true(y[0] == 1 && y[1] == 1 && y[2] == 0 && y[3] == 0 && isinf(y[4]));
    assert_true(y[NUMBERS + 4] == 0 && y[NUMBERS + 5] == 0);
    for (int i = 6; i < NUMBERS; i++) {
        const double want[2] = {exp2(x[i]), 1.0 / x[i]};
        for (int k = 0; k < 2; k++)
            worst[k] = fmax(worst[k], fabs(y[k * NUMBERS + i] / want[k] - 1) / 0x1p-23);
    }
    for (int k = 0; k < 2; k++)
        assert_true(worst[k] > 1 && worst[k] < 2.5);
}

/* Small whole numbers, so every sum is exact. The matrices are neither square nor symmetric, so
 * that an exchange of rows and columns shows. */
static void test_simt_mma__a_plain_product(void **state)
{
    (void)state;
    enum { M = 16, K = 16, N = 8 };
    _Alignas(16) uint16_t x[M * K + K * N];
    int values[M * K + K * N];
    float y[M * N];
    for (int i = 0; i < M * K + K * N; i++) {
        values[i] = (i * 37 + i / 7) % 23 - 11;
        float value = (float)values[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
    for (int schedule = 0; schedule < SIMT_SCHEDULES; schedule++) {
        simt_schedule(schedule, 7);
        assert_ok(fault_run(queue, FAULT_NONE_PRODUCT, x, y, 0));
        for (int i = 0; i < M * N; i++) {
            int want = 0;
            for (int k = 0; k < K; k++)
                want += values[i / N * K + k] * values[M * K + k * N + i % N];
            assert_true(y[i] == (float)want);
        }
    }
    assert_ok(fault_run(queue, FAULT_NO_WAIT, x, y, 0));
    assert_true(isnan(y[0])); /* the copy has not arrived yet */
}

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif

/* AddressSanitizer ends the process, so a child process runs the fault. */
static void test_simt_shared__bounds(void **state)
{
    (void)state;
#ifndef ASAN
    HARNESS_SKIP("only the sanitizer build checks the bounds of shared memory");
#endif
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int x[THREADS] = {0};
        close(STDERR_FILENO);
        _exit(fault_run(queue, FAULT_BEYOND_SHARED, x, NULL, 0) == ST_OK ? 0 : 2);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_false(WIFEXITED(how) && (WEXITSTATUS(how) == 0 || WEXITSTATUS(how) == 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simt_barrier__every_schedule),
        cmocka_unit_test(test_simt_barrier__missing_shows),
        cmocka_unit_test(test_simt_fault__is_reported),
        cmocka_unit_test(test_simt_warp__operations),
        cmocka_unit_test(test_simt_bf16__nearest_even),
        cmocka_unit_test(test_simt_fused__as_on_a_gpu),
        cmocka_unit_test(test_simt_fast__errs_as_on_a_gpu),
        cmocka_unit_test(test_simt_mma__a_plain_product),
        cmocka_unit_test(test_simt_shared__bounds),
    };
    return cmocka_run_group_tests(tests, setup_simt, teardown_simt);
}
