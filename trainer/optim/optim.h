/* optim.h: AdamW over what this rank stores of the registry, driven by device memory alone. The
 * norm is that of all ranks' gradients (params_share).
 *
 * Gradients arrive as sums over targets. The host sends one small record of step scalars; the
 * device divides by the step's weight, clips by the norm and skips the update when there are no
 * targets or the norm is not finite, so nothing waits for the host (design section 5). */
#ifndef TESSERA_TRAINER_OPTIM_H
#define TESSERA_TRAINER_OPTIM_H

#include "common/conf/conf.h"
#include "trainer/model/params.h"
#include "trainer/ops/table.h"

typedef struct optimizer optimizer;

WARN_UNUSED status optimizer_new(const conf *c, params *p, stream *s, optimizer **out);
void optimizer_free(optimizer **o, stream *s);

/* The scalars of an update with learning rate lr go over; step counts from 1 and drives the bias
 * corrections. The host's side of the copy is used again by step + 1 + ahead of the backend. */
WARN_UNUSED status optimizer_send(optimizer *o, stream *s, int64_t step, double lr);
/* The update, from device memory alone, so that it can be captured. weight: the device's sum of
 * target weights of this step. */
WARN_UNUSED status optimizer_update(optimizer *o, stream *s, const double *weight);
/* Both. */
WARN_UNUSED status optimizer_step(optimizer *o, stream *s, int64_t step, double lr,
                                  const double *weight);

/* What an update leaves on the device, as it comes over. */
typedef struct optimizer_facts {
    step_scalars scalars;
    double after_group[GROUP_COUNT];
} optimizer_facts;
/* host: pinned, written when the stream gets there. */
WARN_UNUSED status optimizer_fetch(const optimizer *o, stream *s, optimizer_facts *host);

/* The last update's facts. */
typedef struct optimizer_report {
    double grad_norm;               /* of the mean gradient, before clipping */
    double group_norm[GROUP_COUNT]; /* the same by group; their squares sum up to its square */
    bool skipped;
} optimizer_report;
optimizer_report optimizer_report_of(const optimizer_facts *f);
/* Fetched at once: waits. */
WARN_UNUSED status optimizer_read(const optimizer *o, stream *s, optimizer_report *out);

#endif
