/* restart.h: predicts how soon a run goes on after a crash of its process: from the copies in
 * memory (checkpoint/snapshot.h) and from a checkpoint on disk; and what the copies cost until
 * then. */
#ifndef TESSERA_TRAINER_PLAN_RESTART_H
#define TESSERA_TRAINER_PLAN_RESTART_H

#include "trainer/plan/layout_plan.h"
#include "trainer/plan/rates.h"

typedef struct restart_plan {
    double bytes;       /* of one copy of a rank's trained values and moments */
    double from_memory; /* seconds to hash and to load it; 0: no copies are kept */
    double from_disk;   /* seconds to read and to load it, if the disk is the limit */
    double copying;     /* seconds that a step waits for a copy */
} restart_plan;

/* Neither counts the start of the process, nor the values of frozen parameters. */
WARN_UNUSED status restart_plan_make(const plan_input *in, const recomputes *recomputed,
                                     const rates *speeds, restart_plan *out);
/* Prints two lines; nothing if no checkpoints are kept. step: seconds of a step. */
void restart_print(const conf *options, const restart_plan *plan, double step, FILE *to);
/* Says if this machine has no room for the copies of so many ranks, so that after a crash only the
 * disk would be left; nothing if it has, or if no copies are kept. */
WARN_UNUSED status restart_print_room(const plan_input *in, int ranks, FILE *to);

#endif
