/* SPDX-License-Identifier: Apache-2.0 */
/* spike.c: a window of recent losses, and the rule by which one leaps out of them (spike.h). */
#include "trainer/report/spike.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compare.h"

static const double DEVIATIONS = 5.0, LEAST_RISE = 2.0;
static const double NORMAL = 1.4826;     /* standard deviation over median absolute deviation */
static const double LEAST_LOSS = 1.0e-6; /* lower ones count as this, since 0 has no logarithm */

/* The median of `count` numbers, which are sorted in place. */
static double find_median(double *list, long count)
{
    qsort(list, (size_t)count, sizeof *list, compare_reals);
    return count % 2 ? list[count / 2] : (list[count / 2 - 1] + list[count / 2]) / 2;
}

static double log_of(double loss)
{
    return log(loss > LEAST_LOSS ? loss : LEAST_LOSS);
}

static bool is_leap(const spike *judge, long count, double loss, double *out_median)
{
    double list[SPIKE_WINDOW];
    memcpy(list, judge->log_loss, (size_t)count * sizeof *list);
    const double median = find_median(list, count);
    for (long i = 0; i < count; i++)
        list[i] = fabs(list[i] - median);
    const double least = fmax(DEVIATIONS * NORMAL * find_median(list, count), log(LEAST_RISE));
    *out_median = exp(median);
    return log_of(loss) - median > least && loss > LEAST_RISE * judge->before;
}

bool spike_add(spike *judge, double loss, double *out_median)
{
    if (!isfinite(loss))
        return false;
    const long count = judge->count < SPIKE_WINDOW ? judge->count : SPIKE_WINDOW;
    const bool leaps = count >= SPIKE_LEAST && is_leap(judge, count, loss, out_median);
    judge->log_loss[judge->count++ % SPIKE_WINDOW] = log_of(loss);
    judge->before = loss;
    return leaps;
}
