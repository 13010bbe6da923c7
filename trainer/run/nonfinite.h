/* nonfinite.h: says in words where a gradient that is not finite came from: which rank, which part
 * of the model, which samples. The search runs only after such a step; a good step spends no time
 * on it.
 *
 * Every rank looks at what it has: the loss of its own rows, the outputs of its units as far as
 * they are still kept (model/outputs.h: those of the last micro-batches), and the values and
 * gradients that it stores. Then all ranks learn what each of them has found. */
#ifndef TESSERA_TRAINER_RUN_NONFINITE_H
#define TESSERA_TRAINER_RUN_NONFINITE_H

#include "trainer/run/step.h"

/* Writes the finding on the step `report` to out [size]. Every rank calls it for the same step,
 * since it is a collective; it waits for the device. own_loss: the loss of this rank's rows. batch:
 * the micro-batches that the kept outputs belong to, one for each flight of the model
 * (model/qwen3vl.h); NULL when another step is under way, so that outputs and gradients are no
 * longer those of this step. */
WARN_UNUSED status nonfinite_find(session *session, const step_report *report, double own_loss,
                                  device_batch *const *batch, char *out, size_t size);

#endif
