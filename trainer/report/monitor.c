/* SPDX-License-Identifier: Apache-2.0 */
/* monitor.c: keeps the figures of a run under a lock, and answers HTTP from a copy of them. */
#include "trainer/report/monitor.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/http/exposition.h"
#include "common/http/http.h"
#include "common/program/log.h"

struct monitor {
    const conf *conf;
    http_thread *door;
    pthread_mutex_t lock; /* of everything below */
    run_figures figures;
};

static const char index_page[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>trainer</title>"
    "<meta name=\"viewport\" content=\"width=device-width\">"
    "<style>:root{color-scheme:light dark}body{font:16px/1.6 system-ui,sans-serif;margin:2em}"
    "</style></head><body>\n<h1>trainer " TESSERA_VERSION "</h1>\n<ul>\n"
    "<li><a href=\"/metrics\">/metrics</a>: figures for Prometheus</li>\n"
    "<li><a href=\"/healthz\">/healthz</a>: do steps finish?</li>\n"
    "</ul>\n</body></html>\n";

/* A copy of what is known. */
static run_figures take_copy(monitor *watch)
{
    pthread_mutex_lock(&watch->lock);
    const run_figures figures = watch->figures;
    pthread_mutex_unlock(&watch->lock);
    return figures;
}

static int answer_health(const conf *options, const run_figures *figures, FILE *out)
{
    char why[256] = "ok";
    const bool stuck = monitor_is_stuck(options, figures, clock_ns(), why, sizeof why);
    fprintf(out, "%s\n", why);
    return stuck ? 503 : 200;
}

int monitor_answer(void *user, const char *path, FILE *out, const char **out_type)
{
    monitor *watch = user;
    if (strcmp(path, "/") == 0) {
        *out_type = "text/html; charset=utf-8";
        fputs(index_page, out);
        return 200;
    }
    const run_figures figures = take_copy(watch);
    int code = 200;
    if (strcmp(path, "/metrics") == 0)
        monitor_print(out, watch->conf, &figures, clock_ns());
    else if (strcmp(path, "/healthz") == 0)
        code = answer_health(watch->conf, &figures, out);
    else {
        fprintf(out, "not found; there are /metrics /healthz\n");
        code = 404;
    }
    return code;
}

status monitor_new(const conf *options, monitor **out)
{
    const http_place at = {.option = "metrics.trainer_listen",
                           .address = options->metrics_trainer_listen,
                           .any_address = options->metrics_any_address};
    *out = NULL;
    if (!at.address[0])
        return ST_OK;
    monitor *watch = calloc(1, sizeof *watch);
    if (!watch)
        return FAIL(ST_NO_MEMORY, "no memory for the figures of the run");
    watch->conf = options;
    watch->figures.phase_ns = clock_ns();
    pthread_mutex_init(&watch->lock, NULL);
    status st = http_thread_start(&at, monitor_answer, watch, &watch->door);
    if (st != ST_OK) {
        monitor_free(&watch);
        return st;
    }
    const char *who = http_audience(at.address);
    if (who)
        log_warn("metrics.trainer_listen %s: %s", at.address, who);
    *out = watch;
    return ST_OK;
}

void monitor_free(monitor **held)
{
    monitor *watch = *held;
    if (!watch)
        return;
    http_thread_stop(&watch->door);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
    *held = NULL;
}

void monitor_phase(monitor *watch, run_phase phase)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->figures.phase = phase;
    watch->figures.phase_ns = clock_ns();
    pthread_mutex_unlock(&watch->lock);
}

void monitor_opened(monitor *watch, const session *run, int64_t planned)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    run_figures *figures = &watch->figures;
    figures->ranks = run->mesh.layout.world > 1 ? run->mesh.layout.world : 1;
    figures->steps_planned = run->schedule.steps;
    figures->planned_bytes = planned;
    if (run->stream_options)
        hash_print(hash_bytes(run->stream_options, strlen(run->stream_options)), figures->stream);
    pthread_mutex_unlock(&watch->lock);
}

void monitor_step(monitor *watch, const step_report *step)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    run_figures *figures = &watch->figures;
    figures->step = step->step;
    figures->step_ns = clock_ns();
    figures->loss = step->loss;
    figures->grad_norm = step->grad_norm;
    figures->lr = step->lr;
    figures->steps++;
    figures->skipped += step->skipped;
    figures->tokens += step->tokens;
    figures->targets += step->targets;
    figures->samples += step->documents;
    figures->images += step->images;
    figures->wait_ns += step->wait_ns;
    figures->bad_samples = step->bad_samples;
    pthread_mutex_unlock(&watch->lock);
}

void monitor_line(monitor *watch, const line_rates *rates)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->figures.has_line = true;
    watch->figures.rates = *rates;
    pthread_mutex_unlock(&watch->lock);
}

void monitor_evaluated(monitor *watch, const evaluation *result)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->figures.is_evaluated = true;
    watch->figures.held_out_loss = result->loss;
    watch->figures.held_out_accuracy = evaluation_percent(result->right, result->answers) / 100;
    pthread_mutex_unlock(&watch->lock);
}

void monitor_saved(void *user, int64_t step, double seconds, status how)
{
    monitor *watch = user;
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    run_figures *figures = &watch->figures;
    if (how == ST_OK) {
        figures->saved++;
        figures->saved_step = step;
        figures->saved_seconds = seconds;
        figures->saved_ns = clock_ns();
    } else {
        figures->unsaved++;
    }
    pthread_mutex_unlock(&watch->lock);
}

static const char *const phase_name[RUN_PHASES] = {"starting", "training", "evaluating", "saving",
                                                   "ending"};

static double seconds_between(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) / 1e9;
}

/* When the run last showed that it goes on. */
static int64_t alive_ns(const run_figures *figures)
{
    return figures->step_ns > figures->phase_ns ? figures->step_ns : figures->phase_ns;
}

static void gauge(FILE *out, const char *name, const char *help, double value)
{
    exposition_one(out, name, "gauge", help, value);
}

static void counter(FILE *out, const char *name, const char *help, int64_t value)
{
    exposition_one(out, name, "counter", help, (double)value);
}

static void print_run(FILE *out, const conf *options, const run_figures *figures)
{
    const exposition_label labels[] = {{"description", options->job_description},
                                       {"folder", options->job_dump_folder},
                                       {"model", options->model_path},
                                       {"recording", options->feed_replay},
                                       {"stream", figures->stream}};
    exposition_family(out, "trainer_build_info", "gauge", "1, with the version");
    exposition_labelled(out, "trainer_build_info", "version", TESSERA_VERSION, 1);
    exposition_family(out, "trainer_run_info", "gauge", "1, with what is trained on what");
    exposition_sample(out, "trainer_run_info", labels, sizeof labels / sizeof *labels, 1);
    exposition_family(out, "trainer_phase", "gauge", "1 for what the run is doing, 0 for the rest");
    for (int i = 0; i < RUN_PHASES; i++)
        exposition_labelled(out, "trainer_phase", "phase", phase_name[i], i == (int)figures->phase);
    gauge(out, "trainer_ranks", "processes of the run", (double)figures->ranks);
}

static void print_steps(FILE *out, const run_figures *figures, int64_t now_ns)
{
    if (figures->steps_planned > 0)
        gauge(out, "trainer_steps_planned", "steps of the whole run",
              (double)figures->steps_planned);
    gauge(out, "trainer_step_age_seconds",
          "since the last step finished; before the first, since what the run is doing began",
          seconds_between(figures->step ? figures->step_ns : figures->phase_ns, now_ns));
    counter(out, "trainer_steps_total", "steps finished by this process", figures->steps);
    counter(out, "trainer_skipped_steps_total", "steps whose update was skipped", figures->skipped);
    counter(out, "trainer_tokens_total", "tokens of these steps, all ranks", figures->tokens);
    counter(out, "trainer_targets_total", "target tokens of these steps", figures->targets);
    counter(out, "trainer_samples_total", "documents of these steps", figures->samples);
    counter(out, "trainer_images_total", "pictures of these steps", figures->images);
    exposition_one(out, "trainer_wait_seconds_total", "counter",
                   "time in which the device stood idle without rows, of the rank that waited "
                   "longest",
                   (double)figures->wait_ns * 1e-9);
    if (figures->step == 0)
        return;
    gauge(out, "trainer_step", "the last finished step", (double)figures->step);
    gauge(out, "trainer_loss", "training loss of the last step", figures->loss);
    gauge(out, "trainer_grad_norm", "norm of its gradient before clipping", figures->grad_norm);
    gauge(out, "trainer_learning_rate", "learning rate of the last step", figures->lr);
}

static void print_line_rates(FILE *out, const run_figures *figures)
{
    const line_rates *rates = &figures->rates;
    if (figures->planned_bytes > 0)
        gauge(out, "trainer_memory_planned_bytes", "memory that the first rank is to take",
              (double)figures->planned_bytes);
    if (!figures->has_line)
        return;
    gauge(out, "trainer_device_tokens_per_second",
          "tokens a second of one device, over the steps of the last log line", rates->tokens);
    if (isfinite(rates->mfu))
        gauge(out, "trainer_mfu_ratio", "share of the device's peak in the same steps, 0 to 1",
              rates->mfu);
    gauge(out, "trainer_memory_used_bytes", "memory that the first rank's device has given out",
          (double)rates->memory_used);
    gauge(out, "trainer_memory_device_bytes", "memory that the device has",
          (double)rates->memory_total);
}

static void print_checkpoints(FILE *out, const run_figures *figures, int64_t now_ns)
{
    exposition_family(out, "trainer_checkpoints_total", "counter", "saves of this process");
    exposition_labelled(out, "trainer_checkpoints_total", "outcome", "written",
                        (double)figures->saved);
    exposition_labelled(out, "trainer_checkpoints_total", "outcome", "failed",
                        (double)figures->unsaved);
    if (figures->saved == 0)
        return;
    gauge(out, "trainer_checkpoint_step", "step of the last checkpoint that was written",
          (double)figures->saved_step);
    gauge(out, "trainer_checkpoint_seconds", "how long writing it took", figures->saved_seconds);
    gauge(out, "trainer_checkpoint_age_seconds", "since it was written",
          seconds_between(figures->saved_ns, now_ns));
}

void monitor_print(FILE *out, const conf *options, const run_figures *figures, int64_t now_ns)
{
    print_run(out, options, figures);
    print_steps(out, figures, now_ns);
    print_line_rates(out, figures);
    if (figures->is_evaluated) {
        gauge(out, "trainer_held_out_loss", "loss of the last evaluation", figures->held_out_loss);
        gauge(out, "trainer_held_out_accuracy_ratio", "accuracy of the last evaluation, 0 to 1",
              figures->held_out_accuracy);
    }
    print_checkpoints(out, figures, now_ns);
    if (figures->step > 0)
        gauge(out, "trainer_bad_samples", "samples that the stream leaves out because they are bad",
              (double)figures->bad_samples);
    exposition_process(out);
}

bool monitor_is_stuck(const conf *options, const run_figures *figures, int64_t now_ns, char *out,
                      size_t size)
{
    const double quiet = seconds_between(alive_ns(figures), now_ns);
    if (quiet <= options->metrics_step_timeout)
        return false;
    snprintf(out, size,
             "for %.0f s no step has finished (metrics.step_timeout %.0f s); the run is %s, and "
             "its last step was %" PRId64,
             quiet, options->metrics_step_timeout, phase_name[figures->phase], figures->step);
    return true;
}
