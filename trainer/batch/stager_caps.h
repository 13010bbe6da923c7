/* stager_caps.h: what rows need of a batch's capacities. Internal to trainer/batch. */
#ifndef TESSERA_TRAINER_BATCH_STAGER_CAPS_H
#define TESSERA_TRAINER_BATCH_STAGER_CAPS_H

#include "trainer/batch/stager.h"

batch_caps batch_caps_count(const row *rows, int64_t n_rows);
/* BAD_INPUT by sample id where they do not fit. */
WARN_UNUSED status batch_caps_check(const batch_caps *cap, const batch_caps *need, const row *rows,
                                    int64_t n);
/* Is a batch of these counts within c? */
bool batch_caps_hold(const batch_caps *c, const batch_caps *n);

#endif
