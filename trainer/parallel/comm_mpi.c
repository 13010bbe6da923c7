/* comm_mpi.c: comm.h over MPI, between processes that compute on CPUs. Buffers of another device
 * are copied through host memory. It is built as a library of its own, so that only a run of
 * several CPU ranks needs MPI.
 *
 * Every collective is made of messages between two ranks (mpi_exchange.h), because MPI's own
 * collectives have no time limit and do not fix the order of a sum. Each rank sends to and receives
 * from every other one, so the time grows with the number of ranks: this engine is there to be
 * right on any machine, not to be fast on many. The messages of a group carry the group's tag. */
#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/comm_module.h"
#include "trainer/parallel/comm_sum.h"
#include "trainer/parallel/mpi_exchange.h"

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

static size_t dtype_size(st_dtype d)
{
    static const unsigned char size[] = {
#define SIZE(name, text, bytes) bytes,
        ST_DTYPES(SIZE)
#undef SIZE
    };
    return size[d];
}

static status add_piece(mpi_group *g, piece p)
{
    if (g->count == g->room) {
        int room = g->room ? 2 * g->room : 64;
        piece *pieces = realloc(g->piece, (size_t)room * sizeof *pieces);
        if (pieces)
            g->piece = pieces;
        mpi_transfer *transfers = realloc(g->transfer, (size_t)room * sizeof *transfers);
        if (transfers)
            g->transfer = transfers;
        if (!pieces || !transfers)
            return FAIL(ST_NO_MEMORY, "no memory for %d messages", room);
        g->room = room;
    }
    g->piece[g->count++] = p;
    return ST_OK;
}

static status need_stage(mpi_group *g, int64_t bytes)
{
    if (bytes <= g->stage_bytes)
        return ST_OK;
    free(g->stage);
    g->stage_bytes = 0;
    g->stage = malloc((size_t)bytes);
    if (!g->stage)
        return FAIL(ST_NO_MEMORY, "no host memory for %lld bytes of collectives", (long long)bytes);
    g->stage_bytes = bytes;
    return ST_OK;
}

/* Whether a piece must be copied through host memory. */
static bool is_staged(const stream *s, const piece *p)
{
    return p->bytes > 0 && !p->host && !s->dev->backend->immediate;
}

/* Lists the transfers. Pieces of device memory get room in the stage from byte `first` on, and what
 * is sent is copied there. */
static status stage_pieces(const comm *group, stream *s, int64_t first)
{
    mpi_group *state = group->handle;
    int64_t bytes = first;
    for (int i = 0; i < state->count; i++)
        bytes += is_staged(s, &state->piece[i]) ? state->piece[i].bytes : 0;
    if (first == 0) /* otherwise the caller has made room and holds pointers into it */
        TRY(need_stage(state, bytes));
    int64_t used = first;
    for (int i = 0; i < state->count; i++) {
        const piece *p = &state->piece[i];
        mpi_transfer *transfer = &state->transfer[i];
        *transfer = (mpi_transfer){p->sends, group->world_rank[p->peer], p->at, p->bytes};
        if (!is_staged(s, p))
            continue;
        transfer->at = state->stage + used;
        used += p->bytes;
        if (p->sends)
            TRY(s->dev->backend->to_host(s, transfer->at, p->at, (size_t)p->bytes));
    }
    return used > first ? s->dev->backend->wait(s) : ST_OK;
}

/* Runs the pieces that were added. first: how many bytes of the stage the caller uses itself. */
static status run_pieces(const comm *group, stream *s, int64_t first)
{
    mpi_group *state = group->handle;
    bool came = false;
    TRY(stage_pieces(group, s, first));
    TRY(mpi_exchange(state->world, state->tag, state->transfer, state->count));
    for (int i = 0; i < state->count; i++) {
        const piece *p = &state->piece[i];
        if (p->sends || !is_staged(s, p))
            continue;
        TRY(s->dev->backend->to_device(s, p->at, state->transfer[i].at, (size_t)p->bytes));
        came = true;
    }
    return came ? s->dev->backend->wait(s) : ST_OK; /* the next call writes to the stage again */
}

static status run_now(const comm *group, stream *s)
{
    mpi_group *state = group->handle;
    status st = run_pieces(group, s, 0);
    state->count = 0;
    return st;
}

static status own_piece(stream *s, const void *from, void *to, int64_t bytes)
{
    if (from == to || bytes == 0)
        return ST_OK;
    return s->dev->backend->copy(s, to, from, (size_t)bytes);
}

static status mpi_all_gather(const comm *group, stream *s, const void *send, void *recv,
                             int64_t count, st_dtype dtype)
{
    mpi_group *state = group->handle;
    int64_t bytes = count * (int64_t)dtype_size(dtype);
    char *to = recv;
    for (int p = 0; p < group->size; p++) {
        if (p == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, p, (void *)send, bytes}));
        TRY(add_piece(state, (piece){false, false, p, to + p * bytes, bytes}));
    }
    TRY(run_now(group, s));
    return own_piece(s, send, to + group->rank * bytes, bytes);
}

/* The elements of a sum that one rank takes: [first, first + len). */
typedef struct share {
    int64_t first, len;
} share;

typedef share (*share_of)(int p, int size, int64_t count);

static share equal_share(int p, int size, int64_t count)
{
    (void)size;
    return (share){p * count, count};
}

static share cut_share(int p, int size, int64_t count)
{
    share s;
    s.len = comm_cut(p, size, count, &s.first);
    return s;
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
static status sum_part(const comm *group, stream *s, share_of cut, int64_t count, int64_t at,
                       int64_t most, const char *from, char *to, st_dtype dtype,
                       comm_reduction reduction)
{
    mpi_group *state = group->handle;
    const int64_t size = (int64_t)dtype_size(dtype), row = most * size;
    const share mine = cut(group->rank, group->size, count);
    const int64_t n = part_of(mine, at, most);
    const char *own = from + (mine.first + at) * size;
    for (int p = 0; p < group->size; p++) {
        share theirs = cut(p, group->size, count);
        int64_t there = part_of(theirs, at, most);
        state->source[p] = state->stage + p * row;
        if (p == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, p, (void *)(from + (theirs.first + at) * size),
                                     there * size}));
        TRY(add_piece(state, (piece){false, true, p, (void *)state->source[p], n * size}));
    }
    TRY(run_pieces(group, s, group->size * row));
    if (n == 0)
        return ST_OK;
    if (s->dev->backend->immediate) {
        state->source[group->rank] = own;
        return comm_sum(to, state->source, group->size, n, dtype, reduction);
    }
    char *sum = state->stage + group->rank * row;
    TRY(s->dev->backend->to_host(s, sum, own, (size_t)(n * size)));
    TRY(s->dev->backend->wait(s));
    TRY(comm_sum(sum, state->source, group->size, n, dtype, reduction));
    TRY(s->dev->backend->to_device(s, to, sum, (size_t)(n * size)));
    return s->dev->backend->wait(s);
}

static status sum_shares(const comm *group, stream *s, share_of cut, int64_t count,
                         const void *from, void *to, st_dtype dtype, comm_reduction reduction)
{
    mpi_group *state = group->handle;
    int64_t size = (int64_t)dtype_size(dtype), longest = cut(0, group->size, count).len;
    int64_t most = SUM_BYTES / size < longest ? SUM_BYTES / size : longest;
    /* Room for the received parts, this rank's own, and copies of what is sent from device memory.
     */
    TRY(need_stage(state, 2 * group->size * most * size));
    for (int64_t at = 0; at < longest; at += most) {
        status st = sum_part(group, s, cut, count, at, most, from, (char *)to + at * size, dtype,
                             reduction);
        state->count = 0;
        TRY(st);
    }
    return ST_OK;
}

static status mpi_reduce_scatter(const comm *c, stream *s, const void *send, void *recv,
                                 int64_t count, st_dtype dtype)
{
    return sum_shares(c, s, equal_share, count, send, recv, dtype, COMM_SUM);
}

/* Every rank sums its share of the elements, then gives it to all others. */
static status mpi_all_reduce(const comm *group, stream *s, void *inout, int64_t count,
                             st_dtype dtype, comm_reduction reduction)
{
    mpi_group *state = group->handle;
    const int64_t size = (int64_t)dtype_size(dtype);
    const share mine = cut_share(group->rank, group->size, count);
    char *at = inout;
    TRY(sum_shares(group, s, cut_share, count, inout, at + mine.first * size, dtype, reduction));
    for (int p = 0; p < group->size; p++) {
        share theirs = cut_share(p, group->size, count);
        if (p == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, p, at + mine.first * size, mine.len * size}));
        TRY(add_piece(state,
                      (piece){false, false, p, at + theirs.first * size, theirs.len * size}));
    }
    return run_now(group, s);
}

static status broadcast_bytes(const comm *group, stream *s, void *inout, int64_t bytes, int root,
                              bool host)
{
    mpi_group *state = group->handle;
    for (int p = 0; p < group->size; p++)
        if (p != group->rank && (p == root || group->rank == root))
            TRY(add_piece(state, (piece){group->rank == root, host, p, inout, bytes}));
    return run_now(group, s);
}

static status mpi_broadcast(const comm *c, stream *s, void *inout, int64_t count, st_dtype dtype,
                            int root)
{
    return broadcast_bytes(c, s, inout, count * (int64_t)dtype_size(dtype), root, false);
}

static status mpi_all_to_all(const comm *group, stream *s, const void *send,
                             const int64_t *send_first, const int64_t *send_count, void *recv,
                             const int64_t *recv_first, const int64_t *recv_count, st_dtype dtype)
{
    mpi_group *state = group->handle;
    int64_t size = (int64_t)dtype_size(dtype);
    const char *from = send;
    char *to = recv;
    for (int p = 0; p < group->size; p++) {
        if (p == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, false, p, (void *)(from + send_first[p] * size),
                                     send_count[p] * size}));
        TRY(add_piece(state,
                      (piece){false, false, p, to + recv_first[p] * size, recv_count[p] * size}));
    }
    TRY(run_now(group, s));
    if (send_count[group->rank] != recv_count[group->rank])
        return FAIL(ST_INTERNAL, "rank %d sends itself %lld elements but expects %lld", group->rank,
                    (long long)send_count[group->rank], (long long)recv_count[group->rank]);
    return own_piece(s, from + send_first[group->rank] * size, to + recv_first[group->rank] * size,
                     send_count[group->rank] * size);
}

static status mpi_send(const comm *group, stream *s, const void *send, int64_t count,
                       st_dtype dtype, int to)
{
    mpi_group *state = group->handle;
    TRY(add_piece(state,
                  (piece){true, false, to, (void *)send, count * (int64_t)dtype_size(dtype)}));
    return state->together ? ST_OK : run_now(group, s);
}

static status mpi_recv(const comm *group, stream *s, void *recv, int64_t count, st_dtype dtype,
                       int from)
{
    mpi_group *state = group->handle;
    TRY(add_piece(state, (piece){false, false, from, recv, count * (int64_t)dtype_size(dtype)}));
    return state->together ? ST_OK : run_now(group, s);
}

static status mpi_begin(const comm *c, stream *s)
{
    (void)s;
    ((mpi_group *)c->handle)->together = true;
    return ST_OK;
}

static status mpi_end(const comm *c, stream *s)
{
    ((mpi_group *)c->handle)->together = false;
    return run_now(c, s);
}

static status mpi_host_all_gather(const comm *group, const void *send, void *recv, int64_t bytes)
{
    mpi_group *state = group->handle;
    char *to = recv;
    for (int p = 0; p < group->size; p++) {
        if (p == group->rank)
            continue;
        TRY(add_piece(state, (piece){true, true, p, (void *)send, bytes}));
        TRY(add_piece(state, (piece){false, true, p, to + p * bytes, bytes}));
    }
    TRY(run_now(group, NULL));
    if (send != to + group->rank * bytes)
        memcpy(to + group->rank * bytes, send, (size_t)bytes);
    return ST_OK;
}

static status mpi_host_broadcast(const comm *c, void *inout, int64_t bytes, int root)
{
    return broadcast_bytes(c, NULL, inout, bytes, root, true);
}

static status mpi_join(const comm_join *o, void **out_world)
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
    if (rank != o->rank || size != o->size)
        return FAIL(ST_CONFIG,
                    "MPI says that this process is rank %d of %d, but its environment says rank %d "
                    "of %d: start it with mpirun, trainer --nproc, or srun --mpi=pmix",
                    rank, size, o->rank, o->size);
    mpi_world *w = calloc(1, sizeof *w);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for the MPI engine");
    w->rank = rank;
    w->size = size;
    w->timeout_ns = (int64_t)(o->timeout_s * 1e9);
    w->check = o->check;
    w->patient = o->patient;
    w->context = o->context;
    *out_world = w;
    return ST_OK;
}

static void mpi_set_timeout(void *world, double seconds)
{
    ((mpi_world *)world)->timeout_ns = (int64_t)(seconds * 1e9);
}

/* MPI_Finalize waits for all ranks, some of which may never come after a failure. */
static void mpi_leave(void *world, bool well)
{
    mpi_world *w = world;
    if (!w)
        return;
    if (well && !w->broken)
        MPI_Finalize();
    free(w->request);
    free(w->status);
    free(w->message);
    free(w);
}

static void mpi_group_free(void *handle)
{
    mpi_group *g = handle;
    free(g->piece);
    free(g->transfer);
    free(g->stage);
    free(g->source);
    free(g);
}

static status mpi_group_new(void *world, const int *world_rank, int size, void **out_handle)
{
    (void)world_rank;
    mpi_group *g = calloc(1, sizeof *g);
    if (g)
        g->source = calloc((size_t)size, sizeof *g->source);
    if (!g || !g->source) {
        free(g);
        return FAIL(ST_NO_MEMORY, "no memory for a group");
    }
    g->world = world;
    g->tag = g->world->groups++;
    *out_handle = g;
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
tessera_mpi_engine(const module_host *host, const char *library)
{
    (void)library; /* this engine is linked with MPI's library */
    module_enter(host);
    return &engine;
}
