/* SPDX-License-Identifier: Apache-2.0 */
/* writer.h: writes checkpoints of a run (folder.h), in the background from a snapshot, prunes them,
 * and finds the one from which a run continues.
 *
 * checkpoint_writer_save copies values and moments into host memory that was taken at the start, if
 * it can be had in a file that outlives the process (snapshot.h), and returns. A thread writes,
 * syncs, seals and renames. There is one save at a time: the next one waits for the one before. A
 * save that fails costs that checkpoint and is logged; the run continues, and the next save tries
 * again.
 *
 * Kept are the newest checkpoint.keep_latest_k checkpoints and the one with the lowest held-out
 * loss; fewer if the disk has no room for another one, but always the last whole one (folder.h).
 */
#ifndef TESSERA_TRAINER_CHECKPOINT_SAVE_WRITER_H
#define TESSERA_TRAINER_CHECKPOINT_SAVE_WRITER_H

#include "common/conf/conf.h"
#include "trainer/checkpoint/save/snapshot.h"
#include "trainer/checkpoint/state/base.h"
#include "trainer/checkpoint/state/progress.h"
#include "trainer/model/params/params.h"
#include "trainer/parallel/link/rank_link.h"

typedef struct checkpoint_writer checkpoint_writer;

/* Makes the folder of checkpoints. ST_CANT_CREATE if they cannot be written there. */
WARN_UNUSED status checkpoint_folder_probe(const char *folder);
/* folder: where checkpoints go, created if it does not exist. It must be the same for all ranks,
 * which is tested: ST_CONFIG if a rank does not see what the first one has written. watch:
 * gets notice while this rank waits for files, so that the other ranks are patient; NULL: one rank. base:
 * of the frozen parameters, without rows if there are none. shot: where copies of values and
 * moments are kept; NULL, or one that does not live: the writer has its own memory for one copy.
 * All arguments are borrowed until checkpoint_writer_free. */
WARN_UNUSED status checkpoint_writer_new(const conf *options, const char *folder,
                                         const model_dims *dims, params *registry,
                                         const run_base *base, stream *queue, rank_link *watch,
                                         snapshot *shot, checkpoint_writer **out);
/* Waits for a save that is under way. Accepts a pointer to NULL. */
void checkpoint_writer_free(checkpoint_writer **held);
/* Whether these options write in the background, and so need host memory for a snapshot. */
bool checkpoint_writer_in_background(const conf *options);
/* When a run writes the whole model: never, when it ends, or with every checkpoint as well. */
typedef enum model_when { MODEL_NEVER, MODEL_AT_END, MODEL_ALWAYS } model_when;
/* checkpoint.model says it, which may depend on whether the registry has a base: frozen rows. The
 * same on all ranks. */
model_when checkpoint_writer_when(const conf *options, const params *registry);
/* Whether a checkpoint has the whole model, and not what is trained alone. */
bool checkpoint_writer_whole(const conf *options, const params *registry);
/* Whether a whole model in a checkpoint has frozen values that come from the device, since there
 * are no files from which they could be taken. It is asked only if something is frozen. */
bool checkpoint_writer_reads_frozen(const conf *options);
/* Bytes of so many copies in host memory, on a rank that stores this much. Frozen values never
 * change: if they are wanted they are copied once, and not at all if the device's memory is the
 * host's. */
int64_t checkpoint_writer_snapshot(const params_sizes *size, const backend_vtable *backend,
                                   int copies, bool with_frozen);

/* Saves the current values and moments together with `state`. A step that is already saved is not
 * written again. Every rank calls it. It fails only if the device or another rank does; an error of
 * the disk is returned by checkpoint_writer_wait. */
WARN_UNUSED status checkpoint_writer_save(checkpoint_writer *writer, const progress *state);
/* Keeps them in memory only, for a crash of the process (snapshot.h). Every rank calls it. Does
 * nothing without a snapshot that lives. */
WARN_UNUSED status checkpoint_writer_keep(checkpoint_writer *writer, const progress *state);
/* Waits until no save is under way, and returns how the last one went. */
WARN_UNUSED status checkpoint_writer_wait(checkpoint_writer *writer);
/* Puts the model of that step into the folder itself (folder_publish). The first rank does it, the
 * others return at once. */
WARN_UNUSED status checkpoint_writer_publish(checkpoint_writer *writer, int64_t step);
/* Waits until all ranks have come here, and fails on all of them if one has failed, so that none
 * ends the others while they still write. mine: how this rank fared. */
WARN_UNUSED status checkpoint_writer_barrier(const checkpoint_writer *writer, status mine,
                                             int64_t step);
/* To be called once: sets the last whole checkpoint: the one that the run resumes from, or when it
 * resumes from memory the newest on disk, which is not checked again; 0: there is none. */
void checkpoint_writer_set_resumed(checkpoint_writer *writer, int64_t from);
/* Called by the writer's thread after each save: the time it took, and its status. */
typedef void (*checkpoint_saved)(void *user, int64_t step, double seconds, status how);
/* To be called before the first save; `user` is borrowed. */
void checkpoint_writer_on_saved(checkpoint_writer *writer, checkpoint_saved on_saved, void *user);
/* The step of the last whole checkpoint, of this run or the one it went on from; 0:
 * there is none. */
int64_t checkpoint_writer_last_step(const checkpoint_writer *writer);

/* Finds the newest whole checkpoint in `folder` (load_step -1) or checks the one of load_step:
 * every byte by its seal, and that a run can go on from its state (progress_check). out_path and
 * *out are its path and state. *out_found is false if there is none, and with load_step 0.
 *
 * A damaged checkpoint is logged and passed over, except one that load_step names. ST_BAD_INPUT
 * if all are damaged. A disk that cannot be read is not damage but a failure. Nothing on disk is
 * changed. Each rank of `all` reads its share of the bytes, and all of them find the same
 * checkpoint; NULL: one rank. watch: as in checkpoint_writer_new. */
WARN_UNUSED status checkpoint_writer_find(const char *folder, int64_t load_step, const comm *all,
                                          rank_link *watch, char out_path[STATUS_PATH_MAX],
                                          progress *out, bool *out_found);
/* *out: the step of the newest checkpoint in the folder, not checked, the same on all ranks; 0:
 * there is none. */
WARN_UNUSED status checkpoint_writer_newest(const char *folder, const comm *all, int64_t *out);
/* Called before a run resumes after step `after` (0: from the start). Deletes what an earlier process left
 * half made, and renames checkpoints of later steps, damaged or not, to FOLDER/set-aside-step-N
 * (.2, .3 and so on if that name is taken), so that none is mistaken for this run's own. */
WARN_UNUSED status checkpoint_writer_clear_after(const char *folder, int64_t after);

#endif
