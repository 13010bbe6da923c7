/* lr_schedule.c: the formulas of the learning rate (lr_schedule.h). */
#include "trainer/optim/lr_schedule.h"

#include <math.h>

#include "common/conf/conf.h"

static double decay_shape(int type, double progress)
{
    switch (type) {
    case DECAY_LINEAR:
        return 1.0 - progress;
    case DECAY_COSINE:
        return 0.5 * (1.0 + cos(M_PI * progress));
    case DECAY_SQRT:
        return 1.0 - sqrt(progress);
    default:
        return 1.0;
    }
}

double schedule_lr(const schedule *rates, int64_t step)
{
    if (step <= rates->warmup_steps)
        return rates->peak * (double)step / (double)rates->warmup_steps;
    if (rates->steps <= 0 || rates->decay_type == DECAY_CONSTANT)
        return rates->peak;
    int64_t decay_steps = (int64_t)llround(rates->decay_ratio * (double)rates->steps);
    if (decay_steps > rates->steps - rates->warmup_steps)
        decay_steps = rates->steps - rates->warmup_steps;
    int64_t into = step - (rates->steps - decay_steps);
    if (decay_steps <= 0 || into <= 0)
        return rates->peak;
    double progress = (double)into / (double)decay_steps;
    if (progress > 1.0)
        progress = 1.0;
    return rates->peak * (rates->min_factor +
                          (1.0 - rates->min_factor) * decay_shape(rates->decay_type, progress));
}
