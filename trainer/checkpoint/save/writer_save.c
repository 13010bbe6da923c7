/* SPDX-License-Identifier: Apache-2.0 */
/* writer_save.c: the files of a save, from the folder that they are written into to its rename.
 * What follows what, also after a failure, is decided by core/save_core.h; this file does it. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/hf/adapter.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/save/writer_parts.h"
#include "trainer/checkpoint/state/train_state.h"

enum { NAP_NS = 50000000 }; /* between two looks for another rank's mark */

static status fill_folder(checkpoint_writer *writer, const char *path)
{
    char training[STATUS_PATH_MAX], adapter[STATUS_PATH_MAX];
    const state_writer own = writer->ranks.writer;
    const bool whole = checkpoint_writer_whole(writer->conf, writer->live);
    const hf_export_options options = {.source = writer->conf->model_path,
                                       .tokenizer = writer->conf->model_tokenizer,
                                       .dtype = HF_EXPORT_AS_SOURCE,
                                       .frozen_is_source = base_has_files(writer->conf),
                                       .writer = own.rank,
                                       .writers = own.ranks};
    TRY(hf_path(training, path, FOLDER_TRAINING));
    TRY(hf_path(adapter, path, ADAPTER_FOLDER));
    if (whole)
        TRY(hf_export(&writer->view, writer->view_stream, writer->dims, path, &options));
    TRY(train_state_write(&writer->view, writer->view_stream, own, training));
    if (!writer->ranks.first)
        return ST_OK;
    if (writer->base->count || !whole)
        TRY(base_write(writer->base, training));
    TRY(adapter_export(&writer->view, writer->view_stream, writer->conf->model_path,
                       (adapter_reader)writer->conf->lora_adapter_for, adapter));
    return progress_write(&writer->todo, training);
}

/* Makes the folder that is written into, empty. */
static status make_writing(const checkpoint_writer *writer, int64_t step)
{
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX];
    TRY(folder_step_path(path, writer->folder, step, "writing"));
    TRY(folder_remove(path));
    TRY(hf_path(training, path, FOLDER_TRAINING));
    return file_make_folders(training);
}

/* Makes room on the disk first.
 * That can take a while, so the other ranks get notice. */
status writer_begin_folder(const checkpoint_writer *writer, int64_t step)
{
    rank_link_waits(writer->watch, WRITER_FILES);
    if (prune_for_room(writer->folder, writer->last_step, writer->conf->checkpoint_keep_latest_k) !=
        ST_OK)
        log_warn("no old checkpoint can be removed to make room: %s",
                 status_text()); /* not an error: there may be enough room */
    rank_link_waits(writer->watch, NULL);
    return make_writing(writer, step);
}

/* A save under way on this rank. */
typedef struct saving {
    checkpoint_writer *writer;
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX]; /* of the folder that is written into */
    folder_known *theirs;       /* [writers] the training files of the others */
    char text[STATUS_PATH_MAX]; /* of a mark */
} saving;

static void warn_if(status st, const char *what)
{
    if (st != ST_OK)
        log_warn("%s%s", what, status_text());
}

static bool make_room(const checkpoint_writer *writer)
{
    bool gone = false;
    warn_if(
        prune_one(writer->folder, writer->last_step, writer->conf->checkpoint_keep_latest_k, &gone),
        "no old checkpoint can be removed to make room: ");
    return gone;
}

static void prune_old(const checkpoint_writer *writer)
{
    if (prune_by_policy(writer->folder, writer->conf->checkpoint_keep_latest_k) != ST_OK)
        log_warn("old checkpoints cannot be removed: %s; the next save tries again", status_text());
}

static status look_for_mark(saving *save, int writer, save_answer *out)
{
    const save_ranks *ranks = &save->writer->ranks;
    if (save_posted_mark(ranks, save->writer->saves, writer, &out->mark, save->text,
                         sizeof save->text))
        return ST_OK;
    return save_find_mark(ranks, save->training, writer, &out->mark, save->text, sizeof save->text,
                          &save->theirs[writer - 1]);
}

/* Does what the core returned (save_core.h says in which order, and what each action is). */
static status do_action(saving *save, const save_action *action, save_answer *out)
{
    checkpoint_writer *const writer = save->writer;
    const save_ranks *ranks = &writer->ranks;
    out->text = save->text;
    switch (action->kind) {
    case SAVE_FILL:
        return fill_folder(writer, save->path);
    case SAVE_DIGEST:
        return save_own_digest(ranks, save->training, save->text);
    case SAVE_REMOVE_OWN:
        save_remove_own(ranks, save->training);
        return ST_OK;
    case SAVE_MARK:
        return save_leave_mark(ranks, save->training, action->mark, action->text);
    case SAVE_POST:
        save_post_mark(ranks, writer->saves, action->mark, action->text);
        return ST_OK;
    case SAVE_LOOK:
        return look_for_mark(save, action->writer, out);
    case SAVE_NAP:
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        return ST_OK;
    case SAVE_UNMARK:
        return save_remove_mark(save->training, action->writer);
    case SAVE_SEAL:
        return folder_seal(save->path, save->theirs, ranks->writer.ranks - 1);
    case SAVE_COMMIT:
        return folder_commit_step(writer->folder, writer->todo.step, action->commit, &out->absent);
    case SAVE_DISCARD: /* so that it does not fill the disk */
        warn_if(folder_remove(save->path), "");
        return ST_OK;
    case SAVE_MAKE_ROOM:
        out->gone = make_room(writer);
        return ST_OK;
    case SAVE_MAKE_FOLDER:
        return make_writing(writer, writer->todo.step);
    case SAVE_PRUNE:
        prune_old(writer);
        return ST_OK;
    case SAVE_END:
        break;
    }
    return ST_OK;
}

status writer_write_files(checkpoint_writer *writer)
{
    const state_writer own = writer->ranks.writer;
    saving save = {.writer = writer};
    save_core core;
    save_answer answer = {.now_ns = clock_ns()};
    TRY(folder_step_path(save.path, writer->folder, writer->todo.step, "writing"));
    TRY(hf_path(save.training, save.path, FOLDER_TRAINING));
    save.theirs = calloc((size_t)own.ranks, sizeof *save.theirs);
    if (!save.theirs)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks' digests", own.ranks);
    save_core_begin(&core, writer->ranks.mesh ? writer->ranks.mesh->rank : 0, own.rank, own.ranks);
    save_action action = save_core_next(&core, &answer);
    while (action.kind != SAVE_END) {
        answer = (save_answer){0};
        answer.code = do_action(&save, &action, &answer);
        answer.now_ns = clock_ns();
        answer.leaving = atomic_load(&writer->leaving);
        action = save_core_next(&core, &answer);
    }
    free(save.theirs);
    return action.code;
}
