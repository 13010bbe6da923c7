/* shim.h: a library with NCCL's API for processes of one machine, on devices of shapes and on
 * streams of an emulated device (README.md). The inside, for its own files. */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_DOUBLE_SHIM_H
#define TESSERA_TRAINER_PARALLEL_NCCL_DOUBLE_SHIM_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "trainer/device/emulated_handle.h"
#include "trainer/device/shapes.h"

enum {
    SHIM_RANKS_MAX = 64,
    SHIM_STAGE_BYTES = 1 << 18,
    SHIM_MAIL_BYTES = 1 << 16,
    SHIM_NAME_MAX = 96
};

typedef enum shim_kind {
    SHIM_ALL_GATHER,
    SHIM_REDUCE_SCATTER,
    SHIM_ALL_REDUCE,
    SHIM_BROADCAST,
    SHIM_SEND,
    SHIM_RECV
} shim_kind;

/* What a rank has called; all of it must be equal on all ranks. */
typedef struct shim_call {
    int64_t number; /* of those on this communicator (between these two ranks), from 1 */
    int32_t kind, type, op, root, stream;
    int32_t hollow; /* no bytes; and no padding here: they are compared as bytes */
    int64_t count;
} shim_call;

/* What one rank shows the others. */
typedef struct shim_member {
    atomic_llong arrived;     /* collectives begun */
    atomic_llong wrote, read; /* pieces of them: put into the stage, taken out of the others' */
    shim_call now;
    atomic_llong splits;
    int32_t color[2], key[2];     /* of the split under way, and the one before */
    atomic_llong windows, mapped; /* registrations begun; those whose memory was mapped */
    char window_name[2][SHIM_NAME_MAX];
    int64_t window_bytes[2];
    atomic_bool left;
} shim_member;

/* The way from one rank to another. */
typedef struct shim_mail {
    atomic_llong put, got; /* pieces */
    shim_call now;
    char bytes[SHIM_MAIL_BYTES];
} shim_mail;

/* Shared memory of a communicator; members, mail [size, size] and stages [size] stand after it. */
typedef struct shim_shared {
    atomic_int joined;
    atomic_int differs; /* a rank has seen calls that differ .. */
    atomic_int told;    /* .. and `said` says how */
    char said[1024];
} shim_shared;

struct ncclComm {
    char name[SHIM_NAME_MAX]; /* of the shared memory */
    int rank, size;
    shim_shared *shared;
    size_t shared_bytes;
    bool joined; /* all ranks were seen */
    atomic_bool aborted, revoked, finalizing;
    atomic_int inside; /* calls that have not returned */
    /* A split under way: written to *out when all have come. */
    ncclComm_t *split_out;
    ncclWindow_t *window_out; /* of a registration under way */
    int64_t splits, calls;    /* begun so far */
    int64_t windows;
    int64_t *sent, *received; /* [size] messages to and from each rank */
    struct shim_work *works;  /* all ever queued */
    struct shim_work *last;
    const void *last_stream;
    struct shim_work *under_way; /* of a device of shapes: what was called last */
    char said[256];              /* of a call that was refused */
    struct ncclComm *aborted_before, *next_live;
};

/* Around a call of the API. Ends the process where the communicator has gone; in ncclCommAbort,
 * which frees one, where a call is inside of it. */
void shim_go_in(struct ncclComm *c);
void shim_go_out(struct ncclComm *c);

shim_member *shim_member_of(const struct ncclComm *c, int rank);
shim_mail *shim_mail_of(const struct ncclComm *c, int from, int to);
char *shim_stage_of(const struct ncclComm *c, int rank);

/* A call, or the messages of a group, on a stream: may run many times. */
typedef struct shim_part {
    shim_call call;
    const char *send;
    char *recv;
    int peer;       /* of a message */
    int64_t number; /* of the message, this time */
    int64_t first;  /* bytes done */
    int64_t mark;   /* pieces there were when its last one was put */
    bool begun, done;
} shim_part;

typedef struct shim_work {
    struct ncclComm *comm;
    shim_part *part; /* [n] */
    int n, phase;
    int64_t runs;             /* how often it has run to its end */
    struct shim_work *before; /* of the same communicator on another stream */
    const void *capture;
    struct shim_work *next;
} shim_work;

/* emulated_handle's poll of a shim_work. */
bool shim_poll(void *work, bool first);
void shim_work_free(shim_work *w); /* accepts NULL */

/* hollow.c. NULL: the stream is of a device with storage. On one of shapes a call is under way
 * until ncclCommGetAsyncError has seen it end, with a poll each time. */
const shapes_handle *shim_shapes_of(cudaStream_t on);
/* Sets p->call.hollow; ncclInvalidArgument where a buffer does not lie in one allocation of a
 * device of shapes. */
ncclResult_t shim_find_place(struct ncclComm *c, cudaStream_t on, shim_part *p);
ncclResult_t shim_start(struct ncclComm *c, shim_work *w);
ncclResult_t shim_go_on(struct ncclComm *c);

/* A registration under way goes on. */
ncclResult_t shim_register(struct ncclComm *c);
/* Of window_layout.cc. */
size_t shim_window_bytes(void);
void shim_window_fill(ncclWindow_t w, void *base, uint32_t stride4g, int rank);
void *shim_window_base(ncclWindow_t w);

size_t shim_type_size(int type);
const char *shim_type_name(int type);
const char *shim_kind_name(int kind);
/* Calls differ: told to all ranks, once. */
void shim_differ(struct ncclComm *c, int rank, const shim_call *mine, int other,
                 const shim_call *theirs);
/* A call has run: into the record, where one is kept. bytes: what this rank got from others. */
void shim_record(const struct ncclComm *c, const shim_call *call, int64_t bytes);
void shim_record_open(int world_rank);

#endif
