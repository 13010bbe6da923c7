/* profile.h: where a step's time goes, by timestamps of the device itself.
 *
 * While a profile is on, a stream's op table and its device's copies are the profile's own: each
 * call stands between two events, and what lies between them counts as the call's kind; a call
 * inside another is the outer one's. So on one stream these intervals never overlap, and the kinds,
 * waiting for data and idle add up to the step. Calls are launched one by one (no graph), so idle
 * shows what a captured step would not have.
 *
 * A collective on a stream of its own takes of the step what the computing stream waits for it:
 * that is its exposed part, one of the kinds. Its own time, between two events on its stream, less
 * that part lay beside computing: it is told too, and is part of no sum. By name both are
 * approximate where one stream has several: a wait is counted to what was waited for, whatever
 * stood before it in the queue. */
#ifndef TESSERA_TRAINER_REPORT_PROFILE_H
#define TESSERA_TRAINER_REPORT_PROFILE_H

#include <stdio.h>

#include "trainer/device/backend.h"

typedef enum profile_kind {
    PROFILE_IDLE, /* nothing of ours was at work and data was there */
    PROFILE_VISION,
    PROFILE_ATTENTION, /* of the text, with its rotary */
    PROFILE_DENSE,     /* matrix products outside experts, vision and head */
    PROFILE_EXPERTS,   /* grouped products and their activation */
    PROFILE_ROUTING,   /* router, permutation, mixing */
    PROFILE_POINTWISE, /* norms, additions, gathers, copies */
    PROFILE_HEAD,
    PROFILE_OPTIMIZER,
    PROFILE_COLLECTIVES, /* exposed: on this stream, or waited for on it */
    PROFILE_WAIT,        /* the host waited for rows */
    PROFILE_KINDS
} profile_kind;

const char *profile_kind_name(profile_kind kind);

typedef struct profile profile;

enum { PROFILE_CALLS = 64 };

/* Collectives by what they are for. */
typedef struct profile_call {
    const char *what;   /* static storage */
    int64_t exposed_ns; /* of computing */
    int64_t aside_ns;   /* of other streams, whether computing waits or not */
} profile_call;

/* Sums over the steps that were measured. */
typedef struct profile_sums {
    int64_t steps, calls;
    int64_t ns[PROFILE_KINDS];
    int64_t total_ns; /* of the ns above, to the nanosecond */
    profile_call call[PROFILE_CALLS];
    int n_calls;
} profile_sums;

/* What of collectives lay beside computing, by name or all (NULL). */
int64_t profile_beside_ns(const profile_sums *sums, const profile_call *c);

/* Takes its place in s and s->dev until profile_free; s and its device are borrowed. */
WARN_UNUSED status profile_new(stream *s, profile **out);
void profile_free(profile **p);

/* Around one step. The end waits for the step's work; wait_ns: how long the host stood without
 * rows in it. p NULL: nothing happens. */
WARN_UNUSED status profile_begin(profile *p);
WARN_UNUSED status profile_end(profile *p, int64_t wait_ns);

/* Forgets what was measured so far: the first step warms up. */
void profile_reset(profile *p);
const profile_sums *profile_read(const profile *p);
/* A line per kind: milliseconds per step, share of the step; a line per collective. */
void profile_print(const profile_sums *sums, FILE *to);

#endif
