/* SPDX-License-Identifier: Apache-2.0 */
/* wire_guard.c: follows connections through what ZeroMQ reports of them, counts what came over each tcp
 * connection and cuts off peers over their limits.
 *
 * Connections are kept by descriptor. The kernel reuses a descriptor once its connection has ended,
 * so each entry also has the connection's cookie (SO_COOKIE), which is never used again; an entry
 * whose cookie has changed is that of another connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "proto/wire/wire_socket.h"

enum {
    SHORT_FRAME = 255,      /* ZMTP frames: flags and 1 byte of size; longer ones have 8 bytes */
    CURVE_BYTES = 33,       /* CURVE adds to a part "MESSAGE", nonce, authenticator and flags */
    HANDSHAKE_BYTES = 1024, /* counted as unread for ever, and no fault; allowed per connection */
    LOOKED_NS = 100000,     /* pause per connection between looks; a look at one takes 2 us */
    MOST_MS = 250,          /* longest pause */
    MAX_FD = 1 << 20,
    /* A daemon that starts or stops may cut off a handshake. So many in a row mean a refusal,
     * unless a daemon was there before (wire_expect). */
    CUT_LIMIT = 3,
};

status wire_zmq_failed(const char *what, const char *name)
{
    return FAIL(ST_OS, "%s %s: %s", what, name, zmq_strerror(zmq_errno()));
}

status wire_monitor(wire *context, void *socket, const char *name, int events, void **out)
{
    char address[64];
    const int zero = 0;
    /* Each monitor gets its own name: a thread of ZeroMQ's frees a name some time after its
     * socket was closed. */
    snprintf(address, sizeof address, "inproc://monitor-%llu",
             (unsigned long long)context->monitors++);
    /* RCVHWM 0, or ZeroMQ's thread would wait until we read. */
    if (zmq_socket_monitor(socket, address, events) != 0 ||
        !(*out = zmq_socket(context->context, ZMQ_PAIR)) ||
        zmq_setsockopt(*out, ZMQ_LINGER, &zero, sizeof zero) != 0 ||
        zmq_setsockopt(*out, ZMQ_RCVHWM, &zero, sizeof zero) != 0 ||
        zmq_connect(*out, address) != 0)
        return wire_zmq_failed("monitoring", name);
    return ST_OK;
}

void wire_read_events(wire_socket *socket)
{
    while (socket->monitor) {
        uint8_t event[6]; /* u16 event, u32 value, in the machine's byte order */
        char address[256];
        int size = zmq_recv(socket->monitor, event, sizeof event, ZMQ_DONTWAIT);
        if (size < 0 && zmq_errno() == EINTR)
            continue;
        if (size < 0)
            return;
        (void)!zmq_recv(socket->monitor, address, sizeof address, ZMQ_DONTWAIT);
        uint16_t what = 0;
        uint32_t value = 0;
        if (size >= (int)sizeof event) {
            memcpy(&what, event, sizeof what);
            memcpy(&value, event + sizeof what, sizeof value);
        }
        socket->greeted |= what == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        socket->lost |= what == ZMQ_EVENT_DISCONNECTED && socket->greeted;
        /* A handshake that took too long does not count: the other side may be stopped or busy. */
        socket->cut +=
            what == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && (value == EPIPE || value == ECONNRESET);
        socket->refused |= what == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH ||
                           what == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL ||
                           (socket->cut >= CUT_LIMIT && !socket->greeted && !socket->expected);
    }
}

/* --- the guard --- */

typedef struct connection {
    uint64_t cookie; /* the kernel's name of the socket; 0 if no connection is known here */
    int64_t read;    /* bytes that became messages */
    bool known;      /* wire_know */
} connection;

struct wire_guard {
    void *socket; /* borrowed */
    void *events; /* PAIR socket that tells which connections were accepted */
    wire_limits limits;
    int port; /* at which the socket listens */
    bool curve;
    connection *at; /* [capacity] by descriptor */
    int capacity;
    int64_t next_ns; /* when to look next */
    int64_t cut;     /* peers cut off since the last question */
    char last[WIRE_REFUSED_TEXT];
};

/* 0 if the socket has none. */
static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

static int port_of(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    return address->ss_family == AF_INET ? ntohs(((const struct sockaddr_in *)address)->sin_port)
                                         : 0;
}

/* The port at our end; 0 if this is not a tcp connection. */
static int own_port(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &size) == 0 ? port_of(&address) : 0;
}

/* Bytes that came over a connection so far; -1 if the kernel does not say. */
static int64_t came_of(int fd)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        size < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received)
        return -1;
    return (int64_t)info.tcpi_bytes_received;
}

status wire_guard_new(wire *context, void *socket, const char *name, int port,
                      const wire_limits *limits, bool curve, wire_guard **out)
{
    wire_guard *guard = calloc(1, sizeof *guard);
    if (!guard)
        return FAIL(ST_NO_MEMORY, "no memory for a socket");
    guard->socket = socket;
    guard->port = port;
    guard->limits = *limits;
    guard->curve = curve;
    status st = wire_monitor(context, socket, name, ZMQ_EVENT_ACCEPTED, &guard->events);
    if (st != ST_OK) {
        wire_guard_free(&guard);
        return st;
    }
    *out = guard;
    return ST_OK;
}

void wire_guard_free(wire_guard **guard)
{
    wire_guard *watch = guard ? *guard : NULL;
    if (!watch)
        return;
    zmq_socket_monitor(watch->socket, NULL, 0); /* while the socket lives */
    if (watch->events)
        zmq_close(watch->events);
    free(watch->at);
    free(watch);
    *guard = NULL;
}

/* Notes a connection. It becomes known through the monitor or through its own first message,
 * whichever comes first, since one thread of ZeroMQ accepts it and another may read it. */
static void accepted(wire_guard *guard, int fd)
{
    if (fd < 0 || fd >= MAX_FD)
        return;
    if (fd >= guard->capacity) {
        const int count = fd + fd / 2 + 16;
        connection *grown = realloc(guard->at, (size_t)count * sizeof *grown);
        if (!grown)
            return; /* then it is not watched; memory is exhausted anyway */
        memset(grown + guard->capacity, 0, (size_t)(count - guard->capacity) * sizeof *grown);
        guard->at = grown;
        guard->capacity = count;
    }
    /* The connection may have ended meanwhile, and a connection of another socket may have its
     * descriptor, so the port is compared. It is asked after the cookie: if the descriptor changes
     * hands in between, the cookie is that of an ended connection and matches nothing later. */
    const uint64_t cookie = cookie_of(fd);
    if (!cookie || guard->at[fd].cookie != cookie)
        guard->at[fd] = (connection){.cookie = own_port(fd) == guard->port ? cookie : 0};
}

static void read_events(wire_guard *guard)
{
    for (;;) {
        uint8_t event[6]; /* u16 event, u32 value, in the machine's byte order */
        uint32_t fd;
        char address[256];
        const int size = zmq_recv(guard->events, event, sizeof event, ZMQ_DONTWAIT);
        if (size < 0 && zmq_errno() == EINTR)
            continue;
        if (size < 0)
            return;
        (void)!zmq_recv(guard->events, address, sizeof address, ZMQ_DONTWAIT);
        if (size != sizeof event)
            continue;
        memcpy(&fd, event + 2, sizeof fd);
        accepted(guard, (int)fd);
    }
}

static connection *find_connection(wire_guard *guard, int fd)
{
    return fd > 0 && fd < guard->capacity && guard->at[fd].cookie ? &guard->at[fd] : NULL;
}

int64_t wire_guard_framed(const wire_guard *guard, int part_bytes)
{
    const int64_t bytes = (int64_t)part_bytes + (guard->curve ? CURVE_BYTES : 0);
    return bytes + (bytes > SHORT_FRAME ? 9 : 2);
}

void wire_guard_count(wire_guard *guard, int fd, int64_t bytes)
{
    accepted(guard, fd);
    connection *peer = find_connection(guard, fd);
    if (peer)
        peer->read += bytes;
}

void wire_guard_know(wire_guard *guard, int fd)
{
    connection *peer = find_connection(guard, fd);
    if (peer)
        peer->known = true;
}

/* Bytes that came over the connection and were not read; -1 if it has ended. Bytes that belong to
 * no message (the handshake, a peer's heartbeats) or to needlessly long frames stay in the count:
 * forgiving them would let a message without an end hide as many of its own. */
static int64_t unread(connection *peer, int fd)
{
    const int64_t came = came_of(fd);
    if (came < 0 || cookie_of(fd) != peer->cookie)
        return -1;
    if (peer->read > came) /* some were counted for an earlier connection at this descriptor */
        peer->read = came;
    return came - peer->read;
}

/* Writes the peer's address, "" if it has none, and returns its port. */
static int peer_of(int fd, char host[WIRE_HOST_TEXT])
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    host[0] = 0;
    if (getpeername(fd, (struct sockaddr *)&address, &size) == 0 && address.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)&address;
        inet_ntop(AF_INET6, &in->sin6_addr, host, WIRE_HOST_TEXT);
    } else if (address.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&address;
        inet_ntop(AF_INET, &in->sin_addr, host, WIRE_HOST_TEXT);
    }
    return port_of(&address);
}

void wire_peer_host(const wire_peer *peer, char out[WIRE_HOST_TEXT])
{
    out[0] = 0;
    if (peer->connection > 0)
        (void)peer_of(peer->connection, out);
}

static void cut_connection(wire_guard *guard, int fd, int64_t bytes)
{
    char host[WIRE_HOST_TEXT];
    const int port = peer_of(fd, host);
    snprintf(guard->last, sizeof guard->last,
             "%s port %d: %lld bytes that make no whole message or wait unread",
             host[0] ? host : "?", port, (long long)bytes);
    shutdown(fd, SHUT_RDWR); /* ZeroMQ sees the end, frees its buffers and closes */
    guard->at[fd] = (connection){0};
    guard->cut++;
}

void wire_guard_look(wire_guard *guard)
{
    const int64_t now = clock_ns();
    if (now < guard->next_ns)
        return;
    int64_t all = 0, most = 0;
    int worst = -1, count = 0;
    read_events(guard);
    for (int fd = 0; fd < guard->capacity; fd++) {
        connection *peer = find_connection(guard, fd);
        if (!peer)
            continue;
        count++;
        const int64_t bytes = unread(peer, fd);
        if (bytes < 0)
            *peer = (connection){0};
        else if (bytes > (peer->known ? guard->limits.known_bytes : guard->limits.unread_bytes))
            cut_connection(guard, fd, bytes);
        else if (!peer->known && bytes > HANDSHAKE_BYTES) {
            all += bytes - HANDSHAKE_BYTES;
            if (bytes > most) {
                most = bytes;
                worst = fd;
            }
        }
    }
    if (all > guard->limits.all_unread_bytes) /* one per look; the next look sees what that freed */
        cut_connection(guard, worst, most);
    int64_t pause = (int64_t)count * LOOKED_NS;
    if (pause < WIRE_GUARD_MS * 1000000LL)
        pause = WIRE_GUARD_MS * 1000000LL;
    if (pause > MOST_MS * 1000000LL)
        pause = MOST_MS * 1000000LL;
    guard->next_ns = now + pause;
}

int64_t wire_guard_were_cut(wire_guard *guard, char out[WIRE_REFUSED_TEXT])
{
    const int64_t cut = guard->cut;
    if (cut)
        memcpy(out, guard->last, sizeof guard->last);
    guard->cut = 0;
    return cut;
}
