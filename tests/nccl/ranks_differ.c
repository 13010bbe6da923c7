/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_differ.c: the third call of the last rank differs from the third call of the others. The
 * next wait must tell all ranks how, and all later calls must fail.
 *
 *   mpirun -np N ranks_differ DEVICE WHAT EXPECTED [--section.key VALUE ..]
 *
 * DEVICE: emulated, or shapes (tests/dry_run/shapes.h).
 *
 * WHAT differs: order, count, type, reduction, root, stream, message; on the emulated device also
 * captured (the call of one rank is in a graph) and graph (it is in another graph); on shapes place
 * (a buffer that lies in no allocation); or nothing, which must succeed.
 *
 * EXPECTED: words that the error must contain. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "tests/emulated/emulated.h"
#include "tests/dry_run/shapes.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"

enum { COUNT = 100, BYTES = 8 * COUNT * 64 };

typedef struct table {
    const comm *group;
    stream *queue, *other;
    char *memory;
} table;

static const comm_at at = {"test", -1};

static status gather_table(const table *columns, stream *queue)
{
    return comm_all_gather(columns->group, queue, at, columns->memory, columns->memory + BYTES / 2,
                           COUNT, DT_F32);
}

static status sum_table(const table *columns, int64_t count, st_dtype dtype,
                        comm_reduction reduction)
{
    return comm_all_reduce(columns->group, columns->queue, at, columns->memory, count, dtype,
                           reduction);
}

/* A message from the last rank to the first. */
static status send_message(const table *columns, bool last, int64_t count)
{
    if (last)
        return comm_send(columns->group, columns->queue, at, columns->memory, count, DT_I32, 0);
    if (columns->group->rank == 0)
        return comm_recv(columns->group, columns->queue, at, columns->memory, COUNT, DT_I32,
                         columns->group->size - 1);
    return ST_OK;
}

/* Captures the same call twice; *which of the two graphs runs. */
static status sum_in_graph(const table *columns, int which)
{
    const backend_vtable *backend = columns->queue->dev->backend;
    graph *made[2] = {NULL, NULL};
    status st = ST_OK;
    for (int i = 0; i < 2 && st == ST_OK; i++) {
        TRY(backend->capture_begin(columns->queue));
        st = sum_table(columns, COUNT, DT_F32, COMM_SUM);
        const status ended = backend->capture_end(columns->queue, &made[i]);
        st = st == ST_OK ? ended : st;
    }
    if (st == ST_OK)
        st = backend->graph_launch(columns->queue, made[which]);
    if (st == ST_OK)
        st = backend->wait(columns->queue);
    const status_note why = *status_last();
    for (int i = 0; i < 2; i++)
        if (made[i])
            backend->graph_free(&made[i]);
    status_set(&why);
    return st;
}

static status third_call(const table *columns, const char *what, bool last)
{
    if (strcmp(what, "order") == 0)
        return last ? sum_table(columns, COUNT, DT_F32, COMM_SUM)
                    : gather_table(columns, columns->queue);
    if (strcmp(what, "count") == 0)
        return sum_table(columns, last ? COUNT - 1 : COUNT, DT_F32, COMM_SUM);
    if (strcmp(what, "type") == 0)
        return sum_table(columns, COUNT, last ? DT_I32 : DT_F32, COMM_SUM);
    if (strcmp(what, "reduction") == 0)
        return sum_table(columns, COUNT, DT_F32, last ? COMM_MAX : COMM_SUM);
    if (strcmp(what, "root") == 0)
        return comm_broadcast(columns->group, columns->queue, at, columns->memory, COUNT, DT_U8,
                              last);
    if (strcmp(what, "stream") == 0)
        return gather_table(columns, last ? columns->other : columns->queue);
    if (strcmp(what, "place") == 0)
        return comm_broadcast(columns->group, columns->queue, at,
                              columns->memory + (last ? BYTES : 0), COUNT, DT_U8, 0);
    if (strcmp(what, "captured") == 0)
        return last ? sum_in_graph(columns, 0) : sum_table(columns, COUNT, DT_F32, COMM_SUM);
    if (strcmp(what, "graph") == 0)
        return sum_in_graph(columns, last);
    if (strcmp(what, "message") == 0)
        return send_message(columns, last, COUNT + 1);
    return send_message(columns, last, COUNT);
}

static status call_all(const table *columns, const char *what)
{
    const backend_vtable *backend = columns->queue->dev->backend;
    TRY(gather_table(columns, columns->queue));
    TRY(sum_table(columns, COUNT, DT_I64, COMM_SUM));
    TRY(third_call(columns, what, columns->group->rank == columns->group->size - 1));
    TRY(gather_table(columns, columns->queue)); /* after the others on its stream */
    TRY(backend->wait(columns->queue));
    return backend->wait(columns->other);
}

static status run_difference(const world *job, const char *where, const char *what)
{
    layout degrees = {1, job->place.size, 1, 1, 1, 1, 1, job->place.size, 1};
    device *dev = NULL;
    mesh ranks = {0};
    table columns = {0};
    void *memory = NULL;
    TRY(strcmp(where, "shapes") == 0 ? shapes_device_open(NULL, &dev)
                                     : emulated_open(0, true, &dev));
    TRY(world_attach(job, dev));
    TRY(mesh_open(&degrees, job->place.rank, job->engine, job->joined, job->ledger, &ranks));
    TRY(dev->backend->stream_new(dev, &columns.queue));
    TRY(dev->backend->stream_new(dev, &columns.other));
    TRY(dev->backend->alloc(dev, BYTES, &memory));
    columns.memory = memory;
    columns.group = mesh_comm(&ranks, MESH_WORLD);
    status st = call_all(&columns, what);
    status_note note = *status_last();
    if (st != ST_OK && gather_table(&columns, columns.queue) == ST_OK)
        st = FAIL(ST_INTERNAL, "a call after the one that failed went well");
    else
        status_set(&note);
    dev->backend->stream_free(&columns.queue);
    dev->backend->stream_free(&columns.other);
    dev->backend->release(dev, memory);
    mesh_close(&ranks);
    world_detach(job);
    device_close(&dev);
    return st;
}

int main(int argc, char **argv)
{
    conf options;
    world job = {0};
    char said[STATUS_MESSAGE_MAX] = "";
    int rank = -1;
    status st = conf_load(&options, &argc, argv);
    log_init("differ", LOG_ERROR, false);
    if (st != ST_OK || argc != 4) {
        fprintf(stderr, "ranks_differ DEVICE WHAT EXPECTED [--section.key VALUE ..]\n");
        return 64;
    }
    const bool differs = strcmp(argv[2], "nothing") != 0;
    st = world_open(&options, &job);
    if (st == ST_OK) {
        st = run_difference(&job, argv[1], argv[2]);
        snprintf(said, sizeof said, "%s", st == ST_OK ? "" : status_text());
        rank = job.place.rank;
        if (world_close(&job, st) != ST_OK && !differs)
            st = ST_INTERNAL;
    }
    conf_done(&options);
    if (differs ? st == ST_OK || !strstr(said, argv[3]) : st != ST_OK) {
        fprintf(stderr, "rank %d: wanted the error \"%s\", got \"%s\"\n", rank, argv[3], said);
        return 1;
    }
    return 0;
}
