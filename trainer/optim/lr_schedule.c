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

double schedule_lr(const schedule *s, int64_t step)
{
    if (step <= s->warmup_steps)
        return s->peak * (double)step / (double)s->warmup_steps;
    if (s->steps <= 0 || s->decay_type == DECAY_CONSTANT)
        return s->peak;
    int64_t decay_steps = (int64_t)llround(s->decay_ratio * (double)s->steps);
    if (decay_steps > s->steps - s->warmup_steps)
        decay_steps = s->steps - s->warmup_steps;
    int64_t into = step - (s->steps - decay_steps);
    if (decay_steps <= 0 || into <= 0)
        return s->peak;
    double progress = (double)into / (double)decay_steps;
    if (progress > 1.0)
        progress = 1.0;
    return s->peak * (s->min_factor + (1.0 - s->min_factor) * decay_shape(s->decay_type, progress));
}
