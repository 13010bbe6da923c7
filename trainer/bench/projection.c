/* SPDX-License-Identifier: Apache-2.0 */
/* projection.c: lines through points, the spread of times, and what steps at several depths predict
 * for the whole model, with its error. Letters: x, y a point's, of the line that bench_fit_line
 * finds. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/compare.h"
#include "trainer/bench/bench.h"

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

void bench_project_print(const bench_projection *what, int64_t layers, int64_t ranks, double peak,
                         FILE *to)
{
    fprintf(to,
            "fit: %.3f + %.3f x layers ms without the optimiser (largest residual %.2f %%), "
            "optimiser %.3f + %.3f x layers\n",
            what->work.a, what->work.b, 100.0 * what->work.residual, what->update.a,
            what->update.b);
    fprintf(to,
            "projected: %" PRId64 " layers, optimiser over %" PRId64
            " ranks (%.1f ms), collectives not counted: step %.1f +- %.1f ms  tps: %.0f  mfu: "
            "%.2f%% +- "
            "%.2f%% of %.1f TFLOP/s\n",
            layers, ranks, what->share, what->step, what->step_error, what->tps, what->mfu,
            what->mfu_error, peak * 1e-12);
}
