/* progress.h: how far a run is: what a checkpoint says besides values and moments, and all that
 * going on needs. There is no other random state: every draw (order, answers, first values) is a
 * function of training.seed and of what is drawn for. */
#ifndef TESSERA_TRAINER_CHECKPOINT_PROGRESS_H
#define TESSERA_TRAINER_CHECKPOINT_PROGRESS_H

#include <stdint.h>

#include "common/conf/conf.h"
#include "common/base/status.h"

typedef struct progress {
    int64_t step;                 /* finished */
    int64_t rows;                 /* taken by all steps so far */
    double first_loss, last_loss; /* of step 1 and of the last */
    double eval_loss;             /* held out, with these values; not finite: not evaluated */
    char *cursor;                 /* prepd's, with the quarantine list; heap, "" of a recording */
    char *stream_options;         /* conf_stream_json of the stream; heap, "" of a recording */
    char *recording;              /* what it holds (run/session.h); heap, "" of a daemon */
    char *config;                 /* every option, as YAML; heap */
} progress;

void progress_done(progress *p);
WARN_UNUSED status progress_copy(const progress *from, progress *out);
WARN_UNUSED status progress_set_text(char **field, const char *text);
/* FOLDER/state.json, synced */
WARN_UNUSED status progress_write(const progress *p, const char *folder);
WARN_UNUSED status progress_read(const char *folder, progress *out);
/* Can a run go on from it? Of a daemon's stream: there is a cursor, of the train stream, none of
 * whose members contradicts another, the step or the rows; of a recording: rows for every step.
 * ST_BAD_INPUT names path, which is where p was read, and what is wrong. (Whether the cursor's row
 * is that of `rows` is asked when WELCOME has told how rows are numbered, run/session.c.) */
WARN_UNUSED status progress_check(const progress *p, const char *path);

#endif
