/* peer_limits.h: keeps any one peer of a bound socket from filling the log or keeping others
 * waiting.
 *
 * Only so many messages of a socket are read in a turn of the loop. A refused message is answered
 * and counted, but only the first few are logged. A connection whose messages are refused again and
 * again is no longer listened to. */
#ifndef TESSERA_PREPD_SERVE_PEER_LIMITS_H
#define TESSERA_PREPD_SERVE_PEER_LIMITS_H

#include "proto/wire.h"

/* A connection whose messages were refused. */
enum { MAX_OFFENDERS = 64 };
typedef struct offender {
    wire_peer peer;
    int offences;
} offender;

/* All zeros is the state at the start. */
typedef struct peer_limits {
    offender offenders[MAX_OFFENDERS];
    unsigned next_offender;         /* the place that the next one takes */
    const wire_peer *reading;       /* the peer whose message is being handled; NULL outside */
    int64_t told;                   /* refusals since peer_limits_tell, logged or not */
    uint64_t refused, refused_keys; /* messages and peers; connections by key; since the start */
} peer_limits;

typedef void (*peer_limits_handle)(void *user, const wire_peer *from, wire_msg *message);

/* Hands over the messages that have come, as many as a turn has room for. */
WARN_UNUSED status peer_limits_read(peer_limits *limits, wire_socket *socket,
                                    peer_limits_handle handle, void *user);
/* Refuses a peer's message: sends it the thread's note as an error, and logs that too, unless too
 * many were logged already. `what` says what kind of peer it is. */
void peer_limits_refuse(peer_limits *limits, wire_socket *socket, const wire_peer *to,
                        const char *what, status st);
/* Counts an offence of the peer whose message is being handled. */
void peer_limits_offence(peer_limits *limits);
/* Logs how many refusals were not shown, and which peers ZeroMQ's side refused on the n sockets.
 * Call it every few seconds. */
void peer_limits_tell(peer_limits *limits, wire *net, wire_socket *const *sockets, int n_sockets);

#endif
