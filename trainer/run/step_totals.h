/* step_totals.h: turns one rank's counts of a step into those of all ranks. Each rank counts its
 * own rows; the device sums the counts in the same collective as the loss, and every rank reads
 * them back with it. A run on one rank needs none of this. */
#ifndef TESSERA_TRAINER_RUN_STEP_TOTALS_H
#define TESSERA_TRAINER_RUN_STEP_TOTALS_H

#include "trainer/run/step.h"

/* STEP_TOTALS comes from plan/received.h, which predicts how many bytes this sum moves. */
typedef struct step_totals {
    double count[STEP_TOTALS]; /* summed over ranks */
    double dearest, waited;    /* maxima over ranks, of step_report.cost and wait_ns */
} step_totals;

static inline bool step_shared(const session *opened)
{
    return opened->mesh.layout.world > 1;
}

/* Fills *out with this rank's share of the step. Among ranks that share rows only the first one
 * counts them, so that nothing is counted twice. waited_ns is the waiting time of earlier steps
 * that no other rank has heard of yet. */
void step_totals_of(const session *session, const step_report *report, int64_t waited_ns,
                    step_totals *out);
/* Replaces the counts of *inout, which are this rank's, by those of all ranks. */
void step_totals_into(const session *session, const step_totals *totals, step_report *inout);
/* Queues the sums: the step's loss, its weight and *counts (all in device memory) become those of
 * all ranks. */
WARN_UNUSED status step_totals_sum(const session *session, step_totals *counts);

#endif
