/* steps.c: trainer bench step: whole steps at several depths, a line through them, and what the
 * line says of the whole model. The optimiser is measured apart, since each of R ranks updates its
 * share of the values only. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/skew.h"
#include "trainer/bench/text_rows.h"
#include "trainer/step.h"

/* A lane has two buffers, and a step is captured for each on its second use: steps 3 and 4. */
enum { WARM_UP = 5, UPDATES = 5, DEPTHS_MAX = 8 };
static const double H200_FLOPS = 989e12; /* dense bf16 by the datasheet, H100 and H200 */

/* What was measured at one depth. */
typedef struct depth {
    int64_t layers;
    bench_spread step;            /* ms */
    double optimizer;             /* ms of one update of all values */
    double tokens, images, flops; /* of a step, mean */
    double wait_share;
    double load; /* of the busiest expert over the mean; 0: not set */
    size_t used, total;
} depth;

static status time_updates(session *s, double *out_ms)
{
    const backend_vtable *v = s->device->v;
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

/* One step told; the next ones are queued first, as a run does. */
static status next_step(session *s, int64_t *queued, int64_t last, step_report *out)
{
    while (step_under_way(s) <= s->device->v->ahead && *queued < last)
        TRY(step_queue(s, ++*queued));
    TRY(step_told(s, out));
    return isfinite(out->loss)
               ? ST_OK
               : FAIL(ST_INTERNAL, "bench: the loss of step %" PRId64 " is not finite", out->step);
}

/* Steps behind `before`: a warm-up, and `steps` that are timed from one to the next. */
static status run_steps(session *s, int64_t before, int64_t steps, depth *d)
{
    double *ms = calloc((size_t)steps, sizeof *ms);
    int64_t wait_ns = 0, queued = before, last = before + WARM_UP + steps, then = 0;
    status st = ST_OK;
    if (!ms)
        return FAIL(ST_NO_MEMORY, "bench: out of memory");
    for (int64_t i = 1; i <= WARM_UP + steps; i++) {
        step_report r;
        TRY_OR(done, next_step(s, &queued, last, &r));
        int64_t now = clock_ns();
        if (i > WARM_UP) {
            ms[i - WARM_UP - 1] = (double)(now - then) * 1e-6;
            d->tokens += (double)r.tokens / (double)steps;
            d->images += (double)r.images / (double)steps;
            d->flops += (double)r.flops.training / (double)steps;
            wait_ns += r.wait_ns;
        }
        then = now;
    }
    d->step = bench_spread_of(ms, steps);
    d->wait_share = (double)wait_ns * 1e-6 / (d->step.mean * (double)steps);
done:
    free(ms);
    return st;
}

static status run_depth(const conf *c, int64_t layers, double load, depth *d, double *peak)
{
    session s = {0};
    skew *k = NULL;
    conf own = *c; /* its texts stay c's */
    int64_t before = 0;
    own.model_layers = layers;
    own.eval_enable = false;
    if (load > 0.0)
        own.optimizer_lr = 0.0; /* updates cost the same, and the router stays as it was set */
    status st = ST_OK;
    TRY(session_open(&own, SESSION_TRAIN, &s));
    d->layers = s.dims.text.layers;
    if (load > 0.0) {
        TRY_OR(done, skew_new(&s, load, &k));
        TRY_OR(done, skew_settle(k, &s, &before));
    }
    TRY_OR(done, run_steps(&s, before, c->training_steps, d));
    if (k)
        TRY_OR(done, skew_measure(k, &s, &d->load));
    TRY_OR(done, time_updates(&s, &d->optimizer));
    TRY_OR(done, s.device->v->memory(s.device, &d->used, &d->total));
    if (*peak == 0.0) {
        bench_ceilings ceilings;
        TRY_OR(done, bench_ceilings_measure(s.stream, &ceilings));
        bool hopper =
            strstr(s.device->description, "H200") || strstr(s.device->description, "H100");
        *peak = hopper ? H200_FLOPS : ceilings.product;
        printf("device: %s\n", s.device->description);
        bench_ceilings_print(&ceilings, stdout);
    }
done:
    if (k && s.device->v->wait(s.stream) != ST_OK) /* the bias goes next */
        log_error("bench: %s", status_text());
    skew_free(&k, &s);
    session_close(&s);
    return st;
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
    fputc('\n', to);
    fflush(to);
}

/* What these depths say of the whole model on `ranks` ranks. */
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
    bench_fit f = bench_fit_line(x, useful, n); /* exact: every layer is alike */
    double layers = (double)whole;
    double step = w.a + w.b * layers + (u.a + u.b * layers) / (double)ranks;
    fprintf(to,
            "fit: %.3f + %.3f x layers ms without the optimiser (largest residual %.2f %%), "
            "optimiser %.3f + %.3f x layers\n",
            w.a, w.b, 100.0 * w.residual, u.a, u.b);
    fprintf(to,
            "projected: %" PRId64 " layers, optimiser over %" PRId64
            " ranks, collectives hidden: step %.1f ms  tps: %.0f  mfu: %.2f%% of %.1f TFLOP/s\n",
            whole, ranks, step, d[0].tokens / (step * 1e-3),
            100.0 * (f.a + f.b * layers) / (step * 1e-3) / peak, peak * 1e-12);
}

/* Rows of text in a file of their own, where no recording is named. */
static status own_rows(const conf *c, const model_dims *d, char path[STATUS_PATH_MAX])
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, STATUS_PATH_MAX, "%s/bench-rows-%ld.rec", folder && *folder ? folder : "/tmp",
             (long)getpid());
    return text_rows_record(path, d, 2 * c->training_global_batch_size, c->training_seq_len,
                            c->bench_document);
}

status bench_steps(const conf *c, const int64_t *layers, int n_layers, int64_t ranks, double load,
                   FILE *to)
{
    depth measured[DEPTHS_MAX] = {{0}};
    char path[STATUS_PATH_MAX] = "";
    double peak = c->metrics_peak_tflops * 1e12;
    model_dims dims;
    conf own = *c;
    status st = ST_OK;
    if (n_layers > DEPTHS_MAX)
        return FAIL(ST_USAGE, "bench step: at most %d depths", DEPTHS_MAX);
    TRY(dims_load(c->model_path, &dims));
    if (!c->feed_replay[0]) {
        TRY_OR(done, own_rows(c, &dims, path));
        own.feed_replay = path;
    }
    for (int i = 0; i < n_layers; i++) {
        TRY_OR(done, run_depth(&own, layers[i], load, &measured[i], &peak));
        print_depth(&measured[i], peak, to);
    }
    if (measured[0].images == 0.0)
        fprintf(to, "warning: fed without images; with real ones a model with vision runs at "
                    "about half this rate\n");
    print_projection(measured, n_layers, dims.text.layers, ranks, peak, to);
done:
    if (path[0])
        unlink(path);
    return st;
}
