/* SPDX-License-Identifier: Apache-2.0 */
/* dry_run_play.h: plays one rank of a dry run. Internal to dry_run.c. */
#ifndef TESSERA_TESTS_DRY_RUN_DRY_RUN_PLAY_H
#define TESSERA_TESTS_DRY_RUN_DRY_RUN_PLAY_H

#include "tests/dry_run/dry_run_check.h"
#include "tests/dry_run/comm_count.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/run/session.h"

/* The dry run. */
typedef struct dry {
    conf conf; /* the options as given, with those that a dry run sets */
    layout layout;
    model_dims dims;
    params *whole; /* the registry, not cut */
    const world
        *world; /* this rank's, if ranks are processes; NULL: this process plays all ranks */
    const char *folder;                                   /* of rows and checkpoint */
    bool files;                                           /* a checkpoint is written and read */
    char rows[STATUS_PATH_MAX], written[STATUS_PATH_MAX]; /* recording and checkpoint in it */
    /* Bytes of weights that the first ranks of the stages played so far have gathered, reduced, and
     * summed over replicas. */
    int64_t stages_got[3];
    dry_source source;
    dry_checks checks;
    dry_owners owners;
    comm_count *counts;         /* [ranks]; NULL if ranks are processes */
    const plan_device *planned; /* the GPU that the ranks would have */
} dry;

/* The dry run as input for a plan. */
plan_input dry_plan_input(const dry *run);

/* Opens a session as `rank`. With from NULL it runs one step and writes the rank's part of a
 * checkpoint; otherwise it only reads that checkpoint. If ranks are processes, the notes and the
 * table of all of them are in `run` afterwards. */
WARN_UNUSED status dry_play(dry *run, int rank, const resume_point *from);

#endif
