/* tell.c: what the shim reports: calls that differ, and the record of all calls that have run. */
#include "trainer/parallel/nccl_double/shim.h"

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

static int describe_call(char *out, size_t size, int rank, const shim_call *c)
{
    static const char *const op[] = {"sum", "prod", "max", "min", "avg"};
    int n =
        snprintf(out, size, "rank %d: call %" PRId64 ", %s of %" PRId64 " %s on stream %d", rank,
                 c->number, shim_kind_name(c->kind), c->count, shim_type_name(c->type), c->stream);
    if (c->kind == SHIM_REDUCE_SCATTER || c->kind == SHIM_ALL_REDUCE)
        n += snprintf(out + n, size - (size_t)n, ", %s", op[c->op]);
    else if (c->kind == SHIM_BROADCAST)
        n += snprintf(out + n, size - (size_t)n, ", root %d", c->root);
    else if (c->kind >= SHIM_SEND)
        n += snprintf(out + n, size - (size_t)n, ", %s rank %d",
                      c->kind == SHIM_SEND ? "to" : "from", c->root);
    if (c->hollow)
        n += snprintf(out + n, size - (size_t)n, ", of shapes");
    return n;
}

void shim_differ(struct ncclComm *comm, int rank, const shim_call *mine, int other,
                 const shim_call *theirs)
{
    shim_shared *s = comm->shared;
    int none = 0;
    if (!atomic_compare_exchange_strong(&s->differs, &none, 1))
        return; /* another rank reports it */
    int n = snprintf(s->said, sizeof s->said, "calls differ: ");
    n += describe_call(s->said + n, sizeof s->said - (size_t)n, rank, mine);
    n += snprintf(s->said + n, sizeof s->said - (size_t)n, "; ");
    describe_call(s->said + n, sizeof s->said - (size_t)n, other, theirs);
    atomic_store(&s->told, 1);
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
 * elements, type, and bytes received from others. */
void shim_record(const struct ncclComm *comm, const shim_call *call, int64_t bytes)
{
    if (record)
        fprintf(record, "%s %d %d %d %" PRId64 " %s %" PRId64 "\n", shim_kind_name(call->kind),
                comm->size, comm->rank, call->stream, call->count, shim_type_name(call->type),
                bytes);
}
