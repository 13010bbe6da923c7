/* comm.h: collectives over a group of ranks, as the model and the step see them.
 *
 * One table, several engines (README.md). Calls are queued on the stream they are given and ordered
 * with its other work; buffers are device memory of that stream's device. All ranks of a group make
 * the same calls in the same order, whatever their data: a rank without images or tokens calls with
 * the same counts. Counts are elements of dtype, 64 bit. A call of a group of one copies where send
 * and recv differ and counts nothing.
 *
 * Sums are of F32, F64, BF16, I32, I64 or U8, in the precision of dtype (mpi: BF16 in float,
 * rounded once); mpi makes them in rank order, nccl in an order of its own that the layout decides:
 * a run repeats bit for bit. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_H
#define TESSERA_TRAINER_PARALLEL_COMM_H

#include "trainer/device/backend.h"

/* What a call is for: in the ledger, and in the message when a rank is lost inside it. */
typedef struct comm_at {
    const char *what; /* "gather weights"; static storage */
    int64_t layer;    /* -1: none */
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

/* COMM_STAGE_BYTES: of device memory, and as much pinned, that nccl takes for host values. */
enum { COMM_NAME_MAX = 32, COMM_ID_BYTES = 128, COMM_STAGE_BYTES = 1 << 20 };

/* A group of ranks, this one among them. */
typedef struct comm {
    const struct comm_engine *engine; /* NULL: a group of one */
    char name[COMM_NAME_MAX];         /* of the mesh dimension */
    int rank, size;                   /* of this process in the group */
    const int *world_rank;            /* [size] */
    void *handle;                     /* engine's own */
    struct comm_ledger *ledger;       /* of comm_ledger.h; NULL: nothing is counted */
} comm;

/* recv [size, count]: everybody's send [count]. In place: send == recv + rank * count. */
WARN_UNUSED status comm_all_gather(const comm *c, stream *s, comm_at at, const void *send,
                                   void *recv, int64_t count, st_dtype dtype);
/* recv [count]: the sum over ranks of piece `rank` of send [size, count]. In place: recv == send +
 * rank * count. */
WARN_UNUSED status comm_reduce_scatter(const comm *c, stream *s, comm_at at, const void *send,
                                       void *recv, int64_t count, st_dtype dtype);
WARN_UNUSED status comm_all_reduce(const comm *c, stream *s, comm_at at, void *inout, int64_t count,
                                   st_dtype dtype, comm_reduction reduction);
WARN_UNUSED status comm_broadcast(const comm *c, stream *s, comm_at at, void *inout, int64_t count,
                                  st_dtype dtype, int root);
/* Rank p gets send_count[p] elements from send + send_first[p]; what comes from p lands at recv +
 * recv_first[p]. The arrays are host memory, [size], read before the call returns. */
WARN_UNUSED status comm_all_to_all(const comm *c, stream *s, comm_at at, const void *send,
                                   const int64_t *send_first, const int64_t *send_count, void *recv,
                                   const int64_t *recv_first, const int64_t *recv_count,
                                   st_dtype dtype);
/* Between two ranks of the group. Calls between comm_begin and comm_end run as one, so that peers
 * may send to each other. */
WARN_UNUSED status comm_send(const comm *c, stream *s, comm_at at, const void *send, int64_t count,
                             st_dtype dtype, int to);
WARN_UNUSED status comm_recv(const comm *c, stream *s, comm_at at, void *recv, int64_t count,
                             st_dtype dtype, int from);
WARN_UNUSED status comm_begin(const comm *c, stream *s);
WARN_UNUSED status comm_end(const comm *c, stream *s);

/* Memory of one size on every rank of a group, which all of them reach by load and store
 * (ops/peers.h). Device memory, zero at first. */
typedef struct comm_window {
    size_t bytes;
    void *own;   /* this rank's */
    void **base; /* device [size]: everybody's */
    const int32_t
        *stop;    /* device-readable: not 0 when the run is over and nobody will come; NULL */
    void *handle; /* engine's own */
} comm_window;

/* Collective over `all`, in whose groups like c every rank opens one: all have it, or none.
 * UNAVAILABLE, with the reason, where the ranks of a group do not reach each other so. Waits. */
WARN_UNUSED status comm_window_open(const comm *all, const comm *c, stream *s, size_t bytes,
                                    comm_window *out);
void comm_window_close(const comm *c, stream *s, comm_window *w); /* accepts an empty one */
/* Around ops that use it: in the ledger, and in the message when a rank is lost there. bytes: what
 * comes from others, as far as the host knows. Nothing of a group of one. */
WARN_UNUSED status comm_peers_begin(const comm *c, stream *s, comm_at at, int64_t bytes);
WARN_UNUSED status comm_peers_end(const comm *c, stream *s, comm_at at, status st);

/* Host values, outside of steps: waits. The same over the same engine. */
WARN_UNUSED status comm_host_all_gather(const comm *c, comm_at at, const void *send, void *recv,
                                        int64_t bytes);
WARN_UNUSED status comm_host_broadcast(const comm *c, comm_at at, void *inout, int64_t bytes,
                                       int root);

/* The elements [*out_first, + returned) that rank p sums in an all reduce of `count`. */
static inline int64_t comm_cut(int p, int size, int64_t count, int64_t *out_first)
{
    int64_t each = (count + size - 1) / size, first = p * each;
    *out_first = first < count ? first : count;
    return first + each < count ? each : count - *out_first;
}

/* What rank p gets from others in it, in elements (comm_ledger.h). */
static inline int64_t comm_all_reduce_gets(int p, int size, int64_t count)
{
    int64_t first, own = comm_cut(p, size, count, &first);
    return size > 1 ? (size - 1) * own + count - own : 0;
}

/* A group of one: no engine, nothing to release. */
comm comm_alone(const char *name);

/* Who this process is among those of the job, and how patient it is. */
typedef struct comm_join {
    int rank, size;
    bool deterministic; /* sums in the same order every time */
    double timeout_s;   /* a call that took longer has failed with ST_TIMEOUT */
    const void *id;     /* of the job: what make_id of rank 0's engine wrote */
    /* Asked while a call waits; what it returns ends the call. */
    status (*check)(void *context);
    /* NULL: never. True while a rank waits for rows or files, this one or another: what was called
     * may then take longer. Any thread. */
    bool (*patient)(void *context);
    void *context;
} comm_join;

/* What an engine does. Arguments were checked; size > 1. After a call that failed, calls are only
 * for closing: peers may never answer. */
typedef struct comm_engine {
    const char *name;             /* "mpi", "nccl" */
    status (*make_id)(void *out); /* [COMM_ID_BYTES]; NULL: it needs none */
    status (*join)(const comm_join *o, void **out_world);
    /* Before groups are made, by every rank: calls are on streams of this device, which was opened
     * on the thread that makes them; waits for it end with the world. detach: before it is closed.
     * NULL: any device will do. */
    status (*attach)(void *world, device *d);
    void (*detach)(void *world);
    void (*set_timeout)(void *world, double seconds);
    void (*leave)(void *world, bool well); /* not well: without waiting for the others */
    /* Made by every member, as all its groups, in the same order. world_rank is borrowed. */
    status (*group_new)(void *world, const int *world_rank, int size, void **out_handle);
    void (*group_free)(void *handle);
    status (*all_gather)(const comm *c, stream *s, const void *send, void *recv, int64_t count,
                         st_dtype dtype);
    status (*reduce_scatter)(const comm *c, stream *s, const void *send, void *recv, int64_t count,
                             st_dtype dtype);
    status (*all_reduce)(const comm *c, stream *s, void *inout, int64_t count, st_dtype dtype,
                         comm_reduction reduction);
    status (*broadcast)(const comm *c, stream *s, void *inout, int64_t count, st_dtype dtype,
                        int root);
    status (*all_to_all)(const comm *c, stream *s, const void *send, const int64_t *send_first,
                         const int64_t *send_count, void *recv, const int64_t *recv_first,
                         const int64_t *recv_count, st_dtype dtype);
    status (*send)(const comm *c, stream *s, const void *send, int64_t count, st_dtype dtype,
                   int to);
    status (*recv)(const comm *c, stream *s, void *recv, int64_t count, st_dtype dtype, int from);
    status (*begin)(const comm *c, stream *s);
    status (*end)(const comm *c, stream *s);
    /* A window's memory, then everybody's addresses (collective); NULL: it has none. UNAVAILABLE:
     * not here. */
    status (*window_new)(const comm *c, stream *s, size_t bytes, comm_window *out);
    status (*window_share)(const comm *c, stream *s, comm_window *inout);
    void (*window_free)(const comm *c, stream *s, comm_window *w); /* also half of one */
    status (*host_all_gather)(const comm *c, const void *send, void *recv, int64_t bytes);
    status (*host_broadcast)(const comm *c, void *inout, int64_t bytes, int root);
} comm_engine;

#endif
