/* stager_caps.h: counts what rows need, and compares it with capacities. For trainer/batch only. */
#ifndef TESSERA_TRAINER_BATCH_STAGER_CAPS_H
#define TESSERA_TRAINER_BATCH_STAGER_CAPS_H

#include "trainer/batch/stager.h"

/* Exactly what these rows need. */
batch_caps batch_caps_count(const row *rows, int64_t n_rows);
/* ST_BAD_INPUT, with the first sample id of the rows, if `need` is beyond cap. */
WARN_UNUSED status batch_caps_check(const batch_caps *cap, const batch_caps *need, const row *rows,
                                    int64_t count);
/* True if a batch with these counts is within the capacities. */
bool batch_caps_hold(const batch_caps *cap, const batch_caps *counts);

#endif
