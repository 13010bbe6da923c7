/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h: multipart messages over ZeroMQ. Only the wire*.c files use ZeroMQ.
 *
 * A bound socket (the daemon's) is a ROUTER: every message comes with the peer that sent it, and is
 * sent to a named peer. A peer that cannot be reached is ST_UNAVAILABLE and never ignored silently
 * (ZMQ_ROUTER_MANDATORY). A connected socket is a DEALER and has one peer.
 *
 * Memory is bounded differently on the two sides. A DEALER has no high-water marks; credit bounds
 * what is under way to it. A bound socket has wire_limits, so that no peer makes it grow. Over ipc,
 * whose peers are the users who may write to the socket's file, only the limits on the size of a
 * part and on unsent messages apply. TCP keepalives, the limits on part size and handshake time,
 * and LINGER are set before bind and connect. wire.md describes the protocol. */
#ifndef TESSERA_PROTO_WIRE_H
#define TESSERA_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/json/json.h"
#include "common/base/span.h"
#include "common/base/status.h"
#include "proto/message/wire_msg.h"

typedef struct wire wire;               /* a ZeroMQ context, with keys */
typedef struct wire_socket wire_socket; /* for one thread */

enum { WIRE_ID_BYTES = 255 }; /* ZeroMQ's longest routing id */
enum { WIRE_KEY_TEXT = 41 };  /* a key: 32 bytes as Z85 (ZeroMQ RFC 32), and the zero */
enum { WIRE_KEY_NAME = 64 };  /* most bytes of a key's name, with the zero */
typedef struct wire_peer {
    uint8_t id[WIRE_ID_BYTES];    /* routing id */
    size_t size;                  /* bytes of it; 0 for no peer */
    int connection;               /* descriptor of its connection; 0 or less if not known */
    unsigned roles;               /* bits of wire_role that it had when its message was received */
    char key[WIRE_KEY_TEXT];      /* its public key; "" without keys */
    char key_name[WIRE_KEY_NAME]; /* what the daemon's list of allowed keys calls it */
} wire_peer;

static inline bool wire_peer_is(const wire_peer *peer, const wire_peer *other)
{
    return peer->size == other->size && memcmp(peer->id, other->id, peer->size) == 0;
}

/* --- contexts --- */

/* ST_OS if the libzmq that was loaded is older than 4.3.4. */
WARN_UNUSED status wire_new(wire **out);
/* Lets `count` threads of ZeroMQ read, write and encrypt the connections, each of which stays with
 * one thread. Without this call there is one. Call it before the first socket and before the keys.
 */
WARN_UNUSED status wire_io_threads(wire *context, int count);
/* Call after all its sockets are closed. */
void wire_free(wire **context);

/* --- roles --- */

/* What a peer of a bound socket may ask for. Over tcp with keys its line in the daemon's file
 * `allowed` says it, as the daemon has read that file last. Over tcp without keys, which is
 * loopback, everyone may ask for all but control. Over ipc, whose peers are the users who may write
 * to the socket's file, control is for the user of this process and for root. */
typedef enum wire_role {
    WIRE_ROWS = 1,    /* to receive rows (HELLO) */
    WIRE_WORK = 2,    /* to make rows (JOIN) */
    WIRE_CONTROL = 4, /* to change what the daemon does (scale, drain) */
    WIRE_STATUS = 8,  /* to see what it does; who has control has this too */
    WIRE_TRUSTED = 16 /* to make rows that are taken as right, and by which those of others are
                         judged; who has it has work too */
} wire_role;
/* Those that a line can give. */
enum { WIRE_GIVEN = WIRE_ROWS | WIRE_WORK | WIRE_CONTROL | WIRE_TRUSTED };
#define WIRE_ROLE_NAMES "rows, work, control, trusted"

/* The role of WIRE_GIVEN with this name; 0 if there is none. */
unsigned wire_role_of(const char *word, size_t size);
/* Reads names of roles, separated by commas. ST_USAGE: not one of them; `what` says where the text
 * came from. */
WARN_UNUSED status wire_roles_read(const char *text, const char *what, unsigned *out);
/* Prints the names of these roles, separated by commas. */
enum { WIRE_ROLES_TEXT = 32 };
void wire_roles_print(unsigned roles, char out[WIRE_ROLES_TEXT]);
/* ST_CONFIG if the peer, called `name`, does not have the role. The note says what gives it: for a
 * key, the line to add. */
WARN_UNUSED status wire_may(const wire_peer *peer, wire_role role, const char *name);

/* --- keys --- */

/* Load CURVE keys from a folder that `prepd keygen` made, for the tcp sockets that are bound
 * (wire_serve_keys: the daemon) or connected (wire_use_keys: everyone else) from now on. ipc
 * sockets use no keys; they have the permissions of a file. */
WARN_UNUSED status wire_serve_keys(wire *context, const char *folder);
WARN_UNUSED status wire_use_keys(wire *context, const char *folder);
/* Reads the daemon's list of allowed keys again. Connections that are open stay open. If the list
 * cannot be read, or other users may write to it, the old one stays in force. */
WARN_UNUSED status wire_reload_keys(wire *context);
/* Whether FOLDER/allowed gives this role to some key. The errors are those of wire_serve_keys. */
WARN_UNUSED status wire_role_is_given(const char *folder, wire_role role, bool *out);
/* How many keys were refused since the last call; out describes the last of them. */
enum { WIRE_REFUSED_TEXT = 512 };
int64_t wire_keys_were_refused(wire *context, char out[WIRE_REFUSED_TEXT]);
/* keygen. client NULL makes the daemon's folder, with keys for a first client in it, which has all
 * roles but trusted. Otherwise makes FOLDER/CLIENT for another machine or user and adds its public
 * key, with these roles, to FOLDER/allowed. Existing keys are never overwritten (ST_CANT_CREATE).
 * After a failure, such as a full disk, it can be called again. */
WARN_UNUSED status wire_keys_make(const char *folder, const char *client, unsigned roles);

/* --- sockets --- */

/* What a peer of a bound socket may make us hold. 0 means no bound. */
typedef struct wire_limits {
    int64_t part_bytes;  /* largest part accepted; a peer that sends a larger one is cut off */
    int unsent;          /* messages that a peer has not taken; beyond it wire_send refuses */
    uint64_t io_threads; /* bit mask of the wire_io_threads that may get its connections */
    /* tcp only: bytes of a peer's messages that are incomplete or not read yet. A peer over
     * unread_bytes is cut off; if all peers together are over all_unread_bytes, so is the peer with
     * the most. ZeroMQ itself may keep up to 32 times as much memory, in the worst case for parts
     * of no bytes. wire_poll and wire_recv check this. */
    int64_t unread_bytes, all_unread_bytes;
    bool only_user; /* ipc only: none but this process's user and root may connect, whatever the
                     * umask is */
    int64_t known_bytes; /* unread_bytes of peers named by wire_know; they do not count in all */
} wire_limits;

/* Binds a socket at ipc://PATH or tcp://HOST:PORT. PATH may be of any length (endpoint_shorten).
 * Without keys HOST must be a loopback address. limits NULL allows parts up to 1 GiB and sets no
 * other bound. ST_UNAVAILABLE if a living process uses the address; a socket file that a dead
 * process left is replaced. */
WARN_UNUSED status wire_bind(wire *context, const char *endpoint, const wire_limits *limits,
                             wire_socket **out);
/* Connects without blocking: the other side may come later. */
WARN_UNUSED status wire_connect(wire *context, const char *endpoint, wire_socket **out);
/* The address at which a process of this machine reaches a daemon that is bound to `endpoint`: a
 * host that stands for every interface becomes loopback. The caller frees *out. */
WARN_UNUSED status wire_reachable(const char *endpoint, char **out);
/* Tells, without waiting, whether a process listens at an address. ST_OK for ipc means that one
 * does; for tcp it is always ST_OK, since nothing is known. ST_UNAVAILABLE: there is no socket, or
 * the process behind it has died. ST_CONFIG: this user may not write to the socket. The note says
 * what to do. */
WARN_UNUSED status wire_listens(const char *endpoint);
/* Fails as wire_bind would fail now: for want of keys or of the folder, or because the address is
 * in use (ST_UNAVAILABLE). Removes a socket file that a dead process left. A daemon that does
 * listen there sees a connection come and go. */
WARN_UNUSED status wire_may_bind(const wire *context, const char *endpoint);
/* True once a DEALER has completed the ZeroMQ handshake with a peer, which may have left since. */
bool wire_greeted(wire_socket *socket);
/* Tells a DEALER that its daemon was there before, on an earlier socket. Connections that end
 * within their handshake are then taken for a proxy (ssh -L, docker-proxy) that has no daemon
 * behind it at the moment, and are waited out. Otherwise the third such end counts as a refusal
 * (ST_CONFIG). */
void wire_expect(wire_socket *socket);
/* True if a connection ended within its handshake. */
bool wire_cut(wire_socket *socket);
/* Gives the peer the limit known_bytes from now on. */
void wire_know(wire_socket *socket, const wire_peer *peer);
/* How many peers were cut off over unread_bytes since the last call; out describes the last. */
int64_t wire_were_cut(wire_socket *socket, char out[WIRE_REFUSED_TEXT]);
/* Closes the socket and removes the ipc file that it bound. */
void wire_close(wire_socket **socket);

/* --- sending and receiving --- */

/* Sends a message to a peer (NULL for a DEALER). On success the message is empty; on failure it
 * keeps its parts. ST_TIMEOUT: the peer has not taken what was sent before (wire_limits.unsent); it
 * may later. ST_UNAVAILABLE: it cannot be reached. */
WARN_UNUSED status wire_send(wire_socket *socket, const wire_peer *to, wire_msg *message);
/* Receives a message. ST_TIMEOUT after timeout_ms (0 does not wait and notes nothing, -1 waits for
 * ever).
 *
 * from gets the peer; it may be NULL for a DEALER. ST_PROTOCOL, with from set: a ROUTER got a
 * message of impossible form, or from a peer that chose its own routing id; it is dropped whole. A
 * DEALER whose connection has ended first returns what had arrived, then ST_UNAVAILABLE for good,
 * because to the other side a new connection is a new peer: it takes a new socket and a new HELLO.
 */
WARN_UNUSED status wire_recv(wire_socket *socket, int timeout_ms, wire_peer *from,
                             wire_msg *message);

/* Waits until one of these can be read. A DEALER whose connection has ended counts as readable, and
 * wire_recv then says so. ST_OK with none ready after timeout_ms (-1 waits for ever). */
typedef struct wire_wait {
    wire_socket *socket; /* or NULL */
    int fd;              /* used if socket is NULL; -1 to ignore the entry */
    bool ready;          /* result */
} wire_wait;
WARN_UNUSED status wire_poll(wire_wait *items, size_t count, int timeout_ms);

/* --- messages of JSON --- */

/* Sends a header of this kind and row number (0 where none applies), and one part of JSON. */
WARN_UNUSED status wire_send_json(wire_socket *socket, const wire_peer *to, int kind, uint64_t row,
                                  const char *json, size_t size);

/* Sends KIND_ERROR with this code and wire_peer_text(). */
WARN_UNUSED status wire_send_error(wire_socket *socket, const wire_peer *to, uint64_t row,
                                   status code);
/* --- peers --- */

/* The address of a peer's connection without the port; "" over ipc or if it has ended. */
enum { WIRE_HOST_TEXT = 46 };
void wire_peer_host(const wire_peer *peer, char out[WIRE_HOST_TEXT]);
/* "peer 006b8b4567" for errors and logs; a long id is cut. */
enum { WIRE_PEER_TEXT = 160 };
void wire_peer_print(const wire_peer *peer, char out[WIRE_PEER_TEXT]);

/* --- addresses --- */

/* The address beside an endpoint, at which the daemon serves workers (step 1) or control (step 2):
 * ENDPOINT.workers and ENDPOINT.control for ipc, the next two ports for tcp. The caller frees
 * *out. */
WARN_UNUSED status wire_beside(const char *endpoint, int step, char **out);
bool wire_is_ipc(const char *endpoint);

#endif
