/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_disk.h: the disk on which the simulated ranks save their checkpoints, and what a save does
 * to it. */
#ifndef TESSERA_TESTS_SIM_RANKS_DISK_H
#define TESSERA_TESTS_SIM_RANKS_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/ranks/ranks_bounds.h"
#include "trainer/checkpoint/save/save_core.h"

typedef struct world world;

/* A folder of a checkpoint, whatever its name is: what every rank wrote into it. */
typedef struct save_folder {
    bool used, sealed;
    bool part[RANKS_MOST], torn[RANKS_MOST]; /* its file is there; and is not all written */
    uint64_t digest[RANKS_MOST], seal[RANKS_MOST];
    save_mark mark[RANKS_MOST];
    char text[RANKS_MOST][80]; /* of the marks */
} save_folder;

typedef struct sim_disk {
    save_folder folder[FOLDERS_MOST];
    int named[STEPS_MOST + 1], writing[STEPS_MOST + 1], trash[STEPS_MOST + 1]; /* -1: none */
    bool had[STEPS_MOST + 1]; /* that step had a checkpoint when its save began */
    int last;                 /* the step of the last whole checkpoint; 0: none */
    bool exchanges;           /* its file system can exchange two names */
} sim_disk;

/* A save on one rank. */
typedef struct save_state {
    save_core core;
    save_action action; /* that is under way */
    bool busy, missed;  /* its action ended while the process was stopped */
    bool leaving;
    int step;
    int64_t ended_ns; /* when its part ended */
    uint64_t wish, files;
    uint64_t known[RANKS_MOST]; /* digests from the others' marks */
    char text[80];
} save_state;

void disk_prepare(world *all);
save_folder *disk_folder(world *all, int number); /* NULL for a number below 0 */
/* Deletes what has this name, if anything has. */
void disk_drop(world *all, int *name);
/* The folder that is written into for this step's checkpoint; NULL: there is none. */
save_folder *disk_written(world *all, int step);
/* Makes it, empty. */
void disk_make_folder(world *all, int step);
/* Does an action of a rank's save. *out is its answer, but for the time. */
WARN_UNUSED status disk_do(world *all, int rank, const save_action *action, save_answer *out);
/* What must hold after every action. */
void disk_check(world *all);
/* What must hold once the first rank says that the save of this step is whole, or cannot be. */
void disk_check_saved(world *all, int step, bool whole);

#endif
