/* skew.h: gives the experts of a bench uneven loads. A bias on the router's logits is moved from
 * step to step until the busiest expert has the wanted multiple of the mean load. */
#ifndef TESSERA_TRAINER_BENCH_SKEW_H
#define TESSERA_TRAINER_BENCH_SKEW_H

#include "trainer/run/session.h"

typedef struct skew skew;

/* load: that of the busiest expert over the mean; the others fall off geometrically (bench_loads).
 * Call it before the first step. ST_USAGE for a load that no routing can have. */
WARN_UNUSED status skew_new(session *session, double load, skew **out);
void skew_free(skew **skew, session *session);

/* Runs as many steps after *step as it takes to set the loads, at most `rounds`, and adds them to
 * *step. */
WARN_UNUSED status skew_settle(skew *skew, session *session, int64_t rounds, int64_t *step);

/* The largest load over the mean in the last micro-batch, averaged over the layers with experts.
 * Waits for the device. */
WARN_UNUSED status skew_measure(skew *skew, session *session, double *out_load);

#endif
