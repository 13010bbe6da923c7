/* verbs_check.c: trainer check: shows, on the user's own model and rows, that settings which must
 * not change a step do not change it. Every case runs the same steps from the same start, on one
 * rank unless it says otherwise, and its losses and gradient norms are compared with those of the
 * first run. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/check/check_ranks.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/generate/prompt.h"
#include "trainer/parallel/launcher.h"
#include "trainer/cli/verbs.h"

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

typedef struct table {
    const conf *conf;  /* the options, changed to run on one rank */
    const conf *asked; /* the options as given */
    int ranks;         /* --nproc; 0: not given */
    int argc;
    char **argv; /* the verb's arguments, without --nproc */
    trace base;  /* of the first run */
    int64_t steps;
    double limit; /* a larger relative difference is more than rounding */
    bool exact;   /* recomputing an activation gives the same bits */
    int off;      /* how many cases differ by more than they may */
} table;

/* Prints a line of the table. exact: the case must agree to the bit. */
static void tell_difference(table *t, const char *name, double loss, double norm, bool exact)
{
    bool same = loss == 0.0 && norm == 0.0;
    bool ok = same || (!exact && loss <= t->limit && norm <= t->limit);
    t->off += !ok;
    if (same)
        printf("%-54s %12s %14s  ok\n", name, "to the bit", "to the bit");
    else
        printf("%-54s %12.2e %14.2e  %s\n", name, loss, norm, ok ? "ok" : "OFF");
    fflush(stdout);
}

static void compare_trace(table *t, const char *name, const trace *got, bool exact)
{
    double loss, norm;
    trace_compare(&t->base, got, t->steps, &loss, &norm);
    tell_difference(t, name, loss, norm, exact);
}

static status run_case(const conf *c, int64_t steps, trace *out, table *base)
{
    session s = {0};
    status st = session_open(c, SESSION_TRAIN, &s);
    if (st == ST_OK)
        st = trace_steps(&s, 1, steps, out);
    if (st == ST_OK && base) {
        st_dtype act = s.device->backend->act;
        base->limit = act == DT_F64 ? 1e-10 : act == DT_F32 ? 2e-5 : 2e-2;
        base->exact = act != DT_BF16;
    }
    session_close(&s);
    return st;
}

static status vary(table *t, const char *name, const conf *c, bool exact)
{
    trace got;
    TRY(run_case(c, t->steps, &got, NULL));
    compare_trace(t, name, &got, exact);
    return ST_OK;
}

/* Runs one step and writes a checkpoint. */
static status save_one(const conf *c, const char *folder, trace *out)
{
    session s = {0};
    checkpoint_writer *k = NULL;
    progress now = {.step = 1, .rows = c->training_global_batch_size};
    status st;
    TRY_OR(done, session_open(c, SESSION_TRAIN, &s));
    TRY_OR(done, trace_steps(&s, 1, 1, out));
    TRY_OR(done, checkpoint_writer_new(c, folder, &s.dims, s.params, s.stream, NULL, &k));
    TRY_OR(done, progress_set_text(&now.cursor, receiver_cursor(s.train)));
    TRY_OR(done, progress_set_text(&now.stream_options, s.stream_options ? s.stream_options : ""));
    TRY_OR(done, progress_set_text(&now.recording, s.recording ? s.recording : ""));
    TRY_OR(done, checkpoint_writer_save(k, &now));
    st = checkpoint_writer_wait(k);
done:
    checkpoint_writer_free(&k);
    progress_done(&now);
    session_close(&s);
    return st;
}

/* Compares a run that is resumed after step 1 with the straight one. */
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
    TRY_OR(done, checkpoint_writer_find(folder, 1, NULL, NULL, from.path, &from.progress, &found));
    TRY_OR(done, session_resume(&c, NULL, &from, &s));
    TRY_OR(done, trace_steps(&s, 2, t->steps, &got));
    compare_trace(t, "resumed after step 1 against straight", &got, true);
done:
    session_close(&s);
    progress_done(&from.progress);
    if (folder_remove(folder) != ST_OK)
        log_warn("%s", status_text());
    return st;
}

/* Computes the loss (a sum over targets) and the gradient norm of n rows, each as a micro-batch of
 * its own. The norm comes from an update with a learning rate of 0. */
static status gradients(session *s, const row *rows, int64_t n, double out[2])
{
    const backend_vtable *v = s->device->backend;
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

/* Compares the first row as a whole with its documents one by one. */
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
        printf("%-54s %s\n", "documents one by one",
               "skipped: the first row has video, or is empty");
        goto done;
    }
    TRY_OR(done, arena_calloc(&a, (size_t)got.row.n_docs, sizeof *one, (void **)&one));
    for (int64_t d = 0; d < got.row.n_docs; d++)
        TRY_OR(done, prompt_whole_document(&got.row, d, &a, &one[d]));
    TRY_OR(done, gradients(&s, &got.row, 1, packed));
    TRY_OR(done, gradients(&s, one, got.row.n_docs, apart));
    snprintf(name, sizeof name, "the first row's %" PRId64 " documents one by one", got.row.n_docs);
    tell_difference(t, name, trace_distance(packed[0], apart[0]),
                    trace_distance(packed[1], apart[1]), false);
done:
    if (got.slot)
        receiver_give_back(s.train, &got);
    arena_done(&a);
    session_close(&s);
    return st;
}

/* Compares the modes of activation checkpointing: the same for text and vision, then different
 * ones. */
static status check_recomputed(table *t)
{
    static const struct {
        const char *name;
        int mode, vision;
        const char *option, *save;
    } cases[] = {
        {"none", AC_NONE, AC_VISION_SAME, "op", "auto"},
        {"selective, op", AC_SELECTIVE, AC_VISION_SAME, "op", "auto"},
        {"selective, op, save attention", AC_SELECTIVE, AC_VISION_SAME, "op", "attention"},
        {"selective, 2", AC_SELECTIVE, AC_VISION_SAME, "2", "auto"},
        {"full", AC_FULL, AC_VISION_SAME, "op", "auto"},
        {"none, vision_mode full", AC_NONE, AC_VISION_FULL, "op", "auto"},
        {"full, vision_mode selective", AC_FULL, AC_VISION_SELECTIVE, "op", "auto"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        conf c = *t->conf;
        c.activation_checkpoint_mode = cases[i].mode;
        c.activation_checkpoint_vision_mode = cases[i].vision;
        c.activation_checkpoint_selective_ac_option = cases[i].option;
        c.activation_checkpoint_save = c.activation_checkpoint_vision_save = cases[i].save;
        snprintf(name, sizeof name, "activation checkpointing %s", cases[i].name);
        TRY(vary(t, name, &c, t->exact));
    }
    return ST_OK;
}

/* Compares the same steps on several ranks, which this process starts. */
static status several(table *t)
{
    static const char name[] = "one rank against several";
    trace got;
    layout l;
    conf c = *t->asked;
    char line[96];
    if (t->ranks < 2) {
        printf("%-54s %s\n", name, "skipped: give --nproc N to start N ranks");
        return ST_OK;
    }
    TRY(check_for_ranks(&c, t->ranks, &l));
    TRY(check_start_ranks(&c, t->ranks, t->argc, t->argv, t->steps, &got));
    snprintf(line, sizeof line, "%d ranks", t->ranks);
    const struct {
        const char *words;
        int64_t n;
    } degrees[] = {{"replicate", l.replicate},
                   {"shard", l.shard},
                   {"context", l.context},
                   {"tensor", l.tensor},
                   {"pipeline", l.pipeline},
                   {"expert", l.expert},
                   {"expert-tensor", l.expert_tensor}};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        if (degrees[i].n > 1)
            snprintf(line + strlen(line), sizeof line - strlen(line), ", %s %" PRId64,
                     degrees[i].words, degrees[i].n);
    compare_trace(t, line, &got, false);
    return ST_OK;
}

static status check_all(table *t)
{
    conf c = *t->conf;
    printf("%-54s %12s %14s\n", "compared with one rank, as configured", "loss", "gradient norms");
    TRY(vary(t, "the same again", &c, true));
    TRY(check_recomputed(t));
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
    return several(t);
}

/* Takes "--steps N" and "--trace FILE" from the arguments that are no options. */
static status read_words(int argc, char **argv, int64_t *out_steps, const char **out_trace)
{
    const char *steps;
    *out_steps = 2;
    TRY(verb_take(&argc, argv, "--steps", &steps));
    TRY(verb_take(&argc, argv, "--trace", out_trace));
    if (steps) /* at least 2, since a run is resumed after step 1 */
        TRY(verb_number("--steps", steps, 2, TRACE_STEPS, out_steps));
    return verb_all_taken(argc, argv);
}

/* Runs every case, and fails if any differs by more than it may. */
static status compare_all(table *t, conf *c)
{
    conf one = *c;
    check_for_one(&one);
    t->conf = &one;
    t->asked = c;
    if (t->ranks > 1) { /* refuse an impossible layout before anything is run */
        conf other = *c;
        layout l;
        TRY(check_for_ranks(&other, t->ranks, &l));
    }
    TRY(file_make_folders(c->job_dump_folder));
    TRY(run_case(&one, t->steps, &t->base, t));
    TRY(check_all(t));
    if (t->off)
        return FAIL(ST_BAD_INPUT, "%d of the cases above differ by more than rounding (%g)", t->off,
                    t->limit);
    return ST_OK;
}

/* Copies the arguments for the ranks, because verb_load removes from argv what it has read. */
static status keep_words(int argc, char **argv, char ***out)
{
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for the command line");
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    *out = copy;
    return ST_OK;
}

status verb_check(int argc, char **argv)
{
    conf c;
    table t = {0};
    const char *into;
    TRY(launch_take(&argc, argv, &t.ranks));
    TRY(keep_words(argc, argv, &t.argv));
    t.argc = argc;
    status st = verb_load(&c, &argc, argv, needs);
    if (st != ST_OK) {
        free(t.argv);
        return st;
    }
    log_init("trainer", c.log_level < LOG_WARN ? c.log_level : LOG_WARN, c.log_json);
    TRY_OR(done, read_words(argc, argv, &t.steps, &into));
    if (c.loss_router_aux_coef > 0 && !into)
        printf("loss.router_aux_coef is taken as 0, because its statistics depend on the "
               "micro-batch\n");
    c.loss_router_aux_coef = 0;
    c.eval_enable = false;
    st = into && t.ranks > 1 ? check_launch(&c, t.ranks, t.argc, t.argv)
         : into              ? check_as_rank(&c, t.steps, into)
                             : compare_all(&t, &c);
done:
    conf_done(&c);
    free(t.argv);
    return st;
}
