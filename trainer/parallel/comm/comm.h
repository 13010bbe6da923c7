/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h: collectives over a group of ranks, as the model and the training step see them.
 *
 * One table of calls (comm_engine) has several implementations: MPI, NCCL, one that simulates the
 * other ranks and one that only counts (layouts.md, "Engines"). The model never names an engine; it
 * calls the functions below on the groups of its mesh (mesh.h).
 *
 * What holds for every call:
 * - A call is queued on the stream `s` that it is given, in order with the stream's other work.
 *   Buffers are memory of that stream's device, are borrowed, and must stay until the stream has
 *   passed the call.
 * - All ranks of a group make the same calls in the same order with the same counts, whatever their
 *   data. A rank without images or tokens takes part like the others.
 * - Counts are numbers of elements of `dtype`, not bytes.
 * - In a group of one rank a call copies `send` to `recv` if they differ, and counts nothing.
 * - Sums may be of F32, F64, BF16, I32, I64 and U8, and are taken in that type. MPI sums BF16 in
 *   float and rounds once. MPI adds in the order of the ranks, NCCL in its own order that
 *   depends on the layout. Either way a run repeats bit for bit.
 *
 * Errors: ST_INTERNAL if the arguments contradict each other; ST_TIMEOUT if another rank does
 * not come in time; ST_UNAVAILABLE if another rank is lost or the engine fails. The note names
 * the call, its layer and its group. After a failure nothing but closing may be called, since the
 * other ranks may never answer. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_H
#define TESSERA_TRAINER_PARALLEL_COMM_H

#include "trainer/device/backend.h"

/* The purpose of a call. The ledger counts by it, and messages about a lost rank name it. */
typedef struct comm_at {
    const char *what; /* such as "gather weights"; static storage */
    int64_t layer;    /* decoder layer; -1 if the call belongs to none */
} comm_at;

typedef enum comm_kind {
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_BROADCAST,
    COMM_ALL_TO_ALL,
    COMM_SEND,
    COMM_RECV,
    COMM_PEERS, /* loads and stores through a comm_window */
    COMM_KINDS
} comm_kind;

typedef enum comm_reduction { COMM_SUM, COMM_MAX } comm_reduction;

struct comm_engine;
struct comm_ledger;

/* COMM_ID_BYTES: room for the id by which an engine's ranks find each other. COMM_STAGE_BYTES: the
 * NCCL engine takes this much device memory, and as much pinned memory, to move host values. */
enum { COMM_NAME_MAX = 32, COMM_ID_BYTES = 128, COMM_STAGE_BYTES = 1 << 20 };

/* A group of ranks that this rank belongs to. */
typedef struct comm {
    const struct comm_engine *engine; /* NULL in a group of one */
    char name[COMM_NAME_MAX];         /* of the mesh dimension, such as "tensor" */
    int rank, size;                   /* this process' rank in the group; how many there are */
    const int *world_rank;            /* [size] rank of each member in the job */
    void *handle;                     /* the engine's own */
    struct comm_ledger *ledger;       /* counts the calls (comm_ledger.h); NULL: none does */
} comm;

/* recv [size, count]: the send [count] of every rank, in the order of the ranks. May be done in
 * place, with send == recv + rank * count. */
WARN_UNUSED status comm_all_gather(const comm *group, stream *queue, comm_at at, const void *send,
                                   void *recv, int64_t count, st_dtype dtype);
/* recv [count]: the sum over all ranks of piece number `rank` of their send [size, count]. May be
 * done in place, with recv == send + rank * count. */
WARN_UNUSED status comm_reduce_scatter(const comm *group, stream *queue, comm_at at,
                                       const void *send, void *recv, int64_t count, st_dtype dtype);
/* inout [count]: becomes the sum, or the maximum, of what the ranks have there. */
WARN_UNUSED status comm_all_reduce(const comm *group, stream *queue, comm_at at, void *inout,
                                   int64_t count, st_dtype dtype, comm_reduction reduction);
/* inout [count]: becomes on all ranks what rank `root` of the group has there. */
WARN_UNUSED status comm_broadcast(const comm *group, stream *queue, comm_at at, void *inout,
                                  int64_t count, st_dtype dtype, int root);
/* Rank p of the group gets send_count[p] elements from send + send_first[p]; what it sends lands at
 * recv + recv_first[p], recv_count[p] elements. The four arrays are host memory, [size], and are
 * read before the call returns. */
WARN_UNUSED status comm_all_to_all(const comm *group, stream *queue, comm_at at, const void *send,
                                   const int64_t *send_first, const int64_t *send_count, void *recv,
                                   const int64_t *recv_first, const int64_t *recv_count,
                                   st_dtype dtype);
/* A message between two ranks of the group. Both ends give the same count and dtype. Messages that
 * are called between comm_begin and comm_end run as one call, so two ranks can send to each other
 * without either waiting for the other first. */
WARN_UNUSED status comm_send(const comm *group, stream *queue, comm_at at, const void *send,
                             int64_t count, st_dtype dtype, int to);
WARN_UNUSED status comm_recv(const comm *group, stream *queue, comm_at at, void *recv,
                             int64_t count, st_dtype dtype, int from);
WARN_UNUSED status comm_begin(const comm *group, stream *queue);
WARN_UNUSED status comm_end(const comm *group, stream *queue);

/* Memory of the same size on every rank of a group that each of them reaches by load and store from
 * its kernels (ops/peers.h). It is device memory and begins as zeros. */
typedef struct comm_window {
    size_t bytes;
    void *own;   /* this rank's memory */
    void **base; /* device memory, [size]: the address of every rank's memory */
    /* What kernels that wait for another rank are told (ops/peers.h). NULL in a group of one. */
    const struct peer_watch *watch;
    void *handle; /* the engine's own */
} comm_window;

/* Opens a window over `group`. Every rank of `all` calls it at the same time, each with its own
 * group of the same kind, and either all of them get a window or none does. Waits. ST_UNAVAILABLE,
 * with the reason, if the ranks of a group cannot reach each other's memory. The window must be
 * closed before its group is. */
WARN_UNUSED status comm_window_open(const comm *all, const comm *group, stream *queue, size_t bytes,
                                    comm_window *out);
void comm_window_close(const comm *group, stream *queue,
                       comm_window *window); /* accepts an empty one */
/* Whether the ranks of every group reach each other's memory, the same answer on all of them, which
 * all call it. It makes no window, so one may still fail to open. */
WARN_UNUSED status comm_window_reached(const comm *all, const comm *group, bool *out);
/* To be called around the ops that use a window: the ledger counts them, and the message about a
 * lost rank names them. `bytes` is how much comes from other ranks, as far as the host knows. They
 * do nothing in a group of one. comm_peers_end takes the status of the ops and returns it. */
WARN_UNUSED status comm_peers_begin(const comm *group, stream *queue, comm_at at, int64_t bytes);
WARN_UNUSED status comm_peers_end(const comm *group, stream *queue, comm_at at, status st);

/* The same two collectives for values in host memory: send [bytes], recv [size, bytes], inout
 * [bytes]. They wait until they are done, and may be called only outside of steps. */
WARN_UNUSED status comm_host_all_gather(const comm *group, comm_at at, const void *send, void *recv,
                                        int64_t bytes);
WARN_UNUSED status comm_host_broadcast(const comm *group, comm_at at, void *inout, int64_t bytes,
                                       int root);

/* An all-reduce cuts its `count` elements into `size` shares of equal length, of which the last
 * ones may be short or empty. Rank `rank` sums the elements [*out_first, *out_first + returned). */
static inline int64_t comm_cut(int rank, int size, int64_t count, int64_t *out_first)
{
    int64_t each = (count + size - 1) / size, first = rank * each;
    *out_first = first < count ? first : count;
    return first + each < count ? each : count - *out_first;
}

/* How many elements `rank` receives in such an all-reduce: the others' parts of its own share, then
 * the finished shares of the others (comm_ledger.h). */
static inline int64_t comm_all_reduce_gets(int rank, int size, int64_t count)
{
    int64_t first, own = comm_cut(rank, size, count, &first);
    return size > 1 ? (size - 1) * own + count - own : 0;
}

/* A group of one rank. It has no engine, and nothing has to be released. */
comm comm_alone(const char *name);

/* Tells all ranks of `group` how each of them fared. Every rank of the group calls this, outside of
 * steps, and waits for the others.
 *
 * mine   how this rank's own work ended; after a failure the thread's last note has the cause
 * value  a number that must be the same on all ranks, such as a step
 *
 * Returns ST_OK if all ranks are well and have the same value. Otherwise all ranks return the
 * code of the lowest rank that failed; on the others the note says "rank R: " and that rank's
 * words. ST_PROTOCOL if all are well but a rank's value differs from rank 0's. A group of one
 * returns `mine`. */
WARN_UNUSED status comm_agree(const comm *group, comm_at at, status mine, int64_t value);

/* What a process tells the engine when it joins the job. */
typedef struct comm_join {
    int rank, size;     /* of this process in the job; how many ranks the job has */
    bool deterministic; /* sums must be taken in the same order every time */
    double timeout_s;   /* a call that takes longer fails with ST_TIMEOUT */
    const void *id;     /* [COMM_ID_BYTES] what make_id of rank 0's engine wrote */
    /* Called while a call waits. An error that it returns ends the call. */
    status (*check)(void *context);
    /* May be NULL. Returns true while this rank or another one waits for rows or files, during
     * which calls are allowed to take longer. Called from any thread. */
    bool (*patient)(void *context);
    /* May be NULL. Told when this rank begins and ceases to wait for others, beside the calls that
     * the ledger knows. Called from the thread that makes the calls. */
    void (*held)(void *context, bool held);
    /* May be NULL. Told why calls of this rank have not ended in time, before it fails: other ranks
     * may know whose fault it is. Called from any thread. */
    void (*late)(void *context, const char *why);
    void *context; /* passed to all of them */
} comm_join;

/* What an engine implements. comm.c has checked the arguments, and `size` is more than 1. Functions
 * named like the calls above have the contracts given there. */
typedef struct comm_engine {
    const char *name;             /* "mpi", "nccl", "replay" or "count" */
    status (*make_id)(void *out); /* out [COMM_ID_BYTES]; NULL: the engine needs no id */
    status (*join)(const comm_join *options, void **out_world);
    /* Every rank calls attach before any group is made. From then on, calls are on streams of this
     * device, which was opened on the thread that makes them, and waits for the device end when the
     * job does. detach is called before the device is closed. NULL: any device will do. */
    status (*attach)(void *world, device *opened);
    void (*detach)(void *world);
    void (*set_timeout)(void *world, double seconds);
    void (*leave)(void *world, bool well); /* well false: does not wait for the other ranks */
    /* Every rank of the job makes all of its groups in the same order; the members of a group call
     * this together. world_rank [size] is borrowed. */
    status (*group_new)(void *world, const int *world_rank, int size, void **out_handle);
    void (*group_free)(void *handle);
    status (*all_gather)(const comm *group, stream *queue, const void *send, void *recv,
                         int64_t count, st_dtype dtype);
    status (*reduce_scatter)(const comm *group, stream *queue, const void *send, void *recv,
                             int64_t count, st_dtype dtype);
    status (*all_reduce)(const comm *group, stream *queue, void *inout, int64_t count,
                         st_dtype dtype, comm_reduction reduction);
    status (*broadcast)(const comm *group, stream *queue, void *inout, int64_t count,
                        st_dtype dtype, int root);
    status (*all_to_all)(const comm *group, stream *queue, const void *send,
                         const int64_t *send_first, const int64_t *send_count, void *recv,
                         const int64_t *recv_first, const int64_t *recv_count, st_dtype dtype);
    status (*send)(const comm *group, stream *queue, const void *send, int64_t count,
                   st_dtype dtype, int to);
    status (*recv)(const comm *group, stream *queue, void *recv, int64_t count, st_dtype dtype,
                   int from);
    status (*begin)(const comm *group, stream *queue);
    status (*end)(const comm *group, stream *queue);
    /* window_new makes this rank's memory; window_share, a collective, finds the addresses of all.
     * NULL: the engine has no windows. ST_UNAVAILABLE: it has none on these machines, which
     * window_reach says without making one. window_free also accepts a window that was only half
     * made. */
    status (*window_reach)(const comm *group);
    status (*window_new)(const comm *group, stream *queue, size_t bytes, comm_window *out);
    status (*window_share)(const comm *group, stream *queue, comm_window *inout);
    void (*window_free)(const comm *group, stream *queue, comm_window *window);
    status (*host_all_gather)(const comm *group, const void *send, void *recv, int64_t bytes);
    status (*host_broadcast)(const comm *group, void *inout, int64_t bytes, int root);
} comm_engine;

#endif
