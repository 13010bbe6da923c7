/* wire_monitor.c: follows the connection of a socket through ZeroMQ's events. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "proto/wire_socket.h"

enum {
    /* A daemon that starts or stops may cut off a handshake. So many in a row mean a refusal,
     * unless a daemon was there before (wire_expect). */
    CUT_LIMIT = 3
};

status wire_zmq_failed(const char *what, const char *name)
{
    return FAIL(ST_OS, "%s %s: %s", what, name, zmq_strerror(zmq_errno()));
}

status wire_monitor(wire *context, void *socket, const char *name, int events, void **out)
{
    char address[64];
    const int zero = 0;
    /* Each monitor gets a name of its own: a thread of ZeroMQ's frees a name some time after its
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
