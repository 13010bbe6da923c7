/* slots_watch.h: counts how many slots go to which rank's experts, from the counts that ranks tell
 * each other before every exchange. They are read between the model and the engine, so that the
 * ledger is checked against something other than itself. */
#ifndef TESSERA_TESTS_PARALLEL_SLOTS_WATCH_H
#define TESSERA_TESTS_PARALLEL_SLOTS_WATCH_H

#include "trainer/parallel/world.h"
#include "trainer/plan/received.h"

/* Puts the watch in the place of w's engine. Called before groups are made. */
void slots_watch(world *w);
void slots_watch_clear(void); /* a step begins */
/* out [layers]: this rank's slots in the step. micro_steps: how many the step had; in every layer
 * the counts are told once per pass of each. *out_heard is false where no counts were seen, because
 * slots went by the device. ST_BAD_INPUT where the passes of a micro-step differ. */
WARN_UNUSED status slots_watched(int64_t layers, int64_t micro_steps, received_slots *out,
                                 bool *out_heard);

#endif
