/* SPDX-License-Identifier: Apache-2.0 */
/* step_parts.h: the parts of an optimiser step: its rows, the sums of its counts over all ranks, and
 * the search for a gradient that is not finite. Internal to step.c. */
#ifndef TESSERA_TRAINER_RUN_STEP_PARTS_H
#define TESSERA_TRAINER_RUN_STEP_PARTS_H

#include "trainer/run/step.h"

/* For each micro-batch of a step this waits for the rows, agrees with the other ranks on their
 * shape, puts them on their way to the device, and enters in the step's report what they hold:
 * tokens, samples, patches, FLOPs, digests. */

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

/* ---- one rank's counts of a step into those of all ranks ----
 *
 * Each rank counts its own rows; the device sums the counts in the same collective as the loss, and
 * every rank reads them back with it. A run on one rank needs none of this. */

/* STEP_TOTALS comes from plan/received.h, which predicts how many bytes this sum moves. */
typedef struct step_totals {
    double count[STEP_TOTALS]; /* summed over ranks */
    double dearest, waited;    /* maxima over ranks, of step_report.cost and wait_ns */
} step_totals;

static inline bool step_shared(const session *opened)
{
    return opened->mesh.layout.world > 1;
}

/* Fills *out with this rank's share of the step. Among ranks that share rows only the first one
 * counts them, so that nothing is counted twice. waited_ns is the waiting time of earlier steps
 * that is not summed yet. */
void step_totals_of(const session *run, const step_report *report, int64_t waited_ns,
                    step_totals *out);
/* Replaces the counts of *inout, which are this rank's, by those of all ranks. */
void step_totals_into(const session *run, const step_totals *totals, step_report *inout);
/* Queues the sums: the step's loss, its weight and *counts (all in device memory) become those of
 * all ranks. */
WARN_UNUSED status step_totals_sum(const session *run, step_totals *counts);

/* ---- where a gradient that is not finite came from (nonfinite.c) ----
 *
 * It says which rank, which part of the model, which samples. The search runs only after such a
 * step; a good step spends no time on it. Every rank looks at what it has: the loss of its own rows,
 * the outputs of its units as far as they are still kept (model_outputs: those of the last
 * micro-batches), and the values and gradients that it stores. Then all ranks gather what each of
 * them has found. */

/* Writes the finding on the step `report` to out [size]. Every rank calls it for the same step,
 * since it is a collective; it waits for the device. own_loss: the loss of this rank's rows. batch:
 * the micro-batches that the kept outputs belong to, one for each flight of the model
 * (model/qwen3vl.h); NULL when another step is under way, so that outputs and gradients are no
 * longer those of this step. */
WARN_UNUSED status nonfinite_find(session *run, const step_report *report, double own_loss,
                                  device_batch *const *batch, char *out, size_t size);

#endif
