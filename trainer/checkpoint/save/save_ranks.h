/* SPDX-License-Identifier: Apache-2.0 */
/* save_ranks.h: how several ranks write one checkpoint into one folder: which of them write, and how
 * the first rank learns that all are done.
 *
 * Writing happens in the background while steps run, when ranks make no collective call by which
 * they could agree. They leave small files in the folder training/ instead. A writer that
 * is done leaves .rank-R.done, which holds the digest of its own training file (the largest part of
 * what it wrote). One that failed leaves .rank-R.full if its disk was full, otherwise
 * .rank-R.failed, with the reason; if it cannot even do that, it posts the reason over the rank link.
 *
 * Replicas store the same values, so only the ranks of the first replica write. */
#ifndef TESSERA_TRAINER_CHECKPOINT_SAVE_RANKS_H
#define TESSERA_TRAINER_CHECKPOINT_SAVE_RANKS_H

#include "proto/row/bad_samples.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/save/save_core.h"
#include "trainer/checkpoint/state/train_state.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/parallel/link/rank_link.h"

typedef struct save_ranks {
    const mesh *mesh; /* NULL: one rank */
    rank_link *link;  /* NULL: there is none */
    state_writer writer;
    bool writes; /* this rank writes */
    bool first;  /* of all ranks: it makes the folder, seals it and renames it */
} save_ranks;

save_ranks save_ranks_of(const params *registry, rank_link *link);
/* Waits until every rank has come here. From then on, no rank still writes its part of an earlier
 * attempt at this step into a folder that the first rank is about to make anew. mine: how this rank
 * fared; if any rank failed, all fail (comm_agree). To be called outside of steps. */
WARN_UNUSED status save_barrier(const save_ranks *ranks, status mine, int64_t step);
/* Checks that every rank sees in `folder` what the first rank writes there, as ranks on several
 * machines must. ST_CONFIG on all ranks if one does not. mine: how this rank fared so far. Waits;
 * to be called outside of steps. */
WARN_UNUSED status save_check_shared_folder(const save_ranks *ranks, const char *folder,
                                            status mine);
/* Gives all ranks the first one's value. Waits; to be called outside of steps. */
WARN_UNUSED status save_broadcast(const save_ranks *ranks, int32_t *inout);

/* The files of marks in the folder `training`; which are left and looked for when, and how long one
 * is waited for, core/save_core.h decides. */

/* The digest of this rank's own training file, as text. */
WARN_UNUSED status save_own_digest(const save_ranks *ranks, const char *training,
                                   char out[HASH_TEXT]);
/* Deletes that file, if it can be deleted. */
void save_remove_own(const save_ranks *ranks, const char *training);
/* Leaves this rank's mark. */
WARN_UNUSED status save_leave_mark(const save_ranks *ranks, const char *training, save_mark mark,
                                   const char *text);
/* Looks for a mark of another writer. out [size]: its text; of MARK_NONE the path of the file that
 * is waited for. known: of MARK_DONE the writer's training file. */
WARN_UNUSED status save_find_mark(const save_ranks *ranks, const char *training, int writer,
                                  save_mark *out_mark, char *out, size_t size, folder_known *known);
/* Sends the first rank what the mark would have held. save: the number of this save in the run,
 * which distinguishes it from an earlier one of the same step. */
void save_post_mark(const save_ranks *ranks, int64_t save, save_mark mark, const char *text);
/* Whether a writer has posted how its part of this save failed. out [size]: its text. */
bool save_posted_mark(const save_ranks *ranks, int64_t save, int writer, save_mark *out_mark,
                      char *out, size_t size);
/* Deletes the mark of a writer that is done. */
WARN_UNUSED status save_remove_mark(const char *training, int writer);

/* ---- the bad samples that ranks know (proto/row/bad_samples.h); each knows those of its own rows ---- */

/* Adds to *inout_all, which is the same on all ranks, what any of them knows. All ranks call it
 * together, outside of steps, and wait; if one of them fails, all do (comm_agree). Most calls have
 * nothing new and cost one small gather; what is new travels once. */
WARN_UNUSED status save_unite_bad_samples(const comm *all, const bad_samples *known,
                                          bad_samples *inout_all);

#endif
