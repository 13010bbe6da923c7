/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c: the checks and counts that every collective shares; windows, which all ranks of a group get
 * or none; and agreeing on an outcome. */
#include "trainer/parallel/comm/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/comm/comm_ledger.h"

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

/* A call in a group of one rank copies, if the result has its own place. */
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

/* ---- windows ---- */

/* Opens and closes windows (comm.h) so that all ranks of a job have one or none
 * does. Each of the two steps of opening, making the memory and sharing its address, ends with all
 * ranks telling each other how they fared (agree.h). */

/* A group of one rank: ordinary device memory and a list with its own address. */
static status own_new(stream *queue, size_t bytes, comm_window *out)
{
    const backend_vtable *backend = queue->dev->backend;
    TRY(backend->alloc(queue->dev, bytes, &out->own));
    TRY(backend->alloc(queue->dev, sizeof *out->base, (void **)&out->base));
    TRY(backend->to_device(queue, out->base, &out->own, sizeof out->own));
    return backend->wait(queue);
}

static status window_new(const comm *group, stream *queue, size_t bytes, comm_window *out)
{
    out->bytes = bytes;
    if (group->size == 1)
        return own_new(queue, bytes, out);
    if (!group->engine->window_new)
        return FAIL(ST_UNAVAILABLE, "comm.engine %s has no windows", group->engine->name);
    return group->engine->window_new(group, queue, bytes, out);
}

static status window_share(const comm *group, stream *queue, comm_window *inout)
{
    return group->size == 1 ? ST_OK : group->engine->window_share(group, queue, inout);
}

status comm_window_open(const comm *all, const comm *group, stream *queue, size_t bytes,
                        comm_window *out)
{
    *out = (comm_window){0};
    const comm_at at = {"agree on windows", -1};
    status st = comm_agree(all, at, window_new(group, queue, bytes, out), 0);
    if (st == ST_OK)
        st = comm_agree(all, at, window_share(group, queue, out), 0);
    if (st != ST_OK) {
        const status_note why = *status_last();
        comm_window_close(group, queue, out);
        status_set(&why);
    }
    return st;
}

/* ST_UNAVAILABLE if this rank knows that its group can have no window. */
static status window_reach(const comm *group)
{
    if (group->size == 1)
        return ST_OK;
    if (!group->engine->window_reach)
        return FAIL(ST_UNAVAILABLE, "comm.engine %s has no windows", group->engine->name);
    return group->engine->window_reach(group);
}

status comm_window_reached(const comm *all, const comm *group, bool *out)
{
    const comm_at at = {"agree on windows", -1};
    unsigned char *said = calloc((size_t)all->size, 1);
    const status reach =
        said ? window_reach(group)
             : FAIL(ST_NO_MEMORY, "no memory for the answers of %d ranks", all->size);
    const unsigned char mine = reach == ST_OK;
    status st = comm_agree(all, at, reach == ST_UNAVAILABLE ? ST_OK : reach, 0);
    if (st == ST_OK) {
        status_clear();
        st = comm_host_all_gather(all, at, &mine, said, 1);
    }
    if (st == ST_OK)
        *out = memchr(said, 0, (size_t)all->size) == NULL;
    free(said);
    return st;
}

void comm_window_close(const comm *group, stream *queue, comm_window *window)
{
    const backend_vtable *backend = queue->dev->backend;
    if (group->size > 1 && group->engine->window_free)
        group->engine->window_free(group, queue, window);
    else if (window->own)
        backend->release(queue->dev, window->own);
    if (window->base)
        backend->release(queue->dev, window->base);
    *window = (comm_window){0};
}

/* ---- agreeing ---- */

/* One gather of each rank's code and value; only if a rank is in
 * trouble, a broadcast of its words follows. */

/* Answers of so many ranks need no memory that may be lacking: that it lacks is often what a rank
 * has to tell the others. */
enum { FEW = 128 };

/* What a rank says: how it fared, and its value. */
typedef struct word {
    int64_t code, count;
} word;

/* The first rank that failed; else the first whose value differs from rank 0's; else -1. */
static int first_trouble(const word *said, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        if (said[rank].code != ST_OK)
            return rank;
    for (int rank = 1; rank < ranks; rank++)
        if (said[rank].count != said[0].count)
            return rank;
    return -1;
}

/* Gives all ranks the words of the rank that is in trouble, and fails with them. */
static status tell_trouble(const comm *group, comm_at at, int rank, status code)
{
    char text[STATUS_MESSAGE_MAX] = "";
    const status_note why = *status_last();
    if (group->rank == rank)
        snprintf(text, sizeof text, "%s", status_text());
    TRY(comm_host_broadcast(group, at, text, sizeof text, rank));
    if (group->rank != rank)
        return FAIL(code, "rank %d: %.900s", rank, text);
    status_set(&why);
    return code;
}

status comm_agree(const comm *group, comm_at at, status mine, int64_t value)
{
    if (group->size == 1)
        return mine;
    const word own = {mine, value};
    const status_note why = *status_last();
    word few[FEW], *said = group->size <= FEW ? few : calloc((size_t)group->size, sizeof *said);
    if (!said)
        return FAIL(ST_NO_MEMORY, "no memory for the answers of %d ranks", group->size);
    status st = comm_host_all_gather(group, at, &own, said, sizeof own);
    const int trouble = st == ST_OK ? first_trouble(said, group->size) : -1;
    const word first = trouble < 0 ? own : said[0], other = trouble < 0 ? own : said[trouble];
    if (said != few)
        free(said);
    if (st != ST_OK || trouble < 0)
        return st;
    if (other.code == ST_OK)
        return FAIL(ST_PROTOCOL, "%s: rank %d has %" PRId64 " where rank 0 has %" PRId64, at.what,
                    trouble, other.count, first.count);
    status_set(&why);
    return tell_trouble(group, at, trouble, (status)other.code);
}
