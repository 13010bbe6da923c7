/* graph_replay.h: work of a step that is captured once and queued again as a whole (design section
 * 5).
 *
 *     bool done;
 *     TRY(graph_replay_begin(s, &(graph_replay_key){REPLAY_STEP, .variant = v}, &done));
 *     if (done)
 *         return ST_OK;
 *     return graph_replay_end(s, body(..));
 *
 * The first run of a key is an ordinary one, in which libraries make their plans and scratch grows;
 * the second is captured; from then on the graph is queued and the body is not entered. So the body
 * may depend on nothing but the key and device memory; pieces that it begins are part of it.
 * Without a replay on the stream, outside its scope, or on a backend without graphs, every run is
 * an ordinary one. */
#ifndef TESSERA_TRAINER_DEVICE_GRAPH_REPLAY_H
#define TESSERA_TRAINER_DEVICE_GRAPH_REPLAY_H

#include "trainer/device/backend.h"

typedef enum replay_piece {
    REPLAY_STEP, /* a micro-step's forward and backward; the update */
    REPLAY_ATTENTION,
    REPLAY_ROUTER,
    REPLAY_EXPERTS,
    REPLAY_VISION,
    REPLAY_PIECES
} replay_piece;

enum { REPLAY_FORWARD, REPLAY_AGAIN, REPLAY_BACKWARD, REPLAY_UPDATE };

typedef struct graph_replay_key {
    int32_t piece, pass;
    int32_t index;   /* layer of the decoder, unit of the vision tower */
    int32_t variant; /* of the batch: device_batch.variant */
} graph_replay_key;

typedef struct replay replay;

/* scope: cuda_graph.scope: "off", "step", or a list of attn, router, experts, vision. CONFIG names
 * a word that is none of them. Belongs to s until graph_replay_free. */
WARN_UNUSED status graph_replay_new(stream *s, const char *scope);
void graph_replay_free(stream *s);

/* Told what is captured and run again, by a piece's number: for who counts what is queued inside.
 */
typedef struct graph_replay_watch {
    void *context;
    /* Around the capture of a piece, which then runs for the first time as a graph. */
    status (*captured)(void *context, int64_t piece, bool begins);
    void (*again)(void *context, int64_t piece);
} graph_replay_watch;

/* After graph_replay_new; w is copied. */
void graph_replay_watched(stream *s, const graph_replay_watch *w);

WARN_UNUSED status graph_replay_begin(stream *s, const graph_replay_key *key, bool *out_done);
/* st: of the body. */
WARN_UNUSED status graph_replay_end(stream *s, status st);

#endif
