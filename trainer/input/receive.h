/* receive.h: rows for the step, taken from the wire or a recording by a thread of its own, so that
 * checking and decompressing never happen on the step's thread.
 *
 * A fixed ring of slots, each with its arena: the thread fills free slots in stream order, the step
 * takes them in the same order and gives them back. Nothing grows. A failure of the thread is
 * handed to the step with its text. */
#ifndef TESSERA_TRAINER_RECEIVE_H
#define TESSERA_TRAINER_RECEIVE_H

#include "proto/client.h"

typedef struct receiver receiver;

typedef struct receiver_options {
    client_options client;
    replay_options replay; /* a recording instead of a daemon; path NULL or "" = the daemon */
    int64_t slots;         /* rows held at once */
    bool (*stopped)(void); /* asked while the step waits; true ends the wait. NULL: never */
} receiver_options;

/* A row and what it took to get it; valid until receiver_give_back. */
typedef struct received {
    row row;
    frame head;
    void *slot; /* receiver's own */
} received;

WARN_UNUSED status receiver_open(const receiver_options *o, receiver **out);
void receiver_close(receiver **r);
const char *receiver_welcome(const receiver *r); /* WELCOME's JSON */
int64_t receiver_rows(const receiver *r);        /* of a recording, once through; else -1 */

/* Blocks until the next row; *inout_waited_ns grows by the time it was not there. ST_END after the
 * last; ST_STOPPED within a fraction of a second where stopped() says so; the thread's failure
 * otherwise. */
WARN_UNUSED status receiver_next(receiver *r, received *out, int64_t *inout_waited_ns);
void receiver_give_back(receiver *r, received *got);
/* Where to go on after the last row taken: its cursor (proto/README.md), "" before the first. The
 * receiver's, until the next receiver_next. */
const char *receiver_cursor(const receiver *r);

#endif
