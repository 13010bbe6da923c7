/* wire.c: sockets over ZeroMQ. Messages are in wire_msg.c, addresses in endpoint.c. */
#include "proto/wire.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zmq.h>

#include "common/clock.h"
#include "proto/endpoint.h"
#include "proto/wire_keys.h"
#include "proto/wire_msg.h"

enum {
    LINGER_MS = 2000,
    HEARTBEAT_MS = 2000,
    HEARTBEAT_TIMEOUT_MS = 10000, /* a loaded machine may stall a live peer for seconds */
    KEEPALIVE_S = 3, /* for peers without heartbeats: the kernel finds out in three of these */
    KEEPALIVES = 3,
    HANDSHAKE_MS = 5000,
    RECONNECT_MAX_MS = 1000,
    CUT_LIMIT = 3,  /* a daemon that starts or stops may cut one off; this is its answer */
    BACKLOG = 1024, /* a thousand workers may connect at once */
};
static const int64_t MAX_PART_BYTES = (int64_t)1 << 30;

struct wire {
    void *context;
    wire_keys *keys;          /* NULL: none */
    endpoint_folders folders; /* of long ipc paths; closed when ZeroMQ's thread has ended */
};

struct wire_socket {
    wire *wire; /* borrowed */
    void *socket;
    void *monitor; /* DEALER: PAIR with the connection's events */
    bool is_router;
    bool greeted;     /* the ZeroMQ handshake has succeeded once */
    bool lost;        /* and the connection has ended since: a new one would be a stranger there */
    int cut;          /* connections that ended in the middle of the handshake */
    bool refused;     /* keys: the other side demands others, or ours are unknown to it */
    char *bound_path; /* ipc file to remove */
    char *name;       /* endpoint, for errors */
};

static status zmq_failed(const char *what, const char *name)
{
    return FAIL(ST_OS, "%s %s: %s", what, name, zmq_strerror(zmq_errno()));
}

status wire_new(wire **out)
{
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    if (ZMQ_MAKE_VERSION(major, minor, patch) < ZMQ_MAKE_VERSION(4, 3, 4))
        return FAIL(ST_OS, "libzmq %d.%d.%d is loaded, at least 4.3.4 is needed (CVE-2020-15166)",
                    major, minor, patch);
    wire *w = calloc(1, sizeof *w);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for a ZeroMQ context");
    w->context = zmq_ctx_new();
    if (!w->context) {
        free(w);
        return zmq_failed("making", "a ZeroMQ context");
    }
    *out = w;
    return ST_OK;
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
        return zmq_failed("setting up", name);
    return ST_OK;
}

/* All before bind and connect: later settings are ignored. Only the connecting side asks for
 * heartbeats: it tells the other how long to wait for the next (TTL), and libzmq 4.3.4 aborts
 * ("!_io_error") when it is time for one to a peer that has gone while its queue was full. */
static status set_options(wire_socket *s, const endpoint *e, const wire_limits *limits)
{
    const int64_t part_bytes = limits->part_bytes ? limits->part_bytes : MAX_PART_BYTES;
    const int options[][2] = {
        {ZMQ_LINGER, LINGER_MS},
        {ZMQ_SNDHWM, limits->unsent},
        {ZMQ_RCVHWM, limits->unread},
        {ZMQ_HEARTBEAT_IVL, s->is_router ? 0 : HEARTBEAT_MS},
        {ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS},
        {ZMQ_HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_S},
        {ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_S},
        {ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVES},
        {ZMQ_TCP_MAXRT, HEARTBEAT_TIMEOUT_MS},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
        {ZMQ_BACKLOG, BACKLOG},
        {ZMQ_IPV6, e->is_ip6},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        TRY(set_int(s->socket, options[i][0], options[i][1], s->name));
    if (s->is_router)
        TRY(set_int(s->socket, ZMQ_ROUTER_MANDATORY, 1, s->name));
    if (zmq_setsockopt(s->socket, ZMQ_MAXMSGSIZE, &part_bytes, sizeof part_bytes) != 0)
        return zmq_failed("setting up", s->name);
    if (s->wire->keys && !e->is_ipc)
        TRY(wire_keys_apply(s->wire->keys, s->socket, s->name));
    return ST_OK;
}

/* Beyond this machine nobody is trusted for being able to connect. */
static status check_keys(const wire *w, const char *text, const endpoint *e)
{
    if (e->is_ipc || e->is_local || w->keys)
        return ST_OK;
    return FAIL(ST_CONFIG,
                "endpoint \"%s\": other than loopback addresses need CURVE keys: make them with "
                "prepd keygen and name their folder in prepd.keys (--keys)",
                text);
}

static status socket_new(wire *w, const char *name, const endpoint *e, bool is_router,
                         const wire_limits *limits, wire_socket **out)
{
    static const wire_limits none = {0};
    TRY(check_keys(w, name, e));
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
        st = zmq_failed("making a socket for", name);
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
        return FAIL(ST_UNAVAILABLE,
                    "%s is in use by another process; stop it or choose another prepd.endpoint",
                    name);
    return FAIL(ST_CANT_CREATE, "can not listen on %s: %s", name, zmq_strerror(error));
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

status wire_reload_keys(wire *w)
{
    return w->keys ? wire_keys_reload(w->keys) : ST_OK;
}

int64_t wire_keys_were_refused(wire *w, char out[WIRE_REFUSED_TEXT])
{
    return w->keys ? wire_keys_refused(w->keys, out) : 0;
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
    TRY(socket_new(w, text, &e, true, limits, &s));
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

/* Follows the connection's events, so that a peer that went is noticed at once. */
static status monitor(wire *w, wire_socket *s)
{
    char address[64];
    int linger = 0;
    snprintf(address, sizeof address, "inproc://monitor-%p", (void *)s);
    if (zmq_socket_monitor(s->socket, address,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) != 0)
        return zmq_failed("monitoring", s->name);
    s->monitor = zmq_socket(w->context, ZMQ_PAIR);
    if (!s->monitor || zmq_setsockopt(s->monitor, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_connect(s->monitor, address) != 0)
        return zmq_failed("monitoring", s->name);
    return ST_OK;
}

status wire_connect(wire *w, const char *text, wire_socket **out)
{
    endpoint e;
    wire_socket *s = NULL;
    status st = ST_OK;
    TRY(endpoint_parse(text, &e));
    TRY(endpoint_shorten(&e, &w->folders));
    TRY(socket_new(w, text, &e, false, NULL, &s));
    TRY_OR(failed, monitor(w, s));
    if (zmq_connect(s->socket, e.text) != 0) {
        st = FAIL(ST_UNAVAILABLE, "can not connect to %s: %s", text, zmq_strerror(zmq_errno()));
        goto failed;
    }
    *out = s;
    return ST_OK;
failed:
    wire_close(&s);
    return st;
}

/* Reads what the monitor has to say, without waiting. */
static void read_events(wire_socket *s)
{
    while (s->monitor) {
        uint8_t event[6]; /* u16 event, u32 value, in the machine's byte order */
        char address[256];
        int size = zmq_recv(s->monitor, event, sizeof event, ZMQ_DONTWAIT);
        if (size < 0 && zmq_errno() == EINTR)
            continue;
        if (size < 0)
            return;
        (void)!zmq_recv(s->monitor, address, sizeof address, ZMQ_DONTWAIT);
        uint16_t what = 0;
        if (size >= (int)sizeof what)
            memcpy(&what, event, sizeof what);
        s->greeted |= what == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        s->lost |= what == ZMQ_EVENT_DISCONNECTED && s->greeted;
        s->cut += what == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
        s->refused |= what == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH ||
                      what == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL ||
                      (s->cut >= CUT_LIMIT && !s->greeted);
    }
}

bool wire_greeted(wire_socket *s)
{
    read_events(s);
    return s->greeted;
}

void wire_close(wire_socket **socket)
{
    wire_socket *s = socket ? *socket : NULL;
    if (!s)
        return;
    if (s->monitor) {
        int linger = 0;
        read_events(s);
        if (!s->greeted || s->lost) /* nobody is there to wait for */
            zmq_setsockopt(s->socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_socket_monitor(s->socket, NULL, 0);
        zmq_close(s->monitor);
    }
    if (s->socket)
        zmq_close(s->socket);
    if (s->bound_path)
        unlink(s->bound_path); /* ZeroMQ does so too, but only later and in its own thread */
    free(s->bound_path);
    free(s->name);
    free(s);
    *socket = NULL;
}

static status gone(const wire_socket *s)
{
    if (s->refused && s->wire->keys)
        return FAIL(ST_CONFIG,
                    "%s refuses our key, or its own is not the one in daemon.pub: add ours to its "
                    "list (prepd keygen --client) and let it reload",
                    s->name);
    if (s->refused)
        return FAIL(ST_CONFIG,
                    "%s demands CURVE keys, or is no prepd: name their folder in prepd.keys "
                    "(--keys)",
                    s->name);
    return FAIL(ST_UNAVAILABLE, "the peer at %s has closed the connection or died", s->name);
}

/* One part by reference: m keeps its own until all have gone. */
static int send_copy(void *socket, zmq_msg_t *part, int flags)
{
    zmq_msg_t copy;
    zmq_msg_init(&copy);
    if (zmq_msg_copy(&copy, part) != 0)
        return -1;
    int sent;
    do
        sent = zmq_msg_send(&copy, socket, flags | ZMQ_DONTWAIT);
    while (sent < 0 && zmq_errno() == EINTR);
    if (sent < 0)
        zmq_msg_close(&copy);
    return sent;
}

/* The routing id in front of a message; this is where ROUTER_MANDATORY speaks. */
static status send_address(wire_socket *s, const wire_peer *to)
{
    int sent;
    do
        sent = zmq_send(s->socket, to->id, to->size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (sent < 0 && zmq_errno() == EINTR);
    if (sent < 0) {
        char name[WIRE_PEER_TEXT];
        wire_peer_print(to, name);
        if (zmq_errno() == EAGAIN)
            return FAIL_IN(ST_TIMEOUT, name, "the peer does not take what %s sent before", s->name);
        return FAIL_IN(ST_UNAVAILABLE, name, "the peer can not be reached from %s: %s", s->name,
                       zmq_strerror(zmq_errno()));
    }
    return ST_OK;
}

status wire_send(wire_socket *s, const wire_peer *to, wire_msg *m)
{
    if (m->n_parts == 0)
        return FAIL(ST_INTERNAL, "a message without parts can not be sent");
    if (s->is_router) {
        if (!to || to->size == 0)
            return FAIL(ST_INTERNAL, "a message from %s needs a peer to go to", s->name);
        TRY(send_address(s, to));
    } else {
        read_events(s);
        if (s->lost || s->refused)
            return gone(s);
    }
    for (size_t i = 0; i < m->n_parts; i++)
        if (send_copy(s->socket, &m->parts[i], i + 1 < m->n_parts ? ZMQ_SNDMORE : 0) < 0)
            return FAIL(ST_UNAVAILABLE, "sending part %zu of %zu over %s: %s", i, m->n_parts,
                        s->name, zmq_strerror(zmq_errno()));
    wire_msg_clear(m);
    return ST_OK;
}

/* The rest of a message whose first part is there. from gets the routing id of a ROUTER. */
static status receive_parts(wire_socket *s, wire_peer *from, wire_msg *m)
{
    wire_peer peer = {.size = 0};
    size_t n = 0;
    status st = ST_OK;
    int more = 1;
    wire_msg_clear(m);
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        int size;
        do
            size = zmq_msg_recv(&part, s->socket, ZMQ_DONTWAIT);
        while (size < 0 && zmq_errno() == EINTR);
        if (size < 0) {
            zmq_msg_close(&part);
            if (n == 0 && zmq_errno() == EAGAIN)
                return ST_TIMEOUT; /* not noted: the caller waits on */
            return zmq_failed("receiving from", s->name);
        }
        more = zmq_msg_more(&part);
        if (s->is_router && n == 0) {
            if (zmq_msg_size(&part) > sizeof peer.id)
                st = FAIL_IN(ST_PROTOCOL, s->name, "a peer's routing id has %zu bytes, at most %zu",
                             zmq_msg_size(&part), sizeof peer.id);
            else
                memcpy(peer.id, zmq_msg_data(&part), peer.size = zmq_msg_size(&part));
        } else if (st == ST_OK && m->n_parts == WIRE_MAX_PARTS) {
            st = FAIL_IN(ST_PROTOCOL, s->name, "a message of over %d parts", WIRE_MAX_PARTS);
        } else if (st == ST_OK) {
            st = wire_msg_take(m, &part);
        }
        zmq_msg_close(&part);
        n++;
    }
    if (from)
        *from = peer;
    if (st != ST_OK)
        wire_msg_clear(m);
    return st;
}

static int64_t deadline_of(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : clock_ns() + (int64_t)timeout_ms * 1000000;
}

/* Milliseconds left, rounded up; -1 = forever. */
static long left_ms(int64_t deadline)
{
    if (deadline == INT64_MAX)
        return -1;
    int64_t left = deadline - clock_ns();
    return left <= 0 ? 0 : (long)((left + 999999) / 1000000);
}

status wire_recv(wire_socket *s, int timeout_ms, wire_peer *from, wire_msg *m)
{
    int64_t deadline = deadline_of(timeout_ms);
    for (;;) {
        read_events(s); /* before reading: what came ahead of a loss must still be found */
        status st = receive_parts(s, from, m);
        if (st != ST_TIMEOUT)
            return st;
        if (s->lost || s->refused)
            return gone(s);
        long wait_ms = left_ms(deadline);
        if (wait_ms == 0)
            return FAIL(ST_TIMEOUT, "nothing came from %s for %.1f s", s->name, timeout_ms / 1e3);
        zmq_pollitem_t items[2] = {{s->socket, 0, ZMQ_POLLIN, 0}, {s->monitor, 0, ZMQ_POLLIN, 0}};
        if (zmq_poll(items, s->monitor ? 2 : 1, wait_ms) < 0 && zmq_errno() != EINTR)
            return zmq_failed("waiting for", s->name);
    }
}

/* One round of waiting. Sets ready; *out_any = something is. */
static status poll_round(wire_wait *waits, size_t n, zmq_pollitem_t *items, long wait_ms,
                         bool *out_any)
{
    int n_items = 0;
    wire_keys *keys = NULL; /* whose handshakes wait for us */
    *out_any = false;
    for (size_t i = 0; i < n; i++) {
        wire_socket *s = waits[i].socket;
        waits[i].ready = false;
        if (s && (s->lost || s->refused))
            waits[i].ready = *out_any = true; /* wire_recv will say so */
        if (s) {
            items[n_items++] = (zmq_pollitem_t){s->socket, 0, ZMQ_POLLIN, 0};
            if (s->monitor)
                items[n_items++] = (zmq_pollitem_t){s->monitor, 0, ZMQ_POLLIN, 0};
        } else if (waits[i].fd >= 0) {
            items[n_items++] = (zmq_pollitem_t){NULL, waits[i].fd, ZMQ_POLLIN, 0};
        }
    }
    for (size_t i = 0; i < n && !keys; i++)
        if (waits[i].socket && waits[i].socket->wire->keys)
            keys = waits[i].socket->wire->keys;
    if (keys && wire_keys_socket(keys))
        items[n_items++] = (zmq_pollitem_t){wire_keys_socket(keys), 0, ZMQ_POLLIN, 0};
    if (zmq_poll(items, n_items, *out_any ? 0 : wait_ms) < 0)
        return zmq_errno() == EINTR ? ST_OK : zmq_failed("waiting for", "sockets");
    if (keys)
        wire_keys_answer(keys);
    n_items = 0;
    for (size_t i = 0; i < n; i++) {
        wire_socket *s = waits[i].socket;
        if (!s && waits[i].fd < 0)
            continue;
        waits[i].ready |= items[n_items++].revents != 0;
        if (s && s->monitor && items[n_items++].revents) {
            read_events(s);
            waits[i].ready |= s->lost || s->refused;
        }
        *out_any |= waits[i].ready;
    }
    return ST_OK;
}

status wire_poll(wire_wait *waits, size_t n, int timeout_ms)
{
    int64_t deadline = deadline_of(timeout_ms);
    zmq_pollitem_t few[32], *items = few;
    status st = ST_OK;
    bool any = false;
    if (2 * n + 1 > sizeof few / sizeof few[0] && !(items = calloc(2 * n + 1, sizeof *items)))
        return FAIL(ST_NO_MEMORY, "no memory to wait for %zu sockets", n);
    do {
        st = poll_round(waits, n, items, left_ms(deadline), &any);
    } while (st == ST_OK && !any && left_ms(deadline) != 0);
    if (items != few)
        free(items);
    return st;
}
