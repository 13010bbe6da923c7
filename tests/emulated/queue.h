/* queue.h: the work of the emulated device: lanes of nodes, each in its order, that wait for each
 * other by events; graphs are lanes kept to run again. For emulated.c. */
#ifndef TESSERA_TESTS_EMULATED_QUEUE_H
#define TESSERA_TESTS_EMULATED_QUEUE_H

#include "tests/emulated/emulated.h"

enum { QUEUE_ARGS_MAX = 560, QUEUE_BRANCHES = 8, QUEUE_STREAMS = 64, QUEUE_CALL_NS = 1000 };

typedef struct lane lane;

/* Where it was recorded last: what stands before place `at` of a lane. */
struct event {
    lane *on;    /* of a stream; NULL: nowhere yet */
    graph *in;   /* or inside a capture: this one's .. */
    int branch;  /* .. lane */
    int64_t ns;  /* when it passed last, by the device's clock */
    event *next; /* of the device, which keeps it: a stream may not have come to it */
    int64_t at;
};

typedef enum node_kind {
    NODE_RUN,
    NODE_COPY,
    NODE_SHIPMENT, /* src: bytes of its own, copied when they were handed over */
    NODE_ZERO,
    NODE_OUTSIDE,       /* of a library: emulated_handle.add */
    NODE_RECORD,        /* the time, for an event */
    NODE_FOLLOW,        /* lane `on` has passed place `place` */
    NODE_FOLLOW_INSIDE, /* of a graph: its lane `branch` has */
    NODE_LAUNCH
} node_kind;

/* One thing queued. */
typedef struct node {
    node_kind kind;
    status (*run)(stream *cpu, const void *args);
    void *dst;
    const void *src;
    size_t bytes;
    bool (*poll)(void *work, bool first);
    void *work;
    bool begun; /* polled before */
    event *event;
    lane *on;
    int branch;
    int64_t place;
    graph *graph;
    _Alignas(16) char args[QUEUE_ARGS_MAX];
} node;

/* Of a stream, or of a graph. Place p is node p - gone. */
struct lane {
    node *at;
    int64_t n, capacity, passed;
    int64_t gone; /* nodes that have passed and are no longer kept */
};

struct graph {
    lane branch[QUEUE_BRANCHES]; /* [0]: of the stream that began the capture */
    int n;
    bool running;
};

/* Lanes of all streams that a device has had, and the CPU's stream that does their work. */
typedef struct queue_set {
    stream *hands;
    lane lane[QUEUE_STREAMS];
    int n;
    int64_t clock_ns; /* the device's: QUEUE_CALL_NS for each thing done */
} queue_set;

WARN_UNUSED status lane_add(lane *l, const node *n);
/* The place behind all that is queued. */
int64_t queue_end(const lane *l);
/* Until everything in l before a place has happened. Work of other lanes happens where this one
 * waits for it, and where nothing here can go on. */
WARN_UNUSED status queue_pass(queue_set *q, lane *l, int64_t place);
/* Whether all of g's lanes lead back into its first. */
bool queue_is_joined(graph *g);
void queue_graph_free(graph *g);
void queue_lane_done(lane *l);

#endif
