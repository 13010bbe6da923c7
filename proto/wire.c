/* wire.c: makes, connects and closes sockets over ZeroMQ. Sending and receiving is in wire_io.c,
 * the limits on peers in wire_guard.c, keys in wire_keys.c, messages in wire_msg.c, addresses in
 * endpoint.c. */
#include "proto/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/endpoint.h"
#include "proto/wire_keys.h"
#include "proto/wire_socket.h"

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
    wire *w = calloc(1, sizeof *w);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for a ZeroMQ context");
    w->context = zmq_ctx_new();
    if (!w->context) {
        free(w);
        return wire_zmq_failed("making", "a ZeroMQ context");
    }
    *out = w;
    return ST_OK;
}

status wire_io_threads(wire *w, int n)
{
    return zmq_ctx_set(w->context, ZMQ_IO_THREADS, n) == 0
               ? ST_OK
               : wire_zmq_failed("setting up", "ZeroMQ's threads");
}

void wire_free(wire **w)
{
    if (!w || !*w)
        return;
    if ((*w)->keys)
        wire_keys_free(&(*w)->keys);
    while (zmq_ctx_term((*w)->context) != 0 && zmq_errno() == EINTR)
        continue;
    endpoint_folders_done(&(*w)->folders);
    free(*w);
    *w = NULL;
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
static status set_options(wire_socket *s, const endpoint *e, const wire_limits *limits)
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
        {ZMQ_IPV6, e->is_ip6},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        TRY(set_int(s->socket, options[i][0], options[i][1], s->name));
    if (s->is_router)
        TRY(set_int(s->socket, ZMQ_ROUTER_MANDATORY, 1, s->name));
    const uint64_t io_threads = limits->io_threads;
    if (zmq_setsockopt(s->socket, ZMQ_MAXMSGSIZE, &part_bytes, sizeof part_bytes) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_AFFINITY, &io_threads, sizeof io_threads) != 0)
        return wire_zmq_failed("setting up", s->name);
    if (s->wire->keys && !e->is_ipc)
        TRY(wire_keys_apply(s->wire->keys, s->socket, s->name));
    return ST_OK;
}

/* On this machine, being able to connect is trusted; beyond it, only keys are. */
static status check_keys(const wire *w, const char *text, const endpoint *e, bool binds)
{
    if (e->is_ipc || e->is_local || w->keys)
        return ST_OK;
    return FAIL(ST_CONFIG, "endpoint \"%s\": an address beyond loopback needs CURVE keys: %s", text,
                binds ? "make them with prepd keygen --out FOLDER and name FOLDER in prepd.keys"
                      : WIRE_KEYS_REMEDY " and name that folder in prepd.keys (--keys)");
}

status wire_may_bind(const wire *w, const char *text)
{
    endpoint e;
    TRY(endpoint_parse(text, &e));
    TRY(check_keys(w, text, &e, true));
    return endpoint_unused(text, &e);
}

static status socket_new(wire *w, const char *name, const endpoint *e, bool is_router,
                         const wire_limits *limits, wire_socket **out)
{
    static const wire_limits none = {0};
    TRY(check_keys(w, name, e, is_router));
    wire_socket *s = calloc(1, sizeof *s);
    status st = ST_OK;
    if (!s || !(s->name = strdup(name))) {
        st = FAIL(ST_NO_MEMORY, "no memory for a socket");
        goto failed;
    }
    s->wire = w;
    s->is_router = is_router;
    s->socket = zmq_socket(w->context, is_router ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!s->socket) {
        st = wire_zmq_failed("making a socket for", name);
        goto failed;
    }
    TRY_OR(failed, set_options(s, e, limits ? limits : &none));
    *out = s;
    return ST_OK;
failed:
    wire_close(&s);
    return st;
}

static status bind_failed(const char *name)
{
    int error = zmq_errno();
    if (error == EADDRINUSE)
        return endpoint_in_use(name);
    return FAIL(ST_CANT_CREATE, "cannot listen on %s: %s", name, zmq_strerror(error));
}

status wire_serve_keys(wire *w, const char *folder)
{
    TRY(wire_keys_load(folder, true, &w->keys));
    return wire_keys_listen(w->keys, w->context);
}

status wire_use_keys(wire *w, const char *folder)
{
    return wire_keys_load(folder, false, &w->keys);
}

int64_t wire_were_cut(wire_socket *s, char out[WIRE_REFUSED_TEXT])
{
    return s->guard ? wire_guard_were_cut(s->guard, out) : 0;
}

void wire_know(wire_socket *s, const wire_peer *peer)
{
    if (s->guard)
        wire_guard_know(s->guard, peer->connection);
}

status wire_reload_keys(wire *w)
{
    return w->keys ? wire_keys_reload(w->keys) : ST_OK;
}

int64_t wire_keys_were_refused(wire *w, char out[WIRE_REFUSED_TEXT])
{
    return w->keys ? wire_keys_refused(w->keys, out) : 0;
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

status wire_bind(wire *w, const char *text, const wire_limits *limits, wire_socket **out)
{
    endpoint e;
    wire_socket *s = NULL;
    status st = ST_OK;
    TRY(endpoint_parse(text, &e));
    TRY(endpoint_shorten(&e, &w->folders));
    if (e.is_ipc)
        TRY(endpoint_clear_ipc(&e));
    TRY(seed_ids(text));
    TRY(socket_new(w, text, &e, true, limits, &s));
    if (!e.is_ipc && limits && limits->unread_bytes)
        TRY_OR(failed,
               wire_guard_new(w, s->socket, text, e.port, limits, w->keys != NULL, &s->guard));
    if (zmq_bind(s->socket, e.text) != 0) {
        st = bind_failed(text);
        goto failed;
    }
    if (e.is_ipc && !(s->bound_path = strdup(e.path))) {
        st = FAIL(ST_NO_MEMORY, "no memory for a socket");
        goto failed;
    }
    *out = s;
    return ST_OK;
failed:
    wire_close(&s);
    return st;
}

status wire_connect(wire *w, const char *text, wire_socket **out)
{
    endpoint e;
    wire_socket *s = NULL;
    status st = ST_OK;
    TRY(endpoint_parse(text, &e));
    TRY(endpoint_shorten(&e, &w->folders));
    TRY(socket_new(w, text, &e, false, NULL, &s));
    TRY_OR(failed, wire_monitor(w, s->socket, text, EVENTS, &s->monitor));
    if (zmq_connect(s->socket, e.text) != 0) {
        st = FAIL(ST_UNAVAILABLE, "cannot connect to %s: %s", text, zmq_strerror(zmq_errno()));
        goto failed;
    }
    *out = s;
    return ST_OK;
failed:
    wire_close(&s);
    return st;
}

bool wire_greeted(wire_socket *s)
{
    wire_read_events(s);
    return s->greeted;
}

void wire_expect(wire_socket *s)
{
    s->expected = true;
}

bool wire_cut(wire_socket *s)
{
    wire_read_events(s);
    return s->cut > 0;
}

void wire_close(wire_socket **socket)
{
    wire_socket *s = socket ? *socket : NULL;
    if (!s)
        return;
    if (s->monitor) {
        int linger = 0;
        wire_read_events(s);
        if (!s->greeted || s->lost) /* there is no peer to wait for */
            zmq_setsockopt(s->socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_socket_monitor(s->socket, NULL, 0);
        zmq_close(s->monitor);
    }
    wire_guard_free(&s->guard);
    if (s->socket)
        zmq_close(s->socket);
    if (s->bound_path)
        unlink(s->bound_path); /* ZeroMQ does so too, but later and in its own thread */
    free(s->bound_path);
    free(s->name);
    free(s);
    *socket = NULL;
}
