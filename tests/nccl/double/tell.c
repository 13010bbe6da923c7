/* SPDX-License-Identifier: Apache-2.0 */
/* tell.c: what the shim reports: calls that differ, and the record of all calls that have run. */
#include "tests/nccl/double/shim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *record;

const char *shim_kind_name(int kind)
{
    static const char *const name[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                       "ncclBroadcast", "ncclSend",          "ncclRecv"};
    return name[kind];
}

static int describe_call(char *out, size_t size, int rank, const shim_call *call)
{
    static const char *const op[] = {"sum", "prod", "max", "min", "avg"};
    int length = snprintf(out, size, "rank %d: call %" PRId64 ", %s of %" PRId64 " %s on stream %d",
                          rank, call->number, shim_kind_name(call->kind), call->count,
                          shim_type_name(call->type), call->stream);
    if (call->kind == SHIM_REDUCE_SCATTER || call->kind == SHIM_ALL_REDUCE)
        length += snprintf(out + length, size - (size_t)length, ", %s", op[call->op]);
    else if (call->kind == SHIM_BROADCAST)
        length += snprintf(out + length, size - (size_t)length, ", root %d", call->root);
    else if (call->kind >= SHIM_SEND)
        length += snprintf(out + length, size - (size_t)length, ", %s rank %d",
                           call->kind == SHIM_SEND ? "to" : "from", call->root);
    if (call->graph)
        length += snprintf(out + length, size - (size_t)length, ", number %d of captured graph %d",
                           call->place, call->graph);
    if (call->hollow)
        length += snprintf(out + length, size - (size_t)length, ", of shapes");
    return length;
}

void shim_differ(struct ncclComm *comm, int rank, const shim_call *mine, int other,
                 const shim_call *theirs)
{
    shim_shared *shared = comm->shared;
    int none = 0;
    if (!atomic_compare_exchange_strong(&shared->differs, &none, 1))
        return; /* another rank reports it */
    int length = snprintf(shared->said, sizeof shared->said, "calls differ: ");
    length +=
        describe_call(shared->said + length, sizeof shared->said - (size_t)length, rank, mine);
    length += snprintf(shared->said + length, sizeof shared->said - (size_t)length, "; ");
    describe_call(shared->said + length, sizeof shared->said - (size_t)length, other, theirs);
    atomic_store(&shared->told, 1);
}

static void close_record(void)
{
    fclose(record);
}

void shim_record_open(int world_rank)
{
    const char *path = getenv("TESSERA_NCCL_RECORD");
    char name[4096];
    if (record || !path)
        return;
    snprintf(name, sizeof name, "%s.%d", path, world_rank);
    record = fopen(name, "we");
    if (!record)
        return;
    setvbuf(record, NULL, _IOLBF, 0);
    atexit(close_record);
}

/* The line of a call: its kind, how many ranks the communicator has, this rank's number, stream,
 * elements, type, bytes received from others, and the captured graph that holds it (0: none). */
void shim_record(const struct ncclComm *comm, const shim_call *call, int64_t bytes)
{
    if (record)
        fprintf(record, "%s %d %d %d %" PRId64 " %s %" PRId64 " %d\n", shim_kind_name(call->kind),
                comm->size, comm->rank, call->stream, call->count, shim_type_name(call->type),
                bytes, call->graph);
}
