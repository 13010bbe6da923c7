/* SPDX-License-Identifier: Apache-2.0 */
/* shim.h: the inside of a library with NCCL's API for processes of one machine, on devices of
 * shapes and on streams of an emulated device (README.md). For its own files.
 *
 * A communicator is a block of shared memory that all its ranks map:
 *
 *   shim_shared | shim_member [size] | shim_mail [size, size] | stage [size, SHIM_STAGE_BYTES]
 *
 * A rank writes only its own member, its own stage, and the mail that it sends. Counters in them
 * only grow, and a rank waits by polling until the others' counters have reached its own. */
#ifndef TESSERA_TESTS_NCCL_DOUBLE_SHIM_H
#define TESSERA_TESTS_NCCL_DOUBLE_SHIM_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/emulated/emulated_handle.h"
#include "tests/dry_run/shapes.h"

enum {
    SHIM_RANKS_MAX = 64,
    SHIM_STAGE_BYTES = 1 << 18, /* what a rank shows the others at once in a collective */
    SHIM_MAIL_BYTES = 1 << 16,  /* what it sends at once in a message */
    SHIM_NAME_MAX = 96
};

/* How the names of shared memory begin; the number of the process that made it follows. */
#define SHIM_COMM_NAME   "/tessera-nccl-"
#define SHIM_WINDOW_NAME "/tessera-window-"

typedef enum shim_kind {
    SHIM_ALL_GATHER,
    SHIM_REDUCE_SCATTER,
    SHIM_ALL_REDUCE,
    SHIM_BROADCAST,
    SHIM_SEND,
    SHIM_RECV
} shim_kind;

/* What a rank has called. All of it must be equal on all ranks. It is compared as bytes, so it has
 * no padding. */
typedef struct shim_call {
    int64_t number; /* from 1: of the calls on this communicator, or the messages of a pair */
    int32_t kind, type, op;
    int32_t root;   /* of a broadcast; for a message, the other rank */
    int32_t stream; /* number of the stream */
    int32_t hollow; /* not 0: on a device of shapes, no bytes are moved */
    int32_t graph;  /* number of the captured graph that holds it, from 1; 0: it is not captured */
    int32_t place;  /* number of the call in that graph, from 0 */
    int64_t count;  /* elements */
} shim_call;

/* What one rank shows the others. */
typedef struct shim_member {
    atomic_llong arrived;         /* how many collectives it has begun */
    atomic_llong wrote, read;     /* pieces put into its stage, and taken out of all stages */
    shim_call now;                /* the collective it is in */
    atomic_llong splits;          /* how many splits it has begun */
    int32_t color[2], key[2];     /* of the split in progress and of the one before, by parity */
    atomic_llong windows, mapped; /* window registrations begun, and those whose memory it mapped */
    char window_name[2][SHIM_NAME_MAX];
    int64_t window_bytes[2];
    atomic_bool left; /* it has finalized the communicator */
} shim_member;

/* The way from one rank to another. */
typedef struct shim_mail {
    atomic_llong put, got; /* pieces sent and received */
    shim_call now;
    char bytes[SHIM_MAIL_BYTES];
} shim_mail;

/* The beginning of a communicator's shared memory. */
typedef struct shim_shared {
    atomic_int joined;  /* how many ranks have joined */
    atomic_int differs; /* a rank has seen calls that differ */
    atomic_int told;    /* `said` is written */
    char said[1024];    /* which calls differ */
} shim_shared;

struct ncclComm {
    char name[SHIM_NAME_MAX]; /* of the shared memory */
    int rank, size;
    shim_shared *shared;
    size_t shared_bytes;
    bool joined; /* all ranks have joined */
    atomic_bool aborted, revoked, finalizing;
    atomic_int inside;        /* calls that have not returned */
    atomic_int busy;          /* things queued that have not ended; of a graph, only what runs */
    atomic_int graphs;        /* calls that captured graphs hold */
    ncclComm_t *split_out;    /* where the split in progress writes the child; NULL: none is */
    ncclWindow_t *window_out; /* likewise for a window registration */
    int64_t splits, calls, windows; /* begun so far */
    int64_t *sent, *received;       /* [size] messages to and from each rank */
    struct shim_work *works;        /* all that was ever queued, since a graph may run it again */
    const void *capture;            /* the last capture that holds a call of it */
    int32_t captures, in_capture;   /* how many there were, and how many calls the last one holds */
    struct shim_work *last;         /* queued last, */
    const void *last_stream;        /* and on which stream */
    struct shim_work *under_way;    /* on a device of shapes: the call in progress */
    char said[256];                 /* why a call was refused */
    struct ncclComm *aborted_before; /* list of aborted communicators, whose memory is kept */
    struct ncclComm *next_live;      /* list of all others */
};

/* To be called around every call of the API. shim_go_in ends the process if the communicator is
 * gone. ncclCommAbort and ncclCommDestroy end it if another call is inside. */
void shim_go_in(struct ncclComm *comm);
void shim_go_out(struct ncclComm *comm);
/* A communicator may be called from now on. */
void shim_add_live(struct ncclComm *comm);
/* Frees it with all that was queued. */
void shim_comm_free(struct ncclComm *comm);
/* What a call that has begun returns: waits until it is done or the communicator is revoked. */
ncclResult_t shim_finish(struct ncclComm *comm, ncclResult_t result);
/* Whether this thread is between ncclGroupStart and ncclGroupEnd. */
bool shim_in_group(void);
/* Finishes the aborts of the group that ends. */
void shim_end_aborts(void);
/* Removes the names of shared memory whose makers died long ago. */
void shim_forget_dead(void);

shim_member *shim_member_of(const struct ncclComm *comm, int rank);
shim_mail *shim_mail_of(const struct ncclComm *comm, int from, int to);
char *shim_stage_of(const struct ncclComm *comm, int rank);

/* One collective, or one message of a group. */
typedef struct shim_part {
    shim_call call;
    const char *send;
    char *recv;
    int peer;       /* of a message */
    int64_t number; /* of the message, this time it runs */
    int64_t first;  /* elements done of a collective, bytes done of a message */
    bool begun, done;
} shim_part;

/* What a call queues on a stream. In a captured graph it runs many times. */
typedef struct shim_work {
    struct ncclComm *comm;
    shim_part *part;          /* [count] one collective, or the messages of a group */
    int count, phase;         /* phase: of a collective (polls.c) */
    int64_t runs;             /* how often it has run to its end */
    struct shim_work *before; /* work on another stream that must have run first; NULL: none */
    const void *capture;      /* the capture it is part of; NULL: none */
    bool busy;                /* it counts in comm->busy */
    struct shim_work *next;
} shim_work;

/* Does what can be done of a shim_work without waiting; true once all is done. `first` says that it
 * begins to run. The poll of emulated_handle. */
bool shim_poll(void *work, bool first);
/* The graph that holds it is freed. The drop of emulated_handle. */
void shim_drop(void *work);
void shim_work_free(shim_work *work); /* accepts NULL */

/* hollow.c. The handle of a stream of a device of shapes; NULL: the device has storage. On a device
 * of shapes a call returns when it has run. */
const shapes_handle *shim_shapes_of(cudaStream_t on);
/* Sets part->call.hollow. ncclInvalidArgument if a buffer does not lie in one allocation of a
 * device of shapes. */
ncclResult_t shim_find_place(struct ncclComm *comm, cudaStream_t on, shim_part *part);
/* Begins a call on a device of shapes, and polls it again. ncclInProgress: it is not done. */
ncclResult_t shim_start(struct ncclComm *comm, shim_work *work);
ncclResult_t shim_go_on(struct ncclComm *comm);

/* Continues the window registration in progress. */
ncclResult_t shim_register(struct ncclComm *comm);
/* window_layout.cc: the size of a window's handle, filling one in, and the base it was given. */
size_t shim_window_bytes(void);
void shim_window_fill(ncclWindow_t window, void *base, uint32_t stride4g, int rank);
void *shim_window_base(ncclWindow_t window);

size_t shim_type_size(int type);
const char *shim_type_name(int type);
const char *shim_kind_name(int kind);
/* Tells all ranks, once, that these two calls differ. */
void shim_differ(struct ncclComm *comm, int rank, const shim_call *mine, int other,
                 const shim_call *theirs);
/* Writes a call that has run into the record, if one is kept. bytes: what this rank received
 * from others. */
void shim_record(const struct ncclComm *comm, const shim_call *call, int64_t bytes);
/* Opens the record that TESSERA_NCCL_RECORD asks for. */
void shim_record_open(int world_rank);

#endif
