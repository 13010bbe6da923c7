/* SPDX-License-Identifier: Apache-2.0 */
/* writer_parts.h: what the files of the writer share. Private to writer.c, writer_copy.c (the copy
 * that a save is written from) and writer_save.c (the files of a save). */
#ifndef TESSERA_TRAINER_CHECKPOINT_SAVE_WRITER_PARTS_H
#define TESSERA_TRAINER_CHECKPOINT_SAVE_WRITER_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "trainer/checkpoint/save/save_ranks.h"
#include "trainer/checkpoint/save/writer.h"

/* The blocks of a copy; a snapshot has those before the frozen values. */
enum { WRITER_VALUES, WRITER_MOMENTS1, WRITER_MOMENTS2, WRITER_FROZEN, WRITER_BLOCKS };

/* What this rank waits for, as the other ranks report it. */
#define WRITER_FILES "its checkpoint"

struct checkpoint_writer {
    const conf *conf;
    char folder[STATUS_PATH_MAX];
    const model_dims *dims;
    params *live;
    const run_base *base; /* names the model; no rows: nothing is frozen */
    stream *live_stream;
    bool background;
    save_ranks ranks;
    rank_link *watch;
    atomic_bool leaving; /* checkpoint_writer_free has begun */
    /* What is written: the live parameters, or in the background the snapshot. */
    params view;
    stream *view_stream;
    device *host;
    snapshot *shot; /* has the copies, but for frozen values; NULL: own memory has them */
    /* In host memory; frozen values that can be read in place have no block. */
    param_block kept[WRITER_BLOCKS];
    bool has_frozen; /* frozen values have been copied */

    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, quit;           /* a save is in progress; the thread is to end */
    int64_t saves;             /* how many were begun, the same number on all ranks */
    progress todo;             /* the state that belongs to it */
    status outcome;            /* how the last save ended */
    status_note note;          /* the cause, if it failed */
    int64_t last_step;         /* of the last whole checkpoint */
    checkpoint_saved on_saved; /* NULL: none */
    void *saved_user;
};

/* Writes what writer->todo says, from fill_folder to prune_by_policy in the list of writer.c. The
 * copy has been taken. It runs in the writer's thread if there is one. */
WARN_UNUSED status writer_write_files(checkpoint_writer *writer);
/* On the first rank: makes room on the disk, then the folder that a step is written into, empty. */
WARN_UNUSED status writer_begin_folder(const checkpoint_writer *writer, int64_t step);

/* Takes the host memory of a copy, but for what the snapshot has, and makes writer->view. What was
 * taken before a failure is released with the rest. ST_NO_MEMORY. */
WARN_UNUSED status writer_take_memory(checkpoint_writer *writer);
void writer_release_memory(checkpoint_writer *writer);
/* Gathers the adapters' values from all ranks that store them, since merging a part of a matrix
 * needs all of its adapter. A collective call. */
WARN_UNUSED status writer_take_adapters(checkpoint_writer *writer);
/* Makes the copy that this save is written from. A snapshot has it on every rank, the writer's own
 * memory only on those that write. */
WARN_UNUSED status writer_take_copy(checkpoint_writer *writer, const progress *state);

#endif
