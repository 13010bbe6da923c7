/* SPDX-License-Identifier: Apache-2.0 */
/* client_parts.h: what the files of a client share; private to proto. */
#ifndef TESSERA_PROTO_SESSION_CLIENT_PARTS_H
#define TESSERA_PROTO_SESSION_CLIENT_PARTS_H

#include <stdatomic.h>

#include "common/json/json.h"
#include "proto/row/bad_samples.h"
#include "proto/session/client.h"
#include "proto/message/record.h"
#include "proto/row/row_order.h"
#include "proto/session/share.h"

/* Half of a client is used at a time. For a daemon: a socket, the options that HELLO repeats after
 * every reconnect, and the order that rows must come in. For a recording: its reader and, with
 * several ranks, the share. */
struct client {
    char *name;    /* endpoint or path, for errors */
    char *welcome; /* of the daemon; the recording keeps its own */
    codec *codec;
    wire_msg *scratch; /* the message in client_next and in greeting a daemon */
    bool ended;
    atomic_bool interrupted; /* set by another thread */
    /* daemon */
    wire *wire;
    wire_socket *socket;
    client_options hello; /* for this HELLO and the next; the texts are copies */
    bool joining;         /* HELLO is sent, WELCOME has not come */
    bool heard;           /* a daemon was there, on an earlier connection */
    row_order order;      /* that its rows must come in */
    bool tags;            /* its rows have tags */
    bad_samples known;    /* for HELLO: what was given, and what rows have listed since */
    char *cursor;         /* [cursor_bytes] of the last row that was taken; NULL at first */
    size_t cursor_bytes;
    int64_t wait_ns; /* when waiting for WELCOME began */
    int64_t tell_ns; /* when hello.waiting is called next */
    /* recording */
    record_reader *record;
    share *share;       /* NULL if this client gets all rows */
    uint64_t next, end; /* rows over all loops */
    int64_t left_over;  /* after `end`: less than a step */
};

/* client_session.c */

/* A client that is connected to nothing. name: an endpoint or a path, copied. client_close frees
 * it. */
WARN_UNUSED status client_make(const char *name, client **out);
/* Closes the connection, if there is one. */
void client_hang_up(client *consumer);

/* Waits for any message but a sign of life, in slices, so that client_interrupt is noticed.
 * waits_on means that the first WELCOME is awaited: then a sign of life starts the time again. The
 * caller notes ST_TIMEOUT. */
WARN_UNUSED status client_receive(client *consumer, wire_msg *raw, int timeout_ms, bool waits_on);
/* Makes the peer's KIND_ERROR a failure of ours. A daemon that is stopping counts as gone. */
WARN_UNUSED status client_read_refusal(const client *consumer, const wire_msg *message);

#endif
