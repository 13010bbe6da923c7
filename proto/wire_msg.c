/* wire_msg.c: messages of several parts.
 * Parts are ZeroMQ's own messages, so sending never copies. */
#include "proto/wire_msg.h"

#include <stdlib.h>

status wire_msg_new(wire_msg **out)
{
    wire_msg *message = calloc(1, sizeof *message);
    if (!message)
        return FAIL(ST_NO_MEMORY, "no memory for a message");
    *out = message;
    return ST_OK;
}

void wire_msg_clear(wire_msg *message)
{
    for (size_t i = 0; i < message->n_parts; i++)
        zmq_msg_close(&message->parts[i]);
    message->n_parts = 0;
}

void wire_msg_free(wire_msg **message)
{
    if (!message || !*message)
        return;
    wire_msg_clear(*message);
    free((*message)->parts);
    free(*message);
    *message = NULL;
}

size_t wire_msg_parts(const wire_msg *message)
{
    return message->n_parts;
}

size_t wire_msg_bytes(const wire_msg *message)
{
    size_t bytes = 0;
    for (size_t i = 0; i < message->n_parts; i++)
        bytes += zmq_msg_size(&message->parts[i]);
    return bytes;
}

span wire_msg_part(const wire_msg *message, size_t index)
{
    if (index >= message->n_parts)
        return span_of(NULL, 0);
    return span_of(zmq_msg_data(&message->parts[index]), zmq_msg_size(&message->parts[index]));
}

/* Makes room for `n_parts` more parts. A zmq_msg_t is opaque, so parts are moved one by one. */
static status grow_parts(wire_msg *message, size_t n_parts)
{
    if (n_parts <= message->capacity - message->n_parts)
        return ST_OK;
    size_t capacity = 2 * (message->n_parts + n_parts);
    if (capacity < 8)
        capacity = 8;
    zmq_msg_t *parts = calloc(capacity, sizeof *parts);
    if (!parts)
        return FAIL(ST_NO_MEMORY, "no memory for a message of %zu parts",
                    message->n_parts + n_parts);
    for (size_t i = 0; i < message->n_parts; i++) {
        zmq_msg_init(&parts[i]);
        zmq_msg_move(&parts[i], &message->parts[i]);
        zmq_msg_close(&message->parts[i]);
    }
    free(message->parts);
    message->parts = parts;
    message->capacity = capacity;
    return ST_OK;
}

status wire_msg_take(wire_msg *message, zmq_msg_t *part)
{
    TRY(grow_parts(message, 1));
    zmq_msg_init(&message->parts[message->n_parts]);
    zmq_msg_move(&message->parts[message->n_parts++], part);
    return ST_OK;
}

status wire_msg_add_space(wire_msg *message, size_t size, uint8_t **out)
{
    TRY(grow_parts(message, 1));
    if (zmq_msg_init_size(&message->parts[message->n_parts], size) != 0)
        return FAIL(ST_NO_MEMORY, "no memory for a message part of %zu bytes", size);
    *out = zmq_msg_data(&message->parts[message->n_parts++]);
    return ST_OK;
}

status wire_msg_add(wire_msg *message, const void *data, size_t size)
{
    uint8_t *to;
    TRY(wire_msg_add_space(message, size, &to));
    if (size > 0)
        memcpy(to, data, size);
    return ST_OK;
}

status wire_msg_set(wire_msg *message, size_t index, const void *data, size_t size)
{
    zmq_msg_t part;
    if (index >= message->n_parts)
        return FAIL(ST_INTERNAL, "there is no part %zu in a message of %zu parts", index,
                    message->n_parts);
    if (zmq_msg_init_size(&part, size) != 0)
        return FAIL(ST_NO_MEMORY, "no memory for a message part of %zu bytes", size);
    if (size > 0)
        memcpy(zmq_msg_data(&part), data, size);
    zmq_msg_move(&message->parts[index], &part);
    zmq_msg_close(&part);
    return ST_OK;
}

status wire_msg_move(wire_msg *to, wire_msg *from)
{
    TRY(grow_parts(to, from->n_parts));
    for (size_t i = 0; i < from->n_parts; i++)
        TRY(wire_msg_take(to, &from->parts[i]));
    wire_msg_clear(from);
    return ST_OK;
}

status wire_msg_share(wire_msg *to, const wire_msg *from)
{
    return wire_msg_share_some(to, from, 0, from->n_parts);
}

status wire_msg_share_some(wire_msg *to, const wire_msg *from, size_t first, size_t n_parts)
{
    if (first > from->n_parts || n_parts > from->n_parts - first)
        return FAIL(ST_INTERNAL, "there are no parts %zu to %zu in a message of %zu parts", first,
                    first + n_parts, from->n_parts);
    TRY(grow_parts(to, n_parts));
    for (size_t i = first; i < first + n_parts; i++) {
        zmq_msg_t *part = &to->parts[to->n_parts];
        zmq_msg_init(part);
        if (zmq_msg_copy(part, &from->parts[i]) != 0)
            return FAIL(ST_NO_MEMORY, "no memory to share a message part");
        to->n_parts++;
    }
    return ST_OK;
}
