/* comm_nccl.c: comm.h over NCCL, between processes with one GPU each. It is a library of its own,
 * built where NCCL's header is found; NCCL itself is loaded when the engine joins.
 *
 * A call is queued on the stream it is given and returns; nccl_watch.c keeps the deadlines. An
 * all-to-all is a group of sends and receives. Host values go through the engine's own stream. */
#include <string.h>

#include "trainer/parallel/comm_module.h"
#include "trainer/parallel/nccl_window.h"
#include "trainer/parallel/nccl_world.h"

_Static_assert(sizeof(ncclUniqueId) <= COMM_ID_BYTES, "rank_link's WELCOME carries the id");

static size_t dtype_size(st_dtype dtype)
{
    static const unsigned char size[] = {
#define SIZE(name, text, bytes) bytes,
        ST_DTYPES(SIZE)
#undef SIZE
    };
    return size[dtype];
}

/* Types that NCCL does not know are only moved, never summed (comm.c refuses that), so another type
 * of the same size will do. */
static ncclDataType_t type_of(st_dtype dtype)
{
    switch (dtype) {
    case DT_F32:
        return ncclFloat32;
    case DT_F64:
        return ncclFloat64;
    case DT_BF16:
        return ncclBfloat16;
    case DT_I32:
        return ncclInt32;
    case DT_I64:
        return ncclInt64;
    default:
        return dtype_size(dtype) == 1   ? ncclUint8
               : dtype_size(dtype) == 2 ? ncclFloat16
               : dtype_size(dtype) == 4 ? ncclUint32
                                        : ncclUint64;
    }
}

static cudaStream_t stream_of(const stream *queue)
{
    return (cudaStream_t)queue->handle;
}

static status keep_own(stream *queue, const char *from, char *to, int64_t bytes)
{
    return from == to || bytes == 0 ? ST_OK
                                    : queue->dev->backend->copy(queue, to, from, (size_t)bytes);
}

static status nccl_all_gather(const comm *group, stream *queue, const void *send, void *recv,
                              int64_t count, st_dtype dtype)
{
    const nccl_group *calls = group->handle;
    TRY(nccl_enter(calls->world, "ncclAllGather"));
    return nccl_leave(calls, nccl_api()->AllGather(send, recv, (size_t)count, type_of(dtype),
                                                   calls->comm, stream_of(queue)));
}

static status nccl_reduce_scatter(const comm *group, stream *queue, const void *send, void *recv,
                                  int64_t count, st_dtype dtype)
{
    const nccl_group *calls = group->handle;
    TRY(nccl_enter(calls->world, "ncclReduceScatter"));
    return nccl_leave(calls, nccl_api()->ReduceScatter(send, recv, (size_t)count, type_of(dtype),
                                                       ncclSum, calls->comm, stream_of(queue)));
}

static status nccl_all_reduce(const comm *group, stream *queue, void *inout, int64_t count,
                              st_dtype dtype, comm_reduction reduction)
{
    const nccl_group *calls = group->handle;
    const ncclRedOp_t op = reduction == COMM_MAX ? ncclMax : ncclSum;
    TRY(nccl_enter(calls->world, "ncclAllReduce"));
    return nccl_leave(calls, nccl_api()->AllReduce(inout, inout, (size_t)count, type_of(dtype), op,
                                                   calls->comm, stream_of(queue)));
}

static status nccl_broadcast(const comm *group, stream *queue, void *inout, int64_t count,
                             st_dtype dtype, int root)
{
    const nccl_group *calls = group->handle;
    TRY(nccl_enter(calls->world, "ncclBroadcast"));
    return nccl_leave(calls, nccl_api()->Broadcast(inout, inout, (size_t)count, type_of(dtype),
                                                   root, calls->comm, stream_of(queue)));
}

/* A message of no elements is left out, on both sides. */
static status nccl_send(const comm *group, stream *queue, const void *send, int64_t count,
                        st_dtype dtype, int to)
{
    const nccl_group *calls = group->handle;
    if (count == 0)
        return ST_OK;
    TRY(nccl_enter(calls->world, "ncclSend"));
    return nccl_leave(calls, nccl_api()->Send(send, (size_t)count, type_of(dtype), to, calls->comm,
                                              stream_of(queue)));
}

static status nccl_recv(const comm *group, stream *queue, void *recv, int64_t count, st_dtype dtype,
                        int from)
{
    const nccl_group *calls = group->handle;
    if (count == 0)
        return ST_OK;
    TRY(nccl_enter(calls->world, "ncclRecv"));
    return nccl_leave(calls, nccl_api()->Recv(recv, (size_t)count, type_of(dtype), from,
                                              calls->comm, stream_of(queue)));
}

static status nccl_begin(const comm *group, stream *queue)
{
    const nccl_group *calls = group->handle;
    (void)queue;
    TRY(nccl_enter(calls->world, "ncclGroupStart"));
    return nccl_leave(calls, nccl_api()->GroupStart());
}

static status nccl_end(const comm *group, stream *queue)
{
    const nccl_group *calls = group->handle;
    (void)queue;
    TRY(nccl_enter(calls->world, "ncclGroupEnd"));
    return nccl_leave(calls, nccl_api()->GroupEnd());
}

static status exchange_with(const comm *group, stream *queue, int peer, const char *from,
                            int64_t sent, char *to, int64_t received, st_dtype dtype)
{
    TRY(nccl_send(group, queue, from, sent, dtype, peer));
    return nccl_recv(group, queue, to, received, dtype, peer);
}

static status nccl_all_to_all(const comm *group, stream *queue, const void *send,
                              const int64_t *send_first, const int64_t *send_count, void *recv,
                              const int64_t *recv_first, const int64_t *recv_count, st_dtype dtype)
{
    const int64_t size = (int64_t)dtype_size(dtype);
    const char *from = send;
    char *to = recv;
    if (send_count[group->rank] != recv_count[group->rank])
        return FAIL(ST_INTERNAL, "rank %d sends itself %lld elements but expects %lld", group->rank,
                    (long long)send_count[group->rank], (long long)recv_count[group->rank]);
    TRY(nccl_begin(group, queue));
    for (int i = 0; i < group->size; i++)
        if (i != group->rank)
            TRY(exchange_with(group, queue, i, from + send_first[i] * size, send_count[i],
                              to + recv_first[i] * size, recv_count[i], dtype));
    TRY(nccl_end(group, queue));
    return keep_own(queue, from + send_first[group->rank] * size,
                    to + recv_first[group->rank] * size, send_count[group->rank] * size);
}

/* Gathers bytes of all ranks through the stage, `each` bytes of every rank at a time. */
static status gather_stage(const comm *group, const char *send, char *recv, int64_t bytes,
                           int64_t each)
{
    const nccl_stage *stage = nccl_world_stage(((nccl_group *)group->handle)->world);
    const backend_vtable *backend = stage->stream->dev->backend;
    for (int64_t first = 0; first < bytes; first += each) {
        const int64_t count = bytes - first < each ? bytes - first : each;
        char *own = stage->device + group->rank * count;
        memcpy(stage->host, send + first, (size_t)count);
        TRY(backend->to_device(stage->stream, own, stage->host, (size_t)count));
        TRY(nccl_all_gather(group, stage->stream, own, stage->device, count, DT_U8));
        TRY(backend->to_host(stage->stream, stage->host, stage->device,
                             (size_t)(group->size * count)));
        TRY(backend->wait(stage->stream));
        for (int i = 0; i < group->size; i++)
            memcpy(recv + i * bytes + first, stage->host + i * count, (size_t)count);
    }
    return ST_OK;
}

static status nccl_host_all_gather(const comm *group, const void *send, void *recv, int64_t bytes)
{
    if (group->size > COMM_STAGE_BYTES)
        return FAIL(ST_INTERNAL, "a group of %d ranks is too large to gather host values",
                    group->size);
    return gather_stage(group, send, recv, bytes, COMM_STAGE_BYTES / group->size);
}

static status nccl_host_broadcast(const comm *group, void *inout, int64_t bytes, int root)
{
    const nccl_stage *stage = nccl_world_stage(((nccl_group *)group->handle)->world);
    const backend_vtable *backend = stage->stream->dev->backend;
    char *at = inout;
    for (int64_t first = 0; first < bytes; first += COMM_STAGE_BYTES) {
        const int64_t count = bytes - first < COMM_STAGE_BYTES ? bytes - first : COMM_STAGE_BYTES;
        memcpy(stage->host, at + first, (size_t)count);
        TRY(backend->to_device(stage->stream, stage->device, stage->host, (size_t)count));
        TRY(nccl_broadcast(group, stage->stream, stage->device, count, DT_U8, root));
        TRY(backend->to_host(stage->stream, stage->host, stage->device, (size_t)count));
        TRY(backend->wait(stage->stream));
        memcpy(at + first, stage->host, (size_t)count);
    }
    return ST_OK;
}

static status nccl_make_id(void *out)
{
    ncclUniqueId id;
    TRY(nccl_open());
    ncclResult_t result = nccl_api()->GetUniqueId(&id);
    if (result != ncclSuccess)
        return FAIL(ST_UNAVAILABLE, "ncclGetUniqueId: %s", nccl_api()->GetErrorString(result));
    memcpy(out, &id, sizeof id);
    return ST_OK;
}

static status nccl_join(const comm_join *options, void **out_world)
{
    nccl_world *nccl;
    TRY(nccl_world_new(options, &nccl));
    *out_world = nccl;
    return ST_OK;
}

static status nccl_attach(void *world, device *dev)
{
    return nccl_world_attach(world, dev);
}

static void nccl_detach(void *world)
{
    nccl_world_detach(world);
}

static void nccl_set_timeout(void *world, double seconds)
{
    nccl_world_set_timeout(world, seconds);
}

static void nccl_depart(void *world, bool well)
{
    nccl_world_free(world, well);
}

static status nccl_group_new(void *world, const int *world_rank, int size, void **out_handle)
{
    nccl_group *group;
    TRY(nccl_world_group(world, world_rank, size, &group));
    *out_handle = group;
    return ST_OK;
}

static void nccl_group_free(void *handle)
{
    (void)handle; /* the world owns it: another group of the same ranks may use it */
}

static const comm_engine engine = {
    .name = "nccl",
    .make_id = nccl_make_id,
    .join = nccl_join,
    .attach = nccl_attach,
    .detach = nccl_detach,
    .set_timeout = nccl_set_timeout,
    .leave = nccl_depart,
    .group_new = nccl_group_new,
    .group_free = nccl_group_free,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .all_to_all = nccl_all_to_all,
    .send = nccl_send,
    .recv = nccl_recv,
    .begin = nccl_begin,
    .end = nccl_end,
    .window_reach = nccl_window_reach,
    .window_new = nccl_window_new,
    .window_share = nccl_window_share,
    .window_free = nccl_window_free,
    .host_all_gather = nccl_host_all_gather,
    .host_broadcast = nccl_host_broadcast,
};

__attribute__((visibility("default"))) const comm_engine *
tessera_nccl_engine(const module_host *host)
{
    module_enter(host);
    return &engine;
}
