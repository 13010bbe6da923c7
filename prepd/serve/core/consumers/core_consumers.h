/* SPDX-License-Identifier: Apache-2.0 */
/* core_consumers.h: HELLO and WELCOME, and rows on their way to consumers. */
#ifndef TESSERA_PREPD_SERVE_CORE_CONSUMERS_CORE_CONSUMERS_H
#define TESSERA_PREPD_SERVE_CORE_CONSUMERS_CORE_CONSUMERS_H

#include "prepd/serve/core/state/dispatch_state.h"

/* consumers.c */
/* Where in the stream a consumer is. */
typedef struct stream_place {
    int64_t epoch;       /* from 0, in rows of epoch 0; other epochs differ by a few rows */
    double share;        /* of the epoch, 0 to 1 */
    double seconds_left; /* in the epoch at the present pace; -1 if unknown */
} stream_place;
stream_place consumer_place(const consumer_seat *consumer); /* it must have been welcomed */
/* About the most bytes that a row of a stream with these options can reserve. */
int64_t consumer_row_bytes(const conf *options);
consumer_seat *consumer_find(dispatch *state, const wire_peer *peer); /* NULL if there is none */
void consumer_free(consumer_seat *consumer);
/* Removes a consumer, sending it `error` first unless that is NULL. */
void consumer_close(dispatch *state, consumer_seat *consumer, const char *error);
/* The consumer's next row as a lease; *out is NULL if its credit or its plan allow none now. */
WARN_UNUSED status consumer_produce(dispatch *state, consumer_seat *consumer, lease **out,
                                    planned_row *out_row);
void consumers_drop_dead(dispatch *state, int64_t now);
void consumers_deliver(dispatch *state); /* sends rows that a consumer could not take before */
/* The row of this lease is good. Takes the lease and the message, which has its tag. */
void consumer_take_row(dispatch *state, consumer_seat *consumer, lease *leased, wire_msg *made);
hash128 made_digest(const wire_msg *made); /* as its header says */
/* Remembers who made a row that was sent. Its bytes must not be in consumer->unreturned yet. */
WARN_UNUSED status sent_row_add(consumer_seat *consumer, const made_row *sent);
/* NULL if the row was not sent lately. A row that was given back long ago may be forgotten. */
const made_row *sent_row_find(const consumer_seat *consumer, uint64_t row);
/* Makes room for a consumer, not yet in the list, that says that it is a rank of a run: one that
 * has said the same is closed if it has gone, or if it is this one on an earlier connection.
 * CONFIG, and the newcomer may not stay: that one is there. */
WARN_UNUSED status twin_make_room(dispatch *state, const consumer_seat *newcomer, const char *name);

/* greet.c */
WARN_UNUSED status consumer_hello(dispatch *state, const wire_peer *from, const json_value *said,
                                  const char *name);
/* Sends WELCOME to the consumers whose index and plan have become ready. */
void consumers_greet(dispatch *state);
/* Refuses the consumers that wait for a section that cannot be opened. */
void consumers_refuse(dispatch *state, const source *src, status st);

#endif
