/* monitor.c: keeps the figures of a run under a lock, and answers HTTP from a copy of them. */
#include "trainer/report/monitor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/http/http_thread.h"
#include "common/program/log.h"
#include "trainer/report/monitor_text.h"

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
