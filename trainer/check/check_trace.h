/* check_trace.h: what steps of trainer check leave to be compared: losses and gradient norms. */
#ifndef TESSERA_TRAINER_CHECK_TRACE_H
#define TESSERA_TRAINER_CHECK_TRACE_H

#include "trainer/run/session.h"

enum { TRACE_STEPS = 64 };

typedef struct trace {
    double loss[TRACE_STEPS];
    double norm[TRACE_STEPS][1 + GROUP_COUNT]; /* of the gradient; by group */
} trace;

/* Runs steps from..to, numbered from 1. ST_BAD_INPUT where the stream ends before. */
WARN_UNUSED status trace_steps(session *s, int64_t from, int64_t to, trace *out);
/* Largest relative difference of losses, and of any norm, over the first n steps. */
void trace_compare(const trace *a, const trace *b, int64_t n, double *out_loss, double *out_norm);
/* |a - b| over the larger; infinite where one is no number. */
double trace_distance(double a, double b);

/* n steps as text, to the bit. */
WARN_UNUSED status trace_write(const trace *t, int64_t n, const char *path);
WARN_UNUSED status trace_read(const char *path, int64_t n, trace *out);

#endif
