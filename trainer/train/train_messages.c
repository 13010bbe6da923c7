/* SPDX-License-Identifier: Apache-2.0 */
/* train_messages.c: what a run reports to the person who started it: skipped updates, evaluations, the end
 * of the stream, the result, and what is kept when something went wrong. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/words.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "trainer/checkpoint/state/progress.h"
#include "trainer/eval/html_page.h"
#include "trainer/report/html.h"
#include "trainer/run/stop.h"
#include "trainer/train/training.h"

enum { IDS_OF_A_LINE = 32 }; /* most sample ids on one line */

static void print_ids(const step_report *report, int64_t from, char out[IDS_OF_A_LINE * 24])
{
    size_t count = 0;
    out[0] = 0;
    for (int64_t i = from; i < report->n_samples && i < from + IDS_OF_A_LINE; i++)
        count = words_add(out, IDS_OF_A_LINE * 24, count, " %" PRIu64, report->sample[i]);
}

/* The ledger has the ids of rank 0; another rank writes its own, from this one on, to its log. */
static void log_ids(const training *run, const step_report *report, int64_t from)
{
    char ids[IDS_OF_A_LINE * 24];
    for (int64_t i = from; !run->ledger && i < report->n_samples; i += IDS_OF_A_LINE) {
        print_ids(report, i, ids);
        log_info("step %" PRId64 ": %ssamples%s", report->step, i ? "and " : "", ids);
    }
}

void training_warn_skipped(const training *run, const step_report *report)
{
    char ids[IDS_OF_A_LINE * 24];
    const bool more = report->n_samples > IDS_OF_A_LINE;
    print_ids(report, 0, ids);
    log_warn("step %" PRId64 ": update %s%s: %s; %" PRId64 " documents, samples%s%s", report->step,
             report->updated[0] ? "partial, of " : "skipped", report->updated,
             report->weight > 0.0 ? "the gradient norm is not finite" : "it has no target tokens",
             report->documents, report->n_samples ? ids : " none",
             !more         ? ""
             : run->ledger ? " .. (all in ledger.jsonl)"
                           : " .. (all in this rank's log)");
    log_ids(run, report, IDS_OF_A_LINE);
    if (report->where) /* the same text on all ranks: only rank 0 warns, so the terminal shows it
                          once */
        log_event(training_is_first(run) ? LOG_WARN : LOG_INFO, "step %" PRId64 ": %s",
                  report->step, report->where);
}

void training_warn_leap(const training *run, const step_report *report, double median)
{
    log_event(training_is_first(run) ? LOG_WARN : LOG_INFO,
              "step %" PRId64 ": loss %.4f is %.1f times the median of the steps before it; its "
              "sample ids are in %s",
              report->step, report->loss, report->loss / median,
              run->ledger ? "ledger.jsonl" : "this rank's log");
    log_ids(run, report, 0);
}

void training_log_end(const training *run)
{
    const int64_t left = receiver_left_over(run->session.train);
    log_info("the stream has ended after %" PRId64 " steps", run->now.step);
    if (left > 0)
        log_warn("the last %" PRId64
                 " rows of %s are left over: they make no whole step of %" PRId64
                 " rows (training.global_batch_size)",
                 left, run->conf->feed_replay, run->conf->training_global_batch_size);
}

static void log_change(void *unused, const char *key, const char *was, const char *now)
{
    (void)unused;
    log_info("this option differs from the checkpoint: %s: %s%s%s%s", key, now,
             *was ? " (the checkpoint has " : "", was, *was ? ")" : "");
}

void training_log_changes(const char *was, const char *now)
{
    config_changes(was, now, log_change, NULL);
}

static void log_choice(void *user, const char *key, const char *was, const char *now)
{
    const training *run = user;
    log_event(training_is_first(run) ? LOG_WARN : LOG_INFO,
              "resumed with another kernel choice: %s was %s and is %s, so "
              "its losses may differ in their last digits (%s)",
              key, was, now, run->from.path);
}

void training_log_choices(const training *run)
{
    choices_changes(run->from.progress.choices, run->session.choices, log_choice, (void *)run);
}

void training_log_parts(const training *run)
{
    const model_when when = checkpoint_writer_when(run->conf, run->session.params);
    if (when == MODEL_ALWAYS || !training_is_first(run))
        return;
    log_info("checkpoints contain only trained parameters (checkpoint.model); trainer export%s "
             "--model %s --out DIR makes a whole model of the newest%s",
             run->conf->lora_rank > 0 ? " --merge" : "", run->folder,
             when == MODEL_AT_END ? ", and the run writes one when it ends" : "");
}

void training_log_finished(const training *run)
{
    const int64_t steps = run->session.schedule.steps;
    if (steps <= 0 || run->now.step < steps)
        return;
    log_info("this run is finished: %s has step %" PRId64 " of %" PRId64
             ", so nothing is trained%s. "
             "With --checkpoint.load_step 0 or another job.dump_folder it starts over; with a "
             "larger training.steps it continues",
             run->from.path, run->now.step, steps,
             session_evaluates(run->conf) ? " and its model is evaluated again" : "");
}

status training_evaluate(training *run)
{
    evaluation result;
    int64_t start = clock_ns();
    TRY(evaluate_model(&run->session, run->now.step, false, 0, &result));
    bar_clear();
    evaluation_print(&result, run->now.step);
    fflush(stdout);
    run->now.eval_loss = result.loss;
    reporter_rest(run->reporter, clock_ns() - start);
    return reporter_evaluated(run->reporter, run->now.step, &result, false);
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
static int run_facts(const training *run, html_fact out[RUN_FACTS])
{
    const conf *options = run->conf;
    const session *opened = &run->session;
    const time_t now = time(NULL);
    struct tm utc;
    char count[DIGITS_TEXT], trained[DIGITS_TEXT];
    int how_many = 0;
    out[how_many] = (html_fact){.name = "training loss"};
    snprintf(out[how_many].value, sizeof out[how_many].value, "%.4f", run->now.last_loss);
    snprintf(out[how_many].note, sizeof out[how_many].note, "in the last step, %.4f in the first",
             run->now.first_loss);
    out[++how_many] = (html_fact){.name = "steps"};
    snprintf(out[how_many].value, sizeof out[how_many].value, "%" PRId64, run->now.step);
    snprintf(out[how_many].note, sizeof out[how_many].note, "of %" PRId64 " rows each",
             options->training_global_batch_size);
    run_fact(options, &out[++how_many]);
    data_fact(options, false, &out[++how_many]);
    out[++how_many] = (html_fact){.name = "model"};
    path_shown(opened->dims.name, options->data_path, out[how_many].value,
               sizeof out[how_many].value);
    snprintf(out[how_many].note, sizeof out[how_many].note, "%s parameters, %s trained",
             digits_with_commas(opened->params->total, count),
             digits_with_commas(params_trained(opened->params), trained));
    device_fact(opened->device->description, &out[++how_many]);
    out[++how_many] = (html_fact){.name = "written"};
    if (gmtime_r(&now, &utc)) {
        strftime(out[how_many].value, sizeof out[how_many].value, "%Y-%m-%d", &utc);
        strftime(out[how_many].note, sizeof out[how_many].note, "%H:%M UTC", &utc);
    }
    out[++how_many] = (html_fact){.name = "version", .value = "tessera " TESSERA_VERSION};
    return how_many + 1;
}

void training_write_report(const training *run, const evaluation *evaluated)
{
    html_fact facts[EVALUATION_FACTS + RUN_FACTS];
    const conf *options = run->conf;
    int count = evaluated ? evaluation_facts(evaluated, facts) : 0;
    count += run_facts(run, facts + count);
    const char *title = options->job_description[0] ? options->job_description : "training run";
    if (html_report(options->job_dump_folder, html_mark_of(options, run->now.step), title, facts,
                    count, run->now.config) != ST_OK)
        log_warn("report.html is not written: %s", status_text());
}

status training_not_kept(const training *run, status st)
{
    if (st == ST_OK)
        return st;
    return status_context(st,
                          "step %" PRId64 " is not kept, and the last whole checkpoint is that of "
                          "step %" PRId64 "; make room and give the same command again",
                          run->now.step, checkpoint_writer_last_step(run->checkpoint_writer));
}

status training_no_rows(const training *run, const status_note *why, status kept)
{
    const status_note trouble = *status_last();
    char end[STATUS_MESSAGE_MAX] = "no step was done";
    if (run->now.step > 0 && !run->checkpoint_writer)
        snprintf(end, sizeof end,
                 "checkpoint.enable is false, so nothing is kept of %" PRId64 " steps",
                 run->now.step);
    else if (run->now.step > 0 && kept == ST_OK)
        snprintf(end, sizeof end,
                 "all %" PRId64 " steps are kept in %s/step-%" PRId64
                 "; remove the cause and give the same command again, and it resumes from there",
                 run->now.step, run->folder, run->now.step);
    else if (run->now.step > 0)
        snprintf(end, sizeof end, "its checkpoint could not be written: %.1000s", trouble.message);
    status_set(why);
    return FAIL_AT(why->code, why->input, why->line, why->offset,
                   "%.900s: the run ends after step %" PRId64 "; %s", why->message, run->now.step,
                   end);
}

static void print_trained(const training *run)
{
    printf("trained: loss %.4f -> %.4f in %" PRId64 " steps", run->now.first_loss,
           run->now.last_loss, run->now.step);
}

status training_result(training *run)
{
    const conf *options = run->conf;
    evaluation result;
    status st = ST_STOPPED;
    if (session_evaluates(options) && !stop_asked()) {
        printf("held-out questions:\n");
        st = evaluate_model(&run->session, run->now.step, true, options->eval_show, &result);
    }
    if (st == ST_STOPPED) {
        print_trained(run);
        printf("\n");
        return ST_OK;
    }
    TRY(st);
    evaluation_print(&result, -1);
    print_trained(run);
    printf(", accuracy %.1f %% (images swapped: %.1f %%)",
           evaluation_percent(result.right, result.answers),
           evaluation_percent(result.swapped_right, result.swapped));
    if (isfinite(result.chance_percent))
        printf(", chance %.1f %%", result.chance_percent);
    printf("\n");
    if (!training_is_first(run))
        return ST_OK;
    TRY(reporter_evaluated(run->reporter, run->now.step, &result, true));
    training_write_report(run, &result);
    return ST_OK;
}
