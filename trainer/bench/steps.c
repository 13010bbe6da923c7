/* SPDX-License-Identifier: Apache-2.0 */
/* steps.c: trainer bench step: times whole steps at several depths, fits a line through them, and
 * projects it to the whole model. The optimiser is timed separately, because each of R ranks
 * updates only its own share of the values. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "trainer/bench/cases.h"
#include "trainer/bench/bench.h"
#include "trainer/model/dims/convert.h"
#include "trainer/report/speed.h"
#include "trainer/run/step.h"

/* The upload ring has two buffers, and a step is captured for each on its second use, which is in
 * steps 3 and 4. After WARM_UP steps nothing new happens. */
enum { WARM_UP = 5, UPDATES = 5 };
static const double LATE_US = 50.0; /* no start of a step should be delayed by more than this */

/* What was measured at one depth. */
typedef struct depth {
    bench_depth of;
    double images; /* per step, averaged */
    double wait_share;
    /* How long after a step could have begun its micro-batch arrived, in us. */
    double input_median, input_p99, input_most;
    int64_t steps, late; /* steps timed, and those that began more than LATE_US late */
    double load;         /* the busiest expert's load over the mean; 0: not set */
    size_t used, total;
} depth;

/* Each round moves each bias towards the wanted load, by up to the bias's own reach in logits. The
 * reach shrinks if the load has passed the wanted one and grows if it has not, and so adapts to the
 * spread of this router's logits. The loads are set when STABLE rounds in a row are within OFF of
 * the wanted one. */
enum { STABLE = 3 };
static const double OFF = 0.03;
static const double REACH = 0.25, SHRINK = 0.5, GROW = 1.2;

/* A bias on the router's logits, moved from step to step until the busiest expert has the wanted
 * multiple of the mean load. An untrained router gives its busiest expert anything from once to
 * three times the mean, by accident, and a bench must know which load it measures. */
typedef struct expert_skew {
    int64_t layers, experts;
    double load;     /* the wanted one of the busiest expert over the mean */
    void *bias;      /* [layers, experts] in the type of activations, in device memory */
    double *value;   /* [layers, experts] the same biases on the host */
    double *slots;   /* [layers, experts] loads, averaged half and half with the rounds before */
    double *reach;   /* [layers, experts] for the next round; negative: the last move was down */
    int32_t *target; /* [experts + 1] the wanted loads, as offsets (bench_loads) */
    int32_t *count;  /* [layers, experts] loads of the last micro-batch */
    void *act;       /* [layers, experts] values converted for the device */
} expert_skew;

static void skew_free(expert_skew **held, session *run)
{
    expert_skew *skew = *held;
    if (!skew)
        return;
    if (skew->bias)
        run->device->backend->release(run->device, skew->bias);
    free(skew->value);
    free(skew->slots);
    free(skew->reach);
    free(skew->target);
    free(skew->count);
    free(skew->act);
    free(skew);
    *held = NULL;
}

/* load: that of the busiest expert over the mean; the others fall off geometrically (bench_loads).
 * Called before the first step. ST_USAGE for a load that no routing can have. */
static status skew_new(session *run, double load, expert_skew **out)
{
    const backend_vtable *backend = run->device->backend;
    const int64_t layers = run->dims.text.layers, experts = run->dims.text.experts;
    size_t count = (size_t)(layers * experts), act = st_dtype_size(backend->act);
    if (experts == 0)
        return FAIL(ST_USAGE, "bench step --load: %s has no experts", run->dims.name);
    if (!(load >= 1.0) || load > (double)experts / (double)run->dims.text.top_k)
        return FAIL(ST_USAGE,
                    "bench step --load: with %lld experts the busiest one can have 1 to %.1f times "
                    "the mean load where a token goes to %lld of them, not %g times",
                    (long long)experts, (double)experts / (double)run->dims.text.top_k,
                    (long long)run->dims.text.top_k, load);
    expert_skew *skew = calloc(1, sizeof *skew);
    if (!skew)
        return FAIL(ST_NO_MEMORY, "no memory to bias the router");
    *skew = (expert_skew){.layers = layers,
                          .experts = experts,
                          .load = load,
                          .value = calloc(count, sizeof *skew->value),
                          .slots = calloc(count, sizeof *skew->slots),
                          .reach = calloc(count, sizeof *skew->reach),
                          .target = calloc((size_t)experts + 1, sizeof *skew->target),
                          .count = calloc(count, sizeof *skew->count),
                          .act = calloc(count, act)};
    status st =
        skew->value && skew->slots && skew->reach && skew->target && skew->count && skew->act
            ? backend->alloc(run->device, count * act, &skew->bias)
            : FAIL(ST_NO_MEMORY, "no memory to bias the router");
    if (st != ST_OK) {
        skew_free(&skew, run);
        return st;
    }
    bench_loads(experts, run->cap.tokens * run->dims.text.top_k, load, skew->target);
    model_bias_router(run->model, skew->bias);
    *out = skew;
    return ST_OK;
}

/* The largest load over the mean in the last micro-batch, averaged over the layers with experts.
 * Waits for the device. */
static status skew_measure(expert_skew *skew, session *run, double *out_load)
{
    const backend_vtable *backend = run->device->backend;
    double sum = 0.0;
    int64_t count = 0;
    TRY(backend->to_host(run->stream, skew->count, model_expert_count(run->model),
                         (size_t)(skew->layers * skew->experts) * sizeof *skew->count));
    TRY(backend->wait(run->stream));
    for (int64_t layer = 0; layer < skew->layers; layer++) {
        int64_t total = 0, most = 0;
        for (int64_t expert = 0; expert < skew->experts; expert++) {
            int64_t tokens = skew->count[layer * skew->experts + expert];
            total += tokens;
            most = tokens > most ? tokens : most;
        }
        if (!dims_layer_is_moe(&run->dims, layer) || total == 0)
            continue;
        sum += (double)most * (double)skew->experts / (double)total;
        count++;
    }
    *out_load = count > 0 ? sum / (double)count : 0.0;
    return ST_OK;
}

/* Moves each bias by its reach, or by less if the load is off by less than a factor of two. */
static status move_biases(expert_skew *skew, session *run, bool first)
{
    const backend_vtable *backend = run->device->backend;
    for (int64_t i = 0; i < skew->layers * skew->experts; i++) {
        int64_t expert = i % skew->experts;
        double want = (double)(skew->target[expert + 1] - skew->target[expert]);
        skew->slots[i] = (skew->slots[i] + (double)skew->count[i]) / (first ? 1.0 : 2.0);
        double off = log((want + 1.0) / (skew->slots[i] + 1.0)) / log(2.0);
        double last = skew->reach[i], reach = fabs(last);
        reach = last == 0.0 ? REACH : reach * ((last < 0.0) == (off < 0.0) ? GROW : SHRINK);
        skew->value[i] += reach * fmin(fmax(off, -1.0), 1.0);
        skew->reach[i] = off < 0.0 ? -reach : reach;
    }
    convert_from_double(skew->act, backend->act, skew->value, skew->layers * skew->experts);
    TRY(backend->to_device(run->stream, skew->bias, skew->act,
                           (size_t)(skew->layers * skew->experts) * st_dtype_size(backend->act)));
    return backend->wait(run->stream);
}

/* Runs as many steps after *step as it takes to set the loads, at most `rounds`, and adds them to
 * *step. */
static status skew_settle(expert_skew *skew, session *run, int64_t rounds, int64_t *step)
{
    int stable = 0;
    for (int64_t i = 0; i < rounds && stable < STABLE; i++) {
        step_report report;
        double load;
        TRY(step_run(run, ++*step, &report));
        TRY(skew_measure(skew, run, &load));
        TRY(move_biases(skew, run, i == 0));
        stable = fabs(load - skew->load) <= OFF * skew->load ? stable + 1 : 0;
    }
    return ST_OK;
}

static status time_updates(session *run, double *out_ms)
{
    const backend_vtable *backend = run->device->backend;
    event *from = NULL, *to = NULL;
    double ms[UPDATES];
    status st = ST_OK;
    *out_ms = 0;
    if (run->params->in_backward) /* its time is part of the backward pass */
        return ST_OK;
    TRY_OR(done, backend->event_new(run->device, &from));
    TRY_OR(done, backend->event_new(run->device, &to));
    for (int i = 0; i < UPDATES; i++) {
        int64_t ns;
        TRY_OR(done, backend->event_record(run->stream, from));
        TRY_OR(done, optimizer_step(run->optimizer, run->stream, 1, 0.0, run->sums.weight));
        TRY_OR(done, backend->event_record(run->stream, to));
        TRY_OR(done, backend->event_wait(run->device, to));
        TRY_OR(done, backend->event_ns(from, to, &ns));
        ms[i] = (double)ns * 1e-6;
    }
    *out_ms = bench_spread_of(ms, UPDATES).median;
done:
    backend->event_free(&from);
    backend->event_free(&to);
    return st;
}

/* Waits for the next step, after queueing as many ahead as a run does. */
static status next_step(session *run, int64_t *queued, int64_t last, step_report *out)
{
    while (step_under_way(run) <= run->device->backend->ahead && *queued < last)
        TRY(step_queue(run, ++*queued));
    TRY(step_wait(run, out));
    return isfinite(out->loss)
               ? ST_OK
               : FAIL(ST_INTERNAL, "bench: the loss of step %" PRId64 " is not finite", out->step);
}

/* Judges the delays of `steps` steps in microseconds; sorts them. */
static void judge_input(double *us, int64_t steps, depth *measured)
{
    measured->steps = steps;
    for (int64_t i = 0; i < steps; i++)
        measured->late += us[i] > LATE_US;
    measured->input_median = bench_spread_of(us, steps).median;
    measured->input_p99 = us[(steps * 99 + 99) / 100 - 1];
    measured->input_most = us[steps - 1];
}

/* Runs the steps after `before`: a warm-up, and then `steps` steps, each timed from the end of the
 * one before to its own end. */
static status run_steps(session *run, int64_t before, int64_t steps, depth *measured)
{
    double *ms = calloc((size_t)steps, sizeof *ms), *us = calloc((size_t)steps, sizeof *us);
    int64_t wait_ns = 0, queued = before, last = before + WARM_UP + steps, then = 0;
    status st = ST_OK;
    if (!ms || !us) {
        st = FAIL(ST_NO_MEMORY, "no memory for the times of %" PRId64 " steps", steps);
        goto done;
    }
    for (int64_t i = 1; i <= WARM_UP + steps; i++) {
        step_report report;
        TRY_OR(done, next_step(run, &queued, last, &report));
        int64_t now = clock_ns();
        if (i > WARM_UP) {
            ms[i - WARM_UP - 1] = (double)(now - then) * 1e-6;
            us[i - WARM_UP - 1] = (double)report.input_ns * 1e-3;
            measured->of.tokens += (double)report.tokens / (double)steps;
            measured->images += (double)report.images / (double)steps;
            measured->of.flops += (double)report.flops.training / (double)steps;
            wait_ns += report.wait_ns;
        }
        then = now;
    }
    measured->of.step = bench_spread_of(ms, steps);
    measured->wait_share = (double)wait_ns * 1e-6 / (measured->of.step.mean * (double)steps);
    judge_input(us, steps, measured);
done:
    free(ms);
    free(us);
    return st;
}

/* Measures one depth. layers: 0 for all. */
static status run_depth(const conf *options, int64_t layers, const bench_depths *how,
                        depth *measured, double *peak)
{
    conf cut = *options; /* a shallow copy, whose strings belong to options */
    session run = {0};
    expert_skew *skew = NULL;
    int64_t before = 0;
    status st = ST_OK;
    cut.model_layers = layers;
    cut.eval_enable = false;
    if (how->load > 0.0)
        cut.optimizer_lr = 0.0; /* updates take the same time, but the router stays as it was set */
    TRY(session_open_bench(&cut, NULL, how->live, &run));
    measured->of.layers = run.dims.text.layers;
    if (how->load > 0.0) {
        TRY_OR(done, skew_new(&run, how->load, &skew));
        TRY_OR(done, skew_settle(skew, &run, how->settle, &before));
    }
    TRY_OR(done, run_steps(&run, before, options->training_steps, measured));
    if (skew)
        TRY_OR(done, skew_measure(skew, &run, &measured->load));
    TRY_OR(done, time_updates(&run, &measured->of.optimizer));
    TRY_OR(done, run.device->backend->memory(run.device, &measured->used, &measured->total));
    if (*peak == 0.0) {
        bench_ceilings ceilings;
        TRY_OR(done, bench_ceilings_measure(run.stream, &ceilings));
        *peak = speed_known(run.device);
        *peak = *peak > 0.0 ? *peak : ceilings.product;
        printf("device: %s\n", run.device->description);
        bench_ceilings_print(&ceilings, stdout);
    }
done:
    if (skew && run.device->backend->wait(run.stream) != ST_OK) /* before the bias is released */
        log_error("bench: %s", status_text());
    skew_free(&skew, &run);
    session_close(&run);
    return st;
}

static void print_depth(const depth *measured, double peak, FILE *to)
{
    const bench_spread *step = &measured->of.step;
    fprintf(to,
            "depth: %2" PRId64 " layers  step: %.3f ms (median %.3f, deviation %.2f %%, slowest "
            "%.3f, fastest %.3f)  optimiser: %.3f ms  tokens: %.0f  images: %.1f  tps: %.0f  mfu: "
            "%.2f%%  wait: %.2f%%  memory: %.2f GiB of %.2f\n"
            "steps: standard deviation %.2f %% of the mean; %.1f %% of them under 90 %% of the "
            "median's rate",
            measured->of.layers, step->mean, step->median, 100.0 * step->deviation / step->mean,
            step->slowest, step->fastest, measured->of.optimizer, measured->of.tokens,
            measured->images, measured->of.tokens / (step->mean * 1e-3),
            100.0 * measured->of.flops / (step->median * 1e-3) / peak, 100.0 * measured->wait_share,
            (double)measured->used / 1073741824.0, (double)measured->total / 1073741824.0,
            100.0 * step->deviation / step->mean, 100.0 * step->slow);
    if (measured->load > 0.0)
        fprintf(to, "; busiest expert %.2f times the mean", measured->load);
    fprintf(to,
            "\ninput: %" PRId64 " step starts delayed by a median of %.1f us, 99 of 100 by at most "
            "%.1f us, the longest %.1f us; %" PRId64 " by more than %.0f us\n",
            measured->steps, measured->input_median, measured->input_p99, measured->input_most,
            measured->late, LATE_US);
    fflush(to);
}

/* Prints the projection of the first `count` depths. */
static void print_projection(const depth *measured, int count, int64_t whole, int64_t ranks,
                             double peak, FILE *to)
{
    bench_depth depths[BENCH_DEPTHS];
    for (int i = 0; i < count; i++)
        depths[i] = measured[i].of;
    const bench_projection what = bench_project(depths, count, whole, ranks, peak);
    bench_project_print(&what, whole, ranks, peak, to);
}

status bench_steps(const conf *options, const int64_t *layers, int n_layers,
                   const bench_depths *how, FILE *to)
{
    depth measured[BENCH_DEPTHS] = {0};
    char path[STATUS_PATH_MAX] = "";
    double peak = options->metrics_peak_tflops * 1e12;
    model_dims dims;
    conf own = *options;
    status st = ST_OK;
    if (n_layers > BENCH_DEPTHS)
        return FAIL(ST_USAGE, "bench step takes at most %d depths", BENCH_DEPTHS);
    TRY(dims_load(options->model_path, &dims));
    if (how->live && options->feed_replay[0])
        return FAIL(ST_USAGE, "bench step --live takes its rows from prepd.endpoint; leave "
                              "feed.replay unset, or leave out --live");
    if (!options->feed_replay[0] && !how->live) {
        TRY_OR(done, text_rows_own(options, &dims, how->document, path));
        own.feed_replay = path;
    }
    for (int i = 0; i < n_layers; i++) {
        TRY_OR(done, run_depth(&own, layers[i], how, &measured[i], &peak));
        print_depth(&measured[i], peak, to);
        if (i == 1 && n_layers > 2)
            print_projection(measured, 2, dims.text.layers, how->ranks, peak, to);
        fflush(to);
    }
    if (measured[0].images == 0.0)
        fprintf(to, "warning: the rows had no images; with real ones a model with vision runs at "
                    "about half this rate\n");
    print_projection(measured, n_layers, dims.text.layers, how->ranks, peak, to);
done:
    if (path[0])
        unlink(path);
    return st;
}
