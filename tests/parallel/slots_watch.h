/* slots_watch.h: how many slots go to which rank's experts, from the counts that ranks tell each
 * other before every exchange: listened to between the model and the engine, not taken from the
 * ledger. */
#ifndef TESSERA_TESTS_PARALLEL_SLOTS_WATCH_H
#define TESSERA_TESTS_PARALLEL_SLOTS_WATCH_H

#include "trainer/parallel/world.h"
#include "trainer/plan/received.h"

/* Before groups are made: w's engine from here on. */
void slots_watch(world *w);
void slots_watch_clear(void); /* a step begins */
/* out [layers]: of this rank, in the step. micro_steps: each told them as often in every layer as
 * it has passes. false: no counts came by (slots went by the device). ST_BAD_INPUT where passes of
 * a micro-step differ. */
WARN_UNUSED status slots_watched(int64_t layers, int64_t micro_steps, received_slots *out,
                                 bool *out_heard);

#endif
