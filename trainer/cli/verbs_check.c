/* SPDX-License-Identifier: Apache-2.0 */
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
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/generate/prompt.h"
#include "trainer/parallel/launcher.h"
#include "trainer/cli/check_steps.h"
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
static void tell_difference(table *cells, const char *name, double loss, double norm, bool exact)
{
    bool same = loss == 0.0 && norm == 0.0;
    bool ok = same || (!exact && loss <= cells->limit && norm <= cells->limit);
    cells->off += !ok;
    if (same)
        printf("%-54s %12s %14s  ok\n", name, "to the bit", "to the bit");
    else
        printf("%-54s %12.2e %14.2e  %s\n", name, loss, norm, ok ? "ok" : "OFF");
    fflush(stdout);
}

static void compare_trace(table *cells, const char *name, const trace *got, bool exact)
{
    double loss, norm;
    trace_compare(&cells->base, got, cells->steps, &loss, &norm);
    tell_difference(cells, name, loss, norm, exact);
}

static status run_case(const conf *options, int64_t steps, trace *out, table *base)
{
    session run = {0};
    status st = session_open(options, NULL, SESSION_TRAIN, &run);
    if (st == ST_OK)
        st = trace_steps(&run, 1, steps, out);
    if (st == ST_OK && base) {
        st_dtype act = run.device->backend->act;
        base->limit = act == DT_F64 ? 1e-10 : act == DT_F32 ? 2e-5 : 2e-2;
        base->exact = act != DT_BF16;
    }
    session_close(&run);
    return st;
}

static status vary(table *cells, const char *name, const conf *options, bool exact)
{
    trace got;
    TRY(run_case(options, cells->steps, &got, NULL));
    compare_trace(cells, name, &got, exact);
    return ST_OK;
}

/* Runs one step and writes a checkpoint. */
static status save_one(const conf *options, const char *folder, trace *out)
{
    session run = {0};
    checkpoint_writer *writer = NULL;
    progress now = {.step = 1, .rows = options->training_global_batch_size};
    status st;
    TRY_OR(done, session_open(options, NULL, SESSION_TRAIN, &run));
    TRY_OR(done, trace_steps(&run, 1, 1, out));
    TRY_OR(done, session_base(&run));
    TRY_OR(done, checkpoint_writer_new(options, folder, &run.dims, run.params, &run.base,
                                       run.stream, NULL, NULL, &writer));
    TRY_OR(done, progress_set_text(&now.cursor, receiver_cursor(run.train)));
    TRY_OR(done,
           progress_set_text(&now.stream_options, run.stream_options ? run.stream_options : ""));
    TRY_OR(done, progress_set_text(&now.recording, run.recording ? run.recording : ""));
    TRY_OR(done, checkpoint_writer_save(writer, &now));
    st = checkpoint_writer_wait(writer);
done:
    checkpoint_writer_free(&writer);
    progress_done(&now);
    session_close(&run);
    return st;
}

/* Compares a run that is resumed after step 1 with the straight one. */
static status resumed(table *cells)
{
    char folder[STATUS_PATH_MAX];
    conf options = *cells->conf;
    session run = {0};
    resume_point from = {0};
    trace got;
    bool found = false;
    status st;
    options.checkpoint_async_mode = CHECKPOINT_SYNC;
    snprintf(folder, sizeof folder, "%s/.check-%d", options.job_dump_folder, (int)getpid());
    TRY_OR(done, save_one(&options, folder, &got));
    TRY_OR(done, checkpoint_writer_find(folder, 1, NULL, NULL, from.path, &from.progress, &found));
    TRY_OR(done, session_connect(&options, NULL, SESSION_TRAIN, &run));
    TRY_OR(done, session_load(&from, &run));
    TRY_OR(done, trace_steps(&run, 2, cells->steps, &got));
    compare_trace(cells, "resumed after step 1 against straight", &got, true);
done:
    session_close(&run);
    progress_done(&from.progress);
    if (folder_remove(folder) != ST_OK)
        log_warn("%s", status_text());
    return st;
}

/* Computes the loss (a sum over targets) and the gradient norm of `n_rows` rows, each as a
 * micro-batch of its own. The norm comes from an update with a learning rate of 0. */
static status gradients(session *run, const row *rows, int64_t n_rows, double out[2])
{
    const backend_vtable *backend = run->device->backend;
    loss_sums sums = {run->sums.loss, run->sums.weight, run->sums.aux};
    optimizer_report made;
    TRY(backend->zero(run->stream, run->sums.loss, sizeof(double)));
    TRY(backend->zero(run->stream, run->sums.weight, sizeof(double)));
    TRY(params_zero_grad(run->params, run->stream));
    for (int64_t i = 0; i < n_rows; i++) {
        device_batch *batch;
        TRY(stage_rows(run->stager, run->stream, &rows[i], 1, &batch));
        TRY(model_forward_backward(run->model, run->stream, batch, &sums));
        TRY(backend->wait(run->stream));
    }
    TRY(optimizer_step(run->optimizer, run->stream, 1, 0.0, run->sums.weight));
    TRY(backend->to_host(run->stream, &out[0], run->sums.loss, sizeof(double)));
    TRY(optimizer_read(run->optimizer, run->stream, &made));
    out[1] = made.grad_norm;
    return ST_OK;
}

/* Takes the documents out of a row, each as a separate row; a branch comes with its prefix. */
static status take_documents(const row *packed, arena *memory, row **out, int64_t *out_n)
{
    int64_t count = 0;
    TRY(arena_calloc(memory, (size_t)packed->n_docs, sizeof **out, (void **)out));
    for (int64_t doc = 0; doc < packed->n_docs; doc++)
        if (!row_is_prefix(packed, doc))
            TRY(prompt_whole_sample(packed, doc, memory, &(*out)[count++]));
    *out_n = count;
    return ST_OK;
}

/* Compares the first row as a whole with its documents one by one. */
static status unpacked(table *cells)
{
    session run = {0};
    received got = {0};
    arena memory;
    row *one = NULL;
    double packed[2], apart[2];
    int64_t waited = 0, n_apart;
    char name[64];
    arena_init(&memory, 0);
    conf own = *cells->conf;           /* a shallow copy, whose strings belong to cells->conf */
    own.optimizer_in_backward = false; /* gradients of several rows add up */
    status st = session_open(&own, NULL, SESSION_TRAIN, &run);
    if (st == ST_OK)
        st = receiver_next(run.train, &got, &waited);
    if (st != ST_OK)
        goto done;
    if (got.row.n_video_patches || got.row.n_docs == 0) {
        printf("%-54s %s\n", "documents one by one",
               "skipped: the first row has video, or is empty");
        goto done;
    }
    TRY_OR(done, take_documents(&got.row, &memory, &one, &n_apart));
    TRY_OR(done, gradients(&run, &got.row, 1, packed));
    TRY_OR(done, gradients(&run, one, n_apart, apart));
    snprintf(name, sizeof name, "the first row's %" PRId64 " documents one by one", n_apart);
    tell_difference(cells, name, trace_distance(packed[0], apart[0]),
                    trace_distance(packed[1], apart[1]), false);
done:
    if (got.slot)
        receiver_give_back(run.train, &got);
    arena_done(&memory);
    session_close(&run);
    return st;
}

/* Compares the modes of activation checkpointing: the same for text and vision, then different
 * ones. */
static status check_recomputed(table *cells)
{
    static const struct {
        const char *name;
        int mode;
        const char *option, *save;
    } cases[] = {
        {"none", AC_NONE, "op", "auto"},
        {"selective, op", AC_SELECTIVE, "op", "auto"},
        {"selective, op, save attention", AC_SELECTIVE, "op", "attention"},
        {"selective, 2", AC_SELECTIVE, "2", "auto"},
        {"full", AC_FULL, "op", "auto"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        conf options = *cells->conf;
        options.activation_checkpoint_mode = cases[i].mode;
        options.activation_checkpoint_selective_ac_option = cases[i].option;
        options.activation_checkpoint_save = cases[i].save;
        snprintf(name, sizeof name, "activation checkpointing %s", cases[i].name);
        TRY(vary(cells, name, &options, cells->exact));
    }
    return ST_OK;
}

/* Compares the same steps on several ranks, which this process starts. */
static status several(table *cells)
{
    static const char name[] = "one rank against several";
    trace got;
    layout cut;
    conf options = *cells->asked;
    char line[96];
    if (cells->ranks < 2) {
        printf("%-54s %s\n", name, "skipped: give --nproc N to start N ranks");
        return ST_OK;
    }
    TRY(check_for_ranks(&options, cells->ranks, &cut));
    TRY(check_start_ranks(&options, cells->ranks, cells->argc, cells->argv, cells->steps, &got));
    snprintf(line, sizeof line, "%d ranks", cells->ranks);
    const struct {
        const char *words;
        int64_t count;
    } degrees[] = {{"replicate", cut.replicate},
                   {"shard", cut.shard},
                   {"context", cut.context},
                   {"tensor", cut.tensor},
                   {"pipeline", cut.pipeline},
                   {"expert", cut.expert},
                   {"expert-tensor", cut.expert_tensor}};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        if (degrees[i].count > 1)
            snprintf(line + strlen(line), sizeof line - strlen(line), ", %s %" PRId64,
                     degrees[i].words, degrees[i].count);
    compare_trace(cells, line, &got, false);
    return ST_OK;
}

static status check_all(table *cells)
{
    conf options = *cells->conf;
    printf("%-54s %12s %14s\n", "compared with one rank, as configured", "loss", "gradient norms");
    TRY(vary(cells, "the same again", &options, true));
    TRY(check_recomputed(cells));
    options.training_local_batch_size =
        options.training_local_batch_size == 1 ? options.training_global_batch_size : 1;
    if (options.training_global_batch_size > 1)
        TRY(vary(cells,
                 options.training_local_batch_size == 1 ? "micro-batches of one row"
                                                        : "one micro-batch of all rows",
                 &options, false));
    options = *cells->conf;
    options.training_threads = options.training_threads == 1 ? 2 : 1;
    TRY(vary(cells, options.training_threads == 1 ? "one thread" : "two threads", &options, true));
    TRY(unpacked(cells));
    TRY(resumed(cells));
    return several(cells);
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

/* Says what the steps begin from. */
static void tell_start(const conf *options)
{
    printf("weights: %s%s, as a run begins; no checkpoint is read\n", options->model_path,
           base_has_files(options) ? "" : ", drawn from training.seed");
    if (options->loss_router_aux_coef > 0)
        printf("loss.router_aux_coef is taken as 0, because its statistics depend on the "
               "micro-batch\n");
    fflush(stdout);
}

/* The many sessions after the first would all say the same. */
static void log_less(const conf *options)
{
    log_init("trainer", options->log_level < LOG_WARN ? options->log_level : LOG_WARN,
             options->log_json);
}

/* Runs every case, and fails if any differs by more than it may. */
static status compare_all(table *cells, conf *options)
{
    conf one = *options;
    check_for_one(&one);
    cells->conf = &one;
    cells->asked = options;
    if (cells->ranks > 1) { /* refuse an impossible layout before anything is run */
        conf other = *options;
        layout degrees;
        TRY(check_for_ranks(&other, cells->ranks, &degrees));
    }
    TRY(file_make_folders(options->job_dump_folder));
    TRY(run_case(&one, cells->steps, &cells->base, cells));
    log_less(options);
    TRY(check_all(cells));
    if (cells->off)
        return FAIL(ST_BAD_INPUT, "%d of the cases above differ by more than rounding (%g)",
                    cells->off, cells->limit);
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
    conf options;
    table cells = {0};
    const char *into;
    TRY(launch_take(&argc, argv, &cells.ranks));
    TRY(keep_words(argc, argv, &cells.argv));
    cells.argc = argc;
    status st = verb_load(&options, &argc, argv, needs);
    if (st != ST_OK) {
        free(cells.argv);
        return st;
    }
    log_init("trainer", options.log_level, options.log_json);
    TRY_OR(done, read_words(argc, argv, &cells.steps, &into));
    if (into)
        log_less(&options);
    else
        tell_start(&options);
    options.loss_router_aux_coef = 0;
    options.eval_enable = false;
    st = into && cells.ranks > 1 ? check_launch(&options, cells.ranks, cells.argc, cells.argv)
         : into                  ? check_as_rank(&options, cells.steps, into)
                                 : compare_all(&cells, &options);
done:
    conf_done(&options);
    free(cells.argv);
    return st;
}
