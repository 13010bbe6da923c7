/* calls.c: the collectives of the shim: each call goes onto its stream as work that polls. Messages
 * between begin and end of a group go as one. */
#include "trainer/parallel/nccl_double/shim.h"

#include <stdlib.h>
#include <unistd.h>

enum { PARTS_MAX = 256 };

static _Thread_local int depth;
static _Thread_local shim_part grouped[PARTS_MAX];
static _Thread_local int n_grouped;
static _Thread_local struct ncclComm *group_comm;
static _Thread_local cudaStream_t group_stream;

static bool is_ready(const struct ncclComm *c)
{
    return c->joined && !c->split_out && !c->under_way && !atomic_load(&c->aborted) &&
           !atomic_load(&c->revoked) && !atomic_load(&c->finalizing);
}

void shim_work_free(shim_work *w)
{
    if (w)
        free(w->part);
    free(w);
}

static int stream_number(cudaStream_t on)
{
    return ((const emulated_handle *)on)->number;
}

/* Work of one communicator runs in the order of its calls, on whatever streams. */
static ncclResult_t queue_work(struct ncclComm *c, cudaStream_t handle, const shim_part *part,
                               int n)
{
    shim_work *w = calloc(1, sizeof *w);
    shim_part *own = calloc((size_t)n, sizeof *own);
    if (!w || !own) {
        free(w);
        free(own);
        return ncclSystemError;
    }
    for (int i = 0; i < n; i++)
        own[i] = part[i];
    *w = (shim_work){.comm = c, .part = own, .n = n};
    if (shim_shapes_of(handle))
        return shim_start(c, w);
    emulated_handle *on = (emulated_handle *)handle;
    w->capture = on->capture(on);
    if (c->last && c->last_stream != on && c->last->capture == w->capture)
        w->before = c->last;
    w->next = c->works;
    c->works = c->last = w;
    c->last_stream = on;
    return on->add(on, shim_poll, w) ? ncclSuccess : ncclSystemError;
}

static ncclResult_t collective_inside(shim_call call, const void *send, void *recv, ncclComm_t c,
                                      cudaStream_t on)
{
    shim_part p = {.call = call, .send = send, .recv = recv};
    if (depth > 0 || !on || shim_type_size(call.type) == 0 || !is_ready(c))
        return ncclInvalidUsage;
    p.call.stream = stream_number(on);
    ncclResult_t result = shim_find_place(c, on, &p);
    return result == ncclSuccess ? queue_work(c, on, &p, 1) : result;
}

/* TESSERA_NCCL_STUCK: like a call that waits for a full queue of the GPU and goes on only when what
 * is queued has ended. */
static ncclResult_t call_collective(shim_call call, const void *send, void *recv, ncclComm_t c,
                                    cudaStream_t on)
{
    const bool stuck = getenv("TESSERA_NCCL_STUCK") != NULL;
    shim_go_in(c);
    ncclResult_t result = collective_inside(call, send, recv, c, on);
    while (stuck && !atomic_load(&c->revoked))
        usleep(1000);
    shim_go_out(c);
    return result;
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t on)
{
    shim_call call = {.kind = SHIM_ALL_GATHER, .type = datatype, .count = (int64_t)sendcount};
    return call_collective(call, sendbuff, recvbuff, comm, on);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t on)
{
    shim_call call = {
        .kind = SHIM_REDUCE_SCATTER, .type = datatype, .op = op, .count = (int64_t)recvcount};
    return call_collective(call, sendbuff, recvbuff, comm, on);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t on)
{
    shim_call call = {.kind = SHIM_ALL_REDUCE, .type = datatype, .op = op, .count = (int64_t)count};
    return call_collective(call, sendbuff, recvbuff, comm, on);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t on)
{
    shim_call call = {
        .kind = SHIM_BROADCAST, .type = datatype, .root = root, .count = (int64_t)count};
    return call_collective(call, sendbuff, recvbuff, comm, on);
}

/* Outside of a group a message is a group of its own. */
static ncclResult_t message_inside(shim_call call, const void *send, void *recv, ncclComm_t c,
                                   cudaStream_t on)
{
    const int peer = call.root;
    if (!on || shim_type_size(call.type) == 0 || !is_ready(c) || peer < 0 || peer >= c->size ||
        peer == c->rank)
        return ncclInvalidUsage;
    call.stream = stream_number(on);
    shim_part p = {.call = call, .send = send, .recv = recv, .peer = peer};
    ncclResult_t result = shim_find_place(c, on, &p);
    if (result != ncclSuccess)
        return result;
    if (depth == 0)
        return queue_work(c, on, &p, 1);
    if (n_grouped == PARTS_MAX || (n_grouped > 0 && (c != group_comm || on != group_stream)))
        return ncclInvalidUsage;
    group_comm = c;
    group_stream = on;
    grouped[n_grouped++] = p;
    return ncclSuccess;
}

static ncclResult_t call_message(shim_call call, const void *send, void *recv, ncclComm_t c,
                                 cudaStream_t on)
{
    shim_go_in(c);
    ncclResult_t result = message_inside(call, send, recv, c, on);
    shim_go_out(c);
    return result;
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t on)
{
    shim_call call = {.kind = SHIM_SEND, .type = datatype, .root = peer, .count = (int64_t)count};
    return call_message(call, sendbuff, NULL, comm, on);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t on)
{
    shim_call call = {.kind = SHIM_RECV, .type = datatype, .root = peer, .count = (int64_t)count};
    return call_message(call, NULL, recvbuff, comm, on);
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0 || n_grouped == 0)
        return ncclSuccess;
    int n = n_grouped;
    n_grouped = 0;
    return queue_work(group_comm, group_stream, grouped, n);
}
