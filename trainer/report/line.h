/* line.h: what the user sees of a step: the log line in torchtitan's form with vision, wait and
 * fill added; the same numbers and more as one JSON object per line in metrics.jsonl and as
 * TensorBoard's scalars; evaluations the same way; a warning where the loss leaps; a progress bar
 * at a terminal. */
#ifndef TESSERA_TRAINER_REPORT_LINE_H
#define TESSERA_TRAINER_REPORT_LINE_H

#include <stdio.h>

#include "trainer/eval/evaluate.h"
#include "trainer/run/step.h"

typedef struct reporter reporter;

/* peak_flops: what mfu is a share of, FLOP/s of one device. folder: where metrics.jsonl is appended
 * ("" = none).
 */
WARN_UNUSED status reporter_new(const conf *c, const session *s, double peak_flops,
                                const char *folder, reporter **out);
void reporter_free(reporter **r);

/* Takes a finished step; prints at step 1 and every metrics.log_freq. loss, aux, grad_norm, lr,
 * skipped and rows_digest are the printed step's; counts and shares cover all steps since the last
 * line. A line that the disk does not take is told once and costs no run. */
WARN_UNUSED status reporter_step(reporter *r, const step_report *step);
/* Prints the last step, unless that is done. */
WARN_UNUSED status reporter_finish(reporter *r);
/* Time that was no training (an evaluation): left out of the rates. */
void reporter_rest(reporter *r, int64_t ns);
/* An evaluation after this step: a line of eval.jsonl beside metrics.jsonl, and TensorBoard's
 * scalars. swapped: pictures were exchanged too. */
WARN_UNUSED status reporter_evaluated(reporter *r, int64_t step, const evaluation *e, bool swapped);

#endif
