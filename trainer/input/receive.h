/* SPDX-License-Identifier: Apache-2.0 */
/* receive.h: rows for the step, from the daemon or from a recording. A separate thread receives
 * them, so that checking and decompressing never happen on the step's thread.
 *
 * There is a fixed ring of slots, each with its own arena. The thread fills free slots in the order
 * of the stream; the step takes them in the same order and gives them back; nothing grows. If the
 * daemon goes away the thread waits for it (receive.c). Any other failure of the thread is handed to
 * the step with its text.
 *
 * Where several ranks share rows, one of them receives the rows. Its thread hands each row on as
 * soon as it has arrived, and the threads of the other ranks fill their slots from that
 * (row_feed.h). If the receiving rank fails or is gone, the others report that as their own
 * failure. */
#ifndef TESSERA_TRAINER_INPUT_RECEIVE_H
#define TESSERA_TRAINER_INPUT_RECEIVE_H

#include "proto/session/client.h"
#include "proto/row/bad_samples.h"
#include "trainer/parallel/row_broadcast.h"

typedef struct receiver receiver;

typedef struct receiver_options {
    client_options client;
    /* A recording to read instead of a daemon; path NULL or "": use the daemon. */
    replay_options replay;
    int64_t slots; /* how many rows are held at once */
    /* Owned by the receiver, even after a call that fails; NULL: these rows are not shared. */
    row_broadcast *row_broadcast;
    /* The run will go on from these rows of a daemon, so their cursors are checked. */
    bool trains;
    double reconnect_s;    /* how long to wait for a daemon that is gone; 0: do not wait */
    bool (*stopped)(void); /* asked while the step waits; true ends the wait; NULL: never */
} receiver_options;

/* A row and what it took to get it. It is the receiver's, and valid until receiver_give_back. */
typedef struct received {
    row row;
    frame head;
    /* Bytes that came from the rank that received it; 0: this rank received it itself. */
    int64_t shared_bytes;
    void *slot; /* for the receiver's own use */
} received;

/* Connects to the daemon or opens the recording, reads WELCOME and starts the thread. Fails as
 * client_open and client_replay do (proto/session/client.h); on ranks that share rows, with the failure of
 * the rank that receives them. The caller closes it with receiver_close, which ends the thread. */
WARN_UNUSED status receiver_open(const receiver_options *options, receiver **out);
void receiver_close(receiver **held);
/* The JSON of WELCOME, until the receiver is closed. */
const char *receiver_welcome(const receiver *input);
/* Rows of the recording, once through; -1 with a daemon. */
int64_t receiver_rows(const receiver *input);
int64_t receiver_left_over(const receiver *input); /* see client_left_over */

/* Waits for the next row. *inout_waited_ns grows by the time that was spent waiting. ST_END after
 * the last row. ST_STOPPED within a fraction of a second once stopped() is true; on ranks that
 * share rows only the receiving rank's stopped() counts, and all stop after the same row. Otherwise
 * the thread's failure. */
WARN_UNUSED status receiver_next(receiver *input, received *out, int64_t *inout_waited_ns);
/* Gives the row's slot back to the thread. Does nothing if it was given back already. */
void receiver_give_back(receiver *input, received *got);
/* Where a run must go on after the last row taken: its cursor (proto/wire.md), "" before the
 * first row. It is the receiver's, and valid until the next receiver_next. */
const char *receiver_cursor(const receiver *input);
/* The bad samples that the run knew when it was resumed and that the rows taken since have listed
 * (options.trains). It is empty for a recording, and on a rank that gets its rows from another one,
 * which has the list. It is the receiver's, and valid until the next receiver_next. */
const bad_samples *receiver_bad_samples(const receiver *input);

#endif
