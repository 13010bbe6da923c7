/* verbs_train.c: trainer train: steps until the end, then evaluation and the exported model. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/log.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/eval/evaluate.h"
#include "trainer/memory.h"
#include "trainer/report/line.h"
#include "trainer/step.h"
#include "trainer/stop.h"
#include "trainer/verbs.h"

/* Held-out rows come from the daemon; a recording has only those it was made of. */
static bool evaluates(const conf *c)
{
    return c->eval_enable && !c->feed_replay[0];
}

/* Asks for the held-out rows once before the run, so that a split that is not there does not show
 * at its end. */
static status try_eval_stream(const session *s)
{
    receiver *held = NULL;
    TRY(session_stream(s, "eval", s->conf, &held));
    receiver_close(&held);
    return ST_OK;
}

static status evaluate_between(session *s, reporter *r, int64_t step)
{
    evaluation e;
    int64_t start = clock_ns();
    TRY(evaluate(s, false, 0, &e));
    printf("eval: step: %" PRId64 "  loss: %.4f  accuracy: %.1f%%  documents: %" PRId64
           "  seconds: %.1f\n",
           step, e.loss, evaluation_percent(e.right, e.documents), e.documents, e.seconds);
    fflush(stdout);
    reporter_rest(r, clock_ns() - start);
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
             r->n_samples ? ids : " none", r->n_samples > TOLD ? " .." : "");
}

static status make_folder(const char *path)
{
    char part[STATUS_PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char kept = *p;
        *p = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return FAIL_IN(ST_CANT_CREATE, part, "can not make the folder: %s", strerror(errno));
        *p = kept;
        if (!kept)
            return ST_OK;
    }
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

static status print_memory(const session *s)
{
    model_options o = {.cap = s->cap,
                       .training = true,
                       .checkpoint_full = s->conf->ac_mode == AC_FULL,
                       .router_aux_coef = s->conf->loss_router_aux};
    memory_plan p;
    TRY(memory_plan_make(&s->dims, s->params->total, &o, s->device->v, &p));
    memory_plan_print(&p, stdout);
    return ST_OK;
}

typedef struct run_result {
    double first_loss, last_loss;
    int64_t steps;
} run_result;

static status run_steps(session *s, reporter *r, run_result *out)
{
    const conf *c = s->conf;
    for (int64_t step = 1; c->training_steps == 0 || step <= c->training_steps; step++) {
        step_report report;
        status st = step_run(s, step, &report);
        if (st == ST_END) {
            log_info("the stream has ended after %" PRId64 " steps", step - 1);
            return ST_OK;
        }
        if (st == ST_STOPPED && stop_asked()) {
            log_info("stopping after step %" PRId64 " as asked: no row came for the next",
                     step - 1);
            return ST_OK;
        }
        TRY(st);
        if (step == 1) {
            out->first_loss = report.loss;
            session_check_first_loss(s, report.loss);
        }
        if (report.skipped)
            warn_skipped(&report);
        out->last_loss = report.loss;
        out->steps = step;
        TRY(reporter_step(r, &report));
        if (stop_asked()) {
            log_info("stopping after step %" PRId64 " as asked", step);
            return ST_OK;
        }
        if (evaluates(c) && c->eval_freq && step % c->eval_freq == 0 && step != c->training_steps)
            TRY(evaluate_between(s, r, step));
    }
    return ST_OK;
}

static status tell_result(session *s, const run_result *run)
{
    const conf *c = s->conf;
    if (evaluates(c) && !stop_asked()) {
        printf("held-out questions:\n");
        evaluation e;
        TRY(evaluate(s, true, c->eval_show, &e));
        printf("eval: loss: %.4f  accuracy: %.1f%% of %" PRId64
               " documents  images swapped: %.1f%% of %" PRId64 "  seconds: %.1f\n",
               e.loss, evaluation_percent(e.right, e.documents), e.documents,
               evaluation_percent(e.swapped_right, e.swapped_documents), e.swapped_documents,
               e.seconds);
        printf("trained: loss %.4f -> %.4f in %" PRId64
               " steps, accuracy %.1f %% (images swapped: %.1f %%)\n",
               run->first_loss, run->last_loss, run->steps,
               evaluation_percent(e.right, e.documents),
               evaluation_percent(e.swapped_right, e.swapped_documents));
    } else {
        printf("trained: loss %.4f -> %.4f in %" PRId64 " steps\n", run->first_loss, run->last_loss,
               run->steps);
    }
    return ST_OK;
}

static status export_model(session *s)
{
    const conf *c = s->conf;
    char folder[STATUS_PATH_MAX];
    snprintf(folder, sizeof folder, "%s/%s", c->job_dump_folder, c->checkpoint_folder);
    hf_export_options o = {
        .source = c->model_path, .tokenizer = c->model_tokenizer, .dtype = HF_EXPORT_AS_SOURCE};
    TRY(hf_export(s->params, s->stream, &s->dims, folder, &o));
    log_info("model written to %s", folder);
    return ST_OK;
}

status verb_train(int argc, char **argv)
{
    conf c;
    session s = {0};
    reporter *r = NULL;
    run_result run = {0};
    status st = conf_load(&c, &argc, argv);
    if (st != ST_OK)
        return st;
    log_init("trainer", c.log_level, c.log_json);
    if (argc > 1) {
        st =
            FAIL(ST_USAGE, "trainer train does not know \"%s\"; see trainer train --help", argv[1]);
        goto done;
    }
    if (c.eval_enable && !evaluates(&c))
        log_warn("eval.enable: feed.replay has no held-out rows, so there will be no evaluation");
    TRY_OR(done, make_folder(c.job_dump_folder));
    TRY_OR(done, session_open(&c, SESSION_TRAIN, &s));
    if (evaluates(&c))
        TRY_OR(done, try_eval_stream(&s));
    TRY_OR(done, print_memory(&s));
    double peak;
    TRY_OR(done, peak_flops(&c, &s, &peak));
    TRY_OR(done, reporter_new(&c, &s, peak, c.job_dump_folder, &r));
    stop_listen(); /* not before: until here there is nothing to finish */
    TRY_OR(done, run_steps(&s, r, &run));
    TRY_OR(done, reporter_finish(r));
    if (c.checkpoint_enable) /* first: an evaluation that fails must not cost the model */
        TRY_OR(done, export_model(&s));
    TRY_OR(done, tell_result(&s, &run));
done:
    reporter_free(&r);
    session_close(&s);
    conf_done(&c);
    return st;
}
