/* comm.c: the calls of comm.h: checks the arguments, counts the call in the ledger, and hands it to
 * the engine of the group. A group of one rank is done here without an engine. */
#include "trainer/parallel/comm.h"

#include <stdio.h>
#include <string.h>

#include "trainer/parallel/comm_ledger.h"

comm comm_alone(const char *name)
{
    comm group = {.size = 1};
    snprintf(group.name, sizeof group.name, "%s", name);
    return group;
}

static bool alone(const comm *group)
{
    return group->size == 1;
}

/* A call in a group of one rank copies, if the result has a place of its own. */
static status copy_own(stream *queue, const void *from, void *to, int64_t count, st_dtype dtype)
{
    if (from == to || count == 0)
        return ST_OK;
    return queue->dev->backend->copy(queue, to, from, (size_t)count * st_dtype_size(dtype));
}

static void enter_call(const comm *group, comm_kind kind, comm_at at, int64_t count, st_dtype dtype)
{
    comm_ledger_enter(group->ledger, group, kind, at, count * (int64_t)st_dtype_size(dtype));
}

/* To be called when the call has returned: tells the ledger, and adds to an error which call it
 * was. */
static status told(status st, const comm *group, comm_at at)
{
    comm_ledger_leave(group->ledger);
    if (st == ST_OK)
        return st;
    if (at.layer < 0)
        return status_context(st, "%s over %s (%d ranks)", at.what, group->name, group->size);
    return status_context(st, "%s of layer %lld over %s (%d ranks)", at.what, (long long)at.layer,
                          group->name, group->size);
}

static status enter_on(stream *queue, const comm *group, comm_kind kind, comm_at at, int64_t count,
                       st_dtype dtype)
{
    enter_call(group, kind, at, count, dtype);
    return device_call_begins(queue, at.what);
}

static status told_on(stream *queue, status st, const comm *group, comm_at at)
{
    TRY(told(st, group, at));
    return device_call_ended(queue);
}

static bool summable(st_dtype dtype)
{
    return dtype == DT_F32 || dtype == DT_F64 || dtype == DT_BF16 || dtype == DT_I32 ||
           dtype == DT_I64 || dtype == DT_U8;
}

static status check_sum(comm_at at, st_dtype dtype)
{
    if (!summable(dtype))
        return FAIL(ST_INTERNAL, "%s: values of type %s cannot be summed over ranks", at.what,
                    st_dtype_name(dtype));
    return ST_OK;
}

static status check_peer(const comm *group, comm_at at, int peer)
{
    if (peer < 0 || peer >= group->size || group->size == 1)
        return FAIL(ST_INTERNAL, "%s: there is no rank %d among the %d ranks of group %s", at.what,
                    peer, group->size, group->name);
    return ST_OK;
}

static status check_count(comm_at at, int64_t count)
{
    if (count < 0)
        return FAIL(ST_INTERNAL, "%s: the number of elements is %lld", at.what, (long long)count);
    return ST_OK;
}

status comm_all_gather(const comm *group, stream *queue, comm_at at, const void *send, void *recv,
                       int64_t count, st_dtype dtype)
{
    TRY(check_count(at, count));
    if (alone(group))
        return copy_own(queue, send, recv, count, dtype);
    TRY(enter_on(queue, group, COMM_ALL_GATHER, at, (group->size - 1) * count, dtype));
    return told_on(queue, group->engine->all_gather(group, queue, send, recv, count, dtype), group,
                   at);
}

status comm_reduce_scatter(const comm *group, stream *queue, comm_at at, const void *send,
                           void *recv, int64_t count, st_dtype dtype)
{
    TRY(check_count(at, count));
    TRY(check_sum(at, dtype));
    if (alone(group))
        return copy_own(queue, send, recv, count, dtype);
    TRY(enter_on(queue, group, COMM_REDUCE_SCATTER, at, (group->size - 1) * count, dtype));
    return told_on(queue, group->engine->reduce_scatter(group, queue, send, recv, count, dtype),
                   group, at);
}

status comm_all_reduce(const comm *group, stream *queue, comm_at at, void *inout, int64_t count,
                       st_dtype dtype, comm_reduction reduction)
{
    TRY(check_count(at, count));
    TRY(check_sum(at, dtype));
    if (alone(group))
        return ST_OK;
    TRY(enter_on(queue, group, COMM_ALL_REDUCE, at,
                 comm_all_reduce_gets(group->rank, group->size, count), dtype));
    return told_on(queue, group->engine->all_reduce(group, queue, inout, count, dtype, reduction),
                   group, at);
}

status comm_broadcast(const comm *group, stream *queue, comm_at at, void *inout, int64_t count,
                      st_dtype dtype, int root)
{
    TRY(check_count(at, count));
    if (alone(group))
        return ST_OK;
    TRY(check_peer(group, at, root));
    TRY(enter_on(queue, group, COMM_BROADCAST, at, group->rank == root ? 0 : count, dtype));
    return told_on(queue, group->engine->broadcast(group, queue, inout, count, dtype, root), group,
                   at);
}

status comm_all_to_all(const comm *group, stream *queue, comm_at at, const void *send,
                       const int64_t *send_first, const int64_t *send_count, void *recv,
                       const int64_t *recv_first, const int64_t *recv_count, st_dtype dtype)
{
    size_t size = st_dtype_size(dtype);
    if (alone(group))
        return copy_own(queue, (const char *)send + (size_t)send_first[0] * size,
                        (char *)recv + (size_t)recv_first[0] * size, send_count[0], dtype);
    int64_t received = 0;
    for (int i = 0; i < group->size; i++) {
        TRY(check_count(at, send_count[i]));
        TRY(check_count(at, recv_count[i]));
        received += i == group->rank ? 0 : recv_count[i];
    }
    TRY(enter_on(queue, group, COMM_ALL_TO_ALL, at, received, dtype));
    return told_on(queue,
                   group->engine->all_to_all(group, queue, send, send_first, send_count, recv,
                                             recv_first, recv_count, dtype),
                   group, at);
}

status comm_send(const comm *group, stream *queue, comm_at at, const void *send, int64_t count,
                 st_dtype dtype, int to)
{
    TRY(check_count(at, count));
    TRY(check_peer(group, at, to));
    TRY(enter_on(queue, group, COMM_SEND, at, 0, dtype));
    return told_on(queue, group->engine->send(group, queue, send, count, dtype, to), group, at);
}

status comm_recv(const comm *group, stream *queue, comm_at at, void *recv, int64_t count,
                 st_dtype dtype, int from)
{
    TRY(check_count(at, count));
    TRY(check_peer(group, at, from));
    TRY(enter_on(queue, group, COMM_RECV, at, count, dtype));
    return told_on(queue, group->engine->recv(group, queue, recv, count, dtype, from), group, at);
}

status comm_begin(const comm *group, stream *queue)
{
    if (alone(group))
        return ST_OK;
    TRY(device_call_begins(queue, NULL));
    return group->engine->begin(group, queue);
}

status comm_end(const comm *group, stream *queue)
{
    if (alone(group))
        return ST_OK;
    comm_ledger_wait(group->ledger);
    status st = group->engine->end(group, queue);
    comm_ledger_leave(group->ledger);
    TRY(st);
    return device_call_ended(queue);
}

status comm_peers_begin(const comm *group, stream *queue, comm_at at, int64_t bytes)
{
    return alone(group) ? ST_OK : enter_on(queue, group, COMM_PEERS, at, bytes, DT_U8);
}

status comm_peers_end(const comm *group, stream *queue, comm_at at, status st)
{
    return alone(group) ? st : told_on(queue, st, group, at);
}

status comm_host_all_gather(const comm *group, comm_at at, const void *send, void *recv,
                            int64_t bytes)
{
    TRY(check_count(at, bytes));
    if (!alone(group)) {
        enter_call(group, COMM_ALL_GATHER, at, (group->size - 1) * bytes, DT_U8);
        return told(group->engine->host_all_gather(group, send, recv, bytes), group, at);
    }
    if (send != recv)
        memcpy(recv, send, (size_t)bytes);
    return ST_OK;
}

status comm_host_broadcast(const comm *group, comm_at at, void *inout, int64_t bytes, int root)
{
    TRY(check_count(at, bytes));
    if (alone(group))
        return ST_OK;
    TRY(check_peer(group, at, root));
    enter_call(group, COMM_BROADCAST, at, group->rank == root ? 0 : bytes, DT_U8);
    return told(group->engine->host_broadcast(group, inout, bytes, root), group, at);
}
