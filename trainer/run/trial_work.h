/* trial_work.h: the work that a device may do in several ways (device/choices.h), in the shapes
 * that a run will give it: attention of a batch that fills a shape bucket, with its longest
 * document, a document of one token and empty ones after it; the experts' products; and both as
 * a captured graph. All values are 0, and no result is looked at. Internal to trial.c. */
#ifndef TESSERA_TRAINER_RUN_TRIAL_WORK_H
#define TESSERA_TRAINER_RUN_TRIAL_WORK_H

#include "trainer/ops/table.h"
#include "trainer/run/session.h"

enum { TRIAL_ARRAYS = 40 };

typedef struct trial_work {
    device *dev;
    stream *queue; /* its own, so that scratch goes with it */
    void *array[TRIAL_ARRAYS];
    int arrays;
    attention_fwd_args fwd[2]; /* of text and of vision; without segments: there is no such work */
    attention_bwd_args bwd[2]; /* the same */
    grouped_gemm_args product[3]; /* by mode; without experts: none */
    double *sum;                  /* of trial_work_sum, device memory */
} trial_work;

/* Makes one with nothing but its stream. */
WARN_UNUSED status trial_work_empty(const session *run, trial_work *out);
/* Takes device memory for the work of this rank in a micro-batch of these capacities; in an
 * evaluation that is the forward passes. *out is to be freed also after a failure. */
WARN_UNUSED status trial_work_new(const session *run, const batch_caps *bucket, trial_work *out);
void trial_work_free(trial_work *work);
/* Does the work of a choice and waits for it. Returns what the device answers. */
WARN_UNUSED status trial_work_run(trial_work *work, int choice);
/* Makes a sum over the ranks of the group, whose ranks all call this, and waits for it. */
WARN_UNUSED status trial_work_sum(trial_work *work, const comm *group, comm_at at);
/* Captures such a sum, after one that was not captured. *out is to be launched on work->queue by
 * all ranks or by none, and is the caller's. */
WARN_UNUSED status trial_work_capture_sum(trial_work *work, const comm *group, comm_at at,
                                          graph **out);

#endif
