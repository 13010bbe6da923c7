/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h: the work of the emulated device. A lane is a list of nodes that run in order: each
 * stream has one. Lanes wait for each other by events. A graph is several lanes that are kept to
 * run again. For emulated.c. */
#ifndef TESSERA_TESTS_EMULATED_QUEUE_H
#define TESSERA_TESTS_EMULATED_QUEUE_H

#include "tests/emulated/emulated.h"

enum { QUEUE_ARGS_MAX = 560, QUEUE_BRANCHES = 8, QUEUE_STREAMS = 64, QUEUE_CALL_NS = 1000 };

typedef struct lane lane;

/* An event: where it was recorded last, which is after the nodes before place `at` of a lane. */
struct event {
    lane *on;    /* a stream's lane; NULL: not recorded on a stream */
    graph *in;   /* the capture in which it was recorded; NULL: none */
    int branch;  /* and which of its lanes */
    int64_t ns;  /* when it passed last, by the device's clock */
    event *next; /* the device keeps all events, since a stream may still reach them */
    int64_t at;
};

typedef enum node_kind {
    NODE_RUN,
    NODE_COPY,
    NODE_SHIPMENT, /* a copy from bytes that the node owns and then frees */
    NODE_ZERO,
    NODE_OUTSIDE,       /* work of a library (emulated_handle.add), polled until it is done */
    NODE_RECORD,        /* writes the time into an event */
    NODE_FOLLOW,        /* waits until lane `on` has passed place `place` */
    NODE_FOLLOW_INSIDE, /* the same for lane `branch` of the graph that the node is in */
    NODE_LAUNCH         /* runs a graph */
} node_kind;

/* One thing queued. */
typedef struct node {
    node_kind kind;
    status (*run)(stream *cpu, const void *args);
    void *dst;
    const void *src;
    size_t bytes;
    bool (*poll)(void *work, bool first);
    void (*drop)(void *work); /* called when the graph that holds the node is freed; may be NULL */
    void *work;
    bool begun; /* it was polled before */
    event *event;
    lane *on;
    int branch;
    int64_t place;
    graph *graph;
    _Alignas(16) char args[QUEUE_ARGS_MAX];
} node;

/* The nodes of a stream or of one branch of a graph. The node at `place` is at[place - gone]. */
struct lane {
    node *at;                        /* [count] */
    int64_t count, capacity, passed; /* passed: how many have run */
    int64_t gone;                    /* how many have run and were dropped */
};

struct graph {
    lane branch[QUEUE_BRANCHES]; /* [0] belongs to the stream that began the capture */
    int count;
    bool running;
};

/* The lanes of all streams that a device has had. */
typedef struct queue_set {
    stream *hands; /* the stream of the CPU that does the work */
    lane lane[QUEUE_STREAMS];
    int count;
    int64_t clock_ns; /* the device's clock; each thing done takes QUEUE_CALL_NS */
} queue_set;

/* Appends a copy of the node. */
WARN_UNUSED status lane_add(lane *on, const node *item);
/* The place after all that is queued. */
int64_t queue_end(const lane *on);
/* Runs the lane `on` until everything before a place has happened. Other lanes run where this one
 * waits for them, or while it cannot go on. */
WARN_UNUSED status queue_pass(queue_set *set, lane *on, int64_t place);
/* Whether all lanes of a graph lead back into its first one. */
bool queue_is_joined(graph *recorded);
void queue_graph_free(graph *recorded);
void queue_lane_done(lane *on);

#endif
