/* spike.h: tells whether a loss is far above those before it, by the mean and the standard
 * deviation of the last SPIKE_WINDOW finite losses. */
#ifndef TESSERA_TRAINER_REPORT_SPIKE_H
#define TESSERA_TRAINER_REPORT_SPIKE_H

#include <stdbool.h>

enum { SPIKE_WINDOW = 64, SPIKE_LEAST = 16 /* losses needed before any is judged */ };

typedef struct spike {
    double loss[SPIKE_WINDOW];
    long n; /* losses that have entered the window so far */
} spike;

/* True if the loss is above the mean by more than six standard deviations and by more than a fifth.
 * Such a loss does not enter the window. *out_mean is the mean; it is set only for a finite loss.
 */
bool spike_add(spike *spike, double loss, double *out_mean);

#endif
