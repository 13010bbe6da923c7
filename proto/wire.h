/* wire.h: messages of several parts over ZeroMQ; the only door to it.
 *
 * A bound socket is a ROUTER: every message comes with the peer it is from and goes to a named
 * peer; one that cannot be reached is ST_UNAVAILABLE, never dropped silently (ROUTER_MANDATORY).
 * A connected socket is a DEALER. Its high-water marks are off; credit bounds what is under way. A
 * bound one has its wire_limits, so that no peer makes it grow; over ipc, whose peers are those
 * that may write to its file, only those of parts and of what is unsent. Keepalives, MAXMSGSIZE,
 * LINGER and handshake limits are set before bind and connect. */
#ifndef TESSERA_PROTO_WIRE_H
#define TESSERA_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/json/json.h"
#include "common/base/span.h"
#include "common/base/status.h"
#include "proto/frame.h"

typedef struct wire wire;               /* one ZeroMQ context */
typedef struct wire_socket wire_socket; /* used by one thread */
typedef struct wire_msg wire_msg;       /* parts, owned */

enum { WIRE_ID_BYTES = 255 }; /* ZeroMQ's longest */
typedef struct wire_peer {
    uint8_t id[WIRE_ID_BYTES]; /* routing id */
    size_t size;               /* 0 = none */
    int connection;            /* descriptor of the message's connection; <= 0: not known */
} wire_peer;

WARN_UNUSED status wire_new(wire **out);
/* n of ZeroMQ's threads read and write its connections, each of which stays with one of them; one
 * thread if this is not called. Call it before the first socket and before the keys. */
WARN_UNUSED status wire_io_threads(wire *w, int n);
void wire_free(wire **w); /* after its sockets are closed */

/* CURVE keys for the tcp sockets bound (daemon) or connected (others) from now on, from a folder of
 * `prepd keygen`. ipc has the file system's permissions and takes none. */
WARN_UNUSED status wire_serve_keys(wire *w, const char *folder);
WARN_UNUSED status wire_use_keys(wire *w, const char *folder);
/* The daemon's list of allowed keys, read again; connections that stand stay. */
WARN_UNUSED status wire_reload_keys(wire *w);
/* How many keys were refused since the last call; what was said of the last one. */
enum { WIRE_REFUSED_TEXT = 512 };
int64_t wire_keys_were_refused(wire *w, char out[WIRE_REFUSED_TEXT]);
/* keygen: client NULL: the daemon's folder, with a client of its own; else FOLDER/CLIENT for
 * another machine, whose key is added to FOLDER/allowed. No key that is there is overwritten; after
 * a failure (a full disk) it can be called again. */
WARN_UNUSED status wire_keys_make(const char *folder, const char *client);

/* What one peer of a bound socket may make us hold; 0 = no bound. */
typedef struct wire_limits {
    int64_t part_bytes;  /* largest part taken; a peer that sends more is cut off */
    int unsent;          /* messages; past it wire_send is refused */
    uint64_t io_threads; /* which of wire_io_threads its connections are given to, a bit each */
    /* tcp, of messages that are not read or not complete: a peer over its share is cut off, and
     * the worst one where all together are over theirs. ZeroMQ keeps up to 32 times as much memory
     * (for parts of no bytes at all). Looked at by wire_poll
     * and wire_recv; 0 = no bound. */
    int64_t unread_bytes, all_unread_bytes;
    int64_t known_bytes; /* unread_bytes of peers that wire_know named, which all leaves out */
} wire_limits;

/* endpoint: ipc://PATH (of any length: a folder too deep for a socket's address is reached through
 * /proc), tcp://HOST:PORT; without keys a loopback host only. A port or path in use by a live
 * process names it as such; a stale ipc file is replaced. limits NULL: parts up to 1 GiB. */
WARN_UNUSED status wire_bind(wire *w, const char *endpoint, const wire_limits *limits,
                             wire_socket **out);
/* Connecting never blocks; the peer may come later. */
WARN_UNUSED status wire_connect(wire *w, const char *endpoint, wire_socket **out);
/* For a local peer of a daemon bound to this: a host that means every interface turned into
 * loopback. Heap. */
WARN_UNUSED status wire_reachable(const char *endpoint, char **out);
/* What is known at once of who listens: ST_OK: somebody, or it is tcp, of which nothing is. Of ipc
 * ST_UNAVAILABLE: no socket, or nobody behind it; ST_CONFIG: one that this user may not write to.
 * The note says what to do. */
WARN_UNUSED status wire_listens(const char *endpoint);
/* How a wire_bind would fail, by what is known now: no keys, no such folder, an address in use
 * (ST_UNAVAILABLE). A socket file that nobody stands behind is removed; a daemon that does stand
 * there sees a connection come and go. */
WARN_UNUSED status wire_may_bind(const wire *w, const char *endpoint);
/* True once a DEALER has spoken ZeroMQ with a living peer (which may have gone since). */
bool wire_greeted(wire_socket *s);
/* Of a DEALER whose daemon was heard before, by another socket: connections that end in their
 * handshake are those of a proxy (ssh -L, docker-proxy) without a daemon behind it, and waited out;
 * without this the third one is a refusal (ST_CONFIG). */
void wire_expect(wire_socket *s);
/* True if a connection ended so. */
bool wire_cut(wire_socket *s);
/* This peer's limit is known_bytes from now on. */
void wire_know(wire_socket *s, const wire_peer *peer);
/* How many peers were cut off for unread_bytes since the last call; what is known of the last. */
int64_t wire_were_cut(wire_socket *s, char out[WIRE_REFUSED_TEXT]);
void wire_close(wire_socket **s); /* removes the ipc file it bound */

WARN_UNUSED status wire_msg_new(wire_msg **out);
void wire_msg_free(wire_msg **m);
void wire_msg_clear(wire_msg *m);
size_t wire_msg_parts(const wire_msg *m);
size_t wire_msg_bytes(const wire_msg *m);
span wire_msg_part(const wire_msg *m, size_t i); /* borrowed until the message changes */
WARN_UNUSED status wire_msg_add(wire_msg *m, const void *data, size_t size); /* copies */
/* A new part of this size, to be written by the caller before the message changes again. */
WARN_UNUSED status wire_msg_add_space(wire_msg *m, size_t size, uint8_t **out);
/* Replaces part i by a copy of these bytes (a header under another row number). */
WARN_UNUSED status wire_msg_set(wire_msg *m, size_t i, const void *data, size_t size);
/* Moves all parts of from to the end of to. */
WARN_UNUSED status wire_msg_move(wire_msg *to, wire_msg *from);
/* A second reference to the same bytes (ZeroMQ shares them); for records beside sends. */
WARN_UNUSED status wire_msg_share(wire_msg *to, const wire_msg *from);

/* Takes the parts on success (m is then empty), leaves them on failure. to = NULL for a DEALER.
 * ST_TIMEOUT: the peer has not taken what was sent before (wire_limits.unsent); later perhaps. */
WARN_UNUSED status wire_send(wire_socket *s, const wire_peer *to, wire_msg *m);
/* ST_TIMEOUT after timeout_ms (0 = do not wait, -1 = forever). from may be NULL for a DEALER; of a
 * ROUTER it is set for ST_PROTOCOL too (a message of impossible form, or of a peer that chose its
 * routing id; dropped whole). A DEALER
 * whose connection has ended gives what had arrived, then ST_UNAVAILABLE for good: to the other
 * side a new connection is a new peer, so it takes a new socket and a new HELLO. */
WARN_UNUSED status wire_recv(wire_socket *s, int timeout_ms, wire_peer *from, wire_msg *m);

/* Waits for any of the sockets (NULL entries allowed) or descriptors to become readable, or for a
 * DEALER's connection to end (wire_recv then says so). ST_OK with none ready after timeout_ms. */
typedef struct wire_wait {
    wire_socket *socket;
    int fd; /* used if socket is NULL; -1 = ignore */
    bool ready;
} wire_wait;
WARN_UNUSED status wire_poll(wire_wait *items, size_t n, int timeout_ms);

/* A control message: header of this kind (row number 0 unless given) and one part of JSON. */
WARN_UNUSED status wire_send_json(wire_socket *s, const wire_peer *to, int kind, uint64_t row,
                                  const char *json, size_t size);

/* The same with the parts of more (NULL: none) behind, which are taken; only a LEASE may. */
WARN_UNUSED status wire_send_json_with(wire_socket *s, const wire_peer *to, int kind, uint64_t row,
                                       const char *json, size_t size, wire_msg *more);

/* The header and JSON object of a control message, its sizes, hash (if given) and JSON checked;
 * ST_PROTOCOL names the peer. out is the caller's to free. */
WARN_UNUSED status wire_read_json(const wire_msg *m, const char *peer, frame *out_head,
                                  json_value **out);
/* KIND_ERROR with this code and the thread's status_text(), less the name of a peer in it: its id
 * tells which ones come next, and who claims one of those beforehand ends libzmq (README, Bounds).
 */
WARN_UNUSED status wire_send_error(wire_socket *s, const wire_peer *to, uint64_t row, status code);
/* Turns a KIND_ERROR's object into this thread's failure with the peer's code and reason. */
WARN_UNUSED status wire_error(const json_value *error, const char *peer);
/* The address of the message's connection, without its port; "": over ipc, or it has gone. */
enum { WIRE_HOST_TEXT = 46 };
void wire_peer_host(const wire_peer *peer, char out[WIRE_HOST_TEXT]);
/* "peer 006b8b4567" for errors and logs; a long id is cut. */
enum { WIRE_PEER_TEXT = 160 };
void wire_peer_print(const wire_peer *peer, char out[WIRE_PEER_TEXT]);
/* status_text() for the peer that the thread's note is about: who that is is our own name for it.
 */
const char *wire_peer_text(void);

/* Step 1 = workers, 2 = control: "ENDPOINT.workers" and "ENDPOINT.control" for ipc, the next two
 * ports for tcp. Heap. */
WARN_UNUSED status wire_beside(const char *endpoint, int step, char **out);
bool wire_is_ipc(const char *endpoint);

#endif
