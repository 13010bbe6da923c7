#include "trainer/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/keeper.h"
#include "trainer/device/replay.h"
#include "trainer/eval/evaluate.h"
#include "trainer/layout_plan.h"
#include "trainer/session_memory.h"
#include "trainer/report/html.h"
#include "trainer/report/ledger.h"
#include "trainer/report/line.h"
#include "trainer/report/profile.h"
#include "trainer/step.h"
#include "trainer/stop.h"

enum { MEMORY_STEP = 3 }; /* the first without anything new in it */

typedef struct training {
    const conf *conf;
    const world *world;
    char folder[STATUS_PATH_MAX]; /* of checkpoints */
    int lock;                     /* of job.dump_folder, -1: none */
    resume_point from;
    bool resumes;
    session session;
    reporter *reporter;
    ledger *ledger;
    keeper *keeper;   /* NULL: nothing is kept on the way */
    profile *profile; /* NULL: off */
    bool profile_warm;
    progress now;     /* after the last finished step */
    bool ledger_told; /* that the disk refuses it */
    int64_t told;     /* steps of this process */
    bool bad_step;    /* its gradient was not finite and training.nonfinite says stop */
} training;

status train_checkpoint_folder(const conf *c, char out[STATUS_PATH_MAX])
{
    if (snprintf(out, STATUS_PATH_MAX, "%s/%s", c->job_dump_folder, c->checkpoint_folder) >=
        STATUS_PATH_MAX)
        return FAIL_IN(ST_CONFIG, c->job_dump_folder, "job.dump_folder: the path is too long");
    return ST_OK;
}

static status evaluate_between(training *t)
{
    evaluation e;
    int64_t start = clock_ns();
    TRY(evaluate(&t->session, false, 0, &e));
    printf("eval: step: %" PRId64 "  loss: %.4f  accuracy: %.1f%%  documents: %" PRId64
           "  seconds: %.1f\n",
           t->now.step, e.loss, evaluation_percent(e.right, e.documents), e.documents, e.seconds);
    if (e.vqa.all.n)
        printf("vqa: step: %" PRId64 "  accuracy: %.2f%% of %" PRId64 " questions\n", t->now.step,
               vqa_share_percent(&e.vqa.all), e.vqa.all.n);
    fflush(stdout);
    t->now.eval_loss = e.loss;
    reporter_rest(t->reporter, clock_ns() - start);
    return ST_OK;
}

static void warn_skipped(const step_report *r)
{
    enum { TOLD = 32 };
    char ids[TOLD * 24] = "";
    for (int i = 0, n = 0; i < r->n_samples && i < TOLD; i++)
        n += snprintf(ids + n, sizeof ids - (size_t)n, " %" PRIu64, r->sample[i]);
    log_warn("step %" PRId64 ": update skipped: %s; %" PRId64 " documents, samples%s%s", r->step,
             r->weight > 0.0 ? "the gradient norm is not finite" : "no target tokens", r->documents,
             r->n_samples ? ids : " none", r->n_samples > TOLD ? " .. (all in ledger.jsonl)" : "");
}

static status peak_flops(const conf *c, session *s, double *out)
{
    if (c->metrics_peak_tflops > 0.0) {
        *out = c->metrics_peak_tflops * 1e12;
        return ST_OK;
    }
    TRY(report_measure_peak(s->stream, out));
    log_info("mfu is a share of %.3f TFLOP/s, measured on a %s product here", *out * 1e-12,
             "768 x 768 x 768");
    return ST_OK;
}

static status config_text(const conf *c, char **out)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return FAIL(ST_NO_MEMORY, "no memory for the options as text");
    conf_print(c, f);
    if (fclose(f) != 0) {
        free(text);
        return FAIL(ST_NO_MEMORY, "no memory for the options as text");
    }
    *out = text;
    return ST_OK;
}

/* Options of the trainer may change from one part of a run to the next; what did is told. */
static void tell_changes(const char *was, const char *now)
{
    for (const char *line = now; *line;) {
        size_t n = strcspn(line, "\n"), key = strcspn(line, ":");
        char wanted[4096];
        snprintf(wanted, sizeof wanted, "%.*s\n", (int)n, line);
        if (key < n && line[0] != '#' && !strstr(was, wanted) && strncmp(line, "job.", 4) != 0 &&
            strncmp(line, "checkpoint.", 11) != 0)
            log_info("other than in the checkpoint: %.*s", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* The rank that writes what is of the run: ledger, metrics, report. */
static bool is_first(const training *t)
{
    return !t->world || t->world->place.rank == 0;
}

static status find_start(training *t)
{
    const conf *c = t->conf;
    t->now.eval_loss = t->now.first_loss = t->now.last_loss = NAN;
    TRY(config_text(c, &t->now.config));
    TRY(folder_make(c->job_dump_folder));
    if (is_first(t))
        TRY(folder_lock(c->job_dump_folder, &t->lock));
    TRY(train_checkpoint_folder(c, t->folder));
    if (!c->checkpoint_enable)
        return ST_OK;
    TRY(keeper_find(t->folder, c->checkpoint_load_step, t->from.path, &t->from.progress,
                    &t->resumes));
    if (!t->resumes)
        return ST_OK;
    tell_changes(t->from.progress.config, t->now.config);
    char *config = t->now.config;
    t->now.config = NULL;
    status st = progress_copy(&t->from.progress, &t->now);
    free(t->now.config);
    t->now.config = config;
    t->now.eval_loss = NAN;
    return st;
}

/* A layout of several ranks is planned, so that its refusal tells what it would take. */
static status plan_ranks(const conf *c)
{
    layout l;
    model_dims d;
    params *p;
    TRY(layout_of(c, &l));
    if (l.world == 1)
        return ST_OK;
    if (!c->model_path[0])
        return FAIL(ST_CONFIG, "model.path is not set: name a Hugging Face folder or a preset");
    TRY(dims_load(c->model_path, &d));
    layout_limits limits = params_limits(&d);
    TRY(layout_check(&l, &limits));
    TRY(params_new(&d, &p));
    status st = groups_apply(c, p);
    if (st == ST_OK)
        st = layout_print(c, &l, &d, p, stdout, NULL);
    fflush(stdout);
    params_free(&p);
    return st;
}

static status open_run(training *t)
{
    const conf *c = t->conf;
    double peak;
    TRY(plan_ranks(c));
    TRY(session_check_layout(c, t->world)); /* refused before anything is written */
    TRY(world_log(t->world, c));
    TRY(find_start(t));
    TRY(session_resume(c, t->world, t->resumes ? &t->from : NULL, &t->session));
    if (c->metrics_profile) {
        replay_free(t->session.stream); /* calls are measured one by one */
        TRY(profile_new(t->session.stream, &t->profile));
    }
    TRY(progress_set_text(&t->now.stream_options,
                          t->session.stream_options ? t->session.stream_options : ""));
    groups_print(c, t->session.params, stdout);
    memory_plan plan;
    TRY(session_memory_plan(&t->session, &plan));
    memory_plan_print(&plan, stdout);
    if (c->checkpoint_enable) {
        if (is_first(t))
            TRY(keeper_clear_after(t->folder, t->now.step));
        TRY(keeper_new(c, t->folder, &t->session.dims, t->session.params, t->session.stream,
                       &t->keeper));
    }
    TRY(peak_flops(c, &t->session, &peak));
    peak *= (double)t->session.mesh.layout.world; /* a line counts all ranks */
    if (is_first(t))
        TRY(ledger_open(c->job_dump_folder, c->metrics_ledger_ids, &t->ledger));
    return reporter_new(c, &t->session, peak, is_first(t) ? c->job_dump_folder : "", &t->reporter);
}

static void close_run(training *t)
{
    keeper_free(&t->keeper);
    ledger_close(&t->ledger);
    reporter_free(&t->reporter);
    profile_free(&t->profile);
    session_close(&t->session);
    progress_done(&t->now);
    progress_done(&t->from.progress);
    folder_unlock(&t->lock);
}

/* A disk that refuses the ledger costs lines of it, not the run. */
static status spare_ledger(training *t, status st)
{
    if (st != ST_IO)
        return st;
    if (!t->ledger_told)
        log_warn("the ledger has gaps from step %" PRId64 " on, said once: %s", t->now.step,
                 status_text());
    t->ledger_told = true;
    return ST_OK;
}

static status save(training *t)
{
    if (t->ledger)
        TRY(spare_ledger(t, ledger_sync(t->ledger)));
    int64_t start = clock_ns();
    TRY(keeper_save(t->keeper, &t->now));
    reporter_rest(t->reporter, clock_ns() - start);
    return ST_OK;
}

/* The step is done: what is known now. */
static status note_step(training *t, const step_report *r)
{
    world_is_steady(t->world, t->conf);
    if (r->step == 1) {
        t->now.first_loss = r->loss;
        session_check_first_loss(&t->session, r->loss);
    }
    if (++t->told == MEMORY_STEP)
        TRY(session_memory_tell(&t->session));
    if (r->skipped)
        warn_skipped(r);
    t->now.step = r->step;
    t->now.rows += r->rows;
    t->now.last_loss = r->loss;
    t->now.eval_loss = NAN;
    if (r->stop)
        stop_agree();
    TRY(progress_set_text(&t->now.cursor, r->cursor));
    if (t->ledger)
        TRY(spare_ledger(t, ledger_add(t->ledger, r)));
    TRY(reporter_step(t->reporter, r));
    /* Nothing of such a step was applied: the checkpoint that follows has the values before it. */
    t->bad_step = t->conf->training_nonfinite == NONFINITE_STOP && r->skipped && r->weight > 0.0;
    return ST_OK;
}

/* The page of the run; one that can not be written costs no run. */
static void write_report(const training *t)
{
    char summary[1024];
    const conf *c = t->conf;
    snprintf(summary, sizeof summary,
             "model    %s, %" PRId64 " parameters, %" PRId64
             " trained\ndevice   %s\nsteps    %" PRId64 " of %" PRId64
             " rows each\nloss     %.4f -> %.4f",
             t->session.dims.name, t->session.params->total, params_trained(t->session.params),
             t->session.device->description, t->now.step, c->training_global_batch_size,
             t->now.first_loss, t->now.last_loss);
    const char *title = c->job_description[0] ? c->job_description : "training run";
    if (html_report(c->job_dump_folder, title, summary, t->now.config) != ST_OK)
        log_warn("no report.html: %s", status_text());
}

static bool evaluation_due(const training *t, int64_t step)
{
    const conf *c = t->conf;
    return session_evaluates(c) && c->eval_freq && step % c->eval_freq == 0 &&
           step != c->training_steps;
}

static bool checkpoint_due(const training *t, int64_t step)
{
    const conf *c = t->conf;
    return t->keeper && c->checkpoint_interval && step % c->checkpoint_interval == 0 &&
           step != c->training_steps;
}

/* Trouble of the held-out rows or of the way to them, not of this process or its device. */
static bool is_of_the_stream(status st)
{
    return st == ST_UNAVAILABLE || st == ST_TIMEOUT || st == ST_PROTOCOL || st == ST_BAD_INPUT ||
           st == ST_NO_INPUT || st == ST_IO;
}

/* Evaluation and checkpoint, where they are due. An evaluation that fails costs its figure, not the
 * checkpoint. */
static status between_steps(training *t)
{
    if (evaluation_due(t, t->now.step)) {
        int64_t start = clock_ns();
        status st = evaluate_between(t);
        if (is_of_the_stream(st)) {
            log_warn("step %" PRId64 " is not evaluated: %s", t->now.step, status_text());
            reporter_rest(t->reporter, clock_ns() - start);
            st = ST_OK;
        }
        TRY(st);
    }
    return checkpoint_due(t, t->now.step) ? save(t) : ST_OK;
}

/* Queues what may be under way beside the step that is told next. Nothing is queued behind a step
 * after which values are read, nor behind the last one. */
static status queue_steps(training *t)
{
    const conf *c = t->conf;
    session *s = &t->session;
    /* A run that ends at a bad step leaves the values before it: nothing may stand behind one. */
    int ahead = c->training_nonfinite == NONFINITE_STOP ? 0 : s->device->v->ahead;
    while (step_under_way(s) <= ahead && !stop_asked()) {
        int64_t under_way = step_under_way(s), last = t->now.step + under_way;
        if (c->training_steps && last >= c->training_steps)
            return ST_OK;
        if (under_way && (evaluation_due(t, last) || checkpoint_due(t, last)))
            return ST_OK;
        TRY(step_queue(s, last + 1));
    }
    return ST_OK;
}

/* The first step measured warms up: it counts only where it is the only one. */
static status measured_step(training *t, step_report *out)
{
    if (t->profile && profile_read(t->profile)->steps == 1 && !t->profile_warm) {
        profile_reset(t->profile);
        t->profile_warm = true;
    }
    TRY(profile_begin(t->profile));
    TRY(step_run(&t->session, t->now.step + 1, out));
    return profile_end(t->profile, out->wait_ns);
}

/* The next step that is told. ST_END behind the last one; ST_STOPPED where that was asked before
 * one was queued. */
static status next_step(training *t, bool *inout_ended, step_report *out)
{
    session *s = &t->session;
    if (t->profile)
        return measured_step(t, out);
    status st = *inout_ended ? ST_END : queue_steps(t);
    *inout_ended = st == ST_END;
    if (st != ST_OK && st != ST_END && st != ST_STOPPED)
        return st;
    if (step_under_way(s) > 0) /* what is under way counts */
        return step_told(s, out);
    return st == ST_OK ? ST_STOPPED : st;
}

static status run_steps(training *t)
{
    const conf *c = t->conf;
    bool ended = false;
    while (c->training_steps == 0 || t->now.step < c->training_steps) {
        step_report report;
        status st = next_step(t, &ended, &report);
        if (st == ST_END) {
            log_info("the stream has ended after %" PRId64 " steps", t->now.step);
            return ST_OK;
        }
        if (st == ST_OK)
            st = note_step(t, &report);
        if (st == ST_OK && t->bad_step)
            return ST_OK;
        if (st == ST_OK && !stop_asked())
            st = between_steps(t);
        if (stop_asked() && st == ST_OK && step_under_way(&t->session) > 0)
            continue;
        if (stop_asked() && (st == ST_OK || st == ST_STOPPED)) {
            log_info("stopping after step %" PRId64 " as asked", t->now.step);
            return ST_OK;
        }
        TRY(st);
    }
    return ST_OK;
}

/* What the run leaves: its last checkpoint, and the model for everybody in the folder itself. */
static status leave_model(training *t)
{
    const conf *c = t->conf;
    if (t->now.step == 0)
        return ST_OK; /* nothing was trained */
    /* Several ranks leave their model by a checkpoint: it is then written in parts. */
    const bool alone = t->session.mesh.layout.world == 1;
    if (c->checkpoint_last_save_model_only && !stop_asked() && alone) {
        hf_export_options o = {
            .source = c->model_path, .tokenizer = c->model_tokenizer, .dtype = HF_EXPORT_AS_SOURCE};
        TRY(hf_export(t->session.params, t->session.stream, &t->session.dims, t->folder, &o));
        log_info("model written to %s", t->folder);
        return ST_OK;
    }
    bool is_kept = t->resumes && t->from.progress.step == t->now.step;
    if (!is_kept)
        TRY(save(t));
    TRY(keeper_wait(t->keeper));
    if (!is_first(t))
        return ST_OK;
    TRY(folder_publish(t->folder, t->now.step));
    log_info("model written to %s", t->folder);
    return ST_OK;
}

static void tell_trained(const training *t)
{
    printf("trained: loss %.4f -> %.4f in %" PRId64 " steps", t->now.first_loss, t->now.last_loss,
           t->now.step);
}

static status tell_result(training *t)
{
    const conf *c = t->conf;
    evaluation e;
    status st = ST_STOPPED;
    if (session_evaluates(c) && !stop_asked()) {
        printf("held-out questions:\n");
        st = evaluate(&t->session, true, c->eval_show, &e);
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
    return ST_OK;
}

status train_run(const conf *c, const world *w)
{
    training t = {.conf = c, .world = w, .lock = -1};
    status st;
    if (c->eval_enable && !session_evaluates(c))
        log_warn("eval.enable: feed.replay has no held-out rows, so there will be no evaluation");
    TRY_OR(done, open_run(&t));
    if (t.session.mesh.layout.world > 1)
        stop_together();
    /* Not before: until here there is nothing to finish. */
    TRY_OR(done, stop_listen(c->checkpoint_exit_deadline));
    TRY_OR(done, run_steps(&t));
    if (reporter_finish(t.reporter) != ST_OK) /* no line is worth the model that is to be left */
        log_warn("the last line is missing: %s", status_text());
    if (t.profile)
        profile_print(profile_read(t.profile), stdout);
    if (c->metrics_report && is_first(&t))
        write_report(&t);
    if (c->checkpoint_enable) /* first: an evaluation that fails must not cost the model */
        TRY_OR(done, leave_model(&t));
    if (t.bad_step)
        st = FAIL(ST_BAD_INPUT,
                  "step %" PRId64 ": the gradient is not finite and training.nonfinite says stop",
                  t.now.step);
    else
        st = tell_result(&t);
done:
    close_run(&t);
    return st;
}
