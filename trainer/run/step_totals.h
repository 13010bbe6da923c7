/* step_totals.h: what a step was over all ranks: each counts its own rows, the device adds the
 * counts up beside the loss, and every rank learns them with it. Nothing of one rank. */
#ifndef TESSERA_TRAINER_RUN_STEP_TOTALS_H
#define TESSERA_TRAINER_RUN_STEP_TOTALS_H

#include "trainer/run/step.h"

/* STEP_TOTALS: plan/received.h, which predicts their bytes. */
typedef struct step_totals {
    double count[STEP_TOTALS]; /* sums */
    double dearest, waited;    /* the most of any: step_report.cost and wait_ns */
} step_totals;

static inline bool step_shared(const session *s)
{
    return s->mesh.layout.world > 1;
}

/* This rank's share of a step. Of ranks that share rows, the first one's counts stand for all.
 * waited_ns: of steps before it, since what this one waits is known behind it. */
void step_totals_of(const session *s, const step_report *r, int64_t waited_ns, step_totals *out);
/* All ranks' counts in place of this rank's. */
void step_totals_into(const session *s, const step_totals *t, step_report *inout);
/* Queued: loss, weight and counts (device memory) become those of all ranks. */
WARN_UNUSED status step_totals_sum(const session *s, step_totals *counts);

#endif
