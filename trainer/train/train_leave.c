/* SPDX-License-Identifier: Apache-2.0 */
/* train_leave.c: what a run leaves when it ends: its last checkpoint, and the model or the adapter
 * in the folder of checkpoints (training_leave of training.h). */
#include <inttypes.h>

#include "common/program/log.h"
#include "trainer/checkpoint/hf/adapter.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/save_ranks.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/model/params/params_states.h"
#include "trainer/run/stop.h"
#include "trainer/train/training.h"

static model_when model_of(const training *run)
{
    return checkpoint_writer_when(run->conf, run->session.params);
}

/* is_over: the run has come to its end, and was not asked to stop before. */
static void log_written(const training *run, bool is_over)
{
    const model_when when = model_of(run);
    if (!training_is_first(run))
        return;
    if (when == MODEL_ALWAYS || (when == MODEL_AT_END && is_over))
        log_info("model written to %s", run->folder);
    else if (run->conf->lora_rank)
        log_info("adapter written to %s/%s", run->folder, ADAPTER_FOLDER);
    else
        log_info("what was trained is written to %s/step-%" PRId64
                 "; the model is written when the run has come to its end, or by trainer export "
                 "--model %s --out DIR",
                 run->folder, run->now.step, run->folder);
}

/* Writes the whole model into `folder`: of several ranks, what this one stores. */
static status export_whole(training *run, const char *folder)
{
    const conf *options = run->conf;
    const save_ranks ranks = save_ranks_of(run->session.params, run->world->rank_link);
    const hf_export_options how = {.source = options->model_path,
                                   .tokenizer = options->model_tokenizer,
                                   .dtype = HF_EXPORT_AS_SOURCE,
                                   .frozen_is_source = base_has_files(options),
                                   .writer = ranks.writer.rank,
                                   .writers = ranks.writer.ranks};
    if (!ranks.writes)
        return ST_OK;
    return hf_export(run->session.params, run->session.stream, &run->session.dims, folder, &how);
}

/* Removes what there is of a model that could not be written whole, and returns why. */
static status drop_unwritten(const training *run, const char *aside, status st)
{
    const status_note why = *status_last();
    if (training_is_first(run) && folder_remove(aside) != ST_OK)
        log_warn("the partly written model cannot be deleted: %s", status_text());
    status_set(&why);
    return status_context(st,
                          "the last checkpoint is whole, but not the model beside it; trainer "
                          "export%s --model %s --out DIR makes it of the checkpoint",
                          run->conf->lora_rank ? " --merge" : "", run->folder);
}

/* Writes the whole model beside what there is already; adapters are merged in. All ranks write
 * their parts into a folder aside, which the first one then puts in place. */
static status leave_whole(training *run)
{
    char aside[STATUS_PATH_MAX];
    const bool first = training_is_first(run);
    checkpoint_writer *writer = run->checkpoint_writer;
    TRY(hf_path(aside, run->folder, FOLDER_ASIDE));
    TRY(checkpoint_writer_barrier(writer, first ? folder_remove(aside) : ST_OK, run->now.step));
    TRY(states_settle(run->session.params, run->session.stream));
    TRY(lora_gather(run->session.params, run->session.stream));
    rank_link_waits(run->world->rank_link, "the whole model");
    status st = export_whole(run, aside);
    rank_link_waits(run->world->rank_link, NULL);
    st = checkpoint_writer_barrier(writer, st, run->now.step);
    if (st != ST_OK)
        return drop_unwritten(run, aside, st);
    return first ? folder_put(aside, run->folder) : ST_OK;
}

status training_leave(training *run)
{
    if (run->now.step == 0)
        return ST_OK; /* nothing was trained */
    const bool is_over = !stop_asked() && !run->no_rows;
    bool is_kept = run->resumes && training_on_disk(run) == run->now.step;
    if (!is_kept)
        TRY(training_save(run));
    status st = training_not_kept(run, checkpoint_writer_wait(run->checkpoint_writer));
    if (st == ST_OK)
        st = checkpoint_writer_publish(run->checkpoint_writer, run->now.step);
    /* A rank that leaves with an error ends the other ranks. So even on an error it first waits
     * until all of them have finished writing. */
    TRY(checkpoint_writer_barrier(run->checkpoint_writer, st, run->now.step));
    if (is_over && model_of(run) == MODEL_AT_END)
        TRY(leave_whole(run));
    log_written(run, is_over);
    return ST_OK;
}
