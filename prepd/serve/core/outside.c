/* outside.c: sends messages and writes log lines through the table of outside.h. */
#include "prepd/serve/core/outside.h"

#include <stdarg.h>
#include <stdio.h>

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

status outside_send_error(const outside *world, door at, const wire_peer *to, uint64_t row,
                          status code)
{
    wire_msg *message;
    TRY(wire_error_message(row, code, &message));
    return send_and_free(world, at, to, message);
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
