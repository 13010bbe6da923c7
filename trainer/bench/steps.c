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
enum { WARM_UP = 5, UPDATES = 5, PROFILED = 5, DEPTHS_MAX = 8 };
static const double LATE_US = 50.0; /* no start of a step should be delayed by more than this */

/* The calls of one kind in a step, and how long the simulated link should take for them. */
typedef struct stated {
    const char *what;
    int64_t calls, bytes;
    double ms;
} stated;

/* What was measured at one depth. */
typedef struct depth {
    int64_t layers;
    bench_spread step;            /* ms */
    double optimizer;             /* ms of one update of all values */
    double tokens, images, flops; /* per step, averaged */
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

static status time_updates(session *s, double *out_ms)
{
    const backend_vtable *v = s->device->backend;
    event *from = NULL, *to = NULL;
    double ms[UPDATES];
    status st = ST_OK;
    TRY_OR(done, v->event_new(s->device, &from));
    TRY_OR(done, v->event_new(s->device, &to));
    for (int i = 0; i < UPDATES; i++) {
        int64_t ns;
        TRY_OR(done, v->event_record(s->stream, from));
        TRY_OR(done, optimizer_step(s->optimizer, s->stream, 1, 0.0, s->sums.weight));
        TRY_OR(done, v->event_record(s->stream, to));
        TRY_OR(done, v->event_wait(s->device, to));
        TRY_OR(done, v->event_ns(from, to, &ns));
        ms[i] = (double)ns * 1e-6;
    }
    *out_ms = bench_spread_of(ms, UPDATES).median;
done:
    v->event_free(&from);
    v->event_free(&to);
    return st;
}

/* Waits for the next step, after queueing as many ahead as a run does. */
static status next_step(session *s, int64_t *queued, int64_t last, step_report *out)
{
    while (step_under_way(s) <= s->device->backend->ahead && *queued < last)
        TRY(step_queue(s, ++*queued));
    TRY(step_told(s, out));
    return isfinite(out->loss)
               ? ST_OK
               : FAIL(ST_INTERNAL, "bench: the loss of step %" PRId64 " is not finite", out->step);
}

/* Judges the delays of n steps in microseconds; sorts them. */
static void judge_input(double *us, int64_t n, depth *d)
{
    d->steps = n;
    for (int64_t i = 0; i < n; i++)
        d->late += us[i] > LATE_US;
    d->input_median = bench_spread_of(us, n).median;
    d->input_p99 = us[(n * 99 + 99) / 100 - 1];
    d->input_most = us[n - 1];
}

/* Runs the steps after `before`: a warm-up, and then `steps` steps, each timed from the end of the
 * one before to its own end. */
static status run_steps(session *s, int64_t before, int64_t steps, depth *d)
{
    double *ms = calloc((size_t)steps, sizeof *ms), *us = calloc((size_t)steps, sizeof *us);
    int64_t wait_ns = 0, queued = before, last = before + WARM_UP + steps, then = 0;
    status st = ST_OK;
    if (!ms || !us) {
        st = FAIL(ST_NO_MEMORY, "no memory for the times of %" PRId64 " steps", steps);
        goto done;
    }
    for (int64_t i = 1; i <= WARM_UP + steps; i++) {
        step_report r;
        TRY_OR(done, next_step(s, &queued, last, &r));
        int64_t now = clock_ns();
        if (i > WARM_UP) {
            ms[i - WARM_UP - 1] = (double)(now - then) * 1e-6;
            us[i - WARM_UP - 1] = (double)r.input_ns * 1e-3;
            d->tokens += (double)r.tokens / (double)steps;
            d->images += (double)r.images / (double)steps;
            d->flops += (double)r.flops.training / (double)steps;
            wait_ns += r.wait_ns;
        }
        then = now;
    }
    d->step = bench_spread_of(ms, steps);
    d->wait_share = (double)wait_ns * 1e-6 / (d->step.mean * (double)steps);
    judge_input(us, steps, d);
done:
    free(ms);
    free(us);
    return st;
}

/* Adds up the calls of the last step by name; several groups may use the same name. */
static void state_link(const world *w, depth *d)
{
    const comm_simulated *r = w->joined;
    const comm_tally *list;
    const int n = comm_ledger_list(w->ledger, &list);
    for (int i = 0; i < n; i++) {
        const comm_tally *t = &list[i];
        int k = 0;
        while (k < d->n_link && strcmp(d->link[k].what, t->what) != 0)
            k++;
        if (t->step_bytes == 0 || k == PROFILE_CALLS)
            continue;
        d->n_link += k == d->n_link;
        stated *s = &d->link[k];
        s->what = t->what;
        s->calls += t->step_calls;
        s->bytes += t->step_bytes;
        /* Every call has the link's latency; the rest of the time depends on the bytes. */
        s->ms +=
            (double)((t->step_calls - 1) * r->latency_ns + comm_simulated_ns(r, t->step_bytes)) *
            1e-6;
    }
}

/* Profiles the steps after `before`, call by call, to see which part of the collectives is exposed.
 * The first of them warms up. */
static status profile_steps(session *s, int64_t before, profile_sums *out)
{
    profile *p = NULL;
    status st = ST_OK;
    graph_replay_free(s->stream); /* no graphs: calls are measured one by one */
    TRY(profile_new(s->stream, &p));
    for (int64_t i = 0; i <= PROFILED; i++) {
        step_report r;
        if (i == 1)
            profile_reset(p);
        TRY_OR(done, profile_begin(p));
        TRY_OR(done, step_run(s, before + 1 + i, &r));
        TRY_OR(done, profile_end(p, r.wait_ns));
    }
    *out = *profile_read(p);
done:
    profile_free(&p);
    return st;
}

/* Measures one depth. w: NULL, or a world in which all other ranks are simulated. */
static status run_depth(const conf *c, const world *w, double load, bool live, depth *d,
                        double *peak)
{
    session s = {0};
    skew *k = NULL;
    int64_t before = 0;
    status st = ST_OK;
    TRY(live ? session_open_any(c, &s) : session_resume(c, w, NULL, &s));
    d->layers = s.dims.text.layers;
    if (load > 0.0) {
        TRY_OR(done, skew_new(&s, load, &k));
        TRY_OR(done, skew_settle(k, &s, &before));
    }
    TRY_OR(done, run_steps(&s, before, c->training_steps, d));
    if (k)
        TRY_OR(done, skew_measure(k, &s, &d->load));
    if (world_simulated(w)) {
        TRY_OR(done, profile_steps(&s, before + WARM_UP + c->training_steps, &d->where));
        state_link(w, d);
    }
    TRY_OR(done, time_updates(&s, &d->optimizer));
    TRY_OR(done, s.device->backend->memory(s.device, &d->used, &d->total));
    if (*peak == 0.0) {
        bench_ceilings ceilings;
        TRY_OR(done, bench_ceilings_measure(s.stream, &ceilings));
        *peak = speed_known(s.device);
        *peak = *peak > 0.0 ? *peak : ceilings.product;
        printf("device: %s\n", s.device->description);
        bench_ceilings_print(&ceilings, stdout);
    }
done:
    if (k && s.device->backend->wait(s.stream) != ST_OK) /* before the bias is released */
        log_error("bench: %s", status_text());
    skew_free(&k, &s);
    session_close(&s);
    return st;
}

static status run_alone_or_replayed(const conf *c, int64_t layers, double load, bool live, depth *d,
                                    double *peak)
{
    world w = {0};
    conf own = *c; /* a shallow copy, whose strings belong to c */
    const bool replayed = c->comm_engine == ENGINE_REPLAY;
    own.model_layers = layers;
    own.eval_enable = false;
    if (load > 0.0)
        own.optimizer_lr = 0.0; /* updates take the same time, but the router stays as it was set */
    if (!replayed)
        return run_depth(&own, NULL, load, live, d, peak);
    TRY(world_replay(&own, &w));
    world_fit(&w, &own);
    memcpy(d->replayed, w.replayed, sizeof d->replayed);
    return world_close(&w, run_depth(&own, &w, load, live, d, peak));
}

static void print_depth(const depth *d, double peak, FILE *to)
{
    fprintf(to,
            "depth: %2" PRId64 " layers  step: %.3f ms (median %.3f, deviation %.2f %%, slowest "
            "%.3f, fastest %.3f)  optimiser: %.3f ms  tokens: %.0f  images: %.1f  tps: %.0f  mfu: "
            "%.2f%%  wait: %.2f%%  memory: %.2f GiB of %.2f\n"
            "steps: standard deviation %.2f %% of the mean; %.1f %% of them under 90 %% of the "
            "median's rate",
            d->layers, d->step.mean, d->step.median, 100.0 * d->step.deviation / d->step.mean,
            d->step.slowest, d->step.fastest, d->optimizer, d->tokens, d->images,
            d->tokens / (d->step.mean * 1e-3), 100.0 * d->flops / (d->step.median * 1e-3) / peak,
            100.0 * d->wait_share, (double)d->used / 1073741824.0, (double)d->total / 1073741824.0,
            100.0 * d->step.deviation / d->step.mean, 100.0 * d->step.slow);
    if (d->load > 0.0)
        fprintf(to, "; busiest expert %.2f times the mean", d->load);
    if (d->replayed[0]) {
        fprintf(to, "\n%s", d->replayed);
        fprintf(to, "\nits collectives, of steps that are not captured:\n");
        profile_print(&d->where, to);
        for (int i = 0; i < d->n_link; i++)
            fprintf(to, "link: %-38s stated %11.3f ms, %" PRId64 " calls, %" PRId64 " bytes\n",
                    d->link[i].what, d->link[i].ms, d->link[i].calls, d->link[i].bytes);
    } else {
        fputc('\n', to);
    }
    fprintf(to,
            "input: %" PRId64 " step starts delayed by a median of %.1f us, 99 of 100 by at most "
            "%.1f us, the longest %.1f us; %" PRId64 " by more than %.0f us\n",
            d->steps, d->input_median, d->input_p99, d->input_most, d->late, LATE_US);
    fflush(to);
}

/* Prints the line through these depths and what it predicts for the whole model on `ranks` ranks.
 */
static void print_projection(const depth *d, int n, int64_t whole, int64_t ranks, double peak,
                             FILE *to)
{
    double x[DEPTHS_MAX], work[DEPTHS_MAX], update[DEPTHS_MAX], useful[DEPTHS_MAX];
    for (int i = 0; i < n; i++) {
        x[i] = (double)d[i].layers;
        work[i] = d[i].step.mean - d[i].optimizer;
        update[i] = d[i].optimizer;
        useful[i] = d[i].flops;
    }
    bench_fit w = bench_fit_line(x, work, n), u = bench_fit_line(x, update, n);
    bench_fit f = bench_fit_line(x, useful, n); /* exact, since all layers are alike */
    const bool replayed = d[0].replayed[0];     /* if so, updates were those of a single rank */
    double layers = (double)whole;
    double share = (u.a + u.b * layers) / (replayed ? 1.0 : (double)ranks);
    double step = w.a + w.b * layers + share;
    fprintf(to,
            "fit: %.3f + %.3f x layers ms without the optimiser (largest residual %.2f %%), "
            "optimiser %.3f + %.3f x layers\n",
            w.a, w.b, 100.0 * w.residual, u.a, u.b);
    fprintf(to,
            "projected: %" PRId64 " layers, optimiser over %" PRId64
            " ranks (%.1f ms), collectives %s: step %.1f ms  tps: %.0f  mfu: %.2f%% of %.1f "
            "TFLOP/s\n",
            whole, ranks, share, replayed ? "replayed" : "hidden", step,
            d[0].tokens / (step * 1e-3), 100.0 * (f.a + f.b * layers) / (step * 1e-3) / peak,
            peak * 1e-12);
    if (replayed)
        fprintf(to, "%s\n", d[0].replayed);
}

status bench_steps(const conf *c, const int64_t *layers, int n_layers, int64_t ranks, double load,
                   bool live, FILE *to)
{
    depth measured[DEPTHS_MAX] = {{0}};
    char path[STATUS_PATH_MAX] = "";
    double peak = c->metrics_peak_tflops * 1e12;
    model_dims dims;
    conf own = *c;
    status st = ST_OK;
    if (n_layers > DEPTHS_MAX)
        return FAIL(ST_USAGE, "bench step takes at most %d depths", DEPTHS_MAX);
    TRY(dims_load(c->model_path, &dims));
    if (live && c->comm_engine == ENGINE_REPLAY)
        return FAIL(ST_USAGE, "bench step --live: a daemon would wait for the ranks that "
                              "comm.engine replay leaves out");
    if (live && c->feed_replay[0])
        return FAIL(ST_USAGE, "bench step --live takes its rows from prepd.endpoint; leave "
                              "feed.replay unset, or leave out --live");
    if (!c->feed_replay[0] && !live) {
        TRY_OR(done, text_rows_own(c, &dims, path));
        own.feed_replay = path;
    }
    for (int i = 0; i < n_layers; i++) {
        TRY_OR(done, run_alone_or_replayed(&own, layers[i], load, live, &measured[i], &peak));
        print_depth(&measured[i], peak, to);
    }
    if (measured[0].images == 0.0)
        fprintf(to, "warning: the rows had no images; with real ones a model with vision runs at "
                    "about half this rate\n");
    if (c->comm_engine == ENGINE_REPLAY) {
        layout l;
        TRY_OR(done, layout_of(c, NULL, &l));
        ranks = l.world;
    }
    print_projection(measured, n_layers, dims.text.layers, ranks, peak, to);
done:
    if (path[0])
        unlink(path);
    return st;
}
