/* SPDX-License-Identifier: Apache-2.0 */
/* outside.c: sends messages and writes log lines through the table of outside.h, and keeps count of
 * refused messages. */
#include "prepd/serve/core/state/outside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE_BYTES = 4096 };

static status send_and_free(const outside *world, door at, const wire_peer *to, wire_msg *message)
{
    const status st = world->send(world->shell, at, to, message);
    wire_msg_free(&message);
    return st;
}

status outside_send_json(const outside *world, door at, const wire_peer *to, int kind, uint64_t row,
                         const char *json, size_t size)
{
    return outside_send_json_with(world, at, to, kind, row, json, size, NULL);
}

status outside_send_json_with(const outside *world, door at, const wire_peer *to, int kind,
                              uint64_t row, const char *json, size_t size, wire_msg *more)
{
    wire_msg *message;
    TRY(wire_json_message(kind, row, json, size, more, &message));
    return send_and_free(world, at, to, message);
}

status outside_send_writer(const outside *world, door at, const wire_peer *to, int kind,
                           uint64_t row, json_writer *writer)
{
    char *text = NULL;
    size_t size;
    status st = json_writer_take(writer, &text, &size);
    if (st == ST_OK)
        st = outside_send_json(world, at, to, kind, row, text, size);
    free(text);
    json_writer_done(writer);
    return st;
}

void outside_send_error(const outside *world, door at, const wire_peer *to, status code)
{
    wire_msg *message;
    if (wire_error_message(0, code, &message) != ST_OK ||
        send_and_free(world, at, to, message) != ST_OK)
        outside_debug(world, "a peer could not be sent why it is refused: %s", status_text());
}

void outside_log(const outside *world, int level, const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list args;
    if (!world->logs(world->shell, level))
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    world->log(world->shell, level, line);
}

/* --- limits --- */

enum {
    OFFENCES = 100, /* refused messages of a connection, after which all of them are discarded */
    REFUSALS_TOLD = 20, /* refusals logged between two calls of peer_limits_log */
};

/* Finds the record of a connection whose messages were refused. ZeroMQ has no call to close a
 * connection from this side, so the messages of an offender are read and discarded instead. */
static offender *find_offender(peer_limits *limits, const wire_peer *peer)
{
    for (int i = 0; i < MAX_OFFENDERS; i++)
        if (limits->offenders[i].offences && wire_peer_is(&limits->offenders[i].peer, peer))
            return &limits->offenders[i];
    return NULL;
}

void peer_limits_offence(peer_limits *limits, const outside *world)
{
    if (!limits->reading)
        return;
    offender *peer = find_offender(limits, limits->reading);
    if (!peer) {
        peer = &limits->offenders[limits->next_offender++ %
                                  MAX_OFFENDERS]; /* the oldest record makes way */
        *peer = (offender){.peer = *limits->reading};
    }
    if (++peer->offences == OFFENCES)
        outside_warn(world,
                     "a connection is no longer listened to: %d of its messages were refused",
                     OFFENCES);
}

void peer_limits_refuse(peer_limits *limits, const outside *world, door at, const wire_peer *to,
                        const char *what, status st)
{
    limits->refused++;
    limits->refused_builds += st == ST_MISMATCH;
    peer_limits_offence(limits, world);
    if (limits->told++ < REFUSALS_TOLD)
        outside_warn(world, "%s refused: %s", what, status_text());
    outside_send_error(world, at, to, st);
}

bool peer_limits_ignores(const peer_limits *limits, const wire_peer *from)
{
    const offender *peer = find_offender((peer_limits *)limits, from);
    return peer && peer->offences >= OFFENCES;
}

void peer_limits_log(peer_limits *limits, const outside *world)
{
    if (limits->told > REFUSALS_TOLD)
        outside_warn(world, "refused %lld more, not shown",
                     (long long)(limits->told - REFUSALS_TOLD));
    limits->told = 0;
}
