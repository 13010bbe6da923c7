/* profile.h: where a step's time goes, by timestamps of the device itself.
 *
 * While a profile is on, a stream's op table and its device's copies are the profile's own: each
 * call stands between two events, and what lies between them counts as the call's kind. On one
 * stream these intervals never overlap, so the kinds, waiting for data and idle add up to the step.
 * Calls are launched one by one (no graph), so idle shows what a captured step would not have. */
#ifndef TESSERA_REPORT_PROFILE_H
#define TESSERA_REPORT_PROFILE_H

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
    PROFILE_COLLECTIVES,
    PROFILE_WAIT, /* the host waited for rows */
    PROFILE_KINDS
} profile_kind;

const char *profile_kind_name(profile_kind kind);

typedef struct profile profile;

/* Sums over the steps that were measured. */
typedef struct profile_sums {
    int64_t steps, calls;
    int64_t ns[PROFILE_KINDS];
    int64_t total_ns; /* of the ns above, to the nanosecond */
} profile_sums;

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
/* A line per kind: milliseconds per step, share of the step. */
void profile_print(const profile_sums *sums, FILE *to);

#endif
