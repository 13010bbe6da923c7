/* json_message.c: sends and reads messages of JSON, which are all kinds but ROW. A lease may have
 * files in the parts after its JSON. */
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/frame.h"
#include "proto/wire.h"

status wire_send_json(wire_socket *s, const wire_peer *to, int kind, uint64_t row, const char *json,
                      size_t size)
{
    return wire_send_json_with(s, to, kind, row, json, size, NULL);
}

status wire_send_json_with(wire_socket *s, const wire_peer *to, int kind, uint64_t row,
                           const char *json, size_t size, wire_msg *more)
{
    frame f = {.kind = (frame_kind)kind,
               .row = row,
               .block_bytes = size,
               .digest = hash_bytes(json, size)};
    uint8_t head[FRAME_BYTES];
    wire_msg *m = NULL;
    status st = ST_OK;
    if (size > FRAME_MAX_PAYLOAD)
        return FAIL(ST_INTERNAL, "a message of kind %s has %zu bytes; at most %d can be sent",
                    frame_kind_name(kind), size, FRAME_MAX_PAYLOAD);
    frame_encode(&f, head);
    TRY(wire_msg_new(&m));
    TRY_OR(done, wire_msg_add(m, head, sizeof head));
    TRY_OR(done, wire_msg_add(m, json, size));
    if (more)
        TRY_OR(done, wire_msg_move(m, more));
    TRY_OR(done, wire_send(s, to, m));
done:
    wire_msg_free(&m);
    return st;
}

status wire_read_json(const wire_msg *m, const char *peer, frame *out_head, json_value **out)
{
    static const hash128 not_given = {{0}};
    frame f;
    json_value *v = NULL;
    TRY(frame_decode(wire_msg_part(m, 0), peer, &f));
    if (f.kind == KIND_ROW || wire_msg_parts(m) < 2 ||
        (wire_msg_parts(m) > 2 && f.kind != KIND_LEASE))
        return FAIL_IN(ST_PROTOCOL, peer,
                       "a message of kind %s has %zu parts, expected header and JSON",
                       frame_kind_name(f.kind), wire_msg_parts(m));
    span json = wire_msg_part(m, 1);
    if (json.size != f.block_bytes)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "a message of kind %s has %zu bytes of JSON, but its header says %llu",
                       frame_kind_name(f.kind), json.size, (unsigned long long)f.block_bytes);
    if (!hash_equal(f.digest, not_given) && !hash_equal(f.digest, hash_bytes(json.data, json.size)))
        return FAIL_IN(ST_PROTOCOL, peer,
                       "the JSON of a message of kind %s does not match the hash in its header",
                       frame_kind_name(f.kind));
    status st = json_parse((const char *)json.data, json.size, peer, &v);
    if (st == ST_OK && json_typeof(v) != JSON_OBJECT) {
        st = FAIL_IN(ST_PROTOCOL, peer, "a message of kind %s holds %s, expected an object",
                     frame_kind_name(f.kind), json_type_name(json_typeof(v)));
        json_free(&v);
    }
    if (st == ST_BAD_INPUT) /* it is the peer that sent bad data */
        return status_context(ST_PROTOCOL, "message of kind %s", frame_kind_name(f.kind));
    TRY(st);
    *out_head = f;
    *out = v;
    return ST_OK;
}

status wire_send_error(wire_socket *s, const wire_peer *to, uint64_t row, status code)
{
    json_writer w;
    char *text;
    size_t size;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_cstr(&w, "code", status_name(code));
    json_put_key_cstr(&w, "message", wire_peer_text());
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK) {
        st = wire_send_json(s, to, KIND_ERROR, row, text, size);
        free(text);
    }
    json_writer_done(&w);
    return st;
}

status wire_error(const json_value *error, const char *peer)
{
    const char *name = json_text(json_find(error, "code"), "");
    const char *message = json_text(json_find(error, "message"), "no reason given");
    status code = ST_PROTOCOL;
    for (int c = ST_OK + 1; c < ST_COUNT; c++)
        if (c != ST_END && strcmp(name, status_name((status)c)) == 0)
            code = (status)c;
    return FAIL_IN(code, peer, "refused: %s", message);
}
