/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h: how far a run is: all that a checkpoint holds besides values and moments (its
 * state.json). A run needs nothing else to resume. There is no other random state, since every draw
 * (order of samples, answers, first values) is a function of training.seed and of what is drawn
 * for. */
#ifndef TESSERA_TRAINER_CHECKPOINT_STATE_PROGRESS_H
#define TESSERA_TRAINER_CHECKPOINT_STATE_PROGRESS_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/conf/conf.h"

/* The texts are heap memory. Rows come either from a daemon or from a recording; what belongs to
 * the other is "". */
typedef struct progress {
    int64_t step;                 /* the last finished one */
    int64_t rows;                 /* of this data.generation, taken by all steps so far */
    int64_t earlier_steps;        /* done with the rows of earlier generations of the data */
    double first_loss, last_loss; /* of step 1 and of the last step */
    double eval_loss;             /* held-out loss of these values; not finite: not evaluated */
    char *cursor;                 /* prepd's, as the first rank got it; of a daemon */
    char *quarantine; /* bad samples that any rank knows (proto/row/bad_samples.h); of a daemon; ""
                             if there are none */
    char *stream_options; /* options of the stream (conf_stream_json); of a daemon */
    char *recording;      /* what it holds (run/session.h); of a recording */
    char *config;         /* every option, as YAML */
    char *choices;        /* what the device did the steps with (device/choices.h); "" on a device
                             with nothing to choose, and in an early trainer's checkpoints */
    /* [n_units] of a step with optimizer.in_backward: what the next one is clipped with
     * (step_report.unit_share). Heap memory. 0 and NULL without, and in an early trainer's
     * checkpoints: the next step clips as the first of a run does. */
    double *unit_share;
    int64_t n_units;
} progress;

void progress_done(progress *state); /* frees the texts and the shares */
/* Copies `from` into *out, whose texts are freed before. */
WARN_UNUSED status progress_copy(const progress *from, progress *out);
/* Replaces one text by a copy of `text`. */
WARN_UNUSED status progress_set_text(char **field, const char *text);
/* Replaces the shares by a copy of share [n_units]; NULL and 0: there are none. */
WARN_UNUSED status progress_set_shares(progress *state, const double *share, int64_t n_units);
/* *out: the state as the text of a state.json, in heap memory. */
WARN_UNUSED status progress_text(const progress *state, char **out);
/* Writes FOLDER/state.json, synced. A quarantine is written to FOLDER/quarantine.json, and
 * state.json has its count and the hash of that file. */
WARN_UNUSED status progress_write(const progress *state, const char *folder);
/* Reads both. ST_BAD_INPUT if a member is missing or impossible, the version is another, or the
 * quarantine is not the one that state.json names. Earlier trainers' states have it inside. */
WARN_UNUSED status progress_read(const char *folder, progress *out);
/* The same from the text that was read at `path`. */
WARN_UNUSED status progress_parse(const char *text, const char *path, progress *out);
/* Checks that a run can resume from it. Of a daemon's stream there must be a cursor of the training
 * stream that does not contradict the step or the rows, and a quarantine list that can be read; of
 * a recording there must be a row for every step at least. ST_BAD_INPUT names `path`, where the
 * state was read, and what is wrong. Whether the cursor's row is that of `rows` is checked later,
 * when WELCOME has how rows are numbered (run/session_stream.c). */
WARN_UNUSED status progress_check(const progress *state, const char *path);

/* ---- the options in which a run differs from the checkpoint that it resumes from ---- */

/* Every option as "key: value", one on a line (conf_print). *out is on the heap; the caller frees
 * it. */
WARN_UNUSED status config_text(const conf *options, char **out);

/* Compares two such texts and calls `each` for every option of `now` whose value differs. was: the
 * old value, "" if the old text has no such option. Options that begin with job. or checkpoint.
 * are passed over: they say where and how often a run is kept, and change no step. */
typedef void (*config_change)(void *user, const char *key, const char *was, const char *now);
void config_changes(const char *was, const char *now, config_change each, void *user);

#endif
