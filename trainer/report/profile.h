/* SPDX-License-Identifier: Apache-2.0 */
/* profile.h: where the time of a step goes, by timestamps of the device itself.
 *
 * While a profile is on, it replaces the op table of a stream and the copy functions of its device.
 * Each call is put between two events, and the time between them counts as the call's kind. A call
 * inside another call counts as part of the outer one. On one stream these intervals therefore
 * never overlap, and the kinds, waiting for data and idle time add up to the step. Calls are
 * launched one by one and not as a graph, so idle includes launch gaps that a captured step would
 * not have.
 *
 * A collective may run on a separate stream. The part of it that the computing stream waits for
 * is its exposed part, and is one of the kinds. The rest of its time, measured between two events
 * on its own stream, overlapped with computing; it is reported too but is part of no sum. The split
 * by name is approximate where one stream has several collectives: a wait counts for the collective
 * that was waited for, even if others stood before it in the queue. */
#ifndef TESSERA_TRAINER_REPORT_PROFILE_H
#define TESSERA_TRAINER_REPORT_PROFILE_H

#include <stdio.h>

#include "trainer/device/backend.h"

typedef enum profile_kind {
    PROFILE_IDLE, /* data was there, but no call was running */
    PROFILE_VISION,
    PROFILE_ATTENTION, /* of the decoder, with rotary embeddings */
    PROFILE_DENSE,     /* matrix products outside experts, vision and head */
    PROFILE_EXPERTS,   /* grouped products and their activation */
    PROFILE_ROUTING,   /* router, permutation, mixing */
    PROFILE_POINTWISE, /* norms, additions, gathers, copies */
    PROFILE_HEAD,
    PROFILE_OPTIMIZER,
    PROFILE_COLLECTIVES, /* the exposed part: run on this stream, or waited for by it */
    PROFILE_WAIT,        /* the host was waiting for rows */
    PROFILE_KINDS
} profile_kind;

typedef struct profile profile;

enum { PROFILE_CALLS = 64 };

/* Time of the collectives that serve one purpose. */
typedef struct profile_call {
    const char *what;   /* the purpose, in static storage */
    int64_t exposed_ns; /* time on the computing stream, run there or waited for */
    int64_t aside_ns;   /* time on other streams, whether computing waited or not */
} profile_call;

/* Sums over the measured steps. */
typedef struct profile_sums {
    int64_t steps, calls;
    int64_t ns[PROFILE_KINDS];
    int64_t total_ns; /* exactly the sum of ns */
    profile_call call[PROFILE_CALLS];
    int n_calls;
} profile_sums;

/* How long collectives ran beside computing: those of one call, or all of them (NULL). */
int64_t profile_beside_ns(const profile_sums *sums, const profile_call *call);

/* Replaces the functions of the stream and its device until profile_free gives them back. Both are
 * borrowed. */
WARN_UNUSED status profile_new(stream *stream, profile **out);
void profile_free(profile **profile);

/* Call these before and after one step. profile_end waits for the step's work; wait_ns is how long
 * the host waited for rows in it. With NULL they do nothing. */
WARN_UNUSED status profile_begin(profile *profile);
WARN_UNUSED status profile_end(profile *profile, int64_t wait_ns);

/* Forgets what was measured so far, since the first step warms up. */
void profile_reset(profile *profile);
const profile_sums *profile_read(const profile *profile);
/* Prints a line per kind, with milliseconds a step and the share of the step, and a line per
 * collective. */
void profile_print(const profile_sums *sums, FILE *to);

#endif
