/* measure.c: times, ceilings, fits (bench.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/rng.h"
#include "trainer/bench/bench.h"

enum {
    CALLS_LEAST = 5,
    CALLS_MOST = 1000,
    CHUNK = 1 << 18,     /* numbers drawn; larger arrays repeat them */
    GPU_SIDE = 8192,     /* the product that published ceilings are of */
    CPU_SIDE = 768,      /* as report_measure_peak */
    GPU_COPY_MIB = 2048, /* many times the L2 */
    CPU_COPY_MIB = 64
};
static const double CEILING_S = 0.5;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

status bench_time(stream *s, bench_call call, const void *context, double limit_s, double *out_ns)
{
    const backend_vtable *v = s->dev->v;
    event *from = NULL, *to = NULL;
    double ns[CALLS_MOST];
    int n = 0;
    status st = ST_OK;
    TRY_OR(done, v->event_new(s->dev, &from));
    TRY_OR(done, v->event_new(s->dev, &to));
    TRY_OR(done, call(s, context));
    TRY_OR(done, v->wait(s));
    const int64_t begin = clock_ns(); /* not the device's clock, which may be no time at all */
    while (n < CALLS_MOST && (n < CALLS_LEAST || (double)(clock_ns() - begin) < limit_s * 1e9)) {
        int64_t one;
        TRY_OR(done, v->event_record(s, from));
        TRY_OR(done, call(s, context));
        TRY_OR(done, v->event_record(s, to));
        TRY_OR(done, v->event_wait(s->dev, to));
        TRY_OR(done, v->event_ns(from, to, &one));
        ns[n++] = (double)one;
    }
    *out_ns = bench_spread_of(ns, n).median;
done:
    v->event_free(&from);
    v->event_free(&to);
    return st;
}

/* A float in (-1, 1) as the number type of this size. */
static void put_number(char *at, float x, size_t size)
{
    if (size == 8) {
        double wide = (double)x;
        memcpy(at, &wide, sizeof wide);
    } else if (size == 4) {
        memcpy(at, &x, sizeof x);
    } else {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t upper = (uint16_t)(bits >> 16);
        memcpy(at, &upper, sizeof upper);
    }
}

status bench_fill(stream *s, void *dst, int64_t n, size_t size)
{
    const backend_vtable *v = s->dev->v;
    int64_t chunk = n < CHUNK ? n : CHUNK;
    char *host = malloc((size_t)(chunk > 0 ? chunk : 1) * size);
    if (!host)
        return FAIL(ST_NO_MEMORY, "bench: out of memory");
    rng_key key = rng_key_make(1, "bench");
    for (int64_t i = 0; i < chunk; i++)
        put_number(host + (size_t)i * size, (float)(2.0 * rng_uniform(key, (uint64_t)i) - 1.0),
                   size);
    status st = ST_OK;
    for (int64_t at = 0; at < n; at += chunk) {
        int64_t part = n - at < chunk ? n - at : chunk;
        TRY_OR(done, v->to_device(s, (char *)dst + (size_t)at * size, host, (size_t)part * size));
    }
    TRY_OR(done, v->wait(s)); /* host is ours until then */
done:
    free(host);
    return st;
}

typedef struct copy_job {
    void *to, *from;
    size_t bytes;
} copy_job;

static status run_copy(stream *s, const void *context)
{
    const copy_job *j = context;
    return s->dev->v->copy(s, j->to, j->from, j->bytes);
}

static status run_product(stream *s, const void *context)
{
    return op_gemm(s, context);
}

static status measure_product(stream *s, int64_t side, double *out)
{
    const backend_vtable *v = s->dev->v;
    size_t act = st_dtype_size(v->act);
    void *m[3] = {NULL};
    double ns;
    status st = ST_OK;
    for (int i = 0; i < 3; i++) {
        TRY_OR(done, v->alloc(s->dev, (size_t)(side * side) * act, &m[i]));
        TRY_OR(done, bench_fill(s, m[i], side * side, act));
    }
    gemm_args a = {.m = side,
                   .n = side,
                   .k = side,
                   .trans_b = true,
                   .alpha = 1.0,
                   .a = m[0],
                   .b = m[1],
                   .c = m[2],
                   .lda = side,
                   .ldb = side,
                   .ldc = side};
    TRY_OR(done, bench_time(s, run_product, &a, CEILING_S, &ns));
    *out = 2.0 * (double)side * (double)side * (double)side / (ns * 1e-9);
done:
    for (int i = 0; i < 3; i++)
        v->release(s->dev, m[i]);
    return st;
}

static status measure_copy(stream *s, int64_t bytes, double *out)
{
    const backend_vtable *v = s->dev->v;
    copy_job j = {.bytes = (size_t)bytes};
    double ns;
    status st = ST_OK;
    TRY_OR(done, v->alloc(s->dev, j.bytes, &j.from));
    TRY_OR(done, v->alloc(s->dev, j.bytes, &j.to));
    TRY_OR(done, bench_fill(s, j.from, bytes / 4, sizeof(float)));
    TRY_OR(done, bench_time(s, run_copy, &j, CEILING_S, &ns));
    *out = 2.0 * (double)bytes / (ns * 1e-9);
done:
    v->release(s->dev, j.from);
    v->release(s->dev, j.to);
    return st;
}

status bench_ceilings_measure(stream *s, bench_ceilings *out)
{
    const bool gpu = strcmp(s->dev->v->name, "cuda") == 0;
    bench_ceilings c = {.side = gpu ? GPU_SIDE : CPU_SIDE,
                        .bytes = (int64_t)(gpu ? GPU_COPY_MIB : CPU_COPY_MIB) << 20};
    TRY(measure_copy(s, c.bytes, &c.copy));
    TRY(measure_product(s, c.side, &c.product));
    *out = c;
    return ST_OK;
}

void bench_ceilings_print(const bench_ceilings *c, FILE *to)
{
    fprintf(to,
            "ceilings: copy of %lld MiB %.1f GB/s read and written, product of %lld^3 %.2f "
            "TFLOP/s\n",
            (long long)(c->bytes >> 20), c->copy * 1e-9, (long long)c->side, c->product * 1e-12);
}

void bench_loads(int64_t experts, int64_t slots, double skew, int32_t *offset)
{
    /* r^e with the r that gives max / mean = skew, by bisection */
    double low = 0.0, high = 1.0;
    for (int i = 0; i < 60; i++) {
        double r = (low + high) / 2, sum = 0.0, term = 1.0;
        for (int64_t e = 0; e < experts; e++, term *= r)
            sum += term;
        if ((double)experts / sum > skew)
            low = r;
        else
            high = r;
    }
    double sum = 0.0, term = 1.0, so_far = 0.0;
    for (int64_t e = 0; e < experts; e++, term *= high)
        sum += term;
    term = 1.0;
    offset[0] = 0;
    for (int64_t e = 0; e < experts; e++, term *= high) {
        so_far += term / sum * (double)slots;
        offset[e + 1] = e + 1 == experts ? (int32_t)slots : (int32_t)llround(so_far);
    }
}

bench_fit bench_fit_line(const double *x, const double *y, int n)
{
    bench_fit f = {0};
    double mx = 0.0, my = 0.0, xx = 0.0, xy = 0.0;
    for (int i = 0; i < n; i++) {
        mx += x[i] / n;
        my += y[i] / n;
    }
    for (int i = 0; i < n; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        xy += (x[i] - mx) * (y[i] - my);
    }
    f.b = xx > 0.0 ? xy / xx : mx != 0.0 ? my / mx : 0.0;
    f.a = xx > 0.0 ? my - f.b * mx : 0.0;
    for (int i = 0; i < n; i++) {
        double off = y[i] != 0.0 ? fabs(f.a + f.b * x[i] - y[i]) / fabs(y[i]) : 0.0;
        f.residual = off > f.residual ? off : f.residual;
    }
    return f;
}

bench_spread bench_spread_of(double *values, int64_t n)
{
    bench_spread s = {0};
    if (n == 0)
        return s;
    qsort(values, (size_t)n, sizeof *values, by_value);
    for (int64_t i = 0; i < n; i++)
        s.mean += values[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        s.deviation += (values[i] - s.mean) * (values[i] - s.mean);
    s.deviation = n > 1 ? sqrt(s.deviation / (double)(n - 1)) : 0.0;
    s.median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    s.fastest = values[0];
    s.slowest = values[n - 1];
    for (int64_t i = 0; i < n; i++)
        s.slow += values[i] * 0.9 > s.median ? 1.0 / (double)n : 0.0;
    return s;
}
