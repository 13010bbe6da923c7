/* SPDX-License-Identifier: Apache-2.0 */
/* save_core.h: the order of everything that a save does once the copy is taken: a rank writes its
 * files and leaves a mark; the first rank also waits for the marks of the others, seals, gives the
 * checkpoint its name and lets old ones go. save_ranks.h says what marks are, writer.h what a save
 * is.
 *
 *   the others   FILL, DIGEST, MARK done. After a failure: REMOVE_OWN, MARK failed or full; where not
 *                even a mark can be left, POST.
 *   the first    FILL; for each other writer LOOK and NAP until there is a mark, UNMARK; SEAL; COMMIT
 *                in the steps of commit_step; PRUNE. After a failure: DISCARD; on a full disk
 *                MAKE_ROOM, and if no other rank writes MAKE_FOLDER and all of it once more.
 *
 * It is a pure state machine: it returns the next action, the caller (writer_save.c, and
 * tests/sim/ranks) does it and returns how it went. It calls no file and no clock. */
#ifndef TESSERA_TRAINER_CHECKPOINT_SAVE_CORE_H
#define TESSERA_TRAINER_CHECKPOINT_SAVE_CORE_H

#include <stdbool.h>

#include "common/base/status.h"

/* The order in which a finished checkpoint gets its name, so that a process may die between any two
 * of these steps: what has the name step-N is whole at every instant. */
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

typedef enum save_kind {
    SAVE_FILL,        /* write this rank's files into the folder, each synced */
    SAVE_DIGEST,      /* hash this rank's own training file: the answer's text */
    SAVE_REMOVE_OWN,  /* delete that file, which makes room on a full disk; may fail */
    SAVE_MARK,        /* leave `mark` with `text`, by a rename */
    SAVE_POST,        /* that failed: send it to the first rank over the rank link; cannot fail */
    SAVE_LOOK,        /* look for a mark of `writer`, also one that was posted: the answer's mark
                        and its text; of MARK_NONE the name of the file that is waited for */
    SAVE_NAP,         /* let a moment pass */
    SAVE_UNMARK,      /* delete the mark MARK_DONE of `writer` */
    SAVE_SEAL,        /* write the manifest, synced */
    SAVE_COMMIT,      /* do `commit` */
    SAVE_DISCARD,     /* delete what was written; a failure is to be logged */
    SAVE_MAKE_ROOM,   /* remove an old checkpoint: the answer's gone */
    SAVE_MAKE_FOLDER, /* make the folder that is written into anew */
    SAVE_PRUNE,       /* remove old checkpoints by the policy; a failure is to be logged */
    SAVE_END          /* nothing comes after it: `code`, whose cause is the last note */
} save_kind;

typedef enum save_mark { MARK_NONE, MARK_DONE, MARK_FAILED, MARK_FULL } save_mark;

typedef struct save_action {
    save_kind kind;
    save_mark mark;
    int writer;
    commit_step commit;
    const char *text; /* valid until the next answer */
    status code;
} save_action;

/* How the last action went. After a failure its cause is the thread's last note. */
typedef struct save_answer {
    int64_t now_ns;
    bool leaving; /* the run ends: ranks that are gone leave no marks */
    status code;
    bool absent; /* a rename failed since what it renames is not there */
    bool gone;   /* SAVE_MAKE_ROOM has removed a checkpoint */
    save_mark mark;
    const char *text;
} save_answer;

typedef struct save_core {
    int rank;            /* this one */
    int writer, writers; /* which of the ranks that write it is */
    bool first;          /* of all ranks */
    save_kind last;
    bool begun, again; /* an action was given; the save is tried again after making room */
    int waits_for;     /* the writer whose mark is looked for */
    int64_t since_ns;  /* when that began */
    int64_t left_ns;   /* when `leaving` was seen; 0: not yet */
    commit_core commit;
    status code; /* of the first failure */
    status_note why;
    char text[STATUS_MESSAGE_MAX + STATUS_PATH_MAX + 64]; /* of a mark */
} save_core;

/* *out: the core of a save. Of the writers only the first rank's, rank 0's, is number 0. */
void save_core_begin(save_core *out, int rank, int writer, int writers);
/* The next action; `answer` is how the last one went, and of no meaning the first time but for its
 * time. */
save_action save_core_next(save_core *core, const save_answer *answer);

/* Whether this failure came from a disk without room, or from a quota. */
bool save_was_full(const status_note *why);

#endif
