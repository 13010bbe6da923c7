/* restart.h: predicts how soon a run goes on after a crash of its process: from the copies in
 * memory (checkpoint/save/snapshot.h) and from a checkpoint on disk; and what the copies cost until
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
    double frozen;      /* bytes of a rank's frozen values in the files of model.path .. */
    double reading;     /* .. and seconds to read them, if the disk is the limit */
} restart_plan;

/* The start of the process is not counted. */
WARN_UNUSED status restart_plan_make(const plan_input *in, const recomputes *recomputed,
                                     const rates *speeds, restart_plan *out);
/* Prints up to three lines; nothing if no checkpoints are kept. step: seconds of a step. */
void restart_print(const conf *options, const restart_plan *plan, double step, FILE *to);
/* Says if this machine has no room for the copies of so many ranks, so that after a crash only the
 * disk would be left; nothing if it has, or if no copies are kept. */
WARN_UNUSED status restart_print_room(const plan_input *in, int ranks, FILE *to);

#endif
