/* quarantine_union.h: makes the bad samples that the ranks know one list, where they meet for a
 * checkpoint (proto/bad_samples.h). Each rank knows those that its own rows listed. */
#ifndef TESSERA_TRAINER_CHECKPOINT_QUARANTINE_UNION_H
#define TESSERA_TRAINER_CHECKPOINT_QUARANTINE_UNION_H

#include "proto/bad_samples.h"
#include "trainer/parallel/comm.h"

/* Adds to *inout_all, which is the same on all ranks, what any of them knows. All ranks call it
 * together, outside of steps, and wait; if one of them fails, all do (comm_agree). Most calls have
 * nothing new and cost one small gather; what is new travels once. */
WARN_UNUSED status quarantine_unite(const comm *all, const bad_samples *known,
                                    bad_samples *inout_all);

#endif
