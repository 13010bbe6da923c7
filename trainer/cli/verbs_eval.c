/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_eval.c: trainer eval: measures the held-out loss and accuracy of a run's newest checkpoint,
 * or of a folder with weights, on one rank or several. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/eval/html_page.h"
#include "trainer/model/dims/hf_folder.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/parallel/launcher.h"
#include "trainer/checkpoint/state/progress.h"
#include "trainer/train/train.h"
#include "trainer/cli/verbs.h"

/* What the verb cannot do without. */
static const conf_need needs[] = {
    {"model.path", NULL, "name a Hugging Face folder or a preset (trainer inspect lists them)"},
    {0},
};

/* Why no checkpoint is evaluated. */
enum { WHY_TEXT = 2 * STATUS_PATH_MAX + 128 };

static void note_model(void *user, const char *key, const char *was, const char *now)
{
    (void)now;
    if (strcmp(key, "model.path") == 0)
        snprintf((char *)user, STATUS_PATH_MAX, "%s", was);
}

/* Whether the run with these checkpoints began from another model.path than that of the options.
 * *out: the other one; "": it is the same. A state that cannot be read is left to the search for a
 * whole checkpoint. */
static status other_model(const conf *options, const char *folder, int64_t newest,
                          char out[STATUS_PATH_MAX])
{
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX], *now = NULL;
    progress state = {0};
    out[0] = 0;
    TRY(folder_step_path(path, folder, newest, NULL));
    TRY(hf_path(training, path, FOLDER_TRAINING));
    TRY(config_text(options, &now));
    if (progress_read(training, &state) == ST_OK)
        config_changes(state.config, now, note_model, out);
    else
        status_clear();
    progress_done(&state);
    free(now);
    return ST_OK;
}

/* Finds the checkpoint to evaluate, the same on all ranks: the newest whole one of a run that began
 * from this model.path, or that of checkpoint.load_step. */
static status find_weights(const session *run, resume_point *out, bool *out_found,
                           char why[WHY_TEXT])
{
    const conf *options = run->conf;
    const comm *all = mesh_comm(&run->mesh, MESH_WORLD);
    const comm_at at = {"find the weights", -1};
    char folder[STATUS_PATH_MAX], other[STATUS_PATH_MAX] = "";
    int64_t newest;
    *out_found = false;
    TRY(train_checkpoint_folder(options, folder));
    TRY(checkpoint_writer_newest(folder, all, &newest));
    if (options->checkpoint_load_step < 0 && newest > 0)
        TRY(comm_agree(all, at, other_model(options, folder, newest, other), newest));
    TRY(comm_host_broadcast(all, at, other, sizeof other, 0));
    if (options->checkpoint_load_step == 0)
        snprintf(why, WHY_TEXT, "checkpoint.load_step is 0");
    else if (other[0])
        snprintf(why, WHY_TEXT,
                 "the run in %s began from %s; --checkpoint.load_step %" PRId64
                 " evaluates its newest checkpoint",
                 folder, other, newest);
    else
        snprintf(why, WHY_TEXT, "no checkpoint in %s%s", folder,
                 hf_has_weights(folder) ? ", but a model: --model.path names it" : "");
    if (other[0])
        return ST_OK;
    return checkpoint_writer_find(folder, options->checkpoint_load_step, all, run->world->rank_link,
                                  out->path, &out->progress, out_found);
}

/* Prints the first line: which weights are evaluated. */
static void tell_weights(const conf *options, const resume_point *from, const char *why)
{
    char training[STATUS_PATH_MAX];
    run_base was = {0};
    bool there = false;
    if (!from) {
        printf("weights: %s (%s)\n", options->model_path, why);
    } else {
        if (hf_path(training, from->path, FOLDER_TRAINING) != ST_OK ||
            base_read(training, &was, &there) != ST_OK)
            status_clear(); /* whoever loads it will fail with the reason */
        there = there && was.count > 0;
        printf("weights: checkpoint %s%s%s\n", from->path,
               !there          ? ""
               : was.lora.rank ? ", adapters on "
                               : ", frozen parts of ",
               there ? options->model_path : "");
        base_done(&was);
    }
    fflush(stdout);
}

static status evaluate_as(const conf *options, const world *job)
{
    session run = {0};
    resume_point from = {0};
    evaluation result;
    char why[WHY_TEXT] = "";
    bool found;
    status st;
    TRY(world_log(job, options));
    TRY(session_connect(options, job, SESSION_EVAL, &run));
    TRY_OR(done, find_weights(&run, &from, &found, why));
    if (job->place.rank == 0)
        tell_weights(options, found ? &from : NULL, why);
    TRY_OR(done, session_load(found ? &from : NULL, &run));
    TRY_OR(done, evaluate_model(&run, found ? from.progress.step : -1, true, options->eval_show,
                                &result));
    session_check_first_loss(&run, result.loss);
    evaluation_print(&result, -1);
    if (result.vqa.all.count)
        vqa_tally_print(&result.vqa, stdout);
done:
    session_close(&run);
    progress_done(&from.progress);
    return st;
}

static status run_rank(conf *options)
{
    world job;
    world_place place;
    TRY(world_place_find(&place));
    if (place.size > 1)
        TRY(engine_choose(options, world_gpu(&place)));
    TRY(world_open(options, &job));
    world_fit(&job, options);
    return world_close(&job, evaluate_as(options, &job));
}

/* Refuses options whose layout is not one of `count` ranks. */
static status check_ranks(conf *options, int count)
{
    model_dims dims;
    layout degrees;
    TRY(session_dims(options, &dims));
    const layout_limits limits = params_limits(&dims);
    TRY(layout_of(options, &limits, &degrees));
    return session_check_layout(options, count);
}

status verb_eval(int argc, char **argv)
{
    conf options;
    int ranks;
    TRY(launch_take(&argc, argv, &ranks));
    if (ranks > 1)
        return launch_again(ranks, needs, check_ranks, argc, argv);
    TRY(verb_load_last(&options, &argc, argv, needs));
    log_init("trainer", options.log_level, options.log_json);
    status st = run_rank(&options);
    conf_done(&options);
    return st;
}
