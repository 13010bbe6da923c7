/* spike.c: a window of recent losses, and the rule by which one leaps out of them (spike.h). */
#include "trainer/report/spike.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compare.h"

static const double DEVIATIONS = 5.0, LEAST_RISE = 2.0;
static const double NORMAL = 1.4826;     /* standard deviation over median absolute deviation */
static const double LEAST_LOSS = 1.0e-6; /* lower ones count as this, since 0 has no logarithm */

/* The median of n numbers, which are sorted in place. */
static double find_median(double *list, long n)
{
    qsort(list, (size_t)n, sizeof *list, compare_reals);
    return n % 2 ? list[n / 2] : (list[n / 2 - 1] + list[n / 2]) / 2;
}

static double log_of(double loss)
{
    return log(loss > LEAST_LOSS ? loss : LEAST_LOSS);
}

static bool is_leap(const spike *s, long n, double loss, double *out_median)
{
    double list[SPIKE_WINDOW];
    memcpy(list, s->log_loss, (size_t)n * sizeof *list);
    const double median = find_median(list, n);
    for (long i = 0; i < n; i++)
        list[i] = fabs(list[i] - median);
    const double least = fmax(DEVIATIONS * NORMAL * find_median(list, n), log(LEAST_RISE));
    *out_median = exp(median);
    return log_of(loss) - median > least && loss > LEAST_RISE * s->before;
}

bool spike_add(spike *s, double loss, double *out_median)
{
    if (!isfinite(loss))
        return false;
    const long n = s->count < SPIKE_WINDOW ? s->count : SPIKE_WINDOW;
    const bool leaps = n >= SPIKE_LEAST && is_leap(s, n, loss, out_median);
    s->log_loss[s->count++ % SPIKE_WINDOW] = log_of(loss);
    s->before = loss;
    return leaps;
}
