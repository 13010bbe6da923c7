/* train_tell.c: what a run tells the person who started it: skipped updates, evaluations, the end
 * of the stream, the result, and what is kept when something went wrong. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/digits.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "common/base/words.h"
#include "trainer/run/config_changes.h"
#include "trainer/eval/figures.h"
#include "trainer/report/html.h"
#include "trainer/run/stop.h"
#include "trainer/train/training.h"

enum { IDS_OF_A_LINE = 32 }; /* most sample ids on one line */

static void print_ids(const step_report *r, int64_t from, char out[IDS_OF_A_LINE * 24])
{
    size_t n = 0;
    out[0] = 0;
    for (int64_t i = from; i < r->n_samples && i < from + IDS_OF_A_LINE; i++)
        n = words_add(out, IDS_OF_A_LINE * 24, n, " %" PRIu64, r->sample[i]);
}

/* The ledger has the ids of rank 0; another rank writes its own, from this one on, to its log. */
static void log_ids(const training *t, const step_report *r, int64_t from)
{
    char ids[IDS_OF_A_LINE * 24];
    for (int64_t i = from; !t->ledger && i < r->n_samples; i += IDS_OF_A_LINE) {
        print_ids(r, i, ids);
        log_info("step %" PRId64 ": %ssamples%s", r->step, i ? "and " : "", ids);
    }
}

void tell_skipped(const training *t, const step_report *r)
{
    char ids[IDS_OF_A_LINE * 24];
    const bool more = r->n_samples > IDS_OF_A_LINE;
    print_ids(r, 0, ids);
    log_warn("step %" PRId64 ": update skipped: %s; %" PRId64 " documents, samples%s%s", r->step,
             r->weight > 0.0 ? "the gradient norm is not finite" : "it has no target tokens",
             r->documents, r->n_samples ? ids : " none",
             !more       ? ""
             : t->ledger ? " .. (all in ledger.jsonl)"
                         : " .. (all in this rank's log)");
    log_ids(t, r, IDS_OF_A_LINE);
    if (r->where) /* the same text on all ranks: only rank 0 warns, so the terminal shows it once */
        log_event(training_is_first(t) ? LOG_WARN : LOG_INFO, "step %" PRId64 ": %s", r->step,
                  r->where);
}

void tell_leap(const training *t, const step_report *r, double median)
{
    log_event(training_is_first(t) ? LOG_WARN : LOG_INFO,
              "step %" PRId64 ": loss %.4f is %.1f times the median of the steps before it; its "
              "sample ids are in %s",
              r->step, r->loss, r->loss / median, t->ledger ? "ledger.jsonl" : "this rank's log");
    log_ids(t, r, 0);
}

void tell_end(const training *t)
{
    const int64_t left = receiver_left_over(t->session.train);
    log_info("the stream has ended after %" PRId64 " steps", t->now.step);
    if (left > 0)
        log_warn("the last %" PRId64
                 " rows of %s are left over: they make no whole step of %" PRId64
                 " rows (training.global_batch_size)",
                 left, t->conf->feed_replay, t->conf->training_global_batch_size);
}

static void tell_change(void *unused, const char *key, const char *was, const char *now)
{
    (void)unused;
    log_info("this option differs from the checkpoint: %s: %s%s%s%s", key, now,
             *was ? " (the checkpoint has " : "", was, *was ? ")" : "");
}

void tell_changes(const char *was, const char *now)
{
    config_changes(was, now, tell_change, NULL);
}

void tell_finished(const training *t)
{
    const int64_t steps = t->session.schedule.steps;
    if (steps <= 0 || t->now.step < steps)
        return;
    log_info("this run is finished: %s has step %" PRId64 " of %" PRId64
             ", so nothing is trained%s. "
             "With --checkpoint.load_step 0 or another job.dump_folder it begins anew; with a "
             "larger training.steps it goes on",
             t->from.path, t->now.step, steps,
             session_evaluates(t->conf) ? " and its model is evaluated again" : "");
}

status tell_evaluation(training *t)
{
    evaluation e;
    int64_t start = clock_ns();
    TRY(evaluate_model(&t->session, false, 0, &e));
    bar_clear();
    evaluation_print(&e, t->now.step);
    fflush(stdout);
    t->now.eval_loss = e.loss;
    reporter_rest(t->reporter, clock_ns() - start);
    return reporter_evaluated(t->reporter, t->now.step, &e, false);
}

/* The device's name large, and what else its description says small. */
static void device_fact(const char *description, html_fact *out)
{
    const size_t name = strcspn(description, ",");
    *out = (html_fact){.name = "device"};
    snprintf(out->value, sizeof out->value, "%.*s", (int)name, description);
    if (description[name])
        snprintf(out->note, sizeof out->note, "%s", description + name + strlen(", "));
}

/* Writes what the page says of the run itself; returns how many facts. */
enum { RUN_FACTS = 9 };
static int run_facts(const training *t, html_fact out[RUN_FACTS])
{
    const conf *c = t->conf;
    const session *s = &t->session;
    const char *simulated = world_simulated(t->world);
    const time_t now = time(NULL);
    struct tm utc;
    char count[DIGITS_TEXT], trained[DIGITS_TEXT];
    int n = 0;
    out[n] = (html_fact){.name = "training loss"};
    snprintf(out[n].value, sizeof out[n].value, "%.4f", t->now.last_loss);
    snprintf(out[n].note, sizeof out[n].note, "in the last step, %.4f in the first",
             t->now.first_loss);
    out[++n] = (html_fact){.name = "steps"};
    snprintf(out[n].value, sizeof out[n].value, "%" PRId64, t->now.step);
    snprintf(out[n].note, sizeof out[n].note, "of %" PRId64 " rows each",
             c->training_global_batch_size);
    data_fact(c, false, &out[++n]);
    out[++n] = (html_fact){.name = "model"};
    path_shown(s->dims.name, c->data_path, out[n].value, sizeof out[n].value);
    snprintf(out[n].note, sizeof out[n].note, "%s parameters, %s trained",
             digits_with_commas(s->params->total, count),
             digits_with_commas(params_trained(s->params), trained));
    device_fact(s->device->description, &out[++n]);
    out[++n] = (html_fact){.name = "written"};
    if (gmtime_r(&now, &utc)) {
        strftime(out[n].value, sizeof out[n].value, "%Y-%m-%d", &utc);
        strftime(out[n].note, sizeof out[n].note, "%H:%M UTC", &utc);
    }
    out[++n] = (html_fact){.name = "version", .value = "tessera " TESSERA_VERSION};
    if (simulated) {
        out[++n] = (html_fact){.name = "simulated"};
        snprintf(out[n].value, sizeof out[n].value, "%s", simulated);
    }
    return n + 1;
}

void tell_report(const training *t, const evaluation *evaluated)
{
    html_fact facts[EVALUATION_FACTS + RUN_FACTS];
    const conf *c = t->conf;
    int n = evaluated ? evaluation_facts(evaluated, facts) : 0;
    n += run_facts(t, facts + n);
    const char *title = c->job_description[0] ? c->job_description : "training run";
    if (html_report(c->job_dump_folder, title, facts, n, t->now.config) != ST_OK)
        log_warn("report.html is not written: %s", status_text());
}

status tell_unkept(const training *t, status st)
{
    if (st == ST_OK)
        return st;
    return status_context(st,
                          "step %" PRId64 " is not kept, and the last whole checkpoint is that of "
                          "step %" PRId64 "; make room and give the same command again",
                          t->now.step, checkpoint_writer_last_step(t->checkpoint_writer));
}

status tell_no_rows(const training *t, const status_note *why, status kept)
{
    const status_note trouble = *status_last();
    char end[STATUS_MESSAGE_MAX] = "no step was done";
    if (t->now.step > 0 && !t->checkpoint_writer)
        snprintf(end, sizeof end,
                 "checkpoint.enable is false, so nothing is kept of %" PRId64 " steps",
                 t->now.step);
    else if (t->now.step > 0 && kept == ST_OK)
        snprintf(end, sizeof end,
                 "all %" PRId64 " steps are kept in %s/step-%" PRId64
                 "; remove the cause and give the same command again, and it goes on from there",
                 t->now.step, t->folder, t->now.step);
    else if (t->now.step > 0)
        snprintf(end, sizeof end, "its checkpoint could not be written: %.1000s", trouble.message);
    status_set(why);
    return FAIL_AT(why->code, why->input, why->line, why->offset,
                   "%.900s: the run ends after step %" PRId64 "; %s", why->message, t->now.step,
                   end);
}

static void tell_trained(const training *t)
{
    const char *replayed = world_simulated(t->world);
    if (replayed)
        printf("%s; nothing is kept\n", replayed);
    printf("trained: loss %.4f -> %.4f in %" PRId64 " steps", t->now.first_loss, t->now.last_loss,
           t->now.step);
}

status tell_result(training *t)
{
    const conf *c = t->conf;
    evaluation e;
    status st = ST_STOPPED;
    if (session_evaluates(c) && !stop_asked()) {
        printf("held-out questions:\n");
        st = evaluate_model(&t->session, true, c->eval_show, &e);
    }
    if (st == ST_STOPPED) {
        tell_trained(t);
        printf("\n");
        return ST_OK;
    }
    TRY(st);
    evaluation_print(&e, -1);
    tell_trained(t);
    printf(", accuracy %.1f %% (images swapped: %.1f %%)", evaluation_percent(e.right, e.answers),
           evaluation_percent(e.swapped_right, e.swapped));
    if (isfinite(e.chance_percent))
        printf(", chance %.1f %%", e.chance_percent);
    printf("\n");
    if (!training_is_first(t))
        return ST_OK;
    TRY(reporter_evaluated(t->reporter, t->now.step, &e, true));
    if (c->metrics_report)
        tell_report(t, &e);
    return ST_OK;
}
