/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.h: a run's copies of values, moments and state in host memory that outlives the process
 * (snapshot_file.h), so that after a crash on the same machine the run resumes in seconds. Each
 * rank has one file in checkpoint.memory_folder, named after the folder of checkpoints.
 *
 *   snapshot_new     names the file, and finds out what it must hold; after session_model
 *   snapshot_find    the newest step that all ranks have whole, if it is worth more than the disk's
 *   snapshot_load    its values and moments; after params_alloc
 *   snapshot_ready   takes the room for both sides; before step 1
 *   snapshot_take    copies; a thread then hashes the copy while steps go on
 *   snapshot_finish  the run is kept on disk: the file goes
 *   snapshot_free    the file stays if it has a whole side, and the log says where
 *
 * All ranks call each of them at the same time; they agree, so that a step is used, kept or given
 * up by all of them. Before a side is written again, all ranks have hashed the other one: at no
 * instant is there no step that all of them have whole. */
#ifndef TESSERA_TRAINER_CHECKPOINT_SAVE_SNAPSHOT_H
#define TESSERA_TRAINER_CHECKPOINT_SAVE_SNAPSHOT_H

#include "common/conf/conf.h"
#include "trainer/checkpoint/state/progress.h"
#include "trainer/model/params/params.h"
#include "trainer/parallel/link/rank_link.h"

typedef struct snapshot snapshot;

/* Whether these options keep copies in memory that outlives the process. */
bool snapshot_wanted(const conf *options);

/* folder: that of the checkpoints. local_ranks: how many ranks of the job share this machine. The
 * registry is cut and need not be allocated yet. All arguments are borrowed until snapshot_free.
 * ST_CANT_CREATE if checkpoint.memory_folder cannot be made. */
WARN_UNUSED status snapshot_new(const conf *options, const char *folder, int local_ranks,
                                params *registry, stream *queue, rank_link *watch, snapshot **out);
/* Finds the newest step, at least `least` (that of the newest checkpoint on disk, 0 if there is
 * none), that every rank has whole, and reads its state, which is that of the first rank. Every
 * byte is compared with its hash. If there are copies but none can be used, a warning says why, and
 * *out_found is false. */
WARN_UNUSED status snapshot_find(snapshot *shot, int64_t least, progress *out, bool *out_found);
/* Copies what snapshot_find found into the registry, and makes the compute copies from it. Frozen
 * values are in no copy: they must have been loaded before. */
WARN_UNUSED status snapshot_load(const snapshot *shot, params *registry);
/* What was found is not used after all, on no rank: the run continues without it. */
void snapshot_forget(snapshot *shot);
/* Where the copies of this rank lie. */
const char *snapshot_path(const snapshot *shot);

/* Makes the file, or goes on with the one whose step was loaded. begins: the run starts with step
 * 1, and nothing of an earlier run in this folder is its own. If there is no room, a warning says
 * that after a crash the run resumes from disk, and snapshot_is_on_shm is false from then on. */
WARN_UNUSED status snapshot_ready(snapshot *shot, bool begins);
bool snapshot_is_on_shm(const snapshot *shot);
/* Copies values and moments, with the run's state, to the side that is not the newest, and waits
 * for the copy but not for its hashes. written: on this rank a checkpoint is being written from the
 * side of snapshot_keep_side, which then stays as it is. */
WARN_UNUSED status snapshot_take(snapshot *shot, const progress *state, bool written);
/* The side that snapshot_take wrote last is the one that a checkpoint is written from. */
void snapshot_keep_side(snapshot *shot);
/* The memory of one block of that side: 0 the values, 1 and 2 the moments. */
void *snapshot_block(const snapshot *shot, int block);

/* Removes the file of a run that its checkpoint on disk has whole. */
void snapshot_finish(snapshot *shot);
/* Accepts a pointer to NULL. */
void snapshot_free(snapshot **held);

#endif
