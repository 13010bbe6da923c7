/* SPDX-License-Identifier: Apache-2.0 */
/* writer.c: see writer.h.
 *
 * A save goes through these steps; the first rank does those marked 1, every writing rank the
 * others:
 *
 *   writer_begin_folder 1  old checkpoints make room if they must; .step-N.writing is made
 *   writer_take_copy       values and moments are copied to host memory; steps go on after that
 *   fill_folder            Hugging Face files, training state, adapters 1, state.json 1
 *   marks                  the others leave marks that they are done; the first one waits for them
 *   folder_seal 1          the manifest
 *   folder_commit_step 1   the rename
 *   prune_by_policy 1      old checkpoints go
 *
 * What follows what from fill_folder on, also after a failure, is decided by core/save_core.h, and
 * writer_save.c does it. All of that runs in the writer's thread, or at once if the options ask for
 * no thread. The thread reads `view`: a copy of the registry whose arrays are in the snapshot, read
 * through a stream of a CPU device. */
#include "trainer/checkpoint/save/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/save/writer_parts.h"
#include "trainer/ops/open.h"

static void report_outcome(const checkpoint_writer *writer, int64_t step, int64_t start_ns,
                           status st)
{
    if (writer->on_saved)
        writer->on_saved(writer->saved_user, step, (double)(clock_ns() - start_ns) * 1e-9, st);
}

static void save_and_report(checkpoint_writer *writer)
{
    int64_t start = clock_ns();
    status st = writer_write_files(writer);
    writer->outcome = st;
    report_outcome(writer, writer->todo.step, start, st);
    if (st == ST_OK) {
        writer->last_step = writer->todo.step;
        if (writer->ranks.first)
            log_info("checkpoint written step=%" PRId64 " seconds=%.1f", writer->todo.step,
                     (double)(clock_ns() - start) * 1e-9);
        return;
    }
    writer->note = *status_last();
    log_error("the checkpoint of step %" PRId64
              " is not written: %s; the last whole one is of step %" PRId64,
              writer->todo.step, status_text(), writer->last_step);
}

static void *writer_thread(void *user)
{
    checkpoint_writer *writer = user;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        while (!writer->busy && !writer->quit)
            pthread_cond_wait(&writer->changed, &writer->lock);
        if (!writer->busy)
            break;
        pthread_mutex_unlock(
            &writer->lock); /* while busy, todo and snapshot belong to this thread */
        save_and_report(writer);
        pthread_mutex_lock(&writer->lock);
        writer->busy = false;
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

static status open_background(checkpoint_writer *writer)
{
    TRY(writer_take_memory(writer));
    TRY(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &writer->host));
    TRY(writer->host->backend->stream_new(writer->host, &writer->view_stream));
    if (pthread_create(&writer->thread, NULL, writer_thread, writer) != 0)
        return FAIL(ST_OS, "the thread that writes checkpoints cannot be started");
    writer->thread_runs = true;
    return ST_OK;
}

status checkpoint_folder_probe(const char *folder)
{
    TRY(file_make_folders(folder));
    if (access(folder, W_OK | X_OK) == 0)
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, folder,
                   "checkpoints cannot be written here: %s (job.dump_folder sets the folder)",
                   strerror(errno));
}

status checkpoint_writer_new(const conf *options, const char *folder, const model_dims *dims,
                             params *registry, const run_base *base, stream *queue,
                             rank_link *watch, snapshot *shot, checkpoint_writer **out)
{
    checkpoint_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return FAIL(ST_NO_MEMORY, "no memory for the writer of checkpoints");
    *writer = (checkpoint_writer){.conf = options,
                                  .dims = dims,
                                  .live = registry,
                                  .base = base,
                                  .live_stream = queue,
                                  .view = *registry,
                                  .view_stream = queue,
                                  .shot = snapshot_is_on_shm(shot) ? shot : NULL,
                                  .watch = watch};
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    snprintf(writer->folder, sizeof writer->folder, "%s", folder);
    writer->ranks = save_ranks_of(registry, watch);
    writer->background = checkpoint_writer_in_background(options) && writer->ranks.writes;
    status st = writer->ranks.first ? checkpoint_folder_probe(folder) : file_make_folders(folder);
    st = save_check_shared_folder(&writer->ranks, folder, st);
    if (st == ST_OK && writer->background)
        st = open_background(writer);
    if (st != ST_OK) {
        checkpoint_writer_free(&writer);
        return st;
    }
    *out = writer;
    return ST_OK;
}

void checkpoint_writer_free(checkpoint_writer **held)
{
    checkpoint_writer *writer = *held;
    if (!writer)
        return;
    atomic_store(&writer->leaving, true);
    if (writer->thread_runs) {
        pthread_mutex_lock(&writer->lock);
        writer->quit = true;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
    }
    if (writer->background) {
        if (writer->host && writer->view_stream != writer->live_stream)
            writer->host->backend->stream_free(&writer->view_stream);
        device_close(&writer->host);
        writer_release_memory(writer);
    }
    progress_done(&writer->todo);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
    *held = NULL;
}

enum { SAVE_KEPT, SAVE_GO, SAVE_NO_FOLDER };

/* Begins a save: the first rank makes the folder, and *out is on all ranks what it found. */
static status begin_save(checkpoint_writer *writer, int64_t step, int32_t *out)
{
    /* The log has how the save before this one ended. */
    bool kept = checkpoint_writer_wait(writer) == ST_OK && writer->last_step == step;
    TRY(save_barrier(&writer->ranks, ST_OK, step));
    *out = kept ? SAVE_KEPT : SAVE_GO;
    if (!kept && writer->ranks.first && writer_begin_folder(writer, step) != ST_OK) {
        writer->outcome = status_last()->code;
        writer->note = *status_last();
        report_outcome(writer, step, clock_ns(), writer->outcome);
        log_error("the checkpoint of step %" PRId64 " is not written: %s", step, status_text());
        *out = SAVE_NO_FOLDER;
    }
    return save_broadcast(&writer->ranks, out);
}

status checkpoint_writer_save(checkpoint_writer *writer, const progress *state)
{
    int32_t begin;
    TRY(begin_save(writer, state->step, &begin));
    if (begin == SAVE_NO_FOLDER)
        return checkpoint_writer_keep(writer, state);
    if (begin != SAVE_GO)
        return ST_OK;
    writer->saves++;
    TRY(writer_take_adapters(writer));
    TRY(writer_take_copy(writer, state));
    if (!writer->ranks.writes)
        return ST_OK;
    TRY(progress_copy(state, &writer->todo));
    if (!writer->background) {
        rank_link_waits(writer->watch, WRITER_FILES);
        save_and_report(writer);
        rank_link_waits(writer->watch, NULL);
        return ST_OK;
    }
    pthread_mutex_lock(&writer->lock);
    writer->busy = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    return ST_OK;
}

status checkpoint_writer_keep(checkpoint_writer *writer, const progress *state)
{
    if (!snapshot_is_on_shm(writer->shot))
        return ST_OK;
    pthread_mutex_lock(&writer->lock);
    const bool written = writer->busy;
    pthread_mutex_unlock(&writer->lock);
    return snapshot_take(writer->shot, state, written);
}

status checkpoint_writer_wait(checkpoint_writer *writer)
{
    status st = ST_OK;
    rank_link_waits(writer->watch, WRITER_FILES);
    pthread_mutex_lock(&writer->lock);
    while (writer->busy)
        pthread_cond_wait(&writer->changed, &writer->lock);
    rank_link_waits(writer->watch, NULL);
    if (writer->outcome != ST_OK) {
        st = writer->outcome;
        status_set(&writer->note);
    }
    pthread_mutex_unlock(&writer->lock);
    return st;
}

status checkpoint_writer_publish(checkpoint_writer *writer, int64_t step)
{
    if (!writer->ranks.first)
        return ST_OK;
    rank_link_waits(writer->watch,
                    WRITER_FILES); /* without hard links all files are copied, which takes long */
    status st = folder_publish(writer->folder, step);
    rank_link_waits(writer->watch, NULL);
    return st;
}

status checkpoint_writer_barrier(const checkpoint_writer *writer, status mine, int64_t step)
{
    return save_barrier(&writer->ranks, mine, step);
}

void checkpoint_writer_set_resumed(checkpoint_writer *writer, int64_t from)
{
    writer->last_step = from;
}

void checkpoint_writer_on_saved(checkpoint_writer *writer, checkpoint_saved on_saved, void *user)
{
    writer->on_saved = on_saved;
    writer->saved_user = user;
}

int64_t checkpoint_writer_last_step(const checkpoint_writer *writer)
{
    return writer->last_step;
}
