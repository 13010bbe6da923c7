/* SPDX-License-Identifier: Apache-2.0 */
/* wire_msg.h: messages of several parts, and messages of JSON. */
#ifndef TESSERA_PROTO_MESSAGE_WIRE_MSG_H
#define TESSERA_PROTO_MESSAGE_WIRE_MSG_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/span.h"
#include "common/base/status.h"
#include "common/json/json.h"
#include "proto/row/frame.h"

typedef struct wire_msg wire_msg; /* a list of parts that it owns */

WARN_UNUSED status wire_msg_new(wire_msg **out);
void wire_msg_free(wire_msg **message);
void wire_msg_clear(wire_msg *message); /* drops all parts */
size_t wire_msg_parts(const wire_msg *message);
size_t wire_msg_bytes(const wire_msg *message); /* of all parts together */
/* Part `index`, borrowed until the message changes; empty if there is no such part. */
span wire_msg_part(const wire_msg *message, size_t index);
/* Appends a part with a copy of these bytes. */
WARN_UNUSED status wire_msg_add(wire_msg *message, const void *data, size_t size);
/* Appends a part of this size, for the caller to fill before the message changes again. */
WARN_UNUSED status wire_msg_add_space(wire_msg *message, size_t size, uint8_t **out);
/* Replaces part `index` by a copy of these bytes,
 * for example by a header with another row number. */
WARN_UNUSED status wire_msg_set(wire_msg *message, size_t index, const void *data, size_t size);
/* Moves all parts of `from` to the end of `to`. */
WARN_UNUSED status wire_msg_move(wire_msg *to, wire_msg *from);
/* Appends references to the bytes of all parts of `from`, without copying them. */
WARN_UNUSED status wire_msg_share(wire_msg *to, const wire_msg *from);
/* The same for n_parts parts from part `first` on, which `from` has. */
WARN_UNUSED status wire_msg_share_some(wire_msg *to, const wire_msg *from, size_t first,
                                       size_t n_parts);

/* --- messages of JSON --- */

/* Makes the message that wire_send_json sends, with the parts of `more` (may be NULL) moved to its
 * end. Only a LEASE may have those. The caller frees *out. */
WARN_UNUSED status wire_json_message(int kind, uint64_t row, const char *json, size_t size,
                                     wire_msg *more, wire_msg **out);

/* Reads the header and the JSON object of any message but a ROW, and checks sizes, hash (if given)
 * and form. ST_PROTOCOL names the peer. The caller frees *out with json_free. */
WARN_UNUSED status wire_read_json(const wire_msg *message, const char *peer, frame *out_head,
                                  json_value **out);
/* Makes the message that wire_send_error sends. The caller frees *out. */
WARN_UNUSED status wire_error_message(uint64_t row, status code, wire_msg **out);
/* Turns the object of a KIND_ERROR into a failure of this thread with the peer's code and reason;
 * ST_PROTOCOL if it has no code that we know. */
WARN_UNUSED status wire_error(const json_value *error, const char *peer);

#define WIRE_PEER_WORD "peer " /* with which the name of a peer begins (wire_peer_print) */
/* status_text() without the name of the peer that it is about, to be sent to that peer. Routing ids
 * must not be told to peers: an id tells which ids come next, and a peer that claims one beforehand
 * makes libzmq end the process (wire.md, Names). */
const char *wire_peer_text(void);

#endif
