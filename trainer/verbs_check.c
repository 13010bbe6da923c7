/* verbs_check.c: trainer check: what must not change a step does not, on the user's own model and
 * rows. Every case runs the same steps from the same start and is held against the first. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keeper.h"
#include "trainer/eval/prompt.h"
#include "trainer/step.h"
#include "trainer/verbs.h"

enum { MOST_STEPS = 64 };

typedef struct trace {
    double loss[MOST_STEPS], norm[MOST_STEPS];
    int64_t n;
} trace;

typedef struct table {
    const conf *conf;
    trace base;
    int64_t steps;
    double limit; /* largest relative difference that is rounding */
    int off;      /* cases beyond it */
} table;

static double distance(double a, double b)
{
    double size = fmax(fabs(a), fabs(b));
    return a == b ? 0.0 : size > 0.0 ? fabs(a - b) / size : INFINITY;
}

/* exact: the case must agree to the bit. */
static void tell(table *t, const char *name, double loss, double norm, bool exact)
{
    bool same = loss == 0.0 && norm == 0.0;
    bool ok = same || (!exact && loss <= t->limit && norm <= t->limit);
    t->off += !ok;
    if (same)
        printf("%-44s %12s %14s  ok\n", name, "to the bit", "to the bit");
    else
        printf("%-44s %12.2e %14.2e  %s\n", name, loss, norm, ok ? "ok" : "OFF");
    fflush(stdout);
}

static void compare(table *t, const char *name, const trace *got, bool exact)
{
    double loss = 0.0, norm = 0.0;
    for (int64_t i = 0; i < t->steps; i++) {
        loss = fmax(loss, distance(t->base.loss[i], got->loss[i]));
        norm = fmax(norm, distance(t->base.norm[i], got->norm[i]));
    }
    tell(t, name, loss, norm, exact);
}

static status run_steps(session *s, int64_t from, int64_t to, trace *out)
{
    for (int64_t step = from; step <= to; step++) {
        step_report r;
        status st = step_run(s, step, &r);
        if (st == ST_END)
            return FAIL(ST_BAD_INPUT, "the stream ends before step %" PRId64 ": fewer --steps",
                        step);
        TRY(st);
        out->loss[step - 1] = r.loss;
        out->norm[step - 1] = r.grad_norm;
    }
    return ST_OK;
}

static status run_case(const conf *c, int64_t steps, trace *out, double *out_limit)
{
    session s = {0};
    status st = session_open(c, SESSION_TRAIN, &s);
    if (st == ST_OK)
        st = run_steps(&s, 1, steps, out);
    if (st == ST_OK && out_limit) {
        st_dtype act = s.device->v->act;
        *out_limit = act == DT_F64 ? 1e-10 : act == DT_F32 ? 2e-5 : 2e-2;
    }
    session_close(&s);
    return st;
}

static status vary(table *t, const char *name, const conf *c, bool exact)
{
    trace got;
    TRY(run_case(c, t->steps, &got, NULL));
    compare(t, name, &got, exact);
    return ST_OK;
}

/* One step, a checkpoint, and the rest from it. */
static status save_one(const conf *c, const char *folder, trace *out)
{
    session s = {0};
    keeper *k = NULL;
    progress now = {.step = 1, .rows = c->training_global_batch_size};
    status st;
    TRY_OR(done, session_open(c, SESSION_TRAIN, &s));
    TRY_OR(done, run_steps(&s, 1, 1, out));
    TRY_OR(done, keeper_new(c, folder, &s.dims, s.params, s.stream, &k));
    TRY_OR(done, progress_set_text(&now.cursor, receiver_cursor(s.train)));
    TRY_OR(done, progress_set_text(&now.stream_options, s.stream_options ? s.stream_options : ""));
    TRY_OR(done, keeper_save(k, &now));
    st = keeper_wait(k);
done:
    keeper_free(&k);
    progress_done(&now);
    session_close(&s);
    return st;
}

static status resumed(table *t)
{
    char folder[STATUS_PATH_MAX];
    conf c = *t->conf;
    session s = {0};
    resume_point from = {0};
    trace got;
    bool found = false;
    status st;
    c.checkpoint_async_mode = CHECKPOINT_SYNC;
    snprintf(folder, sizeof folder, "%s/.check-%d", c.job_dump_folder, (int)getpid());
    TRY_OR(done, save_one(&c, folder, &got));
    TRY_OR(done, keeper_find(folder, 1, from.path, &from.progress, &found));
    TRY_OR(done, session_resume(&c, NULL, &from, &s));
    TRY_OR(done, run_steps(&s, 2, t->steps, &got));
    compare(t, "resumed after step 1 against straight", &got, true);
done:
    session_close(&s);
    progress_done(&from.progress);
    if (folder_remove(folder) != ST_OK)
        log_warn("%s", status_text());
    return st;
}

/* Loss (a sum) and gradient norm of rows in micro-batches of their own. The update that tells the
 * norm has a rate of 0. */
static status gradients(session *s, const row *rows, int64_t n, double out[2])
{
    const backend_vtable *v = s->device->v;
    loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
    optimizer_report made;
    TRY(v->zero(s->stream, s->sums.loss, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.weight, sizeof(double)));
    TRY(params_zero_grad(s->params, s->stream));
    for (int64_t i = 0; i < n; i++) {
        device_batch *b;
        TRY(stage_rows(s->stager, s->stream, &rows[i], 1, &b));
        TRY(model_forward_backward(s->model, s->stream, b, &sums));
        TRY(v->wait(s->stream));
    }
    TRY(optimizer_step(s->optimizer, s->stream, 1, 0.0, s->sums.weight));
    TRY(v->to_host(s->stream, &out[0], s->sums.loss, sizeof(double)));
    TRY(optimizer_read(s->optimizer, s->stream, &made));
    out[1] = made.grad_norm;
    return ST_OK;
}

/* The first row whole, and its documents one by one. */
static status unpacked(table *t)
{
    session s = {0};
    received got = {0};
    arena a;
    row *one = NULL;
    double packed[2], apart[2];
    int64_t waited = 0;
    char name[64];
    arena_init(&a, 0);
    status st = session_open(t->conf, SESSION_TRAIN, &s);
    if (st == ST_OK)
        st = receiver_next(s.train, &got, &waited);
    if (st != ST_OK)
        goto done;
    if (got.row.n_video_patches || got.row.n_docs == 0) {
        printf("%-44s %s\n", "documents one by one",
               "skipped: the first row has video, or nothing");
        goto done;
    }
    TRY_OR(done, arena_calloc(&a, (size_t)got.row.n_docs, sizeof *one, (void **)&one));
    for (int64_t d = 0; d < got.row.n_docs; d++)
        TRY_OR(done, prompt_whole_document(&got.row, d, &a, &one[d]));
    TRY_OR(done, gradients(&s, &got.row, 1, packed));
    TRY_OR(done, gradients(&s, one, got.row.n_docs, apart));
    snprintf(name, sizeof name, "the first row's %" PRId64 " documents one by one", got.row.n_docs);
    tell(t, name, distance(packed[0], apart[0]), distance(packed[1], apart[1]), false);
done:
    if (got.slot)
        receiver_give_back(s.train, &got);
    arena_done(&a);
    session_close(&s);
    return st;
}

static status check_all(table *t)
{
    conf c = *t->conf;
    printf("%-44s %12s %14s\n", "held against the run as configured", "loss", "gradient norm");
    TRY(vary(t, "the same again", &c, true));
    c.ac_mode = c.ac_mode == AC_FULL ? AC_NONE : AC_FULL;
    TRY(vary(t,
             c.ac_mode == AC_FULL ? "activation_checkpoint.mode full"
                                  : "activation_checkpoint.mode none",
             &c, false));
    c = *t->conf;
    c.training_local_batch_size =
        c.training_local_batch_size == 1 ? c.training_global_batch_size : 1;
    if (c.training_global_batch_size > 1)
        TRY(vary(t,
                 c.training_local_batch_size == 1 ? "micro-batches of one row"
                                                  : "one micro-batch of all rows",
                 &c, false));
    c = *t->conf;
    c.training_threads = c.training_threads == 1 ? 2 : 1;
    TRY(vary(t, c.training_threads == 1 ? "one thread" : "two threads", &c, true));
    TRY(unpacked(t));
    TRY(resumed(t));
    printf("%-44s skipped: this trainer runs one rank\n", "one rank against several");
    return ST_OK;
}

static status read_steps(int argc, char **argv, int64_t *out)
{
    char *end = NULL;
    *out = 2;
    if (argc == 1)
        return ST_OK;
    if (argc == 3 && strcmp(argv[1], "--steps") == 0)
        *out = strtoll(argv[2], &end, 10);
    if (!end || *end || *out < 2 || *out > MOST_STEPS)
        return FAIL(ST_USAGE, "trainer check takes --steps N, 2 to %d, not \"%s\"", MOST_STEPS,
                    argv[1]);
    return ST_OK;
}

status verb_check(int argc, char **argv)
{
    conf c;
    table t = {.conf = &c};
    TRY(conf_load(&c, &argc, argv));
    log_init("trainer", c.log_level < LOG_WARN ? c.log_level : LOG_WARN, c.log_json);
    status st = read_steps(argc, argv, &t.steps);
    if (st != ST_OK)
        goto done;
    if (c.loss_router_aux > 0)
        printf("loss.router_aux_coef is taken as 0: its statistics are over a micro-batch\n");
    c.loss_router_aux = 0;
    c.eval_enable = false;
    TRY_OR(done, folder_make(c.job_dump_folder));
    TRY_OR(done, run_case(&c, t.steps, &t.base, &t.limit));
    TRY_OR(done, check_all(&t));
    if (t.off)
        st =
            FAIL(ST_BAD_INPUT, "%d of the cases differ by more than rounding (%g)", t.off, t.limit);
done:
    conf_done(&c);
    return st;
}
