/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h: parses the addresses "ipc://PATH" and "tcp://HOST:PORT" and prepares them for a
 * socket. Private to proto. */
#ifndef TESSERA_PROTO_WIRE_ENDPOINT_H
#define TESSERA_PROTO_WIRE_ENDPOINT_H

#include <stdbool.h>

#include "common/base/status.h"

enum { ENDPOINT_PATH = 4096, ENDPOINT_TEXT = ENDPOINT_PATH + 8 };

typedef struct endpoint {
    bool is_ipc, is_ip6;
    bool is_local;            /* tcp on a loopback address */
    char path[ENDPOINT_PATH]; /* ipc: the path to give to the system (see endpoint_shorten) */
    int port;                 /* tcp */
    char text[ENDPOINT_TEXT]; /* the address to give to ZeroMQ; localhost becomes 127.0.0.1 */
} endpoint;

/* Parses an address. ST_CONFIG for another transport, a path longer than PATH_MAX, or a port out of
 * range. */
WARN_UNUSED status endpoint_parse(const char *text, endpoint *out);

/* Folders that must stay open because shortened addresses lead through their descriptors. */
typedef struct endpoint_folders {
    int *fd; /* [count] */
    int count;
} endpoint_folders;

/* Makes the path of an ipc endpoint short enough for a socket's address, which holds 107 bytes; a
 * deep folder has longer paths. A longer path becomes /proc/self/fd/N/NAME, where N is its folder,
 * opened once and kept in `open` until endpoint_folders_done, because ZeroMQ's own thread may use
 * the address at any time. ST_UNAVAILABLE if there is no such folder, ST_CONFIG if NAME alone is
 * too long. */
WARN_UNUSED status endpoint_shorten(endpoint *address, endpoint_folders *open);
void endpoint_folders_done(endpoint_folders *open);

/* Clears the path of an ipc endpoint for binding: a socket left by a dead process is removed.
 * ST_UNAVAILABLE if a living process listens on it; ST_CANT_CREATE if anything else is at that
 * path, or its folder does not exist. ZeroMQ itself would unlink whatever is there. */
WARN_UNUSED status endpoint_clear_ipc(const endpoint *address);
/* The same for any endpoint, by a short bind for tcp; for wire_may_bind. text is the address as the
 * user wrote it. */
WARN_UNUSED status endpoint_unused(const char *text, const endpoint *address);
/* Makes a socket that listens at the path of an ipc endpoint, to which only this process's user and
 * root may connect. The mode is there when the file appears, so no one else ever could. The caller
 * removes the file and closes *out_fd. ST_UNAVAILABLE, ST_CANT_CREATE. */
WARN_UNUSED status endpoint_listen_private(const endpoint *address, int backlog, int *out_fd);
/* The failure of an address in use. */
WARN_UNUSED status endpoint_in_use(const char *text);

#endif
