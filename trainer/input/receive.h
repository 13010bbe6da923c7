/* receive.h: rows for the step, taken from the wire or a recording by a thread of its own, so that
 * checking and decompressing never happen on the step's thread.
 *
 * A fixed ring of slots, each with its arena: the thread fills free slots in stream order, the step
 * takes them in the same order and gives them back. Nothing grows. A daemon that went is waited for
 * (rejoin.h); any other failure of the thread is handed to the step with its text.
 *
 * Of ranks that share rows one receives them; its thread hands each on as soon as it is there, and
 * the others' threads fill their slots from that (row_feed.h). They hear of its failure, or that it
 * is gone, as theirs. */
#ifndef TESSERA_TRAINER_INPUT_RECEIVE_H
#define TESSERA_TRAINER_INPUT_RECEIVE_H

#include "proto/client.h"
#include "trainer/parallel/row_broadcast.h"

typedef struct receiver receiver;

typedef struct receiver_options {
    client_options client;
    replay_options replay; /* a recording instead of a daemon; path NULL or "" = the daemon */
    int64_t slots;         /* rows held at once */
    row_broadcast
        *row_broadcast;    /* taken, also by a call that fails; NULL: nobody shares these rows */
    bool trains;           /* rows of a daemon that a run goes on from: their cursors are checked */
    double reconnect_s;    /* how long a daemon that went is waited for; 0: not at all */
    bool (*stopped)(void); /* asked while the step waits; true ends the wait. NULL: never */
} receiver_options;

/* A row and what it took to get it; valid until receiver_give_back. */
typedef struct received {
    row row;
    frame head;
    int64_t shared_bytes; /* that came from the rank that received it; 0: from nobody */
    void *slot;           /* receiver's own */
} received;

WARN_UNUSED status receiver_open(const receiver_options *o, receiver **out);
void receiver_close(receiver **r);
const char *receiver_welcome(const receiver *r); /* WELCOME's JSON */
int64_t receiver_rows(const receiver *r);        /* of a recording, once through; else -1 */
int64_t receiver_left_over(const receiver *r);   /* client_left_over */

/* Blocks until the next row; *inout_waited_ns grows by the time it was not there. ST_END after the
 * last; ST_STOPPED within a fraction of a second where stopped() says so (of ranks that share rows
 * where the source's does, for all of them); the thread's failure otherwise. */
WARN_UNUSED status receiver_next(receiver *r, received *out, int64_t *inout_waited_ns);
void receiver_give_back(receiver *r, received *got);
/* Where to go on after the last row taken: its cursor (proto/wire.md), "" before the first. The
 * receiver's, until the next receiver_next. */
const char *receiver_cursor(const receiver *r);

#endif
