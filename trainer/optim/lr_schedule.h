/* lr_schedule.h: the learning rate of a step, as a pure function of the step.
 *
 * The rate rises linearly from 0 to the peak over warmup_steps, stays at the peak, and falls over
 * the last decay_ratio * steps of the run from the peak to min_factor of it. With decay_ratio 1 the
 * decay begins right after the warm-up; below 1, with any shape of the decay, the schedule is
 * warmup-stable-decay. */
#ifndef TESSERA_TRAINER_OPTIM_LR_SCHEDULE_H
#define TESSERA_TRAINER_OPTIM_LR_SCHEDULE_H

#include <stdint.h>

typedef struct schedule {
    double peak;   /* the highest learning rate */
    int64_t steps; /* steps of the run; 0: unknown, so there is no decay */
    int64_t warmup_steps;
    double decay_ratio;
    int decay_type; /* DECAY_* of conf.h */
    double min_factor;
} schedule;

/* The learning rate of `step`, which counts from 1. Without warm-up, step 1 has the peak. */
double schedule_lr(const schedule *schedule, int64_t step);

#endif
