/* SPDX-License-Identifier: Apache-2.0 */
/* slots_watch.h: counts how many slots go to which rank's experts, from the counts that ranks tell
 * each other before every exchange. They are read between the model and the engine, so that the
 * ledger is checked against something other than itself. */
#ifndef TESSERA_TESTS_PARALLEL_SLOTS_WATCH_H
#define TESSERA_TESTS_PARALLEL_SLOTS_WATCH_H

#include "trainer/parallel/world.h"
#include "trainer/plan/received.h"

/* Replaces w's engine by one that watches. Call it before any group is made. */
void slots_watch(world *job);
void slots_watch_clear(void); /* call it when a step begins */
/* Writes this rank's slots in the step to out [layers]. micro_steps is how many the step had; in
 * every layer, the ranks exchange counts once for each pass of each micro-step. *out_heard is false
 * if no counts were seen, because the device moved the slots. ST_BAD_INPUT if the passes of a
 * micro-step differ. */
WARN_UNUSED status slots_watched(int64_t layers, int64_t micro_steps, received_slots *out,
                                 bool *out_heard);

#endif
