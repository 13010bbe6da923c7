/* decisions_union.h: makes the quarantine decisions of all ranks one list, where they meet for a
 * checkpoint (proto/decisions.h). Ranks whose rows come from different daemons have heard of
 * different ones. */
#ifndef TESSERA_TRAINER_CHECKPOINT_DECISIONS_UNION_H
#define TESSERA_TRAINER_CHECKPOINT_DECISIONS_UNION_H

#include "proto/decisions.h"
#include "trainer/parallel/comm.h"

/* Adds to *inout_known, which is the same on all ranks, what any of them has heard since. All ranks
 * call it together, outside of steps, and wait. mine: how this rank fared so far; if one failed,
 * all do (comm_agree). Most calls have nothing to tell and cost one small gather; what is new
 * travels once. */
WARN_UNUSED status decisions_unite(const comm *all, status mine, const decisions *heard,
                                   decisions *inout_known);

#endif
