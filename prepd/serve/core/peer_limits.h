/* peer_limits.h: keeps any one peer from filling the log or keeping others waiting.
 *
 * A refused message is answered and counted, but only the first few are logged. A connection whose
 * messages are refused again and again is no longer listened to. How many messages are read in a
 * turn of the loop is up to who reads them (doors.h). */
#ifndef TESSERA_PREPD_SERVE_CORE_PEER_LIMITS_H
#define TESSERA_PREPD_SERVE_CORE_PEER_LIMITS_H

#include "prepd/serve/core/outside.h"

/* A connection whose messages were refused. */
enum { MAX_OFFENDERS = 64 };
typedef struct offender {
    wire_peer peer;
    int offences;
} offender;

/* All zeros is the state at the start. */
typedef struct peer_limits {
    offender offenders[MAX_OFFENDERS];
    unsigned next_offender;   /* the place that the next one takes */
    const wire_peer *reading; /* the peer whose message is being handled; NULL outside */
    int64_t told;             /* refusals since peer_limits_tell, logged or not */
    /* Since the start: messages and peers, among them workers that make other rows; and
     * connections by key. */
    uint64_t refused, refused_builds, refused_keys;
} peer_limits;

/* Whether a connection's messages were refused so often that further ones are dropped unread. */
bool peer_limits_ignores(const peer_limits *limits, const wire_peer *from);
/* Refuses a peer's message: sends it the thread's note as an error, and logs that too, unless too
 * many were logged already. `what` says what kind of peer it is. */
void peer_limits_refuse(peer_limits *limits, const outside *world, door at, const wire_peer *to,
                        const char *what, status st);
/* Counts an offence of the peer whose message is being handled. */
void peer_limits_offence(peer_limits *limits, const outside *world);
/* Logs how many refusals were not shown. Call it every few seconds. */
void peer_limits_tell(peer_limits *limits, const outside *world);

#endif
