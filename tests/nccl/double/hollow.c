/* SPDX-License-Identifier: Apache-2.0 */
/* hollow.c: the shim on a device of shapes (tests/dry_run/shapes.h). Calls are compared, counted
 * and recorded like any others, at any size, but no byte is moved at an address that may not be
 * touched. Pinned memory is real, and bytes in it are moved. The device has no queue, so calls run
 * one by one. */
#include "tests/nccl/double/shim.h"

#include <stdio.h>

const shapes_handle *shim_shapes_of(cudaStream_t on)
{
    const emulated_handle *handle = (const emulated_handle *)on;
    return handle->add ? NULL : (const shapes_handle *)on;
}

static ncclResult_t find_buffer(struct ncclComm *comm, const shapes_handle *handle, const void *at,
                                int64_t bytes, shapes_place *inout)
{
    shapes_place found = handle->place(handle->device, at, (size_t)bytes);
    if (bytes == 0)
        return ncclSuccess;
    if (found == SHAPES_NOWHERE || (*inout != SHAPES_NOWHERE && found != *inout)) {
        snprintf(comm->said, sizeof comm->said, "a buffer of %lld bytes %s", (long long)bytes,
                 found == SHAPES_NOWHERE ? "lies in no allocation of the device"
                                         : "lies in pinned memory and another one on the device");
        return ncclInvalidArgument;
    }
    *inout = found;
    return ncclSuccess;
}

ncclResult_t shim_find_place(struct ncclComm *comm, cudaStream_t on, shim_part *part)
{
    const shapes_handle *handle = shim_shapes_of(on);
    const shim_call *call = &part->call;
    const int64_t bytes = call->count * (int64_t)shim_type_size(call->type);
    const int64_t sent = call->kind == SHIM_REDUCE_SCATTER ? comm->size * bytes : bytes;
    const int64_t received = call->kind == SHIM_ALL_GATHER ? comm->size * bytes : bytes;
    shapes_place place = SHAPES_NOWHERE;
    ncclResult_t result = ncclSuccess;
    if (!handle)
        return ncclSuccess;
    if (call->kind != SHIM_RECV)
        result = find_buffer(comm, handle, part->send, sent, &place);
    if (call->kind != SHIM_SEND && result == ncclSuccess)
        result = find_buffer(comm, handle, part->recv, received, &place);
    part->call.hollow = place != SHAPES_PINNED;
    return result;
}

ncclResult_t shim_start(struct ncclComm *comm, shim_work *work)
{
    comm->under_way = work;
    return shim_poll(work, true) ? shim_go_on(comm) : ncclInProgress;
}

/* Work that has run to its end is not polled again. */
ncclResult_t shim_go_on(struct ncclComm *comm)
{
    shim_work *work = comm->under_way;
    if (work->runs == 0 && !shim_poll(work, false))
        return ncclInProgress;
    comm->under_way = NULL;
    shim_work_free(work);
    return ncclSuccess;
}
