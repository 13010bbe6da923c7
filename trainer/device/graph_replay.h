/* SPDX-License-Identifier: Apache-2.0 */
/* graph_replay.h: captured graphs: a piece of a step is recorded once and later queued again as a
 * whole, which saves the host's work of queueing each of its kernels.
 *
 *   bool done;
 *   TRY(graph_replay_begin(s, &(graph_replay_key){REPLAY_STEP, .variant = v}, &done));
 *   if (done)
 *       return ST_OK;
 *   return graph_replay_end(s, body(..));
 *
 * The first run of a key is an ordinary one, in which libraries make their plans and scratch grows.
 * The second run is captured and then queued as a graph. From the third on the graph is queued and
 * the body is not entered. So the body may depend on nothing but the key and device memory. A piece
 * that begins inside another becomes part of it.
 *
 * If the stream has no replay, if the piece is outside the chosen scope, or if the backend
 * has no graphs, every run is an ordinary one. */
#ifndef TESSERA_TRAINER_DEVICE_GRAPH_REPLAY_H
#define TESSERA_TRAINER_DEVICE_GRAPH_REPLAY_H

#include "trainer/device/backend.h"

typedef enum replay_piece {
    REPLAY_STEP, /* forward and backward of one micro-batch; the update */
    REPLAY_ATTENTION,
    REPLAY_ROUTER,
    REPLAY_EXPERTS,
    REPLAY_VISION,
    REPLAY_PIECES
} replay_piece;

enum { REPLAY_FORWARD, REPLAY_AGAIN, REPLAY_BACKWARD, REPLAY_UPDATE };

typedef struct graph_replay_key {
    int32_t piece, pass;
    int32_t index;   /* layer of the decoder, or unit of the vision tower */
    int32_t variant; /* the batch's shape: device_batch.variant */
} graph_replay_key;

typedef struct replay replay;

/* Gives the stream a replay. `scope` is the option cuda_graph.scope: "off", "step", or a list of
 * attn, router, experts and vision. CONFIG if a word is none of these. The replay belongs to the
 * stream until graph_replay_free, which also frees all graphs. */
WARN_UNUSED status graph_replay_new(stream *stream, const char *scope);
void graph_replay_free(stream *stream);

/* Whether any piece is captured. */
bool graph_replay_any(const stream *stream);
/* While it is paused every run is an ordinary one, and none counts as a first or second one. A
 * stream without a replay is accepted. */
void graph_replay_pause(stream *stream, bool paused);

/* Functions that are told what is captured and what is run again, for code that counts what a piece
 * queues (the graph's own work never passes through it again). A piece is identified by a number.
 */
typedef struct graph_replay_watch {
    void *context;
    /* Called before (begins) and after the capture of a piece, which then runs for the first time
     * as a graph. */
    status (*captured)(void *context, int64_t piece, bool begins);
    /* The piece is about to run again as a graph. */
    void (*again)(void *context, int64_t piece);
} graph_replay_watch;

/* Sets those functions; they are copied. Call after graph_replay_new. */
void graph_replay_watched(stream *stream, const graph_replay_watch *watch);

/* Begins a piece. *out_done true: its graph has been queued, and neither the body nor
 * graph_replay_end may be called. */
WARN_UNUSED status graph_replay_begin(stream *stream, const graph_replay_key *key, bool *out_done);
/* Ends a piece whose begin said false. `st` is what the body returned; a failure is returned again,
 * and an open capture is then dropped. */
WARN_UNUSED status graph_replay_end(stream *stream, status st);

#endif
