/* comm_simulated.c: implements comm_simulated.h. Each collective becomes one or more paced copies
 * (ops/paced.h) of at most PACED_RUNS runs of bytes; the first of them also waits for the
 * latency. */
#include "trainer/parallel/comm_simulated.h"

#include <math.h>
#include <stdlib.h>

#include "trainer/ops/table.h"

static int64_t transfer_ns(const comm_simulated *of, int64_t bytes)
{
    return llround((double)bytes / of->bytes_per_s * 1e9);
}

int64_t comm_simulated_ns(const comm_simulated *rank, int64_t bytes)
{
    return bytes > 0 ? rank->latency_ns + transfer_ns(rank, bytes) : 0;
}

/* A call that is being made: its runs are collected and copied when there is no room for more. */
typedef struct moving {
    const comm_simulated *rank;
    stream *queue;
    paced_copy_args args;
    int64_t bytes; /* of the runs collected */
} moving;

static moving begin_moving(const comm *group, stream *queue)
{
    const comm_simulated *rank = group->handle;
    return (moving){.rank = rank,
                    .queue = queue,
                    .args.pace = {.wait_ns = rank->latency_ns, .blocks = (int32_t)rank->blocks}};
}

static status flush_runs(moving *whole)
{
    if (whole->bytes == 0)
        return ST_OK;
    whole->args.pace.span_ns = transfer_ns(whole->rank, whole->bytes);
    TRY(op_paced_copy(whole->queue, &whole->args));
    whole->args.pace.wait_ns = 0; /* a call has its latency once */
    whole->args.n = 0;
    whole->bytes = 0;
    return ST_OK;
}

static status add_run(moving *call, void *to, const void *mine, int64_t bytes, int64_t x_bytes)
{
    if (bytes == 0)
        return ST_OK;
    if (call->args.n == PACED_RUNS)
        TRY(flush_runs(call));
    call->args.run[call->args.n++] = (paced_run){to, x_bytes > 0 ? mine : NULL, bytes, x_bytes};
    call->bytes += bytes;
    return ST_OK;
}

/* Copies a rank's own part to its place; that crosses no link, so it is not paced. */
static status keep_own(stream *queue, const void *from, void *to, int64_t bytes)
{
    return from == to || bytes == 0 ? ST_OK
                                    : queue->dev->backend->copy(queue, to, from, (size_t)bytes);
}

static status simulated_all_gather(const comm *group, stream *queue, const void *send, void *recv,
                                   int64_t count, st_dtype dtype)
{
    const int64_t piece = count * (int64_t)st_dtype_size(dtype);
    char *to = recv, *mine = to + group->rank * piece;
    moving call = begin_moving(group, queue);
    TRY(keep_own(queue, send, mine, piece));
    TRY(add_run(&call, to, mine, group->rank * piece, piece));
    TRY(add_run(&call, mine + piece, mine, (group->size - 1 - group->rank) * piece, piece));
    return flush_runs(&call);
}

static status simulated_reduce_scatter(const comm *group, stream *queue, const void *send,
                                       void *recv, int64_t count, st_dtype dtype)
{
    const comm_simulated *rank = group->handle;
    const backend_vtable *backend = queue->dev->backend;
    const int64_t bytes = (group->size - 1) * count * (int64_t)st_dtype_size(dtype);
    if (dtype != backend->acc && dtype != backend->act)
        return FAIL(ST_INTERNAL, "replay: pieces of type %s cannot be summed",
                    st_dtype_name(dtype));
    if (count == 0)
        return ST_OK;
    return op_paced_sum(queue, &(paced_sum_args){.pace = {.wait_ns = rank->latency_ns,
                                                          .span_ns = transfer_ns(rank, bytes),
                                                          .blocks = (int32_t)rank->blocks},
                                                 .n = count,
                                                 .pieces = group->size,
                                                 .acc = dtype == backend->acc,
                                                 .x = send,
                                                 .y = recv});
}

/* Copies `received` bytes onto themselves, within the `bytes` at `inout`: as often as they fit,
 * then the rest. */
static status move_in_place(const comm *group, stream *queue, void *inout, int64_t bytes,
                            int64_t received)
{
    moving call = begin_moving(group, queue);
    for (int64_t i; received > 0; received -= i) {
        i = received < bytes ? received : bytes;
        TRY(add_run(&call, inout, inout, i, i));
        TRY(flush_runs(&call)); /* the runs of one copy may not overlap */
    }
    return ST_OK;
}

static status simulated_all_reduce(const comm *group, stream *queue, void *inout, int64_t count,
                                   st_dtype dtype, comm_reduction reduction)
{
    const int64_t size = (int64_t)st_dtype_size(dtype);
    (void)reduction;
    return move_in_place(group, queue, inout, count * size,
                         comm_all_reduce_gets(group->rank, group->size, count) * size);
}

static status simulated_broadcast(const comm *group, stream *queue, void *inout, int64_t count,
                                  st_dtype dtype, int root)
{
    const int64_t bytes = count * (int64_t)st_dtype_size(dtype);
    return move_in_place(group, queue, inout, bytes, group->rank == root ? 0 : bytes);
}

static status simulated_all_to_all(const comm *group, stream *queue, const void *send,
                                   const int64_t *send_first, const int64_t *send_count, void *recv,
                                   const int64_t *recv_first, const int64_t *recv_count,
                                   st_dtype dtype)
{
    const int64_t size = (int64_t)st_dtype_size(dtype), own = send_count[group->rank] * size;
    const char *mine = (const char *)send + send_first[group->rank] * size;
    char *to = recv;
    moving call = begin_moving(group, queue);
    if (send_count[group->rank] != recv_count[group->rank])
        return FAIL(ST_INTERNAL, "rank %d sends itself %lld elements but expects %lld", group->rank,
                    (long long)send_count[group->rank], (long long)recv_count[group->rank]);
    TRY(keep_own(queue, mine, to + recv_first[group->rank] * size, own));
    for (int i = 0; i < group->size; i++)
        if (i != group->rank)
            TRY(add_run(&call, to + recv_first[i] * size, mine, recv_count[i] * size, own));
    return flush_runs(&call);
}

static status no_peer(void)
{
    return FAIL(ST_INTERNAL, "comm.engine replay: there is no other rank to receive from");
}

static status simulated_send(const comm *group, stream *queue, const void *send, int64_t count,
                             st_dtype dtype, int to)
{
    (void)group, (void)queue, (void)send, (void)count, (void)dtype, (void)to;
    return no_peer();
}

static status simulated_recv(const comm *group, stream *queue, void *recv, int64_t count,
                             st_dtype dtype, int from)
{
    (void)group, (void)queue, (void)recv, (void)count, (void)dtype, (void)from;
    return no_peer();
}

static status simulated_edge(const comm *group, stream *queue)
{
    (void)group, (void)queue;
    return no_peer();
}

static status simulated_host_all_gather(const comm *group, const void *send, void *recv,
                                        int64_t bytes)
{
    (void)group, (void)send, (void)recv, (void)bytes;
    return no_peer();
}

static status simulated_host_broadcast(const comm *group, void *inout, int64_t bytes, int root)
{
    (void)group, (void)inout, (void)bytes, (void)root;
    return no_peer();
}

static void simulated_set_timeout(void *world, double seconds)
{
    (void)world, (void)seconds; /* no call waits for another rank */
}

static void simulated_leave(void *world, bool well)
{
    (void)well;
    free(world);
}

static status simulated_group_new(void *world, const int *world_rank, int size, void **out_handle)
{
    (void)world_rank, (void)size;
    *out_handle = world;
    return ST_OK;
}

static void simulated_group_free(void *handle)
{
    (void)handle;
}

const comm_engine comm_simulated_engine = {
    .name = "replay",
    .set_timeout = simulated_set_timeout,
    .leave = simulated_leave,
    .group_new = simulated_group_new,
    .group_free = simulated_group_free,
    .all_gather = simulated_all_gather,
    .reduce_scatter = simulated_reduce_scatter,
    .all_reduce = simulated_all_reduce,
    .broadcast = simulated_broadcast,
    .all_to_all = simulated_all_to_all,
    .send = simulated_send,
    .recv = simulated_recv,
    .begin = simulated_edge,
    .end = simulated_edge,
    .host_all_gather = simulated_host_all_gather,
    .host_broadcast = simulated_host_broadcast,
};
