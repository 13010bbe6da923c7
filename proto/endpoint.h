/* endpoint.h: what "ipc://PATH" and "tcp://HOST:PORT" mean here. Private to proto. */
#ifndef TESSERA_PROTO_ENDPOINT_H
#define TESSERA_PROTO_ENDPOINT_H

#include <stdbool.h>

#include "common/base/status.h"

enum { ENDPOINT_PATH = 4096, ENDPOINT_TEXT = ENDPOINT_PATH + 8 };

typedef struct endpoint {
    bool is_ipc, is_ip6;
    bool is_local;            /* tcp on loopback */
    char path[ENDPOINT_PATH]; /* ipc; as the system may be told after endpoint_shorten */
    int port;                 /* tcp */
    char text[ENDPOINT_TEXT]; /* as ZeroMQ wants it: localhost turned into 127.0.0.1 */
} endpoint;

/* ST_CONFIG: another transport, a path over PATH_MAX, a port out of range. */
WARN_UNUSED status endpoint_parse(const char *text, endpoint *out);

/* Folders that stay open, because long addresses lead through them. */
typedef struct endpoint_folders {
    int *fd; /* [n] */
    int n;
} endpoint_folders;

/* A socket's address holds 107 bytes of path; a deep clone has longer ones. Path and text of such
 * an endpoint are turned into /proc/self/fd/N/NAME, N being its folder, opened once and kept until
 * endpoint_folders_done: ZeroMQ's own thread uses the address at any time. ST_UNAVAILABLE: no such
 * folder; ST_CONFIG: NAME alone is too long. */
WARN_UNUSED status endpoint_shorten(endpoint *e, endpoint_folders *open);
void endpoint_folders_done(endpoint_folders *open);

/* Makes way for binding an ipc endpoint: a file left by a dead process is removed; one that a
 * living process listens on is ST_UNAVAILABLE, anything else at that path, or no folder for it,
 * ST_CANT_CREATE. ZeroMQ itself would unlink whatever stands there. */
WARN_UNUSED status endpoint_clear_ipc(const endpoint *e);
/* The same of any endpoint: wire_may_bind. text: as the user wrote it. */
WARN_UNUSED status endpoint_unused(const char *text, const endpoint *e);
/* The refusal. */
WARN_UNUSED status endpoint_in_use(const char *text);

#endif
