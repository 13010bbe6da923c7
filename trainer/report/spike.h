/* spike.h: is this loss far above those before it? Against the mean and deviation of the last
 * SPIKE_WINDOW finite ones. */
#ifndef TESSERA_TRAINER_REPORT_SPIKE_H
#define TESSERA_TRAINER_REPORT_SPIKE_H

#include <stdbool.h>

enum { SPIKE_WINDOW = 64, SPIKE_LEAST = 16 /* losses before any is judged */ };

typedef struct spike {
    double loss[SPIKE_WINDOW];
    long n; /* seen */
} spike;

/* True where loss lies more than six deviations and a fifth above the mean, which goes to out_mean;
 * such a loss does not enter the window. */
bool spike_add(spike *s, double loss, double *out_mean);

#endif
