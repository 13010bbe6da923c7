/* SPDX-License-Identifier: Apache-2.0 */
/* comm_mpi.c: comm.h over MPI, between processes that compute on CPUs. Buffers of another device
 * are copied through host memory. It is built as a separate library, so that only a run of
 * several CPU ranks needs MPI.
 *
 * Every collective is made of messages between two ranks (mpi_exchange.h), because MPI's own
 * collectives have no time limit and do not fix the order of a sum. Each rank sends to and receives
 * from every other one, so the time grows with the number of ranks: this engine is there to be
 * right on any machine, not to be fast on many. The messages of a group carry the group's tag. */
#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/comm/comm_module.h"
#include "trainer/parallel/comm/comm_sum.h"
#include "trainer/parallel/comm/mpi_exchange.h"

/* How many bytes of each rank's piece are summed at a time. */
static const int64_t SUM_BYTES = 4 << 20;

/* Bytes to send to one rank or to receive from it. `at` is host memory if `host` is set, else
 * memory of the stream's device. */
typedef struct piece {
    bool sends, host;
    int peer; /* rank in the group */
    void *at;
    int64_t bytes;
} piece;

typedef struct mpi_group {
    mpi_world *world;
    int tag;
    bool together;          /* between comm_begin and comm_end */
    piece *piece;           /* [room]: what has to be sent and received */
    mpi_transfer *transfer; /* [room] */
    int count, room;
    char *stage; /* host memory: copies of device memory, and the others' pieces of a sum */
    int64_t stage_bytes;
    const void **source; /* [size]: where each rank's piece of a sum is */
} mpi_group;

static size_t dtype_size(st_dtype dtype)
{
    static const unsigned char size[] = {
#define SIZE(name, text, bytes) bytes,
        ST_DTYPES(SIZE)
#undef SIZE
    };
    return size[dtype];
}

static status add_piece(mpi_group *group, piece part)
{
    if (group->count == group->room) {
        int room = group->room ? 2 * group->room : 64;
        piece *pieces = realloc(group->piece, (size_t)room * sizeof *pieces);
        if (pieces)
            group->piece = pieces;
        mpi_transfer *transfers = realloc(group->transfer, (size_t)room * sizeof *transfers);
        if (transfers)
            group->transfer = transfers;
        if (!pieces || !transfers)
            return FAIL(ST_NO_MEMORY, "no memory for %d messages", room);
        group->room = room;
    }
    group->piece[group->count++] = part;
    return ST_OK;
}

static status need_stage(mpi_group *group, int64_t bytes)
{
    if (bytes <= group->stage_bytes)
        return ST_OK;
    free(group->stage);
    group->stage_bytes = 0;
    group->stage = malloc((size_t)bytes);
    if (!group->stage)
        return FAIL(ST_NO_MEMORY, "no host memory for %lld bytes of collectives", (long long)bytes);
    group->stage_bytes = bytes;
    return ST_OK;
}

/* Whether a piece must be copied through host memory. */
static bool is_staged(const stream *queue, const piece *part)
{
    return part->bytes > 0 && !part->host && !queue->dev->backend->immediate;
}

/* Lists the transfers. Pieces of device memory get room in the stage from byte `first` on, and what
 * is sent is copied there. */
static status stage_pieces(const comm *group, stream *queue, int64_t first)
{
    mpi_group *state = group->handle;
    int64_t bytes = first;
    for (int i = 0; i < state->count; i++)
        bytes += is_staged(queue, &state->piece[i]) ? state->piece[i].bytes : 0;
    if (first == 0) /* otherwise the caller has made room and holds pointers into it */
        TRY(need_stage(state, bytes));
    int64_t used = first;
    for (int i = 0; i < state->count; i++) {
        const piece *part = &state->piece[i];
        mpi_transfer *transfer = &state->transfer[i];
        *transfer =
            (mpi_transfer){part->sends, group->world_rank[part->peer], part->at, part->bytes};
        if (!is_staged(queue, part))
            continue;
        transfer->at = state->stage + used;
        used += part->bytes;
        if (part->sends)
            TRY(queue->dev->backend->to_host(queue, transfer->at, part->at, (size_t)part->bytes));
    }
    return used > first ? queue->dev->backend->wait(queue) : ST_OK;
}

/* Runs the pieces that were added. first: how many bytes of the stage the caller uses itself. */
static status run_pieces(const comm *group, stream *queue, int64_t first)
{
    mpi_group *state = group->handle;
    bool came = false;
    TRY(stage_pieces(group, queue, first));
    TRY(mpi_exchange(state->world, state->tag, state->transfer, state->count));
    for (int i = 0; i < state->count; i++) {
        const piece *part = &state->piece[i];
        if (part->sends || !is_staged(queue, part))
            continue;
        TRY(queue->dev->backend->to_device(queue, part->at, state->transfer[i].at,
                                           (size_t)part->bytes));
        came = true;
    }
    return came ? queue->dev->backend->wait(queue)
                : ST_OK; /* the next call writes to the stage again */
}

static status run_now(const comm *group, stream *queue)
{
    mpi_group *state = group->handle;
    status st = run_pieces(group, queue, 0);
    state->count = 0;
    return st;
}

static status own_piece(stream *queue, const void *from, void *to, int64_t bytes)
{
    if (from == to || bytes == 0)
        return ST_OK;
    return queue->dev->backend->copy(queue, to, from, (size_t)bytes);
}

static status mpi_all_gather(const comm *group, stream *queue, const void *send, void *recv,
                             int64_t count, st_dtype dtype)
{
    mpi_group *state = group->handle;
    int64_t bytes = count * (int64_t)dtype_size(dtype);
    char *to = recv;
    for (int peer = 0; peer < group->size; peer++) {
        if (peer == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, peer, (void *)send, bytes}));
        TRY(add_piece(state, (piece){false, false, peer, to + peer * bytes, bytes}));
    }
    TRY(run_now(group, queue));
    return own_piece(queue, send, to + group->rank * bytes, bytes);
}

/* The elements of a sum that one rank takes: [first, first + len). */
typedef struct share {
    int64_t first, len;
} share;

typedef share (*share_of)(int peer, int size, int64_t count);

static share equal_share(int peer, int size, int64_t count)
{
    (void)size;
    return (share){peer * count, count};
}

static share cut_share(int peer, int size, int64_t count)
{
    share part;
    part.len = comm_cut(peer, size, count, &part.first);
    return part;
}

/* How many of the elements [at, at + most) a share has. */
static int64_t part_of(share of, int64_t at, int64_t most)
{
    int64_t left = of.len - at;
    return left < 0 ? 0 : left < most ? left : most;
}

/* Sums the elements [at, at + most) of every share. Sends the other ranks what they sum, receives
 * their parts of this rank's share side by side into the stage, and writes the sum with its own
 * part to `to` (device memory). */
static status sum_part(const comm *group, stream *queue, share_of cut, int64_t count, int64_t at,
                       int64_t most, const char *from, char *to, st_dtype dtype,
                       comm_reduction reduction)
{
    mpi_group *state = group->handle;
    const int64_t size = (int64_t)dtype_size(dtype), row = most * size;
    const share mine = cut(group->rank, group->size, count);
    const int64_t how_many = part_of(mine, at, most);
    const char *own = from + (mine.first + at) * size;
    for (int peer = 0; peer < group->size; peer++) {
        share theirs = cut(peer, group->size, count);
        int64_t there = part_of(theirs, at, most);
        state->source[peer] = state->stage + peer * row;
        if (peer == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, peer, (void *)(from + (theirs.first + at) * size),
                                     there * size}));
        TRY(add_piece(state,
                      (piece){false, true, peer, (void *)state->source[peer], how_many * size}));
    }
    TRY(run_pieces(group, queue, group->size * row));
    if (how_many == 0)
        return ST_OK;
    if (queue->dev->backend->immediate) {
        state->source[group->rank] = own;
        return comm_sum(to, state->source, group->size, how_many, dtype, reduction);
    }
    char *sum = state->stage + group->rank * row;
    TRY(queue->dev->backend->to_host(queue, sum, own, (size_t)(how_many * size)));
    TRY(queue->dev->backend->wait(queue));
    TRY(comm_sum(sum, state->source, group->size, how_many, dtype, reduction));
    TRY(queue->dev->backend->to_device(queue, to, sum, (size_t)(how_many * size)));
    return queue->dev->backend->wait(queue);
}

static status sum_shares(const comm *group, stream *queue, share_of cut, int64_t count,
                         const void *from, void *to, st_dtype dtype, comm_reduction reduction)
{
    mpi_group *state = group->handle;
    int64_t size = (int64_t)dtype_size(dtype), longest = cut(0, group->size, count).len;
    int64_t most = SUM_BYTES / size < longest ? SUM_BYTES / size : longest;
    /* Room for the received parts, this rank's own,
     * and copies of what is sent from device memory. */
    TRY(need_stage(state, 2 * group->size * most * size));
    for (int64_t at = 0; at < longest; at += most) {
        status st = sum_part(group, queue, cut, count, at, most, from, (char *)to + at * size,
                             dtype, reduction);
        state->count = 0;
        TRY(st);
    }
    return ST_OK;
}

static status mpi_reduce_scatter(const comm *group, stream *queue, const void *send, void *recv,
                                 int64_t count, st_dtype dtype)
{
    return sum_shares(group, queue, equal_share, count, send, recv, dtype, COMM_SUM);
}

/* Every rank sums its share of the elements, then gives it to all others. */
static status mpi_all_reduce(const comm *group, stream *queue, void *inout, int64_t count,
                             st_dtype dtype, comm_reduction reduction)
{
    mpi_group *state = group->handle;
    const int64_t size = (int64_t)dtype_size(dtype);
    const share mine = cut_share(group->rank, group->size, count);
    char *at = inout;
    TRY(sum_shares(group, queue, cut_share, count, inout, at + mine.first * size, dtype,
                   reduction));
    for (int peer = 0; peer < group->size; peer++) {
        share theirs = cut_share(peer, group->size, count);
        if (peer == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, peer, at + mine.first * size, mine.len * size}));
        TRY(add_piece(state,
                      (piece){false, false, peer, at + theirs.first * size, theirs.len * size}));
    }
    return run_now(group, queue);
}

static status broadcast_bytes(const comm *group, stream *queue, void *inout, int64_t bytes,
                              int root, bool host)
{
    mpi_group *state = group->handle;
    for (int peer = 0; peer < group->size; peer++)
        if (peer != group->rank && (peer == root || group->rank == root))
            TRY(add_piece(state, (piece){group->rank == root, host, peer, inout, bytes}));
    return run_now(group, queue);
}

static status mpi_broadcast(const comm *group, stream *queue, void *inout, int64_t count,
                            st_dtype dtype, int root)
{
    return broadcast_bytes(group, queue, inout, count * (int64_t)dtype_size(dtype), root, false);
}

static status mpi_all_to_all(const comm *group, stream *queue, const void *send,
                             const int64_t *send_first, const int64_t *send_count, void *recv,
                             const int64_t *recv_first, const int64_t *recv_count, st_dtype dtype)
{
    mpi_group *state = group->handle;
    int64_t size = (int64_t)dtype_size(dtype);
    const char *from = send;
    char *to = recv;
    for (int peer = 0; peer < group->size; peer++) {
        if (peer == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, peer, (void *)(from + send_first[peer] * size),
                                     send_count[peer] * size}));
        TRY(add_piece(state, (piece){false, false, peer, to + recv_first[peer] * size,
                                     recv_count[peer] * size}));
    }
    TRY(run_now(group, queue));
    if (send_count[group->rank] != recv_count[group->rank])
        return FAIL(ST_INTERNAL, "rank %d sends itself %lld elements but expects %lld", group->rank,
                    (long long)send_count[group->rank], (long long)recv_count[group->rank]);
    return own_piece(queue, from + send_first[group->rank] * size,
                     to + recv_first[group->rank] * size, send_count[group->rank] * size);
}

static status mpi_send(const comm *group, stream *queue, const void *send, int64_t count,
                       st_dtype dtype, int to)
{
    mpi_group *state = group->handle;
    TRY(add_piece(state,
                  (piece){true, false, to, (void *)send, count * (int64_t)dtype_size(dtype)}));
    return state->together ? ST_OK : run_now(group, queue);
}

static status mpi_recv(const comm *group, stream *queue, void *recv, int64_t count, st_dtype dtype,
                       int from)
{
    mpi_group *state = group->handle;
    TRY(add_piece(state, (piece){false, false, from, recv, count * (int64_t)dtype_size(dtype)}));
    return state->together ? ST_OK : run_now(group, queue);
}

static status mpi_begin(const comm *group, stream *queue)
{
    (void)queue;
    ((mpi_group *)group->handle)->together = true;
    return ST_OK;
}

static status mpi_end(const comm *group, stream *queue)
{
    ((mpi_group *)group->handle)->together = false;
    return run_now(group, queue);
}

static status mpi_host_all_gather(const comm *group, const void *send, void *recv, int64_t bytes)
{
    mpi_group *state = group->handle;
    char *to = recv;
    for (int peer = 0; peer < group->size; peer++) {
        if (peer == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, true, peer, (void *)send, bytes}));
        TRY(add_piece(state, (piece){false, true, peer, to + peer * bytes, bytes}));
    }
    TRY(run_now(group, NULL));
    if (send != to + group->rank * bytes)
        memcpy(to + group->rank * bytes, send, (size_t)bytes);
    return ST_OK;
}

static status mpi_host_broadcast(const comm *group, void *inout, int64_t bytes, int root)
{
    return broadcast_bytes(group, NULL, inout, bytes, root, true);
}

static status mpi_join(const comm_join *options, void **out_world)
{
    int had, rank, size;
    /* Without this check Open MPI ends the process itself, with a page about how Slurm is built. */
    if (getenv("SLURM_STEP_ID") && !getenv("PMIX_RANK") && !getenv("PMI_RANK"))
        return FAIL(ST_CONFIG, "srun started this process without PMIx, by which MPI ranks find "
                               "each other: start it with srun --mpi=pmix");
    /* FUNNELED: only the thread that trains calls MPI. */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &had) != MPI_SUCCESS)
        return FAIL(ST_UNAVAILABLE, "MPI_Init_thread failed");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != options->rank || size != options->size)
        return FAIL(ST_CONFIG,
                    "MPI says that this process is rank %d of %d, but its environment says rank %d "
                    "of %d: start it with mpirun, trainer --nproc, or srun --mpi=pmix",
                    rank, size, options->rank, options->size);
    mpi_world *mpi = calloc(1, sizeof *mpi);
    if (!mpi)
        return FAIL(ST_NO_MEMORY, "no memory for the MPI engine");
    mpi->rank = rank;
    mpi->size = size;
    mpi->timeout_ns = (int64_t)(options->timeout_s * 1e9);
    mpi->check = options->check;
    mpi->patient = options->patient;
    mpi->context = options->context;
    *out_world = mpi;
    return ST_OK;
}

static void mpi_set_timeout(void *world, double seconds)
{
    ((mpi_world *)world)->timeout_ns = (int64_t)(seconds * 1e9);
}

/* MPI_Finalize waits for all ranks, some of which may never come after a failure. */
static void mpi_leave(void *world, bool well)
{
    mpi_world *mpi = world;
    if (!mpi)
        return;
    if (well && !mpi->broken)
        MPI_Finalize();
    free(mpi->request);
    free(mpi->status);
    free(mpi->message);
    free(mpi);
}

static void mpi_group_free(void *handle)
{
    mpi_group *group = handle;
    free(group->piece);
    free(group->transfer);
    free(group->stage);
    free(group->source);
    free(group);
}

static status mpi_group_new(void *world, const int *world_rank, int size, void **out_handle)
{
    (void)world_rank;
    mpi_group *group = calloc(1, sizeof *group);
    if (group)
        group->source = calloc((size_t)size, sizeof *group->source);
    if (!group || !group->source) {
        free(group);
        return FAIL(ST_NO_MEMORY, "no memory for a group");
    }
    group->world = world;
    group->tag = group->world->groups++;
    *out_handle = group;
    return ST_OK;
}

static const comm_engine engine = {
    .name = "mpi",
    .join = mpi_join,
    .set_timeout = mpi_set_timeout,
    .leave = mpi_leave,
    .group_new = mpi_group_new,
    .group_free = mpi_group_free,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .all_reduce = mpi_all_reduce,
    .broadcast = mpi_broadcast,
    .all_to_all = mpi_all_to_all,
    .send = mpi_send,
    .recv = mpi_recv,
    .begin = mpi_begin,
    .end = mpi_end,
    .host_all_gather = mpi_host_all_gather,
    .host_broadcast = mpi_host_broadcast,
};

__attribute__((visibility("default"))) const comm_engine *
tessera_mpi_engine(const module_host *host)
{
    module_enter(host);
    return &engine;
}
