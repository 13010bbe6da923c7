/* SPDX-License-Identifier: Apache-2.0 */
/* line.h: the reporter, which tells the user about steps and evaluations. It prints the log line,
 * which is torchtitan's with vision, pairs/s, wait and fill added; it writes the same numbers and
 * more to metrics.jsonl, one JSON object per line, and to TensorBoard's event files; and it draws
 * the progress bar at a terminal. trainer/running.md explains every field. */
#ifndef TESSERA_TRAINER_REPORT_LINE_H
#define TESSERA_TRAINER_REPORT_LINE_H

#include <stdio.h>

#include "trainer/eval/evaluate.h"
#include "trainer/report/monitor.h"
#include "trainer/report/speed.h"
#include "trainer/run/step.h"

typedef struct reporter reporter;

/* peak: the FLOP/s of one device that mfu is a share of (speed.h). Where mfu is not known, the line
 * says so and metrics.jsonl has null; it is never above 100 %. folder:
 * where metrics.jsonl is appended, "" for nowhere. The session is borrowed. */
WARN_UNUSED status reporter_new(const conf *options, const session *run, const peak_rate *peak,
                                const char *folder, reporter **out);
void reporter_free(reporter **reporter);
/* Also hands the figures of lines and evaluations to the monitor, which is borrowed. */
void reporter_watch(reporter *reporter, monitor *watch);

/* Takes a finished step, and prints a line at step 1 and at every multiple of metrics.log_freq.
 * loss, aux, grad_norm, lr, skipped and rows_digest are those of the printed step; counts and
 * shares cover all steps since the line before. If the disk refuses a line, this is warned of once
 * and the run continues. */
WARN_UNUSED status reporter_step(reporter *reporter, const step_report *step);
/* Prints the last step if it has no line yet. */
WARN_UNUSED status reporter_finish(reporter *reporter);
/* Leaves ns nanoseconds out of the rates: time that was not training, such as an evaluation. */
void reporter_rest(reporter *reporter, int64_t ns);
/* Writes an evaluation made after `step` as a line of eval.jsonl, beside metrics.jsonl, and as
 * TensorBoard's scalars. swapped: it also measured accuracy with swapped images. */
WARN_UNUSED status reporter_evaluated(reporter *reporter, int64_t step, const evaluation *result,
                                      bool swapped);

#endif
