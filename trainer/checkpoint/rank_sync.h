/* rank_sync.h: a checkpoint that several ranks write into one folder: who writes, and how the first
 * of them learns that all are done. That goes by files in the folder, since writing happens beside
 * the steps, where ranks say nothing to each other: .rank-R.done with the digest of the rank's own
 * training file, which is most of what it wrote, or with the reason .rank-R.full where its disk
 * was, else .rank-R.failed.
 *
 * Replicas store the same, so the ranks of the first write. */
#ifndef TESSERA_TRAINER_CHECKPOINT_RANK_SYNC_H
#define TESSERA_TRAINER_CHECKPOINT_RANK_SYNC_H

#include <stdatomic.h>

#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/train_state.h"

typedef struct together {
    const mesh *mesh; /* NULL: one rank */
    state_writer writer;
    bool writes, first; /* first: of all ranks; it renames */
} together;

together together_of(const params *p);
/* Every rank has come as far as this: none still writes its part of an attempt before this one at
 * the same step into a folder that the first is about to make anew. mine: how this rank is; all
 * fail where one is not well. Waits; outside of steps. */
WARN_UNUSED status together_settled(const together *t, status mine, int64_t step);
/* Every rank sees in `folder` what the first has put there, or ST_CONFIG on all of them. mine: how
 * this rank is so far. Waits; outside of steps. */
WARN_UNUSED status together_see(const together *t, const char *folder, status mine);
/* What the first rank says, on all of them. Waits; outside of steps. */
WARN_UNUSED status together_agree(const together *t, int32_t *inout);
/* This rank's part is done, or failed with the status' text. Returns outcome, or what went wrong
 * with telling it. */
WARN_UNUSED status together_mark(const together *t, const char *training, status outcome);
/* On the first: until the marks of all others are there, which it removes; out [ranks - 1]: their
 * training files. Fails as soon as one has failed, and some time after *leaving was set: a rank
 * that is gone marks nothing. */
WARN_UNUSED status together_wait(const together *t, const char *training,
                                 const atomic_bool *leaving, folder_known *out);

#endif
