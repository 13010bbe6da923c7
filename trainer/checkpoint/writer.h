/* writer.h: keeps a run: writes checkpoints (folder.h) in the background from a snapshot, prunes
 * them by policy, and finds the one to go on from.
 *
 * checkpoint_writer_save copies values and moments into host memory that was taken at the start and
 * returns; a thread of its own writes, syncs, seals and renames. One save at a time: the next waits
 * for the one before. A save that fails costs that checkpoint and is told; the run goes on and the
 * next save tries again. Kept: the newest checkpoint.keep_latest_k, and the one with the lowest
 * held-out loss; fewer where the disk has no room for one more, but always the last whole one
 * (prune.h). */
#ifndef TESSERA_TRAINER_CHECKPOINT_WRITER_H
#define TESSERA_TRAINER_CHECKPOINT_WRITER_H

#include "common/conf/conf.h"
#include "trainer/checkpoint/progress.h"
#include "trainer/model/params.h"
#include "trainer/parallel/rank_link.h"

typedef struct checkpoint_writer checkpoint_writer;

/* folder: where checkpoints go, made if absent; of several ranks the same for all, which is tried:
 * ST_CONFIG where one does not see what the first has made. watch: is told while this rank waits
 * for files, so that the others are patient; NULL: one rank. Borrows all until
 * checkpoint_writer_free. */
WARN_UNUSED status checkpoint_writer_new(const conf *c, const char *folder, const model_dims *d,
                                         params *p, stream *s, rank_link *watch,
                                         checkpoint_writer **out);
void checkpoint_writer_free(checkpoint_writer **k); /* waits for a save under way */
/* Do these options take a snapshot? */
bool checkpoint_writer_in_background(const conf *c);

/* A step that is kept already is not written again. Fails only where the device does; the disk's
 * troubles are told by checkpoint_writer_wait. */
WARN_UNUSED status checkpoint_writer_save(checkpoint_writer *k, const progress *p);
/* Until nothing is under way: how the last save went. */
WARN_UNUSED status checkpoint_writer_wait(checkpoint_writer *k);
/* The model of the checkpoint of step for everybody in the folder itself (folder_publish), by the
 * first of several ranks. */
WARN_UNUSED status checkpoint_writer_publish(checkpoint_writer *k, int64_t step);
/* Of several ranks: goes on when all have come here, and fails on all of them where one is not
 * well, so that none ends the others before. mine: how this rank is. */
WARN_UNUSED status checkpoint_writer_settle(const checkpoint_writer *k, status mine, int64_t step);
/* Step of the last whole checkpoint: of this run, or the one that was gone on from (`from`, told
 * once); 0: there is none. */
void checkpoint_writer_goes_on(checkpoint_writer *k, int64_t from);
int64_t checkpoint_writer_last_step(const checkpoint_writer *k);

/* The newest whole checkpoint in folder (load_step -1) or that of load_step, every byte checked,
 * and that a run can go on from what it says (progress_check): its path and progress. *out_found =
 * false where there is none, and with load_step 0; one that is damaged is told and passed over, but
 * for a load_step that was named. ST_BAD_INPUT where all are damaged; a disk that cannot be read
 * is not damage but a failure. Changes nothing on disk. The ranks of `all` each look at their share
 * of the bytes, and all find the same; NULL: one rank. watch: as above. */
WARN_UNUSED status checkpoint_writer_find(const char *folder, int64_t load_step, const comm *all,
                                          rank_link *watch, char out_path[STATUS_PATH_MAX],
                                          progress *out, bool *out_found);
/* Before a run goes on from step (0: from the start): leftovers are deleted, and checkpoints of
 * later steps, damaged or not, set aside as FOLDER/set-aside-step-N (.2, .3 ... where that is
 * taken), so that none is taken for the run's own. */
WARN_UNUSED status checkpoint_writer_clear_after(const char *folder, int64_t step);

#endif
