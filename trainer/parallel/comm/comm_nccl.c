/* SPDX-License-Identifier: Apache-2.0 */
/* comm_nccl.c: comm.h over NCCL, between processes with one GPU each. It is a separate library,
 * built where NCCL's header is found; NCCL itself is loaded when the engine joins.
 *
 * A call is queued on the stream it is given and returns; nccl_watch.c keeps the deadlines. An
 * all-to-all is a group of sends and receives. Host values go through the engine's own stream. */
#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/comm/comm.h"
#include "trainer/parallel/comm/comm_module.h"
#include "trainer/parallel/comm/nccl_world.h"

/* ---- windows ---- */

/* Windows (comm.h) over NCCL. The memory comes from ncclMemAlloc and is registered
 * as a symmetric window; NCCL then maps the memory of all ranks that reach each other by load and
 * store (nccl_lsa.h), and their addresses go into a list that kernels read. */

#ifdef TESSERA_NCCL_WINDOWS

#include "trainer/parallel/comm/nccl_lsa.h"

/* What comm_window.handle points to. */
typedef struct held {
    void *memory;
    ncclWindow_t window;
} held;

/* The header's memory layouts hold for libraries of the same minor version. */
static status check_version(void)
{
    enum { OF_PATCH = 100 };
    const int there = nccl_api()->version / OF_PATCH, built = nccl_lsa_version() / OF_PATCH;
    if (there != built)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL's library has version code %d, but this program was built with %d",
                    nccl_api()->version, nccl_lsa_version());
    if (!nccl_api()->windows)
        return FAIL(ST_UNAVAILABLE, "NCCL's library has no functions for windows");
    return ST_OK;
}

static status check_reach(const nccl_group *group)
{
    TRY(nccl_enter(group->world, "ncclTeamLsa"));
    const int reached = nccl_lsa_ranks(nccl_api()->TeamLsa, group->comm);
    TRY(nccl_leave(group, ncclSuccess));
    if (reached != group->size)
        return FAIL(ST_UNAVAILABLE,
                    "the group has %d ranks, but only %d of them reach each other's memory by load "
                    "and store, as NCCL reports",
                    group->size, reached);
    return ST_OK;
}

static status nccl_window_reach(const comm *group)
{
    TRY(check_version());
    return check_reach(group->handle);
}

static status nccl_window_new(const comm *group, stream *queue, size_t bytes, comm_window *out)
{
    const nccl_group *calls = group->handle;
    TRY(nccl_window_reach(group));
    held *memory = calloc(1, sizeof *memory);
    if (!memory)
        return FAIL(ST_NO_MEMORY, "no memory for a window");
    out->handle = memory;
    out->bytes = bytes;
    out->watch = nccl_world_stage(calls->world)->watch;
    ncclResult_t result = nccl_api()->MemAlloc(&memory->memory, bytes);
    if (result != ncclSuccess)
        return FAIL(ST_NO_MEMORY, "%s has no %zu bytes left for a window: ncclMemAlloc: %s",
                    queue->dev->description, bytes, nccl_api()->GetErrorString(result));
    TRY(queue->dev->backend->zero(queue, memory->memory, bytes));
    return queue->dev->backend->wait(queue);
}

static status read_addresses(const comm *group, stream *queue, comm_window *win)
{
    const backend_vtable *backend = queue->dev->backend;
    const size_t bytes = nccl_lsa_window_bytes();
    void *window = malloc(bytes), **list = calloc((size_t)group->size, sizeof *list);
    status st = window && list ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a window");
    if (st == ST_OK)
        st = backend->to_host(queue, window, ((held *)win->handle)->window, bytes);
    if (st == ST_OK)
        st = backend->wait(queue);
    for (int i = 0; i < group->size && st == ST_OK; i++)
        list[i] = nccl_lsa_address(window, i);
    if (st == ST_OK)
        st = backend->alloc(queue->dev, (size_t)group->size * sizeof *list, (void **)&win->base);
    if (st == ST_OK)
        st = backend->to_device(queue, win->base, list, (size_t)group->size * sizeof *list);
    if (st == ST_OK)
        st = backend->wait(queue);
    if (st == ST_OK)
        win->own = list[group->rank];
    free(window);
    free(list);
    return st;
}

static status nccl_window_share(const comm *group, stream *queue, comm_window *inout)
{
    nccl_group *calls = group->handle;
    held *memory = inout->handle;
    TRY(nccl_enter(calls->world, "ncclCommWindowRegister"));
    TRY(nccl_leave(calls,
                   nccl_api()->CommWindowRegister(calls->comm, memory->memory, inout->bytes,
                                                  &memory->window, NCCL_WIN_COLL_SYMMETRIC)));
    if (!memory->window)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL registers no symmetric window here (is NCCL_CUMEM_ENABLE set to 0?)");
    return read_addresses(group, queue, inout);
}

static void nccl_window_free(const comm *group, stream *queue, comm_window *window)
{
    const nccl_group *calls = group->handle;
    held *memory = window->handle;
    if (!memory)
        return;
    if (queue->dev->backend->wait(queue) != ST_OK) /* the run has reported its error already */
        status_clear();
    if (memory->window && calls->comm && nccl_enter(calls->world, "closing a window") == ST_OK &&
        nccl_leave(calls, nccl_api()->CommWindowDeregister(calls->comm, memory->window)) != ST_OK)
        status_clear();
    if (memory->memory)
        nccl_api()->MemFree(memory->memory);
    free(memory);
}

#else

static status nccl_window_reach(const comm *group)
{
    (void)group;
    return FAIL(ST_UNAVAILABLE, "this program was built without nvcc, or with an nccl.h older than "
                                "2.28, which has no device API");
}

static status nccl_window_new(const comm *group, stream *queue, size_t bytes, comm_window *out)
{
    (void)queue;
    (void)bytes;
    (void)out;
    return nccl_window_reach(group);
}

static status nccl_window_share(const comm *group, stream *queue, comm_window *inout)
{
    (void)group;
    (void)queue;
    (void)inout;
    return FAIL(ST_INTERNAL, "no window was made");
}

static void nccl_window_free(const comm *group, stream *queue, comm_window *window)
{
    (void)group;
    (void)queue;
    (void)window;
}

#endif

/* ---- the engine ---- */

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
