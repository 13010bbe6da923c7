/* projection.c: what steps at several depths say of the whole model, and how sure that is.
 * Letters: x, y a point's, of the line that bench_fit_line finds. */
#include <inttypes.h>
#include <math.h>

#include "trainer/bench/bench.h"

/* How far the value at x_end of the line through the points may be off. deviation [count]: of the
 * y. */
static double line_error(const double *x, const double *y, const double *deviation, int count,
                         double x_end)
{
    const bench_fit all = bench_fit_line(x, y, count);
    double mean = 0.0, around = 0.0, sum = 0.0, farthest = 0.0;
    for (int i = 0; i < count; i++)
        mean += x[i] / count;
    for (int i = 0; i < count; i++)
        around += (x[i] - mean) * (x[i] - mean);
    if (around == 0.0 && mean != x_end)
        return INFINITY;
    for (int i = 0; i < count; i++) {
        const double lever = around > 0.0 ? (x_end - mean) * (x[i] - mean) / around : 0.0;
        const double moved = (1.0 / count + lever) * deviation[i];
        sum += moved * moved;
        for (int j = 0; j < i; j++) {
            const double two_x[] = {x[j], x[i]}, two_y[] = {y[j], y[i]};
            const bench_fit pair = bench_fit_line(two_x, two_y, 2);
            if (x[i] != x[j])
                farthest = fmax(farthest, fabs(pair.a - all.a + (pair.b - all.b) * x_end));
        }
    }
    return fmax(farthest, sqrt(sum));
}

bench_projection bench_project(const bench_depth *measured, int count, int64_t layers,
                               int64_t ranks, double peak)
{
    double depths[BENCH_DEPTHS], work[BENCH_DEPTHS], update[BENCH_DEPTHS], useful[BENCH_DEPTHS],
        deviation[BENCH_DEPTHS];
    for (int i = 0; i < count; i++) {
        depths[i] = (double)measured[i].layers;
        work[i] = measured[i].step.mean - measured[i].optimizer;
        update[i] = measured[i].optimizer;
        useful[i] = measured[i].flops;
        deviation[i] = measured[i].step.deviation;
    }
    const double whole = (double)layers;
    const bench_fit done = bench_fit_line(depths, useful, count); /* exact: all layers are alike */
    bench_projection what = {.work = bench_fit_line(depths, work, count),
                             .update = bench_fit_line(depths, update, count)};
    what.share = (what.update.a + what.update.b * whole) / (double)ranks;
    what.step = what.work.a + what.work.b * whole + what.share;
    what.step_error = line_error(depths, work, deviation, count, whole);
    what.tps = measured[0].tokens / (what.step * 1e-3);
    what.mfu = 100.0 * (done.a + done.b * whole) / (what.step * 1e-3) / peak;
    what.mfu_error = what.mfu * what.step_error / what.step;
    return what;
}

void bench_project_print(const bench_projection *what, int64_t layers, int64_t ranks, bool replayed,
                         double peak, FILE *to)
{
    fprintf(to,
            "fit: %.3f + %.3f x layers ms without the optimiser (largest residual %.2f %%), "
            "optimiser %.3f + %.3f x layers\n",
            what->work.a, what->work.b, 100.0 * what->work.residual, what->update.a,
            what->update.b);
    fprintf(to,
            "projected: %" PRId64 " layers, optimiser over %" PRId64
            " ranks (%.1f ms), collectives %s: step %.1f +- %.1f ms  tps: %.0f  mfu: %.2f%% +- "
            "%.2f%% of %.1f TFLOP/s\n",
            layers, ranks, what->share, replayed ? "replayed" : "not counted", what->step,
            what->step_error, what->tps, what->mfu, what->mfu_error, peak * 1e-12);
}
