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
#include "trainer/bench/bench.h"
#include "trainer/bench/skew.h"
#include "trainer/bench/text_rows.h"
#include "trainer/device/graph_replay.h"
#include "trainer/report/profile.h"
#include "trainer/report/speed.h"
#include "trainer/run/step.h"

/* The upload ring has two buffers, and a step is captured for each on its second use, which is in
 * steps 3 and 4. After WARM_UP steps nothing new happens. */
enum { WARM_UP = 5, UPDATES = 5, PROFILED = 5 };
static const double LATE_US = 50.0; /* no start of a step should be delayed by more than this */

/* The calls of one kind in a step, and how long the simulated link should take for them. */
typedef struct stated {
    const char *what;
    int64_t calls, bytes;
    double ms;
} stated;

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
    char replayed[160]; /* world.replayed if the other ranks are simulated; else "" */
    profile_sums where; /* the profile of simulated ranks: where the time of the steps goes */
    stated link[PROFILE_CALLS];
    int n_link;
} depth;

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
    TRY(step_told(run, out));
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

/* Adds up the calls of the last step by name; several groups may use the same name. */
static void state_link(const world *job, depth *measured)
{
    const comm_simulated *rank = job->joined;
    const comm_tally *list;
    const int count = comm_ledger_list(job->ledger, &list);
    for (int i = 0; i < count; i++) {
        const comm_tally *tally = &list[i];
        int k = 0;
        while (k < measured->n_link && strcmp(measured->link[k].what, tally->what) != 0)
            k++;
        if (tally->step_bytes == 0 || k == PROFILE_CALLS)
            continue;
        measured->n_link += k == measured->n_link;
        stated *config = &measured->link[k];
        config->what = tally->what;
        config->calls += tally->step_calls;
        config->bytes += tally->step_bytes;
        /* Every call has the link's latency; the rest of the time depends on the bytes. */
        config->ms += (double)((tally->step_calls - 1) * rank->latency_ns +
                               comm_simulated_ns(rank, tally->step_bytes)) *
                      1e-6;
    }
}

/* Profiles the steps after `before`, call by call, to see which part of the collectives is exposed.
 * The first of them warms up. */
static status profile_steps(session *run, int64_t before, profile_sums *out)
{
    profile *profiler = NULL;
    status st = ST_OK;
    graph_replay_free(run->stream); /* no graphs: calls are measured one by one */
    TRY(profile_new(run->stream, &profiler));
    for (int64_t i = 0; i <= PROFILED; i++) {
        step_report report;
        if (i == 1)
            profile_reset(profiler);
        TRY_OR(done, profile_begin(profiler));
        TRY_OR(done, step_run(run, before + 1 + i, &report));
        TRY_OR(done, profile_end(profiler, report.wait_ns));
    }
    *out = *profile_read(profiler);
done:
    profile_free(&profiler);
    return st;
}

/* Measures one depth. `job`: NULL, or a world in which all other ranks are simulated. */
static status run_depth(const conf *options, const world *job, const bench_how *how,
                        depth *measured, double *peak)
{
    session run = {0};
    skew *slow = NULL;
    int64_t before = 0;
    status st = ST_OK;
    TRY(session_open_bench(options, job, how->live, &run));
    measured->of.layers = run.dims.text.layers;
    if (how->load > 0.0) {
        TRY_OR(done, skew_new(&run, how->load, &slow));
        TRY_OR(done, skew_settle(slow, &run, how->settle, &before));
    }
    TRY_OR(done, run_steps(&run, before, options->training_steps, measured));
    if (slow)
        TRY_OR(done, skew_measure(slow, &run, &measured->load));
    if (world_simulated(job)) {
        TRY_OR(done,
               profile_steps(&run, before + WARM_UP + options->training_steps, &measured->where));
        state_link(job, measured);
    }
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
    if (slow && run.device->backend->wait(run.stream) != ST_OK) /* before the bias is released */
        log_error("bench: %s", status_text());
    skew_free(&slow, &run);
    session_close(&run);
    return st;
}

static status run_alone_or_replayed(const conf *options, int64_t layers, const bench_how *how,
                                    depth *measured, double *peak)
{
    world job = {0};
    conf own = *options; /* a shallow copy, whose strings belong to options */
    const bool replayed = options->comm_engine == ENGINE_REPLAY;
    own.model_layers = layers;
    own.eval_enable = false;
    if (how->load > 0.0)
        own.optimizer_lr = 0.0; /* updates take the same time, but the router stays as it was set */
    if (!replayed)
        return run_depth(&own, NULL, how, measured, peak);
    TRY(world_replay(&own, &job));
    world_fit(&job, &own);
    memcpy(measured->replayed, job.replayed, sizeof measured->replayed);
    return world_close(&job, run_depth(&own, &job, how, measured, peak));
}

static void print_depth(const depth *measured, double peak, FILE *to)
{
    fprintf(to,
            "depth: %2" PRId64 " layers  step: %.3f ms (median %.3f, deviation %.2f %%, slowest "
            "%.3f, fastest %.3f)  optimiser: %.3f ms  tokens: %.0f  images: %.1f  tps: %.0f  mfu: "
            "%.2f%%  wait: %.2f%%  memory: %.2f GiB of %.2f\n"
            "steps: standard deviation %.2f %% of the mean; %.1f %% of them under 90 %% of the "
            "median's rate",
            measured->of.layers, measured->of.step.mean, measured->of.step.median,
            100.0 * measured->of.step.deviation / measured->of.step.mean, measured->of.step.slowest,
            measured->of.step.fastest, measured->of.optimizer, measured->of.tokens,
            measured->images, measured->of.tokens / (measured->of.step.mean * 1e-3),
            100.0 * measured->of.flops / (measured->of.step.median * 1e-3) / peak,
            100.0 * measured->wait_share, (double)measured->used / 1073741824.0,
            (double)measured->total / 1073741824.0,
            100.0 * measured->of.step.deviation / measured->of.step.mean,
            100.0 * measured->of.step.slow);
    if (measured->load > 0.0)
        fprintf(to, "; busiest expert %.2f times the mean", measured->load);
    if (measured->replayed[0]) {
        fprintf(to, "\n%s", measured->replayed);
        fprintf(to, "\nits collectives, of steps that are not captured:\n");
        profile_print(&measured->where, to);
        for (int i = 0; i < measured->n_link; i++)
            fprintf(to, "link: %-38s stated %11.3f ms, %" PRId64 " calls, %" PRId64 " bytes\n",
                    measured->link[i].what, measured->link[i].ms, measured->link[i].calls,
                    measured->link[i].bytes);
    } else {
        fputc('\n', to);
    }
    fprintf(to,
            "input: %" PRId64 " step starts delayed by a median of %.1f us, 99 of 100 by at most "
            "%.1f us, the longest %.1f us; %" PRId64 " by more than %.0f us\n",
            measured->steps, measured->input_median, measured->input_p99, measured->input_most,
            measured->late, LATE_US);
    fflush(to);
}

/* Prints the projection of the first `count` depths. */
static void print_projection(const depth *measured, int count, int64_t whole, int64_t ranks,
                             double peak, FILE *to)
{
    const bool replayed = measured[0].replayed[0]; /* if so, updates were those of a single rank */
    bench_depth depths[BENCH_DEPTHS];
    for (int i = 0; i < count; i++)
        depths[i] = measured[i].of;
    const bench_projection what = bench_project(depths, count, whole, replayed ? 1 : ranks, peak);
    bench_project_print(&what, whole, ranks, replayed, peak, to);
    if (replayed)
        fprintf(to, "%s\n", measured[0].replayed);
}

static const double CHECK = 0.03; /* how far a later depth may be off the line of the first two */

/* Compares the last depth with the line through the first two. */
static void print_check(const depth *measured, int last, FILE *to)
{
    const double first = measured[0].of.step.mean - measured[0].of.optimizer;
    const double second = measured[1].of.step.mean - measured[1].of.optimizer;
    const double found = measured[last].of.step.mean - measured[last].of.optimizer;
    const double share = (double)(measured[last].of.layers - measured[0].of.layers) /
                         (double)(measured[1].of.layers - measured[0].of.layers);
    const double line = first + share * (second - first), off = fabs(found - line) / line;
    fprintf(to,
            "check: %" PRId64
            " layers take %.3f ms without the optimiser, the line through %" PRId64 " and %" PRId64
            " layers says %.3f: %.2f %% off, %s %.0f %%\n",
            measured[last].of.layers, found, measured[0].of.layers, measured[1].of.layers, line,
            100.0 * off, off <= CHECK ? "within" : "more than", 100.0 * CHECK);
}

status bench_steps(const conf *options, const int64_t *layers, int n_layers, const bench_how *how,
                   FILE *to)
{
    int64_t ranks = how->ranks;
    depth measured[BENCH_DEPTHS] = {0};
    char path[STATUS_PATH_MAX] = "";
    double peak = options->metrics_peak_tflops * 1e12;
    model_dims dims;
    conf own = *options;
    status st = ST_OK;
    if (n_layers > BENCH_DEPTHS)
        return FAIL(ST_USAGE, "bench step takes at most %d depths", BENCH_DEPTHS);
    TRY(dims_load(options->model_path, &dims));
    if (how->live && options->comm_engine == ENGINE_REPLAY)
        return FAIL(ST_USAGE, "bench step --live: a daemon would wait for the ranks that "
                              "comm.engine replay leaves out");
    if (how->live && options->feed_replay[0])
        return FAIL(ST_USAGE, "bench step --live takes its rows from prepd.endpoint; leave "
                              "feed.replay unset, or leave out --live");
    if (!options->feed_replay[0] && !how->live) {
        TRY_OR(done, text_rows_own(options, &dims, path));
        own.feed_replay = path;
    }
    if (options->comm_engine == ENGINE_REPLAY) {
        layout degrees;
        TRY_OR(done, layout_of(options, NULL, &degrees));
        ranks = degrees.world;
    }
    for (int i = 0; i < n_layers; i++) {
        TRY_OR(done, run_alone_or_replayed(&own, layers[i], how, &measured[i], &peak));
        print_depth(&measured[i], peak, to);
        if (i == 1 && n_layers > 2)
            print_projection(measured, 2, dims.text.layers, ranks, peak, to);
        if (i > 1 && measured[0].of.layers != measured[1].of.layers)
            print_check(measured, i, to);
        fflush(to);
    }
    if (measured[0].images == 0.0)
        fprintf(to, "warning: the rows had no images; with real ones a model with vision runs at "
                    "about half this rate\n");
    print_projection(measured, n_layers, dims.text.layers, ranks, peak, to);
done:
    if (path[0])
        unlink(path);
    return st;
}
