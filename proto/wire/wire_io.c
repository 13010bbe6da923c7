/* SPDX-License-Identifier: Apache-2.0 */
/* wire_io.c: sends, receives and waits for messages.
 *
 * All calls of ZeroMQ are non-blocking; waiting happens in zmq_poll, together with the monitor of a
 * DEALER (its connection may end), the daemon's authentication socket (handshakes wait for it) and
 * the clock of the guard. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "proto/message/wire_msg_parts.h"
#include "proto/wire/wire_socket.h"

static status explain_gone(const wire_socket *socket)
{
    if (socket->refused && socket->wire->keys)
        return FAIL(
            ST_CONFIG,
            "%s refuses our key, or its own key is not the one in daemon.pub: " WIRE_KEYS_REMEDY
            "; then let the daemon reload (SIGHUP)",
            socket->name);
    if (socket->refused)
        return FAIL(ST_CONFIG,
                    "%s demands CURVE keys, or is not prepd: " WIRE_KEYS_REMEDY
                    " and name that folder in prepd.keys (--keys)",
                    socket->name);
    return FAIL(ST_UNAVAILABLE, "the peer at %s closed the connection or died", socket->name);
}

void wire_peer_print(const wire_peer *peer, char out[WIRE_PEER_TEXT])
{
    enum { SHOWN = 64 };
    static const char digits[] = "0123456789abcdef";
    strcpy(out, WIRE_PEER_WORD);
    char *at = out + strlen(WIRE_PEER_WORD);
    for (size_t i = 0; i < peer->size && i < SHOWN; i++) {
        *at++ = digits[peer->id[i] >> 4];
        *at++ = digits[peer->id[i] & 15];
    }
    *at = 0;
    if (peer->size > SHOWN)
        strcpy(at, "..");
    if (peer->size == 0)
        strcpy(at, "unnamed");
}

/* Sends one part by reference, so that the message keeps its parts if a later one fails. */
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

/* Sends the routing id that must precede a message. ZMQ_ROUTER_MANDATORY makes this fail if the
 * peer cannot be reached. */
static status send_address(wire_socket *socket, const wire_peer *to)
{
    int sent;
    do
        sent = zmq_send(socket->socket, to->id, to->size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (sent < 0 && zmq_errno() == EINTR);
    if (sent < 0) {
        char name[WIRE_PEER_TEXT];
        wire_peer_print(to, name);
        if (zmq_errno() == EAGAIN)
            return FAIL_IN(ST_TIMEOUT, name, "the peer has not taken what %s sent before",
                           socket->name);
        return FAIL_IN(ST_UNAVAILABLE, name, "the peer cannot be reached from %s: %s", socket->name,
                       zmq_strerror(zmq_errno()));
    }
    return ST_OK;
}

status wire_send(wire_socket *socket, const wire_peer *to, wire_msg *message)
{
    if (message->n_parts == 0)
        return FAIL(ST_INTERNAL, "a message without parts cannot be sent");
    if (socket->is_router) {
        if (!to || to->size == 0)
            return FAIL(ST_INTERNAL, "a message from %s needs a peer to go to", socket->name);
        TRY(send_address(socket, to));
    } else {
        wire_read_events(socket);
        if (socket->lost || socket->refused)
            return explain_gone(socket);
    }
    for (size_t i = 0; i < message->n_parts; i++)
        if (send_copy(socket->socket, &message->parts[i],
                      i + 1 < message->n_parts ? ZMQ_SNDMORE : 0) < 0)
            return FAIL(ST_UNAVAILABLE, "cannot send part %zu of %zu over %s: %s", i,
                        message->n_parts, socket->name, zmq_strerror(zmq_errno()));
    wire_msg_clear(message);
    return ST_OK;
}

status wire_send_json(wire_socket *socket, const wire_peer *to, int kind, uint64_t row,
                      const char *json, size_t size)
{
    wire_msg *msg;
    TRY(wire_json_message(kind, row, json, size, NULL, &msg));
    const status st = wire_send(socket, to, msg);
    wire_msg_free(&msg);
    return st;
}

status wire_send_error(wire_socket *socket, const wire_peer *to, uint64_t row, status code)
{
    wire_msg *msg;
    TRY(wire_error_message(row, code, &msg));
    const status st = wire_send(socket, to, msg);
    wire_msg_free(&msg);
    return st;
}

/* Reads the routing id that precedes a message. libzmq gives each peer a zero byte and a number. An
 * id that the peer chose itself is refused: libzmq silently ignores a second connection that has
 * the same id, and ends the process if it later gives that id to another peer. */
static status take_id(zmq_msg_t *part, wire_peer *out)
{
    enum { GIVEN_BYTES = 5 };
    char name[WIRE_PEER_TEXT];
    out->size = zmq_msg_size(part);
    if (out->size > sizeof out->id)
        out->size = sizeof out->id; /* cannot happen: ZeroMQ allows 255 bytes */
    memcpy(out->id, zmq_msg_data(part), out->size);
    if (out->size == GIVEN_BYTES && out->id[0] == 0)
        return ST_OK;
    wire_peer_print(out, name);
    return FAIL_IN(ST_PROTOCOL, name,
                   "the peer chose its own routing id (%zu bytes): leave ZMQ_ROUTING_ID (identity) "
                   "of its socket unset",
                   out->size);
}

/* The user at the other end of an ipc connection, as the kernel told it to libzmq when the
 * connection was accepted: Peer-Address is NAME:UID:GID:PID. -1 if it is unknown. */
static int64_t user_of(const char *address)
{
    int colons = 0;
    size_t at = address ? strlen(address) : 0;
    while (at > 0 && colons < 3)
        colons += address[--at] == ':';
    if (colons < 3 || address[at + 1] < '0' || address[at + 1] > '9')
        return -1;
    char *end;
    const unsigned long user = strtoul(address + at + 1, &end, 10);
    return *end == ':' ? (int64_t)user : -1;
}

/* Notes what the peer may ask for. The metadata of any part of its message says who it is. */
static void take_roles(const wire_socket *socket, const zmq_msg_t *part, wire_peer *peer)
{
    if (!socket->is_ipc && socket->wire->keys) {
        wire_keys_describe(socket->wire->keys, zmq_msg_gets(part, "User-Id"), peer);
        return;
    }
    peer->roles = WIRE_ROWS | WIRE_WORK;
    if (!socket->is_ipc) {
        peer->roles |= WIRE_STATUS;
        return;
    }
    const int64_t user = user_of(zmq_msg_gets(part, "Peer-Address"));
    if (user == 0 || user == socket->user)
        peer->roles |= WIRE_CONTROL | WIRE_STATUS;
}

/* Receives a message if one is there, else ST_TIMEOUT. from gets the peer if the socket is a
 * ROUTER. */
static status receive_parts(wire_socket *socket, wire_peer *from, wire_msg *message)
{
    wire_peer peer = {.size = 0};
    size_t count = 0;
    int64_t bytes = 0;
    status st = ST_OK;
    int more = 1;
    wire_msg_clear(message);
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        int size;
        do
            size = zmq_msg_recv(&part, socket->socket, ZMQ_DONTWAIT);
        while (size < 0 && zmq_errno() == EINTR);
        if (size < 0) {
            zmq_msg_close(&part);
            if (count == 0 && zmq_errno() == EAGAIN)
                return ST_TIMEOUT; /* without a note: the caller waits on */
            return wire_zmq_failed("receiving from", socket->name);
        }
        more = zmq_msg_more(&part);
        if (socket->guard &&
            count > 0) /* part 0 is the routing id, which did not come over the connection */
            bytes += wire_guard_framed(socket->guard, size);
        if (socket->guard && !more) {
            peer.connection = zmq_msg_get(&part, ZMQ_SRCFD);
            wire_guard_count(socket->guard, peer.connection, bytes);
        }
        if (socket->is_router && !more)
            take_roles(socket, &part, &peer);
        if (socket->is_router && count == 0) {
            st = take_id(&part, &peer);
        } else if (st == ST_OK && message->n_parts == WIRE_MAX_PARTS) {
            st = FAIL_IN(ST_PROTOCOL, socket->name, "the message has more than %d parts",
                         WIRE_MAX_PARTS);
        } else if (st == ST_OK) {
            st = wire_msg_take(message, &part);
        }
        zmq_msg_close(&part);
        count++;
    }
    if (from)
        *from = peer;
    if (st != ST_OK)
        wire_msg_clear(message);
    return st;
}

static int64_t deadline_of(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : clock_ns() + (int64_t)timeout_ms * 1000000;
}

/* Milliseconds left, rounded up; -1 for ever. */
static long left_ms(int64_t deadline)
{
    if (deadline == INT64_MAX)
        return -1;
    int64_t left = deadline - clock_ns();
    return left <= 0 ? 0 : (long)((left + 999999) / 1000000);
}

status wire_recv(wire_socket *socket, int timeout_ms, wire_peer *from, wire_msg *message)
{
    int64_t deadline = deadline_of(timeout_ms);
    for (;;) {
        wire_read_events(
            socket); /* before reading: what arrived before the connection ended must be returned */
        if (socket->guard)
            wire_guard_look(socket->guard);
        status st = receive_parts(socket, from, message);
        if (st != ST_TIMEOUT)
            return st;
        if (socket->lost || socket->refused)
            return explain_gone(socket);
        long wait_ms = left_ms(deadline);
        if (timeout_ms == 0)
            return ST_TIMEOUT; /* without a note: the daemon asks so several times in a turn */
        if (wait_ms == 0)
            return FAIL(ST_TIMEOUT, "nothing came from %s for %.1f s", socket->name,
                        timeout_ms / 1e3);
        zmq_pollitem_t items[2] = {{socket->socket, 0, ZMQ_POLLIN, 0},
                                   {socket->monitor, 0, ZMQ_POLLIN, 0}};
        if (zmq_poll(items, socket->monitor ? 2 : 1, wait_ms) < 0 && zmq_errno() != EINTR)
            return wire_zmq_failed("waiting for", socket->name);
    }
}

/* One round of waiting. Sets `ready` of each entry, and *out_any if one is. */
static status poll_round(wire_wait *waits, size_t count, zmq_pollitem_t *items, long wait_ms,
                         bool *out_any)
{
    int n_items = 0;
    wire_keys *keys = NULL; /* handshakes that wait for our answer */
    bool guarded = false;
    *out_any = false;
    for (size_t i = 0; i < count; i++) {
        wire_socket *socket = waits[i].socket;
        waits[i].ready = false;
        if (socket && (socket->lost || socket->refused))
            waits[i].ready = *out_any = true; /* wire_recv will say so */
        guarded |= socket && socket->guard;
        if (socket) {
            items[n_items++] = (zmq_pollitem_t){socket->socket, 0, ZMQ_POLLIN, 0};
            if (socket->monitor)
                items[n_items++] = (zmq_pollitem_t){socket->monitor, 0, ZMQ_POLLIN, 0};
        } else if (waits[i].fd >= 0) {
            items[n_items++] = (zmq_pollitem_t){NULL, waits[i].fd, ZMQ_POLLIN, 0};
        }
    }
    for (size_t i = 0; i < count && !keys; i++)
        if (waits[i].socket && waits[i].socket->wire->keys)
            keys = waits[i].socket->wire->keys;
    if (keys && wire_keys_socket(keys))
        items[n_items++] = (zmq_pollitem_t){wire_keys_socket(keys), 0, ZMQ_POLLIN, 0};
    if (guarded && (wait_ms < 0 || wait_ms > WIRE_GUARD_MS))
        wait_ms = WIRE_GUARD_MS;
    if (zmq_poll(items, n_items, *out_any ? 0 : wait_ms) < 0)
        return zmq_errno() == EINTR ? ST_OK : wire_zmq_failed("waiting for", "sockets");
    for (size_t i = 0; i < count && guarded; i++)
        if (waits[i].socket && waits[i].socket->guard)
            wire_guard_look(waits[i].socket->guard);
    if (keys)
        wire_keys_answer(keys);
    n_items = 0;
    for (size_t i = 0; i < count; i++) {
        wire_socket *socket = waits[i].socket;
        if (!socket && waits[i].fd < 0)
            continue;
        waits[i].ready |= items[n_items++].revents != 0;
        if (socket && socket->monitor && items[n_items++].revents) {
            wire_read_events(socket);
            waits[i].ready |= socket->lost || socket->refused;
        }
        *out_any |= waits[i].ready;
    }
    return ST_OK;
}

status wire_poll(wire_wait *waits, size_t count, int timeout_ms)
{
    int64_t deadline = deadline_of(timeout_ms);
    zmq_pollitem_t few[32], *items = few;
    status st = ST_OK;
    bool any = false;
    if (2 * count + 1 > sizeof few / sizeof few[0] &&
        !(items = calloc(2 * count + 1, sizeof *items)))
        return FAIL(ST_NO_MEMORY, "no memory to wait for %zu sockets", count);
    do {
        st = poll_round(waits, count, items, left_ms(deadline), &any);
    } while (st == ST_OK && !any && left_ms(deadline) != 0);
    if (items != few)
        free(items);
    return st;
}
