/* SPDX-License-Identifier: Apache-2.0 */
/* judge.c: see judge.h. */
#include "tests/parity/judge.h"

#include <math.h>

/* Over fewer elements than this a mean says little, so the error that arithmetic in float may add
 * is allowed on top. */
enum { FEW = 32 };
static const double ALIKE = 1.1, WORST = 2.5;

/* The largest error that rounding x to bf16 can make: half a unit of its last place. */
static double half_unit(double x)
{
    return x == 0 || !isfinite(x) ? 0 : ldexp(1, ilogb(x) - 8);
}

bool judge_value(double got, double want, double limit)
{
    return isnan(want) ? isnan(got) : got == want || fabs(got - want) <= limit;
}

verdict judge_errors(int64_t n, const double *got, const double *want, const double *order,
                     double slack)
{
    verdict found = {.at = -1, .alike = true};
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) || !isfinite(order[i]))
            continue;
        finite++;
        found.ours += (got[i] - want[i]) * (got[i] - want[i]);
        found.order += (order[i] - want[i]) * (order[i] - want[i]);
    }
    if (finite == 0)
        return found;
    found.ours = sqrt(found.ours / (double)finite);
    found.order = sqrt(found.order / (double)finite);
    found.told = finite >= FEW && found.order != 0;
    found.alike = found.ours <= ALIKE * found.order + (found.told ? 0 : slack);
    return found;
}

verdict judge_bf16(int64_t n, const double *got, const double *want, const double *order,
                   bool twice, double slack)
{
    verdict found = judge_errors(n, got, want, order, slack);
    double worst = 0;
    for (int64_t i = 0; i < n && twice; i++)
        if (isfinite(want[i]) && isfinite(order[i]))
            worst = fmax(worst, fabs(order[i] - want[i]));
    for (int64_t i = 0; i < n && found.at < 0; i++) {
        found.limit = fmax(WORST * worst, half_unit(want[i])) + slack;
        if (!judge_value(got[i], want[i], found.limit))
            found.at = i;
    }
    return found;
}

bool verdict_holds(const verdict *found)
{
    return found->at < 0 && found->alike;
}
