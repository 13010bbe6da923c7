/* SPDX-License-Identifier: Apache-2.0 */
/* wire_msg.c: messages of several parts, which are ZeroMQ's own messages, so sending never copies;
 * messages of JSON. */
#include "proto/message/wire_msg_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/row/frame.h"
#include "proto/message/wire_msg.h"

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

/* --- messages of JSON --- */

const char *wire_peer_text(void)
{
    status_note note = *status_last();
    if (strncmp(note.input, WIRE_PEER_WORD, strlen(WIRE_PEER_WORD)) == 0) {
        snprintf(note.input, sizeof note.input, "%s", note.offset >= 0 ? "your message" : "");
        status_set(&note);
    }
    return status_text();
}

status wire_json_message(int kind, uint64_t row, const char *json, size_t size, wire_msg *more,
                         wire_msg **out)
{
    frame header = {.kind = (frame_kind)kind,
                    .row = row,
                    .block_bytes = size,
                    .digest = hash_bytes(json, size)};
    uint8_t head[FRAME_BYTES];
    wire_msg *msg = NULL;
    status st = ST_OK;
    if (size > FRAME_MAX_PAYLOAD)
        return FAIL(ST_INTERNAL, "a message of kind %s has %zu bytes; at most %d can be sent",
                    frame_kind_name(kind), size, FRAME_MAX_PAYLOAD);
    frame_encode(&header, head);
    TRY(wire_msg_new(&msg));
    TRY_OR(failed, wire_msg_add(msg, head, sizeof head));
    TRY_OR(failed, wire_msg_add(msg, json, size));
    if (more)
        TRY_OR(failed, wire_msg_move(msg, more));
    *out = msg;
    return ST_OK;
failed:
    wire_msg_free(&msg);
    return st;
}

status wire_error_message(uint64_t row, status code, wire_msg **out)
{
    json_writer writer;
    char *text;
    size_t size;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "code", status_name(code));
    json_put_key_cstr(&writer, "message", wire_peer_text());
    json_end_object(&writer);
    status st = json_writer_take(&writer, &text, &size);
    if (st == ST_OK) {
        st = wire_json_message(KIND_ERROR, row, text, size, NULL, out);
        free(text);
    }
    json_writer_done(&writer);
    return st;
}

status wire_read_json(const wire_msg *msg, const char *peer, frame *out_head, json_value **out)
{
    static const hash128 not_given = {{0}};
    frame head;
    json_value *value = NULL;
    TRY(frame_decode(wire_msg_part(msg, 0), peer, &head));
    if (head.kind == KIND_ROW || wire_msg_parts(msg) < 2 ||
        (wire_msg_parts(msg) > 2 && head.kind != KIND_LEASE))
        return FAIL_IN(ST_PROTOCOL, peer,
                       "a message of kind %s has %zu parts, expected header and JSON",
                       frame_kind_name(head.kind), wire_msg_parts(msg));
    span json = wire_msg_part(msg, 1);
    if (json.size != head.block_bytes)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "a message of kind %s has %zu bytes of JSON, but its header says %llu",
                       frame_kind_name(head.kind), json.size, (unsigned long long)head.block_bytes);
    if (!hash_equal(head.digest, not_given) &&
        !hash_equal(head.digest, hash_bytes(json.data, json.size)))
        return FAIL_IN(ST_PROTOCOL, peer,
                       "the JSON of a message of kind %s does not match the hash in its header",
                       frame_kind_name(head.kind));
    status st = json_parse((const char *)json.data, json.size, peer, &value);
    if (st == ST_OK && json_typeof(value) != JSON_OBJECT) {
        st = FAIL_IN(ST_PROTOCOL, peer, "a message of kind %s holds %s, expected an object",
                     frame_kind_name(head.kind), json_type_name(json_typeof(value)));
        json_free(&value);
    }
    if (st == ST_BAD_INPUT) /* it is the peer that sent bad data */
        return status_context(ST_PROTOCOL, "message of kind %s", frame_kind_name(head.kind));
    TRY(st);
    *out_head = head;
    *out = value;
    return ST_OK;
}

status wire_error(const json_value *error, const char *peer)
{
    const char *name = json_text(json_find(error, "code"), "");
    const char *message = json_text(json_find(error, "message"), "no reason given");
    status code = ST_PROTOCOL;
    for (int i = ST_OK + 1; i < ST_COUNT; i++)
        if (i != ST_END && strcmp(name, status_name((status)i)) == 0)
            code = (status)i;
    return FAIL_IN(code, peer, "refused: %s", message);
}
