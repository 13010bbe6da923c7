/* SPDX-License-Identifier: Apache-2.0 */
/* training.h: the state of a run under way. train.c opens and ends the run, train_steps.c drives
 * its steps, train_leave.c writes what it leaves, and train_messages.c what the user reads. Internal to
 * these four. */
#ifndef TESSERA_TRAINER_TRAIN_TRAINING_H
#define TESSERA_TRAINER_TRAIN_TRAINING_H

#include "proto/row/bad_samples.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/report/ledger.h"
#include "trainer/report/line.h"
#include "trainer/report/monitor.h"
#include "trainer/report/profile.h"
#include "trainer/report/spike.h"
#include "trainer/run/step.h"

typedef struct training {
    const conf *conf;
    const world *world;
    char folder[STATUS_PATH_MAX]; /* the folder of checkpoints */
    int lock;                     /* descriptor of the lock on job.dump_folder; -1: not held */
    resume_point from;
    bool resumes;
    session session;
    reporter *reporter;
    monitor *monitor; /* NULL: no one watches, or this is not the first rank */
    ledger *ledger;
    checkpoint_writer *checkpoint_writer; /* NULL: no checkpoints are written */
    snapshot *snapshot;                   /* NULL: no copies are kept in memory */
    int64_t on_disk;  /* of a run that resumes from a copy: the newest checkpoint's step; 0: none */
    bool profiled;    /* the time of a step is reported */
    profile *profile; /* NULL: off */
    bool profile_warm;  /* the step that warms the profile up is done */
    progress now;       /* after the last finished step */
    bad_samples known;  /* now.quarantine: what the ranks knew together at the last checkpoint */
    bool ledger_warned; /* of lines of the ledger that the disk refused */
    int64_t done;       /* how many steps this process has done */
    spike spike;        /* their losses, as far as they are judged */
    const char *bad;    /* where the last step went wrong (step_report.where); NULL: it did not */
    bool bad_step;      /* the last step went wrong, and training.nonfinite says stop */
    bool partial;       /* bad_step, and some units were updated in it */
    bool no_rows; /* the step after `now` had no rows: the run ends, and what was done is kept */
} training;

/* True on the rank that writes the run's common files: ledger, metrics, report. */
static inline bool training_is_first(const training *run)
{
    return !run->world || run->world->place.rank == 0;
}

/* Of a run that goes on: the step of the newest checkpoint. */
static inline int64_t training_on_disk(const training *run)
{
    return run->from.copy ? run->on_disk : run->from.progress.step;
}

/* Runs steps until the end of the run or of the stream, or until the run is asked to stop; writes
 * lines and ledger, evaluates and saves on the way. If there were no rows for a step, it sets
 * run->no_rows and returns why. */
WARN_UNUSED status training_steps(training *run);
/* Begins a checkpoint of run->now. It fails only if the device does: a disk that refuses files is
 * reported by the checkpoint writer. */
WARN_UNUSED status training_save(training *run);

/* Writes the last checkpoint, and leaves its model or adapter in the folder of checkpoints itself,
 * if the run has come to its end also a model that no checkpoint has. Every rank calls it. */
WARN_UNUSED status training_leave(training *run);

/* Warns that the update of a step was skipped, with the ids of its samples. */
void training_warn_skipped(const training *run, const step_report *report);
/* Warns that the loss of a step leaps above the median of those before it. The line names the place
 * where the sample ids of the step are kept. */
void training_warn_leap(const training *run, const step_report *report, double median);
/* Says that the stream has ended, and which rows are left over. */
void training_log_end(const training *run);
/* Says which options differ between two texts of config_text: those of the checkpoint and those of
 * this run. */
void training_log_changes(const char *was, const char *now);
/* Of a run that goes on: warns of each piece of a step that is now done in another way than when
 * its checkpoint was written. */
void training_log_choices(const training *run);
/* Of a run whose checkpoints have what is trained alone: says so, and how to make whole models. */
void training_log_parts(const training *run);
/* Of a run that goes on: says so if its checkpoint has all its steps already. */
void training_log_finished(const training *run);
/* Evaluates between two steps, prints the result and writes it to the reporter's files. */
WARN_UNUSED status training_evaluate(training *run);
/* Writes report.html. evaluated: the last evaluation, NULL if there is none. If that fails it
 * warns, and the run continues. */
void training_write_report(const training *run, const evaluation *evaluated);
/* Returns the error `why` there were no rows, with a message that says how far the run came, where
 * it is kept, and how to go on. kept: the status of the last checkpoint. */
WARN_UNUSED status training_no_rows(const training *run, const status_note *why, status kept);
/* Returns st, the status of the last checkpoint; if that is an error, with a message that names the
 * checkpoint which remains. */
WARN_UNUSED status training_not_kept(const training *run, status st);
/* Makes the last evaluation, and prints and writes the result of the run. */
WARN_UNUSED status training_result(training *run);

#endif
