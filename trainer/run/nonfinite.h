/* nonfinite.h: where a step whose gradient is not finite went wrong, in words: which rank, which
 * part of the model, which samples. Looked for behind such a step alone, on the host's time; a good
 * step does nothing for it.
 *
 * Every rank looks at what it has: the loss of its own rows, the outputs of its units that are
 * still kept (model/outputs.h: of the last micro-batches), the values and the gradients it stores.
 * Then all ranks learn what each has found. */
#ifndef TESSERA_TRAINER_RUN_NONFINITE_H
#define TESSERA_TRAINER_RUN_NONFINITE_H

#include "trainer/run/step.h"

/* Every rank calls it for the same step, r. own_loss: that of this rank's rows. batch: those that
 * the outputs are of, by flight of the model; NULL: another step is under way, so that outputs and
 * gradients are no longer r's. Waits. */
WARN_UNUSED status nonfinite_find(session *s, const step_report *r, double own_loss,
                                  device_batch *const *batch, char *out, size_t size);

#endif
