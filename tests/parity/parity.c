/* parity.c: tensors, comparison and central differences for the cases (parity.h). */
#include "tests/parity/parity.h"

#include <float.h>
#include <stdlib.h>

/* How many elements of a gradient are compared: of a large array fewer, since its loss takes long
 * to compute. */
enum { GRADIENT_SAMPLE = 40, LARGE = 4096, LARGE_SAMPLE = 10 };

static void keep_pointer(void ***list, int *n, void *x)
{
    *list = realloc(*list, (size_t)(*n + 1) * sizeof **list);
    assert_non_null(*list);
    (*list)[(*n)++] = x;
}

static void *hold_memory(parity *p, size_t bytes)
{
    void *x = calloc(1, bytes ? bytes : 1);
    assert_non_null(x);
    keep_pointer(&p->held, &p->n_held, x);
    return x;
}

void parity_done(parity *p)
{
    for (int i = 0; i < p->n_held; i++)
        free(p->held[i]);
    for (int i = 0; i < p->n_dev; i++)
        p->s->dev->backend->release(p->s->dev, p->dev[i]);
    free(p->held);
    free(p->dev);
}

static double epsilon_of(st_dtype dtype)
{
    return dtype == DT_F64 ? DBL_EPSILON : FLT_EPSILON;
}

static float bf16_value(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* Rounds to the nearest bf16, ties to even, directly from double: by way of float, some ties would
 * go the wrong way. */
static uint16_t bf16_bits(double x)
{
    float f = (float)x;
    uint32_t word;
    memcpy(&word, &f, sizeof word);
    if (isnan(x))
        return 0x7fff;
    /* The neighbours towards and away from zero. */
    uint16_t low = (uint16_t)(word >> 16), high = (uint16_t)(low + 1);
    if (fabs((double)bf16_value(low)) > fabs(x)) /* the float was rounded up to it */
        return low;
    double below = fabs(x - (double)bf16_value(low)), above = fabs((double)bf16_value(high) - x);
    return isinf(x) || below < above || (below == above && low % 2 == 0) ? low : high;
}

static void store_element(void *at, st_dtype dtype, int64_t i, double x)
{
    if (dtype == DT_F64)
        ((double *)at)[i] = x;
    else if (dtype == DT_F32)
        ((float *)at)[i] = (float)x;
    else
        ((uint16_t *)at)[i] = bf16_bits(x);
}

static double read_element(const void *at, st_dtype dtype, int64_t i)
{
    if (dtype == DT_F64)
        return ((const double *)at)[i];
    if (dtype == DT_F32)
        return (double)((const float *)at)[i];
    return (double)bf16_value(((const uint16_t *)at)[i]);
}

double parity_round(const parity *p, double x)
{
    double room;
    store_element(&room, p->s->dev->backend->act, 0, x);
    return read_element(&room, p->s->dev->backend->act, 0);
}

double parity_uniform(parity *p, double low, double high)
{
    return low + (high - low) * rng_uniform(p->key, p->drawn++);
}

int64_t parity_below(parity *p, int64_t n)
{
    return (int64_t)rng_below(p->key, p->drawn++, (uint64_t)n);
}

double *parity_zeros(parity *p, int64_t n)
{
    return hold_memory(p, (size_t)n * sizeof(double));
}

int32_t *parity_zero_ints(parity *p, int64_t n)
{
    return hold_memory(p, (size_t)n * sizeof(int32_t));
}

double *parity_copy(parity *p, const double *init, int64_t n)
{
    double *x = parity_zeros(p, n);
    memcpy(x, init, (size_t)n * sizeof *x);
    return x;
}

/* A block of exactly this size: where device memory is the host's, AddressSanitizer sees accesses
 * past its ends. */
void *parity_bytes(parity *p, const void *values, size_t bytes)
{
    void *dev = NULL;
    assert_ok(p->s->dev->backend->alloc(p->s->dev, bytes, &dev));
    keep_pointer(&p->dev, &p->n_dev, dev);
    assert_ok(p->s->dev->backend->to_device(p->s, dev, values, bytes));
    return dev;
}

int32_t *parity_ints(parity *p, const int32_t *values, int64_t n)
{
    return parity_bytes(p, values, (size_t)n * sizeof *values);
}

static tensor upload_tensor(parity *p, const double *values, int64_t n, st_dtype dtype)
{
    size_t size = (size_t)st_dtype_size(dtype);
    void *rounded = hold_memory(p, (size_t)n * size);
    tensor t = {.ref = parity_zeros(p, n), .n = n, .dtype = dtype};
    for (int64_t i = 0; i < n; i++) {
        store_element(rounded, dtype, i, values[i]);
        t.ref[i] = read_element(rounded, dtype, i);
    }
    t.dev = parity_bytes(p, rounded, (size_t)n * size);
    return t;
}

tensor parity_upload(parity *p, const double *values, int64_t n)
{
    return upload_tensor(p, values, n, p->s->dev->backend->act);
}

tensor parity_upload_acc(parity *p, const double *values, int64_t n)
{
    return upload_tensor(p, values, n, p->s->dev->backend->acc);
}

static tensor drawn(parity *p, int64_t n, double scale, st_dtype dtype)
{
    double *values = parity_zeros(p, n);
    for (int64_t i = 0; i < n; i++)
        values[i] = parity_uniform(p, -scale, scale);
    return upload_tensor(p, values, n, dtype);
}

tensor parity_tensor(parity *p, int64_t n, double scale)
{
    return drawn(p, n, scale, p->s->dev->backend->act);
}

tensor parity_tensor_acc(parity *p, int64_t n, double scale)
{
    return drawn(p, n, scale, p->s->dev->backend->acc);
}

void *parity_at(tensor t, int64_t i)
{
    return (char *)t.dev + i * (int64_t)st_dtype_size(t.dtype);
}

static void mix_bits(parity *p, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++)
        p->bits = (p->bits ^ b[i]) * 0x100000001b3u;
}

double *parity_fetch(parity *p, tensor t)
{
    size_t bytes = (size_t)t.n * (size_t)st_dtype_size(t.dtype);
    void *got = hold_memory(p, bytes);
    assert_ok(p->s->dev->backend->to_host(p->s, got, t.dev, bytes));
    assert_ok(p->s->dev->backend->wait(p->s));
    mix_bits(p, got, bytes);
    double *out = parity_zeros(p, t.n);
    for (int64_t i = 0; i < t.n; i++)
        out[i] = read_element(got, t.dtype, i);
    return out;
}

/* The largest error that rounding x to bf16 can make: half a unit of its last place. */
static double half_unit(double x)
{
    return x == 0 || !isfinite(x) ? 0 : ldexp(1, ilogb(x) - 8);
}

static void compare_values(parity *p, const char *what, int64_t at, double got, double want,
                           double limit)
{
    bool same = isnan(want) ? isnan(got) : got == want || fabs(got - want) <= limit;
    if (!same)
        fail_msg("%s/%s: %s[%lld] is %.17g, wanted %.17g within %.3g", p->op, p->name, what,
                 (long long)at, got, want, limit);
}

/* Over fewer elements than this a mean says little, so the error that arithmetic in float may add
 * is allowed on top. */
enum { FEW = 32 };

/* The root mean square of the errors in `got` must be at most 1.1 times that of the errors in
 * `other`. */
static void compare_errors(parity *p, const char *what, int64_t n, const double *got,
                           const double *want, const double *other, double slack)
{
    double ours = 0, theirs = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) || !isfinite(other[i]))
            continue;
        finite++;
        ours += (got[i] - want[i]) * (got[i] - want[i]);
        theirs += (other[i] - want[i]) * (other[i] - want[i]);
    }
    if (finite == 0)
        return;
    ours = sqrt(ours / (double)finite);
    theirs = sqrt(theirs / (double)finite);
    bool few = finite < FEW || theirs == 0;
    if (!few)
        errors_note(p, what, ours, theirs);
    if (ours > 1.1 * theirs + (few ? slack : 0))
        fail_msg("%s/%s: the error of %s is %.3g, that of its order of roundings %.3g (root mean "
                 "squares)",
                 p->op, p->name, what, ours, theirs);
}

/* Compares the errors of bf16 numbers with those that another rounding of the wanted numbers has:
 * `order`, or one rounding of each if that is NULL. slack is what arithmetic in float may add. */
static void compare_bf16(parity *p, const char *what, const int64_t *at, int64_t n,
                         const double *got, const double *want, const double *order, double slack)
{
    double *other = parity_zeros(p, n), worst = 0;
    for (int64_t i = 0; i < n; i++) {
        other[i] = order ? order[i] : parity_round(p, want[i]);
        if (order && isfinite(want[i]) && isfinite(order[i]))
            worst = fmax(worst, fabs(order[i] - want[i]));
    }
    for (int64_t i = 0; i < n; i++) {
        double limit = fmax(1.1 * worst, half_unit(want[i])) + slack;
        compare_values(p, what, at ? at[i] : i, got[i],
                       isfinite(want[i]) ? want[i] : parity_round(p, want[i]), limit);
    }
    compare_errors(p, what, n, got, want, other, slack);
}

void parity_expect_order(parity *p, const char *what, tensor t, const double *want,
                         const double *order, double tolerance)
{
    if (p->bench)
        return;
    double *got = parity_fetch(p, t), scale = 0;
    for (int64_t i = 0; i < t.n; i++)
        if (isfinite(want[i]) && fabs(want[i]) > scale)
            scale = fabs(want[i]);
    double slack = tolerance * epsilon_of(t.dtype) * scale;
    if (t.dtype == DT_BF16) {
        compare_bf16(p, what, NULL, t.n, got, want, order, slack);
        return;
    }
    for (int64_t i = 0; i < t.n; i++)
        compare_values(p, what, i, got[i], want[i], slack);
    if (order && p->s->dev->backend->act == DT_BF16)
        compare_errors(p, what, t.n, got, want, order, slack);
}

void parity_expect(parity *p, const char *what, tensor t, const double *want, double tolerance)
{
    parity_expect_order(p, what, t, want, NULL, tolerance);
}

void parity_expect_ints(parity *p, const char *what, const int32_t *dev, const int32_t *want,
                        int64_t n)
{
    if (p->bench)
        return;
    int32_t *got = parity_zero_ints(p, n);
    assert_ok(p->s->dev->backend->to_host(p->s, got, dev, (size_t)n * sizeof *got));
    assert_ok(p->s->dev->backend->wait(p->s));
    mix_bits(p, got, (size_t)n * sizeof *got);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s/%s: %s[%lld] is %d, wanted %d", p->op, p->name, what, (long long)i, got[i],
                     want[i]);
}

/* A difference of fourth order: its error is h^4 times the fifth derivative, about 1e-13 here. */
static double central_difference(double *x, parity_loss_fn loss, const void *of)
{
    const double h = 1e-3, keep = *x;
    double at[5];
    for (int i = -2; i <= 2; i++) {
        *x = keep + i * h;
        at[i + 2] = i ? loss(of) : 0;
    }
    *x = keep;
    return (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * h);
}

void parity_gradient(parity *p, const char *what, tensor t, const double *base, double *x,
                     parity_loss_fn loss, const void *of, double tolerance)
{
    double *got = parity_fetch(p, t);
    if (p->bench || p->bits_only)
        return;
    /* The differences themselves are accurate to about 1e-9 of the largest gradient, and to the
     * rounding of the loss divided by the step. */
    const double relative = tolerance * epsilon_of(t.dtype) + 1e-9,
                 rounding = 1e-12 * (1 + fabs(loss(of)));
    int64_t n = t.n > LARGE ? LARGE_SAMPLE : GRADIENT_SAMPLE, at[GRADIENT_SAMPLE];
    n = t.n < n ? t.n : n;
    double want[GRADIENT_SAMPLE], scale = 0;
    for (int64_t i = 0; i < n; i++) {
        at[i] = n == t.n ? i : parity_below(p, t.n);
        want[i] = central_difference(x + at[i], loss, of) + (base ? base[at[i]] : 0);
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;
    }
    const double slack = relative * scale + rounding;
    if (t.dtype == DT_BF16) {
        double chosen[GRADIENT_SAMPLE];
        for (int64_t i = 0; i < n; i++)
            chosen[i] = got[at[i]];
        compare_bf16(p, what, at, n, chosen, want, NULL, slack);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        compare_values(p, what, at[i], got[at[i]], want[i], slack);
}
