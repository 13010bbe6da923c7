/* training.h: a run under way, as its parts see it: train.c opens and ends it, train_steps.c drives
 * its steps, train_tell.c says what a person reads. Internal to these. */
#ifndef TESSERA_TRAINER_TRAIN_TRAINING_H
#define TESSERA_TRAINER_TRAIN_TRAINING_H

#include "trainer/checkpoint/writer.h"
#include "trainer/report/ledger.h"
#include "trainer/report/line.h"
#include "trainer/report/profile.h"
#include "trainer/run/step.h"

typedef struct training {
    const conf *conf;
    const world *world;
    char folder[STATUS_PATH_MAX]; /* of checkpoints */
    int lock;                     /* of job.dump_folder, -1: none */
    resume_point from;
    bool resumes;
    session session;
    reporter *reporter;
    ledger *ledger;
    checkpoint_writer *checkpoint_writer; /* NULL: nothing is kept on the way */
    profile *profile;                     /* NULL: off */
    bool profile_warm;
    progress now;     /* after the last finished step */
    bool ledger_told; /* that the disk refuses it */
    int64_t told;     /* steps of this process */
    const char *bad; /* where the last step told went wrong (step_report.where); NULL: it did not */
    bool bad_step;   /* and training.nonfinite says stop */
    bool no_rows;    /* the step after `now` had none: the run ends, and what it did is kept */
} training;

/* The rank that writes what is of the run: ledger, metrics, report. */
static inline bool training_is_first(const training *t)
{
    return !t->world || t->world->place.rank == 0 || world_simulated(t->world);
}

/* Steps until the run's end, the stream's, or until it is told to stop; with their lines, ledger,
 * evaluations and checkpoints. Where rows failed: why, and t->no_rows. */
WARN_UNUSED status training_steps(training *t);
/* A checkpoint of t->now. Fails only where the device does. */
WARN_UNUSED status training_save(training *t);

void tell_skipped(const training *t, const step_report *r);
/* The stream is over. */
void tell_end(const training *t);
/* Options of the trainer may change from one part of a run to the next; what did is told. */
void tell_changes(const char *was, const char *now);
/* Evaluates between steps and says what came of it. */
WARN_UNUSED status tell_evaluation(training *t);
/* The page of the run; one that cannot be written costs no run. */
void tell_report(const training *t);
/* Why there were no rows, and how to go on. kept: how the checkpoint went. Returns why. */
WARN_UNUSED status tell_no_rows(const training *t, const status_note *why, status kept);
/* A last checkpoint that was not written, with what stands instead; st otherwise. */
WARN_UNUSED status tell_unkept(const training *t, status st);
/* What the run came to, with its last evaluation. */
WARN_UNUSED status tell_result(training *t);

#endif
