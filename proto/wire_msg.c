/* wire_msg.c: messages of several parts. Parts are ZeroMQ's own messages, so sending never copies.
 */
#include "proto/wire_msg.h"

#include <stdlib.h>

status wire_msg_new(wire_msg **out)
{
    wire_msg *m = calloc(1, sizeof *m);
    if (!m)
        return FAIL(ST_NO_MEMORY, "no memory for a message");
    *out = m;
    return ST_OK;
}

void wire_msg_clear(wire_msg *m)
{
    for (size_t i = 0; i < m->n_parts; i++)
        zmq_msg_close(&m->parts[i]);
    m->n_parts = 0;
}

void wire_msg_free(wire_msg **m)
{
    if (!m || !*m)
        return;
    wire_msg_clear(*m);
    free((*m)->parts);
    free(*m);
    *m = NULL;
}

size_t wire_msg_parts(const wire_msg *m)
{
    return m->n_parts;
}

size_t wire_msg_bytes(const wire_msg *m)
{
    size_t bytes = 0;
    for (size_t i = 0; i < m->n_parts; i++)
        bytes += zmq_msg_size(&m->parts[i]);
    return bytes;
}

span wire_msg_part(const wire_msg *m, size_t i)
{
    if (i >= m->n_parts)
        return span_of(NULL, 0);
    return span_of(zmq_msg_data(&m->parts[i]), zmq_msg_size(&m->parts[i]));
}

/* Makes room for n more parts. A zmq_msg_t is opaque, so parts are moved one by one. */
static status grow_parts(wire_msg *m, size_t n)
{
    if (n <= m->capacity - m->n_parts)
        return ST_OK;
    size_t capacity = 2 * (m->n_parts + n);
    if (capacity < 8)
        capacity = 8;
    zmq_msg_t *parts = calloc(capacity, sizeof *parts);
    if (!parts)
        return FAIL(ST_NO_MEMORY, "no memory for a message of %zu parts", m->n_parts + n);
    for (size_t i = 0; i < m->n_parts; i++) {
        zmq_msg_init(&parts[i]);
        zmq_msg_move(&parts[i], &m->parts[i]);
        zmq_msg_close(&m->parts[i]);
    }
    free(m->parts);
    m->parts = parts;
    m->capacity = capacity;
    return ST_OK;
}

status wire_msg_take(wire_msg *m, zmq_msg_t *part)
{
    TRY(grow_parts(m, 1));
    zmq_msg_init(&m->parts[m->n_parts]);
    zmq_msg_move(&m->parts[m->n_parts++], part);
    return ST_OK;
}

status wire_msg_add_space(wire_msg *m, size_t size, uint8_t **out)
{
    TRY(grow_parts(m, 1));
    if (zmq_msg_init_size(&m->parts[m->n_parts], size) != 0)
        return FAIL(ST_NO_MEMORY, "no memory for a message part of %zu bytes", size);
    *out = zmq_msg_data(&m->parts[m->n_parts++]);
    return ST_OK;
}

status wire_msg_add(wire_msg *m, const void *data, size_t size)
{
    uint8_t *to;
    TRY(wire_msg_add_space(m, size, &to));
    if (size > 0)
        memcpy(to, data, size);
    return ST_OK;
}

status wire_msg_set(wire_msg *m, size_t i, const void *data, size_t size)
{
    zmq_msg_t part;
    if (i >= m->n_parts)
        return FAIL(ST_INTERNAL, "there is no part %zu in a message of %zu parts", i, m->n_parts);
    if (zmq_msg_init_size(&part, size) != 0)
        return FAIL(ST_NO_MEMORY, "no memory for a message part of %zu bytes", size);
    if (size > 0)
        memcpy(zmq_msg_data(&part), data, size);
    zmq_msg_move(&m->parts[i], &part);
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
    TRY(grow_parts(to, from->n_parts));
    for (size_t i = 0; i < from->n_parts; i++) {
        zmq_msg_t *part = &to->parts[to->n_parts];
        zmq_msg_init(part);
        if (zmq_msg_copy(part, &from->parts[i]) != 0)
            return FAIL(ST_NO_MEMORY, "no memory to share a message part");
        to->n_parts++;
    }
    return ST_OK;
}
