/* commit_core.h: the order in which a finished checkpoint gets its name, so that a process may die
 * between any two of these steps: what has the name step-N is whole at every instant.
 *
 * A machine without a world: it says which step comes next, the shell does it and says how it went
 * (folder_commit in folder.c, and tests/sim/ranks). */
#ifndef TESSERA_TRAINER_CHECKPOINT_CORE_COMMIT_CORE_H
#define TESSERA_TRAINER_CHECKPOINT_CORE_COMMIT_CORE_H

#include <stdbool.h>

#include "common/base/status.h"

typedef enum commit_step {
    COMMIT_CLEAR_TRASH, /* delete .step-N.trash */
    COMMIT_EXCHANGE,    /* exchange the names of .step-N.writing and step-N. It fails if there is no
                           step-N, or if the file system cannot */
    COMMIT_TRASH_OLD,   /* rename .step-N.writing, which is the old one now, to .step-N.trash */
    COMMIT_SET_ASIDE,   /* rename step-N to .step-N.trash */
    COMMIT_PLACE,       /* rename .step-N.writing to step-N */
    COMMIT_PUT_BACK,    /* rename .step-N.trash to step-N; a failure is to be logged */
    COMMIT_SYNC,        /* sync the folder that holds them */
    COMMIT_DROP_OLD,    /* delete .step-N.trash; a failure is to be logged */
    COMMIT_END          /* nothing comes after it */
} commit_step;

typedef struct commit_core {
    commit_step step; /* that was given last */
    bool begun;
    bool replaces;   /* there was an earlier checkpoint of this step */
    status code;     /* of COMMIT_END */
    status_note why; /* if that is a failure */
} commit_core;

/* A core is all zeros at first. The next step, after `how` the last one went; its failure is the
 * thread's last note. absent: it failed since what it renames is not there. At COMMIT_END
 * core->code is the outcome, and after a failure the last note has its cause. */
commit_step commit_core_next(commit_core *core, status how, bool absent);

#endif
