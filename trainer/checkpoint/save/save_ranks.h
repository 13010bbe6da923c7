/* save_ranks.h: how several ranks write one checkpoint into one folder: which of them write, and how
 * the first rank learns that all are done.
 *
 * Writing happens in the background while steps run, when ranks make no collective call by which
 * they could tell each other. They leave small files in the folder training/ instead. A writer that
 * is done leaves .rank-R.done, which holds the digest of its own training file (the largest part of
 * what it wrote). One that failed leaves .rank-R.full if its disk was full, otherwise
 * .rank-R.failed, with the reason; if it cannot even do that, it says so over the rank link.
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

typedef struct together {
    const mesh *mesh; /* NULL: one rank */
    rank_link *link;  /* NULL: there is none */
    state_writer writer;
    bool writes; /* this rank writes */
    bool first;  /* of all ranks: it makes the folder, seals it and renames it */
} together;

together together_of(const params *registry, rank_link *link);
/* Waits until every rank has come here. From then on, no rank still writes its part of an earlier
 * attempt at this step into a folder that the first rank is about to make anew. mine: how this rank
 * fared; if any rank failed, all fail (comm_agree). To be called outside of steps. */
WARN_UNUSED status together_settled(const together *ranks, status mine, int64_t step);
/* Tries whether every rank sees in `folder` what the first rank writes there, as ranks on several
 * machines must. ST_CONFIG on all ranks if one does not. mine: how this rank fared so far. Waits;
 * to be called outside of steps. */
WARN_UNUSED status together_see(const together *ranks, const char *folder, status mine);
/* Gives all ranks the first one's value. Waits; to be called outside of steps. */
WARN_UNUSED status together_agree(const together *ranks, int32_t *inout);

/* The files of marks in the folder `training`; which are left and looked for when, and how long one
 * is waited for, core/save_core.h decides. */

/* The digest of this rank's own training file, as text. */
WARN_UNUSED status together_digest(const together *ranks, const char *training,
                                   char out[HASH_TEXT]);
/* Deletes that file, if it can be deleted. */
void together_remove_own(const together *ranks, const char *training);
/* Leaves this rank's mark. */
WARN_UNUSED status together_mark(const together *ranks, const char *training, save_mark mark,
                                 const char *text);
/* Looks for a mark of another writer. out [size]: its text; of MARK_NONE the path of the file that
 * is waited for. known: of MARK_DONE the writer's training file. */
WARN_UNUSED status together_look(const together *ranks, const char *training, int writer,
                                 save_mark *out_mark, char *out, size_t size, folder_known *known);
/* Tells the first rank what the mark would have said. save: the number of this save in the run,
 * which tells it from an earlier one of the same step. */
void together_tell(const together *ranks, int64_t save, save_mark mark, const char *text);
/* Whether a writer has told how its part of this save failed. out [size]: its text. */
bool together_told(const together *ranks, int64_t save, int writer, save_mark *out_mark, char *out,
                   size_t size);
/* Deletes the mark of a writer that is done. */
WARN_UNUSED status together_unmark(const char *training, int writer);

/* ---- the bad samples that ranks know (proto/row/bad_samples.h); each knows those of its own rows ---- */

/* Adds to *inout_all, which is the same on all ranks, what any of them knows. All ranks call it
 * together, outside of steps, and wait; if one of them fails, all do (comm_agree). Most calls have
 * nothing new and cost one small gather; what is new travels once. */
WARN_UNUSED status quarantine_unite(const comm *all, const bad_samples *known,
                                    bad_samples *inout_all);

#endif
