/* comm_count.c: checks the buffers of each call and adds the call to its group's record. */
#include "trainer/check/comm_count.h"

#include <string.h>

#include "trainer/device/shapes.h"

static status count_group_new(void *world, const int *world_rank, int size, void **out_handle)
{
    comm_count *all = world;
    if (all->count == COUNTED_GROUPS_MAX)
        return FAIL(ST_INTERNAL, "a dry run can count the calls of %d groups, and there are more",
                    COUNTED_GROUPS_MAX);
    comm_counted *g = &all->group[all->count++];
    *g = (comm_counted){.first = world_rank[0], .size = size};
    *out_handle = g;
    return ST_OK;
}

/* The record outlives the mesh, because it is read after that is gone. */
static void count_group_free(void *handle)
{
    (void)handle;
}

static void note_call(const comm *c, int64_t kind, int64_t count, st_dtype dtype, int64_t more)
{
    comm_counted *g = c->handle;
    const int64_t call[] = {kind, count, (int64_t)dtype, more};
    g->list = hash_chain(g->list, hash_bytes(call, sizeof call));
    g->count++;
}

/* Checks that `count` elements from p on lie inside an allocation of the device. */
static status check_room(const stream *s, const void *p, int64_t count, st_dtype dtype)
{
    size_t bytes = (size_t)count * st_dtype_size(dtype);
    if (shapes_hold(s->dev, p, bytes))
        return ST_OK;
    return FAIL(ST_INTERNAL, "a buffer of %zu bytes lies in no allocation of the device", bytes);
}

static status count_all_gather(const comm *c, stream *s, const void *send, void *recv,
                               int64_t count, st_dtype dtype)
{
    note_call(c, COMM_ALL_GATHER, count, dtype, 0);
    TRY(check_room(s, send, count, dtype));
    return check_room(s, recv, c->size * count, dtype);
}

static status count_reduce_scatter(const comm *c, stream *s, const void *send, void *recv,
                                   int64_t count, st_dtype dtype)
{
    note_call(c, COMM_REDUCE_SCATTER, count, dtype, 0);
    TRY(check_room(s, send, c->size * count, dtype));
    return check_room(s, recv, count, dtype);
}

static status count_all_reduce(const comm *c, stream *s, void *inout, int64_t count, st_dtype dtype,
                               comm_reduction reduction)
{
    note_call(c, COMM_ALL_REDUCE, count, dtype, (int64_t)reduction);
    return check_room(s, inout, count, dtype);
}

static status count_broadcast(const comm *c, stream *s, void *inout, int64_t count, st_dtype dtype,
                              int root)
{
    note_call(c, COMM_BROADCAST, count, dtype, root);
    return check_room(s, inout, count, dtype);
}

static status count_all_to_all(const comm *c, stream *s, const void *send,
                               const int64_t *send_first, const int64_t *send_count, void *recv,
                               const int64_t *recv_first, const int64_t *recv_count, st_dtype dtype)
{
    comm_counted *g = c->handle;
    const char *from = send;
    char *to = recv;
    const int64_t size = (int64_t)st_dtype_size(dtype);
    note_call(c, COMM_ALL_TO_ALL, 0, dtype, 0);
    for (int p = 0; p < c->size; p++) {
        TRY(check_room(s, from + send_first[p] * size, send_count[p], dtype));
        TRY(check_room(s, to + recv_first[p] * size, recv_count[p], dtype));
        g->sent += p == c->rank ? 0 : send_count[p];
        g->received += p == c->rank ? 0 : recv_count[p];
    }
    return ST_OK;
}

/* A send is not added to the list of calls, since the list must be the same on all ranks of the
 * group; sends and receives are compared by their elements. */
static status count_send(const comm *c, stream *s, const void *send, int64_t count, st_dtype dtype,
                         int to)
{
    (void)to;
    ((comm_counted *)c->handle)->sent += count;
    return check_room(s, send, count, dtype);
}

static status count_recv(const comm *c, stream *s, void *recv, int64_t count, st_dtype dtype,
                         int from)
{
    (void)from;
    ((comm_counted *)c->handle)->received += count;
    return check_room(s, recv, count, dtype);
}

static status count_edge(const comm *c, stream *s)
{
    (void)c;
    (void)s;
    return ST_OK;
}

/* Answers as if every rank sent what this one sends. */
static status count_host_all_gather(const comm *c, const void *send, void *recv, int64_t bytes)
{
    note_call(c, COMM_ALL_GATHER, bytes, DT_U8, 1);
    for (int p = 0; p < c->size; p++)
        memmove((char *)recv + p * bytes, send, (size_t)bytes);
    return ST_OK;
}

static status count_host_broadcast(const comm *c, void *inout, int64_t bytes, int root)
{
    (void)inout;
    note_call(c, COMM_BROADCAST, bytes, DT_U8, root);
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
