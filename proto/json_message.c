/* json_message.c: makes, sends and reads messages of JSON, which are all kinds but ROW. A lease may
 * have files in the parts after its JSON. */
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/frame.h"
#include "proto/wire.h"

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
