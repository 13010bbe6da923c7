/* rank_sync.h: how several ranks write one checkpoint into one folder: which of them write, and how
 * the first rank learns that all are done.
 *
 * Writing happens in the background while steps run, when ranks make no collective call by which
 * they could tell each other. They leave small files in the folder training/ instead. A writer that
 * is done leaves .rank-R.done, which holds the digest of its own training file (the largest part of
 * what it wrote). One that failed leaves .rank-R.full if its disk was full, otherwise
 * .rank-R.failed, with the reason.
 *
 * Replicas store the same values, so only the ranks of the first replica write. */
#ifndef TESSERA_TRAINER_CHECKPOINT_RANK_SYNC_H
#define TESSERA_TRAINER_CHECKPOINT_RANK_SYNC_H

#include <stdatomic.h>

#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/train_state.h"

typedef struct together {
    const mesh *mesh; /* NULL: one rank */
    state_writer writer;
    bool writes; /* this rank writes */
    bool first;  /* of all ranks: it makes the folder, seals it and renames it */
} together;

together together_of(const params *registry);
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
/* Leaves this rank's mark in the folder `training`: outcome says how its part went, and after a
 * failure the last note has the reason. Returns outcome, or the error of leaving the mark. */
WARN_UNUSED status together_mark(const together *ranks, const char *training, status outcome);
/* On the first rank: waits for the marks of all other writers and removes them. out [writers - 1]:
 * their training files. Fails as soon as one of them has failed (ST_IO, with its reason), and with
 * ST_TIMEOUT some time after *leaving was set, since a rank that is gone leaves no mark. */
WARN_UNUSED status together_wait(const together *ranks, const char *training,
                                 const atomic_bool *leaving, folder_known *out);

#endif
