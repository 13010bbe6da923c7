/* spike.c: a window of recent losses, and the rule by which a loss stands out from them. */
#include "trainer/report/spike.h"

#include <math.h>

static const double DEVIATIONS = 6.0, LEAST_RISE = 1.2;

bool spike_add(spike *s, double loss, double *out_mean)
{
    if (!isfinite(loss))
        return false; /* train_tell.c and nonfinite.c report such a step */
    long n = s->n < SPIKE_WINDOW ? s->n : SPIKE_WINDOW;
    double sum = 0.0, squares = 0.0;
    for (long i = 0; i < n; i++)
        sum += s->loss[i];
    double mean = n ? sum / (double)n : 0.0;
    for (long i = 0; i < n; i++)
        squares += (s->loss[i] - mean) * (s->loss[i] - mean);
    double deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0.0;
    *out_mean = mean;
    if (n >= SPIKE_LEAST && loss > mean + DEVIATIONS * deviation && loss > LEAST_RISE * mean)
        return true;
    s->loss[s->n++ % SPIKE_WINDOW] = loss;
    return false;
}
