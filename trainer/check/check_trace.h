/* check_trace.h: the trace of a case of trainer check: the losses and gradient norms of its steps,
 * by which cases are compared. */
#ifndef TESSERA_TRAINER_CHECK_TRACE_H
#define TESSERA_TRAINER_CHECK_TRACE_H

#include "trainer/run/session.h"

enum { TRACE_STEPS = 64 };

typedef struct trace {
    double loss[TRACE_STEPS];
    double norm[TRACE_STEPS][1 + GROUP_COUNT]; /* of the whole gradient, then of each group */
} trace;

/* Runs steps `from` to `to`, where the first step is 1. ST_BAD_INPUT if the stream ends before
 * that. */
WARN_UNUSED status trace_steps(session *session, int64_t from, int64_t to, trace *out);
/* The largest relative difference of any loss, and of any norm, over the first `count` steps. */
void trace_compare(const trace *first, const trace *second, int64_t count, double *out_loss,
                   double *out_norm);
/* |a - b| over the larger of |a| and |b|; infinity if one of them is not a number. Letters: a, b
 * the two. */
double trace_distance(double a, double b);

/* Write and read the first `count` steps as text, in hexadecimal floating point so that no bit is
 * lost.
 */
WARN_UNUSED status trace_write(const trace *trace, int64_t count, const char *path);
WARN_UNUSED status trace_read(const char *path, int64_t length, trace *out);

#endif
