/* train_tell.c: what a run tells the person who started it: skipped updates, evaluations, the end
 * of the stream, the result, and what is kept when something went wrong. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/words.h"
#include "trainer/run/config_changes.h"
#include "trainer/eval/evaluate.h"
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

status tell_evaluation(training *t)
{
    evaluation e;
    int64_t start = clock_ns();
    TRY(evaluate_model(&t->session, false, 0, &e));
    printf("eval: step: %" PRId64 "  loss: %.4f  accuracy: %.1f%%  documents: %" PRId64
           "  seconds: %.1f\n",
           t->now.step, e.loss, evaluation_percent(e.right, e.documents), e.documents, e.seconds);
    if (e.vqa.all.n)
        printf("vqa: step: %" PRId64 "  accuracy: %.2f%% of %" PRId64 " questions\n", t->now.step,
               vqa_share_percent(&e.vqa.all), e.vqa.all.n);
    fflush(stdout);
    t->now.eval_loss = e.loss;
    reporter_rest(t->reporter, clock_ns() - start);
    return reporter_evaluated(t->reporter, t->now.step, &e, false);
}

void tell_report(const training *t)
{
    char summary[1024];
    const conf *c = t->conf;
    const char *replayed = world_simulated(t->world);
    snprintf(summary, sizeof summary,
             "model    %s, %" PRId64 " parameters, %" PRId64
             " trained\ndevice   %s\nsteps    %" PRId64 " of %" PRId64
             " rows each\nloss     %.4f -> %.4f%s%s",
             t->session.dims.name, t->session.params->total, params_trained(t->session.params),
             t->session.device->description, t->now.step, c->training_global_batch_size,
             t->now.first_loss, t->now.last_loss, replayed ? "\n" : "", replayed ? replayed : "");
    const char *title = c->job_description[0] ? c->job_description : "training run";
    if (html_report(c->job_dump_folder, title, summary, t->now.config) != ST_OK)
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
    printf("eval: loss: %.4f  accuracy: %.1f%% of %" PRId64
           " documents  images swapped: %.1f%% of %" PRId64 "  seconds: %.1f\n",
           e.loss, evaluation_percent(e.right, e.documents), e.documents,
           evaluation_percent(e.swapped_right, e.swapped_documents), e.swapped_documents,
           e.seconds);
    if (e.vqa.all.n)
        printf("vqa: accuracy: %.2f%% of %" PRId64 " questions\n", vqa_share_percent(&e.vqa.all),
               e.vqa.all.n);
    tell_trained(t);
    printf(", accuracy %.1f %% (images swapped: %.1f %%)\n",
           evaluation_percent(e.right, e.documents),
           evaluation_percent(e.swapped_right, e.swapped_documents));
    if (!training_is_first(t))
        return ST_OK;
    TRY(reporter_evaluated(t->reporter, t->now.step, &e, true));
    if (c->metrics_report)
        tell_report(t);
    return ST_OK;
}
