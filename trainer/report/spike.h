/* SPDX-License-Identifier: Apache-2.0 */
/* spike.h: detects a loss that leaps far above those of the steps before it, so that someone can
 * look at its batch.
 *
 * With m and d the median and the median absolute deviation of ln(loss) over the last SPIKE_WINDOW
 * steps, a loss leaps if all of these are true:
 *
 *   ln(loss) - m  >  5 * 1.4826 * d    far outside of what these steps do anyway
 *   loss          >  2 * exp(m)        a rise that matters, however quiet they were
 *   loss          >  2 * the loss of the step before
 *
 * Logarithms, because the spread of a loss shrinks with the loss, and because the losses of small
 * batches are skewed: many are near the median and a few are several times as large, which by their
 * mean and standard deviation look like leaps. Median and absolute deviation, because half of the
 * window may be leaps before these two move; so every finite loss enters the window, and a lasting
 * change of level soon counts as the new level. 1.4826 * d estimates the standard deviation of a
 * normal distribution. The step before, because one batch explains a leap from one step to the
 * next, but not a climb over several, and so that the steps after a leap are not reported again.
 *
 * Limit: if a loss normally swings fivefold, as it does near 0, five times the median is nothing
 * special, and only a much larger leap is reported. */
#ifndef TESSERA_TRAINER_REPORT_SPIKE_H
#define TESSERA_TRAINER_REPORT_SPIKE_H

#include <stdbool.h>

enum { SPIKE_WINDOW = 64, SPIKE_LEAST = 32 /* losses needed before any is judged */ };

typedef struct spike {
    double log_loss[SPIKE_WINDOW];
    long count;    /* losses that have entered the window so far */
    double before; /* the loss of the step before */
} spike;

/* Takes the loss of the next step, and returns true if it leaps. *out_median is then exp(m). Losses
 * of the warm-up, which fall fast, are best left out. One that is not finite is ignored: a skipped
 * update is told elsewhere. */
bool spike_add(spike *spike, double loss, double *out_median);

#endif
