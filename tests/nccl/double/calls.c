/* SPDX-License-Identifier: Apache-2.0 */
/* calls.c: the collectives of the shim. A call checks its arguments and queues work that polls
 * (polls.c) on its stream. Messages between ncclGroupStart and ncclGroupEnd are queued as one. */
#include "tests/nccl/double/shim.h"

#include <stdlib.h>
#include <unistd.h>

enum { PARTS_MAX = 256 };

static _Thread_local int depth;
static _Thread_local shim_part grouped[PARTS_MAX];
static _Thread_local int n_grouped;
static _Thread_local struct ncclComm *group_comm;
static _Thread_local cudaStream_t group_stream;

static bool is_ready(const struct ncclComm *comm)
{
    return comm->joined && !comm->split_out && !comm->under_way && !atomic_load(&comm->aborted) &&
           !atomic_load(&comm->revoked) && !atomic_load(&comm->finalizing);
}

void shim_work_free(shim_work *work)
{
    if (work)
        free(work->part);
    free(work);
}

static int stream_number(cudaStream_t on)
{
    return ((const emulated_handle *)on)->number;
}

/* Gives a captured call its place among the captures of the communicator. NCCL demands that all
 * ranks capture the same calls, and that what they launch comes from the same capture. */
static void number_capture(struct ncclComm *comm, shim_work *work)
{
    if (!work->capture)
        return;
    if (work->capture != comm->capture) {
        comm->capture = work->capture;
        comm->captures++;
        comm->in_capture = 0;
    }
    for (int i = 0; i < work->count; i++) {
        work->part[i].call.graph = comm->captures;
        work->part[i].call.place = comm->in_capture++;
    }
}

/* Queues work. Work of one communicator runs in the order of the calls,
 * on whatever streams it is. */
static ncclResult_t queue_work(struct ncclComm *comm, cudaStream_t handle, const shim_part *part,
                               int count)
{
    shim_work *work = calloc(1, sizeof *work);
    shim_part *own = calloc((size_t)count, sizeof *own);
    if (!work || !own) {
        free(work);
        free(own);
        return ncclSystemError;
    }
    for (int i = 0; i < count; i++)
        own[i] = part[i];
    *work = (shim_work){.comm = comm, .part = own, .count = count};
    if (shim_shapes_of(handle))
        return shim_finish(comm, shim_start(comm, work));
    emulated_handle *on = (emulated_handle *)handle;
    work->capture = on->capture(on);
    number_capture(comm, work);
    if (comm->last && comm->last_stream != on && comm->last->capture == work->capture)
        work->before = comm->last;
    work->next = comm->works;
    comm->works = comm->last = work;
    comm->last_stream = on;
    work->busy = !work->capture; /* what a graph holds runs only when the graph does */
    atomic_fetch_add(work->capture ? &comm->graphs : &comm->busy, 1);
    return on->add(on, shim_poll, shim_drop, work) ? ncclSuccess : ncclSystemError;
}

static ncclResult_t collective_inside(shim_call call, const void *send, void *recv, ncclComm_t comm,
                                      cudaStream_t on)
{
    shim_part part = {.call = call, .send = send, .recv = recv};
    if (depth > 0 || !on || shim_type_size(call.type) == 0 || !is_ready(comm))
        return ncclInvalidUsage;
    part.call.stream = stream_number(on);
    ncclResult_t result = shim_find_place(comm, on, &part);
    return result == ncclSuccess ? queue_work(comm, on, &part, 1) : result;
}

/* With TESSERA_NCCL_STUCK it behaves like a call that waits for room in the GPU's full queue and
 * returns only when the queued work has ended. */
static ncclResult_t call_collective(shim_call call, const void *send, void *recv, ncclComm_t comm,
                                    cudaStream_t on)
{
    const bool stuck = getenv("TESSERA_NCCL_STUCK") != NULL;
    shim_go_in(comm);
    ncclResult_t result = collective_inside(call, send, recv, comm, on);
    while (stuck && !atomic_load(&comm->revoked))
        usleep(1000);
    shim_go_out(comm);
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

/* A message outside of a group is a separate group. */
static ncclResult_t message_inside(shim_call call, const void *send, void *recv, ncclComm_t comm,
                                   cudaStream_t on)
{
    const int peer = call.root;
    if (!on || shim_type_size(call.type) == 0 || !is_ready(comm) || peer < 0 ||
        peer >= comm->size || peer == comm->rank)
        return ncclInvalidUsage;
    call.stream = stream_number(on);
    shim_part part = {.call = call, .send = send, .recv = recv, .peer = peer};
    ncclResult_t result = shim_find_place(comm, on, &part);
    if (result != ncclSuccess)
        return result;
    if (depth == 0)
        return queue_work(comm, on, &part, 1);
    if (n_grouped == PARTS_MAX || (n_grouped > 0 && (comm != group_comm || on != group_stream)))
        return ncclInvalidUsage;
    group_comm = comm;
    group_stream = on;
    grouped[n_grouped++] = part;
    return ncclSuccess;
}

static ncclResult_t call_message(shim_call call, const void *send, void *recv, ncclComm_t comm,
                                 cudaStream_t on)
{
    shim_go_in(comm);
    ncclResult_t result = message_inside(call, send, recv, comm, on);
    shim_go_out(comm);
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

bool shim_in_group(void)
{
    return depth > 0;
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
    if (--depth > 0)
        return ncclSuccess;
    shim_end_aborts();
    if (n_grouped == 0)
        return ncclSuccess;
    int count = n_grouped;
    n_grouped = 0;
    return queue_work(group_comm, group_stream, grouped, count);
}
