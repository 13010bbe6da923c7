/* skew.h: experts' loads of a bench: max over mean as asked for, by a bias on the router's logits
 * that is moved from step to step until it holds. */
#ifndef TESSERA_TRAINER_BENCH_SKEW_H
#define TESSERA_TRAINER_BENCH_SKEW_H

#include "trainer/run/session.h"

typedef struct skew skew;

/* load: the busiest expert's over the mean; others fall off geometrically (bench_loads). Before the
 * first step. USAGE for a load that cannot be. */
WARN_UNUSED status skew_new(session *s, double load, skew **out);
void skew_free(skew **k, session *s);

/* Runs the steps after *step that it takes, and counts them there. */
WARN_UNUSED status skew_settle(skew *k, session *s, int64_t *step);

/* What the last micro-batch had: the mean over layers of max over mean. Waits. */
WARN_UNUSED status skew_measure(skew *k, session *s, double *out_load);

#endif
