/* lr_schedule.h: the learning rate of a step, pure.
 *
 * Linear warm-up from 0 over warmup_steps, then the peak, then decay over the last
 * decay_ratio * steps of the run, from 1 to min_factor of the peak. decay_ratio 1: decay starts
 * right after warm-up; below 1 with any shape: warmup-stable-decay. */
#ifndef TESSERA_TRAINER_OPTIM_LR_SCHEDULE_H
#define TESSERA_TRAINER_OPTIM_LR_SCHEDULE_H

#include <stdint.h>

typedef struct schedule {
    double peak;
    int64_t steps; /* of the run; 0 = unknown: no decay */
    int64_t warmup_steps;
    double decay_ratio;
    int decay_type; /* DECAY_* of conf.h */
    double min_factor;
} schedule;

/* step counts from 1; step 1 of a run without warm-up is at the peak. */
double schedule_lr(const schedule *s, int64_t step);

#endif
