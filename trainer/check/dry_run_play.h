/* dry_run_play.h: one rank of a dry run, and the run that it is a rank of. Internal to dry_run.c.
 */
#ifndef TESSERA_TRAINER_CHECK_DRY_RUN_PLAY_H
#define TESSERA_TRAINER_CHECK_DRY_RUN_PLAY_H

#include "trainer/check/dry_run_check.h"
#include "trainer/check/comm_count.h"
#include "trainer/check/dry_run_folder.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/run/session.h"

/* The run that is played. */
typedef struct dry {
    conf conf; /* as given, with what a dry run sets */
    layout layout;
    model_dims dims;
    params *whole;      /* the registry, not cut */
    const world *world; /* of ranks that are processes: this one's; NULL: all are played here */
    dry_folder folder;
    char rows[STATUS_PATH_MAX], written[STATUS_PATH_MAX];
    /* Bytes of weights of the first ranks of the stages played so far: gathered, reduced, summed
     * over replicas. */
    int64_t stages_got[3];
    dry_source source;
    dry_checks checks;
    dry_owners owners;
    comm_count *counts;         /* [world]; NULL of processes */
    const plan_device *planned; /* the GPU that the ranks would have */
} dry;

/* What is played, to be planned. */
plan_input dry_plan_input(const dry *d);

/* A rank's session. from: a checkpoint to go on from, and nothing but reading it is done; else a
 * step, and its part of a checkpoint. Of processes what all have found is in d behind it. */
WARN_UNUSED status dry_play(dry *d, int rank, const resume_point *from);

/* dry_run_ranks.c: what each process has found, brought together on all of them: who stores what;
 * the table. Inside a session, where ranks can say something to each other. */
WARN_UNUSED status dry_ranks_owners(dry *d, const session *s);
WARN_UNUSED status dry_ranks_checks(dry *d, const session *s);

#endif
