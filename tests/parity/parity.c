/* parity.c: tensors, comparison and central differences for the cases (parity.h). */
#include "tests/parity/parity.h"

#include <float.h>
#include <stdlib.h>

#include "trainer/ops/real.h"

#ifdef TESSERA_REAL_F64
static const double epsilon = DBL_EPSILON;
#else
static const double epsilon = FLT_EPSILON;
#endif

/* Elements of a gradient that are compared: all of a small array, a sample of a large one, whose
 * loss is long. */
enum { GRADIENT_SAMPLE = 40, LARGE = 4096, LARGE_SAMPLE = 10 };

static void *hold(parity *p, size_t bytes)
{
    p->held = realloc(p->held, (size_t)(p->n_held + 1) * sizeof *p->held);
    assert_non_null(p->held);
    void *x = calloc(1, bytes ? bytes : 1);
    assert_non_null(x);
    p->held[p->n_held++] = x;
    return x;
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
    return hold(p, (size_t)n * sizeof(double));
}

int32_t *parity_zero_ints(parity *p, int64_t n)
{
    return hold(p, (size_t)n * sizeof(int32_t));
}

double *parity_copy(parity *p, const double *init, int64_t n)
{
    double *x = parity_zeros(p, n);
    memcpy(x, init, (size_t)n * sizeof *x);
    return x;
}

/* A host block of exactly these bytes on the device. The CPU's device memory is ours to free, so
 * that AddressSanitizer sees its ends. */
void *parity_bytes(parity *p, const void *values, size_t bytes)
{
    void *dev = hold(p, bytes);
    assert_ok(p->s->dev->v->to_device(p->s, dev, values, bytes));
    return dev;
}

int32_t *parity_ints(parity *p, const int32_t *values, int64_t n)
{
    return parity_bytes(p, values, (size_t)n * sizeof *values);
}

tensor parity_upload(parity *p, const double *values, int64_t n)
{
    real *rounded = hold(p, (size_t)n * sizeof *rounded);
    tensor t = {.ref = parity_zeros(p, n), .n = n};
    for (int64_t i = 0; i < n; i++) {
        rounded[i] = (real)values[i];
        t.ref[i] = (double)rounded[i];
    }
    t.dev = parity_bytes(p, rounded, (size_t)n * sizeof *rounded);
    return t;
}

tensor parity_tensor(parity *p, int64_t n, double scale)
{
    double *values = parity_zeros(p, n);
    for (int64_t i = 0; i < n; i++)
        values[i] = parity_uniform(p, -scale, scale);
    return parity_upload(p, values, n);
}

void *parity_at(tensor t, int64_t i)
{
    return (real *)t.dev + i;
}

static void mix_bits(parity *p, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++)
        p->bits = (p->bits ^ b[i]) * 0x100000001b3u;
}

double *parity_fetch(parity *p, tensor t)
{
    real *got = hold(p, (size_t)t.n * sizeof *got);
    assert_ok(p->s->dev->v->to_host(p->s, got, t.dev, (size_t)t.n * sizeof *got));
    assert_ok(p->s->dev->v->wait(p->s));
    mix_bits(p, got, (size_t)t.n * sizeof *got);
    double *out = parity_zeros(p, t.n);
    for (int64_t i = 0; i < t.n; i++)
        out[i] = (double)got[i];
    return out;
}

static void compare(parity *p, const char *what, int64_t at, double got, double want, double limit)
{
    bool same = isnan(want) ? isnan(got) : got == want || fabs(got - want) <= limit;
    if (!same)
        fail_msg("%s/%s: %s[%lld] is %.17g, wanted %.17g within %.3g", p->op, p->name, what,
                 (long long)at, got, want, limit);
}

void parity_expect(parity *p, const char *what, tensor t, const double *want, double tolerance)
{
    if (p->bench)
        return;
    double *got = parity_fetch(p, t), scale = 0;
    for (int64_t i = 0; i < t.n; i++)
        if (isfinite(want[i]) && fabs(want[i]) > scale)
            scale = fabs(want[i]);
    for (int64_t i = 0; i < t.n; i++)
        compare(p, what, i, got[i], want[i], tolerance * epsilon * scale);
}

void parity_expect_ints(parity *p, const char *what, const int32_t *dev, const int32_t *want,
                        int64_t n)
{
    if (p->bench)
        return;
    int32_t *got = parity_zero_ints(p, n);
    assert_ok(p->s->dev->v->to_host(p->s, got, dev, (size_t)n * sizeof *got));
    assert_ok(p->s->dev->v->wait(p->s));
    mix_bits(p, got, (size_t)n * sizeof *got);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s/%s: %s[%lld] is %d, wanted %d", p->op, p->name, what, (long long)i, got[i],
                     want[i]);
}

/* Fourth order: the error is h^4 times the fifth derivative, about 1e-13 here. */
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
    /* The differences themselves are good to about 1e-9 of the largest gradient, and to the
     * rounding of the loss divided by the step. */
    const double relative = tolerance * epsilon + 1e-9, rounding = 1e-12 * (1 + fabs(loss(of)));
    int64_t n = t.n > LARGE ? LARGE_SAMPLE : GRADIENT_SAMPLE, at[GRADIENT_SAMPLE];
    n = t.n < n ? t.n : n;
    double want[GRADIENT_SAMPLE], scale = 0;
    for (int64_t i = 0; i < n; i++) {
        at[i] = n == t.n ? i : parity_below(p, t.n);
        want[i] = central_difference(x + at[i], loss, of) + (base ? base[at[i]] : 0);
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;
    }
    for (int64_t i = 0; i < n; i++)
        compare(p, what, at[i], got[at[i]], want[i], relative * scale + rounding);
}
