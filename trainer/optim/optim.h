/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h: AdamW over the parameters that this rank stores, driven by device memory alone. The
 * gradient norm is that of the gradients of all ranks together (params_share).
 *
 * Gradients arrive as sums over targets. The host sends one small record of scalars per step. The
 * device divides by the step's weight, clips by the norm, and skips the update if there are no
 * targets or the norm is not finite. So nothing waits for the host, and a step can be captured. The
 * arithmetic of an update is in ops/loss_ops.h. */
#ifndef TESSERA_TRAINER_OPTIM_H
#define TESSERA_TRAINER_OPTIM_H

#include <stdint.h>

#include "common/conf/conf.h"
#include "trainer/model/params/params.h"
#include "trainer/ops/loss_ops.h"
#include "trainer/ops/table.h"

/* The learning rate rises linearly from 0 to the peak over warmup_steps, stays at the peak, and
 * falls over the last decay_ratio * steps of the run from the peak to min_factor of it. With
 * decay_ratio 1 the decay begins right after the warm-up; below 1, with any shape of the decay, the
 * schedule is warmup-stable-decay. */

typedef struct schedule {
    double peak;   /* the highest learning rate */
    int64_t steps; /* steps of the run; 0: unknown, so there is no decay */
    int64_t warmup_steps;
    double decay_ratio;
    int decay_type; /* DECAY_* of conf.h */
    double min_factor;
} schedule;

/* The learning rate of `step`, which counts from 1. Without warm-up, step 1 has the peak. */
double schedule_lr(const schedule *rates, int64_t step);

/* The tensor of a trained row, as a list's chunk `first_chunk` and those after it. */
optim_tensor optim_tensor_of(const conf *options, const param *row, int64_t first_chunk);

typedef struct optimizer optimizer;

/* Makes an optimizer for the trained parameters that this rank stores (see groups.h), with the
 * options optimizer.*. It borrows `params`, allocates device and pinned memory, and waits for the
 * stream once. optimizer_free gives all of it back. */
WARN_UNUSED status optimizer_new(const conf *options, params *registry, stream *queue,
                                 optimizer **out);
void optimizer_free(optimizer **held, stream *queue);

/* Queues the copy of an update's scalars. `lr` is its learning rate; `step` counts from 1 and
 * drives the bias corrections. The host's side of the copy is used again by step + 1 + `ahead` of
 * the backend. */
WARN_UNUSED status optimizer_send(optimizer *optim, stream *queue, int64_t step, double lr);
/* Queues the update. It reads device memory alone, so it can be captured. `weight` is the step's
 * sum of target weights, on the device. */
WARN_UNUSED status optimizer_update(optimizer *optim, stream *queue, const double *weight);
/* With optimizer.in_backward (params.in_backward) every unit is updated during the backward pass,
 * as soon as its gradients are summed over the ranks, and optimizer_update is not called. This
 * makes the registry's FSDP units do so. optimizer_send comes before the pass then. loss, weight:
 * [1] each on the device, this rank's sums, which are whole when the backward pass leaves its first
 * unit; borrowed. The gradient is clipped by what the units so far show of its norm
 * (ops/loss_ops.h, unit_finish). n_units: of the model. share: [n_units], the part of each unit in
 * the squares of earlier steps, as optimizer_fetch_shares gave it; NULL: there were none, and in
 * the first step each unit is clipped by its own norm. Waits. */
WARN_UNUSED status optimizer_in_backward(optimizer *optim, stream *queue, const double *loss,
                                         const double *weight, int64_t n_units,
                                         const double *share);
/* Queues the copy of those shares as the last step left them; the same on all ranks. `host` is
 * pinned memory, [n_units], which is written when the stream gets there. */
WARN_UNUSED status optimizer_fetch_shares(const optimizer *optim, stream *queue, double *host);

/* The unit that a backward pass leaves first among those with something trained. */
int optimizer_first_unit(const optimizer *optim);

/* optimizer_send followed by optimizer_update. */
WARN_UNUSED status optimizer_step(optimizer *optim, stream *queue, int64_t step, double lr,
                                  const double *weight);

/* What an update leaves on the device, as it is copied to the host. */
typedef struct optimizer_facts {
    step_scalars scalars;
    double after_group[GROUP_COUNT];
} optimizer_facts;
/* Queues the copy of those facts. `host` is pinned memory, which is written when the stream gets
 * there. */
WARN_UNUSED status optimizer_fetch(const optimizer *optim, stream *queue, optimizer_facts *host);

/* The results of the last update. */
typedef struct optimizer_report {
    double grad_norm; /* norm of the mean gradient, before clipping */
    /* The same by group; the sum of their squares is the square of grad_norm. */
    double group_norm[GROUP_COUNT];
    bool skipped; /* with optimizer.in_backward: some unit kept its values */
    /* With optimizer.in_backward: the unit whose gradient was not finite. Units whose backward came
     * before it were updated. -1: there is none. */
    int stopped_at;
} optimizer_report;
/* Turns fetched facts into a report. */
optimizer_report optimizer_report_of(const optimizer_facts *facts);
/* Fetches the last update's results; waits for the stream. */
WARN_UNUSED status optimizer_read(const optimizer *optim, stream *queue, optimizer_report *out);

#endif
