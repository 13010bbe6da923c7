/* ceilings.c: measures the ceilings of a device, and has the arithmetic of the benches: loads, fits
 * and spreads (bench.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/bench/bench.h"
#include "common/base/compare.h"
#include "trainer/report/speed.h"

enum { GPU_COPY_MIB = 2048 /* many times the L2 cache */, CPU_COPY_MIB = 64 };
static const double CEILING_S = 0.5;

typedef struct copy_job {
    void *to, *from;
    size_t bytes;
} copy_job;

static status run_copy(stream *s, const void *context)
{
    const copy_job *j = context;
    return s->dev->backend->copy(s, j->to, j->from, j->bytes);
}

static status measure_copy(stream *s, int64_t bytes, double *out)
{
    const backend_vtable *v = s->dev->backend;
    copy_job j = {.bytes = (size_t)bytes};
    double ns;
    status st = ST_OK;
    TRY_OR(done, v->alloc(s->dev, j.bytes, &j.from));
    TRY_OR(done, v->alloc(s->dev, j.bytes, &j.to));
    TRY_OR(done, speed_fill(s, j.from, bytes / 4, sizeof(float)));
    TRY_OR(done, speed_time(s, run_copy, &j, CEILING_S, &ns));
    *out = 2.0 * (double)bytes / (ns * 1e-9);
done:
    v->release(s->dev, j.from);
    v->release(s->dev, j.to);
    return st;
}

status bench_ceilings_measure(stream *s, bench_ceilings *out)
{
    const bool gpu = speed_is_gpu(s->dev);
    bench_ceilings c = {.side = gpu ? SPEED_GPU_SIDE : SPEED_CPU_SIDE,
                        .bytes = (int64_t)(gpu ? GPU_COPY_MIB : CPU_COPY_MIB) << 20};
    TRY(measure_copy(s, c.bytes, &c.copy));
    TRY(speed_product(s, c.side, CEILING_S, &c.product));
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
    /* Loads are proportional to r^e; the r for which max / mean = skew is found by bisection. */
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
    qsort(values, (size_t)n, sizeof *values, compare_reals);
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
