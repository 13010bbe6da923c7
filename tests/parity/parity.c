/* SPDX-License-Identifier: Apache-2.0 */
/* parity.c: tensors, comparison and central differences for the cases (parity.h). */
#include "tests/parity/parity.h"

#include <float.h>
#include <stdlib.h>

#include "tests/parity/judge.h"

/* How many elements of a gradient are compared: of a large array fewer, since its loss takes long
 * to compute. */
enum { GRADIENT_SAMPLE = 40, LARGE = 4096, LARGE_SAMPLE = 10 };

static void keep_pointer(void ***list, int *count, void *memory)
{
    *list = realloc(*list, (size_t)(*count + 1) * sizeof **list);
    assert_non_null(*list);
    (*list)[(*count)++] = memory;
}

static void *hold_memory(parity *test, size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    assert_non_null(memory);
    keep_pointer(&test->held, &test->n_held, memory);
    return memory;
}

void parity_done(parity *test)
{
    for (int i = 0; i < test->n_held; i++)
        free(test->held[i]);
    for (int i = 0; i < test->n_dev; i++)
        test->queue->dev->backend->release(test->queue->dev, test->dev[i]);
    free(test->held);
    free(test->dev);
}

static double epsilon_of(st_dtype dtype)
{
    return dtype == DT_F64 ? DBL_EPSILON : FLT_EPSILON;
}

static float bf16_value(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float memory;
    memcpy(&memory, &word, sizeof memory);
    return memory;
}

/* Rounds to the nearest bf16, ties to even, directly from double: by way of float, some ties would
 * go the wrong way. */
static uint16_t bf16_bits(double x)
{
    float value = (float)x;
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (isnan(x))
        return 0x7fff;
    /* The neighbours towards and away from zero. */
    uint16_t low = (uint16_t)(word >> 16), high = (uint16_t)(low + 1);
    if (fabs((double)bf16_value(low)) > fabs(x)) /* the float was rounded up to it */
        return low;
    double below = fabs(x - (double)bf16_value(low)), above = fabs((double)bf16_value(high) - x);
    return isinf(x) || below < above || (below == above && low % 2 == 0) ? low : high;
}

static void store_element(void *at, st_dtype dtype, int64_t index, double x)
{
    if (dtype == DT_F64)
        ((double *)at)[index] = x;
    else if (dtype == DT_F32)
        ((float *)at)[index] = (float)x;
    else
        ((uint16_t *)at)[index] = bf16_bits(x);
}

static double read_element(const void *at, st_dtype dtype, int64_t index)
{
    if (dtype == DT_F64)
        return ((const double *)at)[index];
    if (dtype == DT_F32)
        return (double)((const float *)at)[index];
    return (double)bf16_value(((const uint16_t *)at)[index]);
}

double parity_round(const parity *test, double x)
{
    double room;
    store_element(&room, test->queue->dev->backend->act, 0, x);
    return read_element(&room, test->queue->dev->backend->act, 0);
}

double parity_uniform(parity *test, double low, double high)
{
    return low + (high - low) * rng_uniform(test->key, test->drawn++);
}

int64_t parity_below(parity *test, int64_t n)
{
    return (int64_t)rng_below(test->key, test->drawn++, (uint64_t)n);
}

double *parity_zeros(parity *test, int64_t n)
{
    return hold_memory(test, (size_t)n * sizeof(double));
}

int32_t *parity_zero_ints(parity *test, int64_t n)
{
    return hold_memory(test, (size_t)n * sizeof(int32_t));
}

double *parity_copy(parity *test, const double *init, int64_t n)
{
    double *x = parity_zeros(test, n);
    memcpy(x, init, (size_t)n * sizeof *x);
    return x;
}

/* A block of exactly this size: where device memory is the host's, AddressSanitizer sees accesses
 * past its ends. */
void *parity_bytes(parity *test, const void *values, size_t bytes)
{
    void *dev = NULL;
    assert_ok(test->queue->dev->backend->alloc(test->queue->dev, bytes, &dev));
    keep_pointer(&test->dev, &test->n_dev, dev);
    assert_ok(test->queue->dev->backend->to_device(test->queue, dev, values, bytes));
    return dev;
}

int32_t *parity_ints(parity *test, const int32_t *values, int64_t n)
{
    return parity_bytes(test, values, (size_t)n * sizeof *values);
}

static tensor upload_tensor(parity *test, const double *values, int64_t n, st_dtype dtype)
{
    size_t size = (size_t)st_dtype_size(dtype);
    void *rounded = hold_memory(test, (size_t)n * size);
    tensor array = {.ref = parity_zeros(test, n), .n = n, .dtype = dtype};
    for (int64_t i = 0; i < n; i++) {
        store_element(rounded, dtype, i, values[i]);
        array.ref[i] = read_element(rounded, dtype, i);
    }
    array.dev = parity_bytes(test, rounded, (size_t)n * size);
    return array;
}

tensor parity_upload(parity *test, const double *values, int64_t n)
{
    return upload_tensor(test, values, n, test->queue->dev->backend->act);
}

tensor parity_upload_acc(parity *test, const double *values, int64_t n)
{
    return upload_tensor(test, values, n, test->queue->dev->backend->acc);
}

static tensor drawn(parity *test, int64_t n, double scale, st_dtype dtype)
{
    double *values = parity_zeros(test, n);
    for (int64_t i = 0; i < n; i++)
        values[i] = parity_uniform(test, -scale, scale);
    return upload_tensor(test, values, n, dtype);
}

tensor parity_tensor(parity *test, int64_t n, double scale)
{
    return drawn(test, n, scale, test->queue->dev->backend->act);
}

tensor parity_tensor_acc(parity *test, int64_t n, double scale)
{
    return drawn(test, n, scale, test->queue->dev->backend->acc);
}

void *parity_at(tensor array, int64_t index)
{
    return (char *)array.dev + index * (int64_t)st_dtype_size(array.dtype);
}

static void mix_bits(parity *test, const void *bytes, size_t count)
{
    const unsigned char *second = bytes;
    for (size_t i = 0; i < count; i++)
        test->bits = (test->bits ^ second[i]) * 0x100000001b3u;
}

double *parity_fetch(parity *test, tensor array)
{
    size_t bytes = (size_t)array.n * (size_t)st_dtype_size(array.dtype);
    void *got = hold_memory(test, bytes);
    assert_ok(test->queue->dev->backend->to_host(test->queue, got, array.dev, bytes));
    assert_ok(test->queue->dev->backend->wait(test->queue));
    mix_bits(test, got, bytes);
    double *out = parity_zeros(test, array.n);
    for (int64_t i = 0; i < array.n; i++)
        out[i] = read_element(got, array.dtype, i);
    return out;
}

bool parity_compares(const parity *test)
{
    return !test->bench && !test->bits_only;
}

static void compare_values(parity *test, const char *what, int64_t at, double got, double want,
                           double limit)
{
    if (!judge_value(got, want, limit))
        fail_msg("%s/%s: %s[%lld] is %.17g, wanted %.17g within %.3g", test->op, test->name, what,
                 (long long)at, got, want, limit);
}

/* Fails if the verdict says so. at: the places of the elements; NULL: 0, 1, .. */
static void take_verdict(parity *test, const char *what, const int64_t *at, const double *got,
                         const double *want, const verdict *found)
{
    if (found->at >= 0)
        fail_msg("%s/%s: %s[%lld] is %.17g, wanted %.17g within %.3g", test->op, test->name, what,
                 (long long)(at ? at[found->at] : found->at), got[found->at], want[found->at],
                 found->limit);
    if (found->told)
        errors_note(test, what, found->ours, found->order);
    if (!found->alike)
        fail_msg("%s/%s: the error of %s is %.3g, that of its order of roundings %.3g (root mean "
                 "squares)",
                 test->op, test->name, what, found->ours, found->order);
}

/* Compares the errors of bf16 numbers with those that another rounding of the wanted numbers has:
 * `order` or, if that is NULL, one rounding of each; or `second`, unless that is NULL. slack is
 * what arithmetic in float may add. */
static void compare_bf16(parity *test, const char *what, const int64_t *at, int64_t n,
                         const double *got, const double *want, const double *order,
                         const double *second, double slack)
{
    double *once = parity_zeros(test, n);
    for (int64_t i = 0; i < n; i++)
        once[i] = parity_round(test, want[i]);
    verdict found = judge_bf16(n, got, want, order ? order : once, order != NULL, slack);
    if (second && !verdict_holds(&found)) {
        const verdict other = judge_bf16(n, got, want, second, true, slack);
        found = verdict_holds(&other) ? other : found;
    }
    take_verdict(test, what, at, got, want, &found);
}

/* What numbers are compared with: `order` and `second` as in parity_expect_either, and the scale
 * that the tolerance is relative to at least. */
typedef struct comparison {
    const double *order, *second;
    double tolerance, scale;
} comparison;

static void expect_numbers(parity *test, const char *what, tensor array, const double *want,
                           const comparison *by)
{
    const double *order = by->order, *second = by->second;
    if (test->bench)
        return;
    double *got = parity_fetch(test, array), scale = by->scale;
    if (!parity_compares(test))
        return;
    for (int64_t i = 0; i < array.n; i++)
        if (isfinite(want[i]) && fabs(want[i]) > scale)
            scale = fabs(want[i]);
    double slack = by->tolerance * epsilon_of(array.dtype) * scale;
    if (array.dtype == DT_BF16) {
        compare_bf16(test, what, NULL, array.n, got, want, order, second, slack);
        return;
    }
    for (int64_t i = 0; i < array.n; i++)
        compare_values(test, what, i, got[i], want[i], slack);
    if (order && test->queue->dev->backend->act == DT_BF16) {
        const verdict found = judge_errors(array.n, got, want, order, slack);
        take_verdict(test, what, NULL, got, want, &found);
    }
}

void parity_expect_either(parity *test, const char *what, tensor array, const double *want,
                          const double *order, const double *second, double tolerance)
{
    expect_numbers(test, what, array, want, &(comparison){order, second, tolerance, 0});
}

void parity_expect_difference(parity *test, const char *what, tensor array, const double *want,
                              double tolerance, double scale)
{
    expect_numbers(test, what, array, want, &(comparison){NULL, NULL, tolerance, scale});
}

void parity_expect_order(parity *test, const char *what, tensor array, const double *want,
                         const double *order, double tolerance)
{
    parity_expect_either(test, what, array, want, order, NULL, tolerance);
}

void parity_expect(parity *test, const char *what, tensor array, const double *want,
                   double tolerance)
{
    parity_expect_order(test, what, array, want, NULL, tolerance);
}

void parity_expect_ints(parity *test, const char *what, const int32_t *dev, const int32_t *want,
                        int64_t n)
{
    if (test->bench)
        return;
    int32_t *got = parity_zero_ints(test, n);
    assert_ok(test->queue->dev->backend->to_host(test->queue, got, dev, (size_t)n * sizeof *got));
    assert_ok(test->queue->dev->backend->wait(test->queue));
    mix_bits(test, got, (size_t)n * sizeof *got);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s/%s: %s[%lld] is %d, wanted %d", test->op, test->name, what, (long long)i,
                     got[i], want[i]);
}

void parity_fetch_bytes(parity *test, void *to, const void *dev, size_t bytes)
{
    assert_ok(test->queue->dev->backend->to_host(test->queue, to, dev, bytes));
    assert_ok(test->queue->dev->backend->wait(test->queue));
    mix_bits(test, to, bytes);
}

/* A difference of fourth order: its error is step^4 times the fifth derivative,
 * about 1e-13 here. */
static double central_difference(double *x, parity_loss_fn loss, const void *of)
{
    const double step = 1e-3, keep = *x;
    double at[5];
    for (int i = -2; i <= 2; i++) {
        *x = keep + i * step;
        at[i + 2] = i ? loss(of) : 0;
    }
    *x = keep;
    return (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * step);
}

void parity_gradient(parity *test, const char *what, tensor array, const double *base, double *x,
                     parity_loss_fn loss, const void *of, double tolerance)
{
    double *got = parity_fetch(test, array);
    if (!parity_compares(test))
        return;
    /* The differences themselves are accurate to about 1e-9 of the largest gradient, and to the
     * rounding of the loss divided by the step. */
    const double relative = tolerance * epsilon_of(array.dtype) + 1e-9,
                 rounding = 1e-12 * (1 + fabs(loss(of)));
    int64_t n = array.n > LARGE ? LARGE_SAMPLE : GRADIENT_SAMPLE, at[GRADIENT_SAMPLE];
    n = array.n < n ? array.n : n;
    double want[GRADIENT_SAMPLE], scale = 0;
    for (int64_t i = 0; i < n; i++) {
        at[i] = n == array.n ? i : parity_below(test, array.n);
        want[i] = central_difference(x + at[i], loss, of) + (base ? base[at[i]] : 0);
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;
    }
    const double slack = relative * scale + rounding;
    if (array.dtype == DT_BF16) {
        double chosen[GRADIENT_SAMPLE];
        for (int64_t i = 0; i < n; i++)
            chosen[i] = got[at[i]];
        compare_bf16(test, what, at, n, chosen, want, NULL, NULL, slack);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        compare_values(test, what, at[i], got[at[i]], want[i], slack);
}
