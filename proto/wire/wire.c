/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c: makes, connects and closes sockets over ZeroMQ. Sending and receiving is in wire_io.c,
 * the limits on peers in wire_guard.c, keys in wire_keys.c, roles in wire_allowed.c, messages in
 * wire_msg.c, addresses in endpoint.c. */
#include "proto/wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/wire/wire_socket.h"

enum {
    LINGER_MS = 2000,
    KEEPALIVE_S = 3, /* on an idle connection: the kernel finds it dead after four times this */
    KEEPALIVES = 3,
    UNHEARD_MS = 10000, /* the same for a connection with data on its way */
    HANDSHAKE_MS = 5000,
    RECONNECT_MAX_MS = 1000,
    BACKLOG = 1024, /* a thousand workers may connect at once */
    EVENTS = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
             ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
             ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL, /* these tell that a peer has left */
};
static const int64_t MAX_PART_BYTES = (int64_t)1 << 30;

status wire_new(wire **out)
{
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    if (ZMQ_MAKE_VERSION(major, minor, patch) < ZMQ_MAKE_VERSION(4, 3, 4))
        return FAIL(ST_OS,
                    "libzmq %d.%d.%d is loaded, but at least 4.3.4 is needed (CVE-2020-15166)",
                    major, minor, patch);
    wire *context = calloc(1, sizeof *context);
    if (!context)
        return FAIL(ST_NO_MEMORY, "no memory for a ZeroMQ context");
    context->context = zmq_ctx_new();
    if (!context->context) {
        free(context);
        return wire_zmq_failed("making", "a ZeroMQ context");
    }
    *out = context;
    return ST_OK;
}

status wire_io_threads(wire *context, int count)
{
    return zmq_ctx_set(context->context, ZMQ_IO_THREADS, count) == 0
               ? ST_OK
               : wire_zmq_failed("setting up", "ZeroMQ's threads");
}

void wire_free(wire **context)
{
    if (!context || !*context)
        return;
    if ((*context)->keys)
        wire_keys_free(&(*context)->keys);
    while (zmq_ctx_term((*context)->context) != 0 && zmq_errno() == EINTR)
        continue;
    endpoint_folders_done(&(*context)->folders);
    free(*context);
    *context = NULL;
}

static status set_int(void *socket, int option, int value, const char *name)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) != 0)
        return wire_zmq_failed("setting up", name);
    return ST_OK;
}

/* Must come before bind and connect, since later settings are ignored. The kernel finds dead
 * connections (keepalives), not ZeroMQ's heartbeats: they would need an answer from a program that
 * may be busy. */
static status set_options(wire_socket *socket, const endpoint *address, const wire_limits *limits)
{
    const int64_t part_bytes = limits->part_bytes ? limits->part_bytes : MAX_PART_BYTES;
    const int options[][2] = {
        {ZMQ_LINGER, LINGER_MS},
        {ZMQ_SNDHWM, limits->unsent},
        {ZMQ_RCVHWM, 0}, /* wire_guard.h says why */
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_S},
        {ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_S},
        {ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVES},
        {ZMQ_TCP_MAXRT, UNHEARD_MS},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
        {ZMQ_BACKLOG, BACKLOG},
        {ZMQ_IPV6, address->is_ip6},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        TRY(set_int(socket->socket, options[i][0], options[i][1], socket->name));
    if (socket->is_router)
        TRY(set_int(socket->socket, ZMQ_ROUTER_MANDATORY, 1, socket->name));
    const uint64_t io_threads = limits->io_threads;
    if (zmq_setsockopt(socket->socket, ZMQ_MAXMSGSIZE, &part_bytes, sizeof part_bytes) != 0 ||
        zmq_setsockopt(socket->socket, ZMQ_AFFINITY, &io_threads, sizeof io_threads) != 0)
        return wire_zmq_failed("setting up", socket->name);
    if (socket->wire->keys && !address->is_ipc)
        TRY(wire_keys_apply(socket->wire->keys, socket->socket, socket->name));
    return ST_OK;
}

/* On this machine, being able to connect is trusted; beyond it, only keys are. */
static status check_keys(const wire *context, const char *text, const endpoint *address, bool binds)
{
    if (address->is_ipc || address->is_local || context->keys)
        return ST_OK;
    return FAIL(ST_CONFIG, "endpoint \"%s\": an address beyond loopback needs CURVE keys: %s", text,
                binds ? "make them with prepd keygen --out FOLDER and name FOLDER in prepd.keys"
                      : WIRE_KEYS_REMEDY " and name that folder in prepd.keys (--keys)");
}

status wire_may_bind(const wire *context, const char *text)
{
    endpoint address;
    TRY(endpoint_parse(text, &address));
    TRY(check_keys(context, text, &address, true));
    return endpoint_unused(text, &address);
}

static status socket_new(wire *context, const char *name, const endpoint *address, bool is_router,
                         const wire_limits *limits, wire_socket **out)
{
    static const wire_limits none = {0};
    TRY(check_keys(context, name, address, is_router));
    wire_socket *socket = calloc(1, sizeof *socket);
    status st = ST_OK;
    if (!socket || !(socket->name = strdup(name))) {
        st = FAIL(ST_NO_MEMORY, "no memory for a socket");
        goto failed;
    }
    socket->wire = context;
    socket->is_router = is_router;
    socket->is_ipc = address->is_ipc;
    socket->user = (int64_t)geteuid();
    socket->socket = zmq_socket(context->context, is_router ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!socket->socket) {
        st = wire_zmq_failed("making a socket for", name);
        goto failed;
    }
    TRY_OR(failed, set_options(socket, address, limits ? limits : &none));
    *out = socket;
    return ST_OK;
failed:
    wire_close(&socket);
    return st;
}

static status bind_failed(const char *name)
{
    int error = zmq_errno();
    if (error == EADDRINUSE)
        return endpoint_in_use(name);
    return FAIL(ST_CANT_CREATE, "cannot listen on %s: %s", name, zmq_strerror(error));
}

int64_t wire_were_cut(wire_socket *socket, char out[WIRE_REFUSED_TEXT])
{
    return socket->guard ? wire_guard_were_cut(socket->guard, out) : 0;
}

void wire_know(wire_socket *socket, const wire_peer *peer)
{
    if (socket->guard)
        wire_guard_know(socket->guard, peer->connection);
}

/* A ROUTER counts the ids that it gives to peers from rand(), which libzmq does not seed, so they
 * would be the same in every process. A peer that knows them can claim the next one, and libzmq
 * ends the process when it then gives that id itself. So the start is made random. */
static status seed_ids(const char *name)
{
    unsigned seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return FAIL(ST_OS, "cannot get a random number for the peers' ids at %s", name);
    srand(seed);
    return ST_OK;
}

/* Makes an ipc socket that only this process's user may connect to,
 * and lets ZeroMQ accept from it. */
static status listen_privately(wire_socket *socket, const endpoint *address)
{
    int fd;
    TRY(endpoint_listen_private(address, BACKLOG, &fd));
    socket->bound_path = strdup(address->path);
    status st = socket->bound_path ? set_int(socket->socket, ZMQ_USE_FD, fd, socket->name)
                                   : FAIL(ST_NO_MEMORY, "no memory for a socket");
    if (st != ST_OK)
        close(fd);
    return st;
}

status wire_bind(wire *context, const char *text, const wire_limits *limits, wire_socket **out)
{
    endpoint address;
    wire_socket *socket = NULL;
    status st = ST_OK;
    TRY(endpoint_parse(text, &address));
    TRY(endpoint_shorten(&address, &context->folders));
    if (address.is_ipc)
        TRY(endpoint_clear_ipc(&address));
    TRY(seed_ids(text));
    TRY(socket_new(context, text, &address, true, limits, &socket));
    if (!address.is_ipc && limits && limits->unread_bytes)
        TRY_OR(failed, wire_guard_new(context, socket->socket, text, address.port, limits,
                                      context->keys != NULL, &socket->guard));
    if (address.is_ipc && limits && limits->only_user)
        TRY_OR(failed, listen_privately(socket, &address));
    if (zmq_bind(socket->socket, address.text) != 0) {
        st = bind_failed(text);
        goto failed;
    }
    if (address.is_ipc && !socket->bound_path && !(socket->bound_path = strdup(address.path))) {
        st = FAIL(ST_NO_MEMORY, "no memory for a socket");
        goto failed;
    }
    *out = socket;
    return ST_OK;
failed:
    wire_close(&socket);
    return st;
}

status wire_connect(wire *context, const char *text, wire_socket **out)
{
    endpoint address;
    wire_socket *socket = NULL;
    status st = ST_OK;
    TRY(endpoint_parse(text, &address));
    TRY(endpoint_shorten(&address, &context->folders));
    TRY(socket_new(context, text, &address, false, NULL, &socket));
    TRY_OR(failed, wire_monitor(context, socket->socket, text, EVENTS, &socket->monitor));
    if (zmq_connect(socket->socket, address.text) != 0) {
        st = FAIL(ST_UNAVAILABLE, "cannot connect to %s: %s", text, zmq_strerror(zmq_errno()));
        goto failed;
    }
    *out = socket;
    return ST_OK;
failed:
    wire_close(&socket);
    return st;
}

bool wire_greeted(wire_socket *socket)
{
    wire_read_events(socket);
    return socket->greeted;
}

void wire_expect(wire_socket *socket)
{
    socket->expected = true;
}

bool wire_cut(wire_socket *socket)
{
    wire_read_events(socket);
    return socket->cut > 0;
}

void wire_close(wire_socket **socket)
{
    wire_socket *wire_end = socket ? *socket : NULL;
    if (!wire_end)
        return;
    if (wire_end->monitor) {
        int linger = 0;
        wire_read_events(wire_end);
        if (!wire_end->greeted || wire_end->lost) /* there is no peer to wait for */
            zmq_setsockopt(wire_end->socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_socket_monitor(wire_end->socket, NULL, 0);
        zmq_close(wire_end->monitor);
    }
    wire_guard_free(&wire_end->guard);
    if (wire_end->socket)
        zmq_close(wire_end->socket);
    if (wire_end->bound_path)
        unlink(wire_end->bound_path); /* ZeroMQ does so too, but later and in its own thread */
    free(wire_end->bound_path);
    free(wire_end->name);
    free(wire_end);
    *socket = NULL;
}
