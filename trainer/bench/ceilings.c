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

static status run_copy(stream *queue, const void *context)
{
    const copy_job *job = context;
    return queue->dev->backend->copy(queue, job->to, job->from, job->bytes);
}

static status measure_copy(stream *queue, int64_t bytes, double *out)
{
    const backend_vtable *backend = queue->dev->backend;
    copy_job job = {.bytes = (size_t)bytes};
    double ns;
    status st = ST_OK;
    TRY_OR(done, backend->alloc(queue->dev, job.bytes, &job.from));
    TRY_OR(done, backend->alloc(queue->dev, job.bytes, &job.to));
    TRY_OR(done, speed_fill(queue, job.from, bytes / 4, sizeof(float)));
    TRY_OR(done, speed_time(queue, run_copy, &job, CEILING_S, &ns));
    *out = 2.0 * (double)bytes / (ns * 1e-9);
done:
    backend->release(queue->dev, job.from);
    backend->release(queue->dev, job.to);
    return st;
}

status bench_ceilings_measure(stream *queue, bench_ceilings *out)
{
    const bool gpu = speed_is_gpu(queue->dev);
    bench_ceilings ceilings = {.side = gpu ? SPEED_GPU_SIDE : SPEED_CPU_SIDE,
                               .bytes = (int64_t)(gpu ? GPU_COPY_MIB : CPU_COPY_MIB) << 20};
    TRY(measure_copy(queue, ceilings.bytes, &ceilings.copy));
    TRY(speed_product(queue, ceilings.side, CEILING_S, &ceilings.product));
    *out = ceilings;
    return ST_OK;
}

void bench_ceilings_print(const bench_ceilings *ceilings, FILE *to)
{
    fprintf(to,
            "ceilings: copy of %lld MiB %.1f GB/s read and written, product of %lld^3 %.2f "
            "TFLOP/s\n",
            (long long)(ceilings->bytes >> 20), ceilings->copy * 1e-9, (long long)ceilings->side,
            ceilings->product * 1e-12);
}

void bench_loads(int64_t experts, int64_t slots, double skew, int32_t *offset)
{
    /* Loads are proportional to r^expert; the r for which max / mean = skew is found by bisection.
     * Letters: r as said; x, y the points of bench_fit_line. */
    double low = 0.0, high = 1.0;
    for (int i = 0; i < 60; i++) {
        double r = (low + high) / 2, sum = 0.0, term = 1.0;
        for (int64_t expert = 0; expert < experts; expert++, term *= r)
            sum += term;
        if ((double)experts / sum > skew)
            low = r;
        else
            high = r;
    }
    double sum = 0.0, term = 1.0, so_far = 0.0;
    for (int64_t expert = 0; expert < experts; expert++, term *= high)
        sum += term;
    term = 1.0;
    offset[0] = 0;
    for (int64_t expert = 0; expert < experts; expert++, term *= high) {
        so_far += term / sum * (double)slots;
        offset[expert + 1] = expert + 1 == experts ? (int32_t)slots : (int32_t)llround(so_far);
    }
}

bench_fit bench_fit_line(const double *x, const double *y, int count)
{
    bench_fit fit = {0};
    double mx = 0.0, my = 0.0, xx = 0.0, xy = 0.0;
    for (int i = 0; i < count; i++) {
        mx += x[i] / count;
        my += y[i] / count;
    }
    for (int i = 0; i < count; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        xy += (x[i] - mx) * (y[i] - my);
    }
    fit.b = xx > 0.0 ? xy / xx : mx != 0.0 ? my / mx : 0.0;
    fit.a = xx > 0.0 ? my - fit.b * mx : 0.0;
    for (int i = 0; i < count; i++) {
        double off = y[i] != 0.0 ? fabs(fit.a + fit.b * x[i] - y[i]) / fabs(y[i]) : 0.0;
        fit.residual = off > fit.residual ? off : fit.residual;
    }
    return fit;
}

bench_spread bench_spread_of(double *values, int64_t count)
{
    bench_spread spread = {0};
    if (count == 0)
        return spread;
    qsort(values, (size_t)count, sizeof *values, compare_reals);
    for (int64_t i = 0; i < count; i++)
        spread.mean += values[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        spread.deviation += (values[i] - spread.mean) * (values[i] - spread.mean);
    spread.deviation = count > 1 ? sqrt(spread.deviation / (double)(count - 1)) : 0.0;
    spread.median = count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
    spread.fastest = values[0];
    spread.slowest = values[count - 1];
    for (int64_t i = 0; i < count; i++)
        spread.slow += values[i] * 0.9 > spread.median ? 1.0 / (double)count : 0.0;
    return spread;
}
