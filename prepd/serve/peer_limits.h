/* peer_limits.h: whoever sends to a bound socket. None of them may fill the log, or keep others
 * waiting: so many messages are read in a turn, refused ones are told and counted and not all
 * logged, and who sends what is refused again and again is no longer listened to. */
#ifndef TESSERA_PREPD_SERVE_PEER_LIMITS_H
#define TESSERA_PREPD_SERVE_PEER_LIMITS_H

#include "proto/wire.h"

/* A connection whose messages were refused. */
enum { MAX_OFFENDERS = 64 };
typedef struct offender {
    wire_peer peer;
    int offences;
} offender;

typedef struct peer_limits {
    offender offenders[MAX_OFFENDERS];
    unsigned next_offender;
    const wire_peer *reading;       /* whose message is being handled */
    int64_t told;                   /* refusals that were logged since peer_limits_tell */
    uint64_t refused, refused_keys; /* messages and peers; keys; since the start */
} peer_limits;

typedef void (*peer_limits_handle)(void *user, const wire_peer *from, wire_msg *m);

/* Hands over what has come, as much as a turn has room for. */
WARN_UNUSED status peer_limits_read(peer_limits *p, wire_socket *s, peer_limits_handle handle,
                                    void *user);
/* Tells it the thread's note, and the log, if that was not told too many. */
void peer_limits_refuse(peer_limits *p, wire_socket *s, const wire_peer *to, const char *what,
                        status st);
/* Of the peer whose message is being handled. */
void peer_limits_offence(peer_limits *p);
/* Logs what was kept back, and whom ZeroMQ's side refused; to be called every few seconds. */
void peer_limits_tell(peer_limits *p, wire *net, wire_socket *const *sockets, int n);

#endif
