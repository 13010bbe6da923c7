/* step_rows.h: the rows of one optimiser step. For each of its micro-batches this waits for the
 * rows, agrees with the other ranks on their shape, puts them on their way to the device, and
 * enters in the step's report what they hold: tokens, samples, patches, FLOPs, digests. Internal to
 * step.c. */
#ifndef TESSERA_TRAINER_RUN_STEP_ROWS_H
#define TESSERA_TRAINER_RUN_STEP_ROWS_H

#include "trainer/run/step.h"

typedef struct step_rows {
    step_report *report;  /* of the step; borrowed */
    status_note *no_rows; /* why this rank has no more rows; ST_OK: it has some; borrowed */
    uint64_t *sample;     /* [n_samples] ids in stream order; heap */
    int64_t n_samples, sample_capacity;
    char *cursor; /* where the stream continues after the step's last row; heap */
    size_t cursor_bytes;
    event *arrived;        /* the first micro-batch is on the device */
    int64_t first_wait_ns; /* how long the host waited for that micro-batch */
} step_rows;

/* Prepares memory that was zero for the steps whose report is *report. Both are borrowed until
 * step_rows_close, and *no_rows is shared by all steps of the session: once it is not ST_OK, this
 * rank has no rows in any later step. */
WARN_UNUSED status step_rows_open(const session *run, step_report *report, status_note *no_rows,
                                  step_rows *out);
/* Also of rows that were opened in part or not at all. */
void step_rows_close(const session *run, step_rows *rows);

/* Forgets the step before. The caller has set the report to zero. */
void step_rows_begin(step_rows *rows);
/* Takes the rows of the next micro-batch. A rank that has no more rows takes an empty one, and
 * *no_rows says why. ST_END: the stream has ended before the step's first row. ST_BAD_DEVICE as
 * the upload ring gives it. *out belongs to the upload ring. */
WARN_UNUSED status step_rows_take(session *run, bool first, step_rows *rows, device_batch **out);
/* After the last micro-batch: enters ids, their digest and the cursor in the report. They are valid
 * until step_rows_begin. */
WARN_UNUSED status step_rows_end(const session *run, step_rows *rows);

#endif
