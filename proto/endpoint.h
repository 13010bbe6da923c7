/* endpoint.h: what "ipc://PATH" and "tcp://HOST:PORT" mean here. Private to proto. */
#ifndef TESSERA_PROTO_ENDPOINT_H
#define TESSERA_PROTO_ENDPOINT_H

#include <stdbool.h>

#include "common/status.h"

enum { ENDPOINT_PATH = 108, ENDPOINT_TEXT = 160 };

typedef struct endpoint {
    bool is_ipc, is_ip6;
    char path[ENDPOINT_PATH]; /* ipc */
    int port;                 /* tcp */
    char text[ENDPOINT_TEXT]; /* as ZeroMQ wants it: localhost turned into 127.0.0.1 */
} endpoint;

/* ST_CONFIG: another transport, a path too long for a socket address, a port out of range, a host
 * that is not loopback. */
WARN_UNUSED status endpoint_parse(const char *text, endpoint *out);

/* Makes way for binding an ipc endpoint: a file left by a dead process is removed; one that a
 * living process listens on is ST_UNAVAILABLE, anything else at that path ST_CANT_CREATE. ZeroMQ
 * itself would unlink whatever stands there. */
WARN_UNUSED status endpoint_clear_ipc(const endpoint *e);

#endif
