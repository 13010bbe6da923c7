/* SPDX-License-Identifier: Apache-2.0 */
/* comm_count.c: the engine of comm_count.h: checks the buffers of each call and adds the call to
 * its group's record. */
#include "tests/dry_run/comm_count.h"

#include <string.h>

#include "tests/dry_run/shapes.h"

static status count_group_new(void *world, const int *world_rank, int size, void **out_handle)
{
    comm_count *all = world;
    if (all->count == COUNTED_GROUPS_MAX)
        return FAIL(ST_INTERNAL, "a dry run can count the calls of %d groups, and there are more",
                    COUNTED_GROUPS_MAX);
    comm_counted *group = &all->group[all->count++];
    *group = (comm_counted){.first = world_rank[0], .size = size};
    *out_handle = group;
    return ST_OK;
}

/* The record outlives the mesh, because it is read after that is gone. */
static void count_group_free(void *handle)
{
    (void)handle;
}

static void note_call(const comm *group, int64_t kind, int64_t count, st_dtype dtype, int64_t more)
{
    comm_counted *counted = group->handle;
    const int64_t call[] = {kind, count, (int64_t)dtype, more};
    counted->list = hash_chain(counted->list, hash_bytes(call, sizeof call));
    counted->count++;
}

/* Checks that `count` elements from `array` on lie inside an allocation of the device. */
static status check_room(const stream *queue, const void *array, int64_t count, st_dtype dtype)
{
    size_t bytes = (size_t)count * st_dtype_size(dtype);
    if (shapes_hold(queue->dev, array, bytes))
        return ST_OK;
    return FAIL(ST_INTERNAL, "a buffer of %zu bytes lies in no allocation of the device", bytes);
}

static status count_all_gather(const comm *group, stream *queue, const void *send, void *recv,
                               int64_t count, st_dtype dtype)
{
    note_call(group, COMM_ALL_GATHER, count, dtype, 0);
    TRY(check_room(queue, send, count, dtype));
    return check_room(queue, recv, group->size * count, dtype);
}

static status count_reduce_scatter(const comm *group, stream *queue, const void *send, void *recv,
                                   int64_t count, st_dtype dtype)
{
    note_call(group, COMM_REDUCE_SCATTER, count, dtype, 0);
    TRY(check_room(queue, send, group->size * count, dtype));
    return check_room(queue, recv, count, dtype);
}

static status count_all_reduce(const comm *group, stream *queue, void *inout, int64_t count,
                               st_dtype dtype, comm_reduction reduction)
{
    note_call(group, COMM_ALL_REDUCE, count, dtype, (int64_t)reduction);
    return check_room(queue, inout, count, dtype);
}

static status count_broadcast(const comm *group, stream *queue, void *inout, int64_t count,
                              st_dtype dtype, int root)
{
    note_call(group, COMM_BROADCAST, count, dtype, root);
    return check_room(queue, inout, count, dtype);
}

static status count_all_to_all(const comm *group, stream *queue, const void *send,
                               const int64_t *send_first, const int64_t *send_count, void *recv,
                               const int64_t *recv_first, const int64_t *recv_count, st_dtype dtype)
{
    comm_counted *counted = group->handle;
    const char *from = send;
    char *to = recv;
    const int64_t size = (int64_t)st_dtype_size(dtype);
    note_call(group, COMM_ALL_TO_ALL, 0, dtype, 0);
    for (int i = 0; i < group->size; i++) {
        TRY(check_room(queue, from + send_first[i] * size, send_count[i], dtype));
        TRY(check_room(queue, to + recv_first[i] * size, recv_count[i], dtype));
        counted->sent += i == group->rank ? 0 : send_count[i];
        counted->received += i == group->rank ? 0 : recv_count[i];
    }
    return ST_OK;
}

/* A send is not added to the list of calls, since the list must be the same on all ranks of the
 * group; sends and receives are compared by their elements. */
static status count_send(const comm *group, stream *queue, const void *send, int64_t count,
                         st_dtype dtype, int to)
{
    (void)to;
    ((comm_counted *)group->handle)->sent += count;
    return check_room(queue, send, count, dtype);
}

static status count_recv(const comm *group, stream *queue, void *recv, int64_t count,
                         st_dtype dtype, int from)
{
    (void)from;
    ((comm_counted *)group->handle)->received += count;
    return check_room(queue, recv, count, dtype);
}

static status count_edge(const comm *group, stream *queue)
{
    (void)group;
    (void)queue;
    return ST_OK;
}

/* Answers as if every rank sent what this one sends. */
static status count_host_all_gather(const comm *group, const void *send, void *recv, int64_t bytes)
{
    note_call(group, COMM_ALL_GATHER, bytes, DT_U8, 1);
    for (int i = 0; i < group->size; i++)
        memmove((char *)recv + i * bytes, send, (size_t)bytes);
    return ST_OK;
}

static status count_host_broadcast(const comm *group, void *inout, int64_t bytes, int root)
{
    (void)inout;
    note_call(group, COMM_BROADCAST, bytes, DT_U8, root);
    return ST_OK;
}

static void count_set_timeout(void *world, double seconds)
{
    (void)world;
    (void)seconds;
}

static void count_leave(void *world, bool well)
{
    (void)world;
    (void)well;
}

const comm_engine comm_count_engine = {
    .name = "count",
    .set_timeout = count_set_timeout,
    .leave = count_leave,
    .group_new = count_group_new,
    .group_free = count_group_free,
    .all_gather = count_all_gather,
    .reduce_scatter = count_reduce_scatter,
    .all_reduce = count_all_reduce,
    .broadcast = count_broadcast,
    .all_to_all = count_all_to_all,
    .send = count_send,
    .recv = count_recv,
    .begin = count_edge,
    .end = count_edge,
    .host_all_gather = count_host_all_gather,
    .host_broadcast = count_host_broadcast,
};
