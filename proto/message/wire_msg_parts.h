/* SPDX-License-Identifier: Apache-2.0 */
/* wire_msg_parts.h: the representation of a message. Private to proto. */
#ifndef TESSERA_PROTO_MESSAGE_WIRE_MSG_PARTS_H
#define TESSERA_PROTO_MESSAGE_WIRE_MSG_PARTS_H

#include <zmq.h>

#include "proto/row/frame.h"
#include "proto/message/wire_msg.h"

enum { WIRE_MAX_PARTS = FRAME_MAX_IMAGES + 3 }; /* header, block, images, tag */

struct wire_msg {
    zmq_msg_t *parts; /* [capacity]; the first n_parts are initialised */
    size_t n_parts, capacity;
};

/* Appends a part by moving it. `part` is empty afterwards and must still be closed. */
WARN_UNUSED status wire_msg_take(wire_msg *message, zmq_msg_t *part);

#endif
