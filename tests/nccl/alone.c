/* SPDX-License-Identifier: Apache-2.0 */
/* alone.c: the NCCL engine with a single rank, which is all of it that one GPU can show. The engine
 * is called directly, since comm.h calls none for a group of one rank. Every collective is called
 * on device memory and on host values; then each is captured and run again as a graph.
 *
 *   nccl_alone cuda|emulated
 *
 * Exit code 77: there is no GPU, or no NCCL. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/conf/conf.h"
#include "common/program/log.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/open.h"
#include "trainer/parallel/comm/comm_module.h"

enum { COUNT = 1000, CALLS = 4, SKIPPED = 77 };

typedef struct table {
    comm group;
    stream *queue;
    int32_t *device, *host; /* [2][COUNT], host pinned */
} table;

static int32_t make_value(int64_t index, int round)
{
    return (int32_t)(index * 7 + 3 + 1000 * round);
}

static status open_engine(const comm_engine **out)
{
    comm_module_entry entry;
    TRY(module_open("libtessera_nccl.so", "tessera_nccl_engine", "NCCL engine",
                    "where nvcc and nccl.h are found", (void **)&entry));
    *out = entry(module_program());
    return ST_OK;
}

/* Makes call number `which`, from the first half of device memory to the second. */
static status call(const table *columns, int which)
{
    const comm_engine *engine = columns->group.engine;
    const int64_t first = 0, count = COUNT;
    int32_t *from = columns->device, *to = from + COUNT;
    switch (which) {
    case 0:
        return engine->all_gather(&columns->group, columns->queue, from, to, COUNT, DT_I32);
    case 1:
        return engine->reduce_scatter(&columns->group, columns->queue, from, to, COUNT, DT_I32);
    case 2:
        TRY(columns->queue->dev->backend->copy(columns->queue, to, from, COUNT * sizeof *to));
        TRY(engine->broadcast(&columns->group, columns->queue, to, COUNT, DT_I32, 0));
        return engine->all_reduce(&columns->group, columns->queue, to, COUNT, DT_I32, COMM_SUM);
    default:
        return engine->all_to_all(&columns->group, columns->queue, from, &first, &count, to, &first,
                                  &count, DT_I32);
    }
}

/* Copies to the device: the values of this round into the first half, -1 into the second. */
static status send_table(const table *columns, int round)
{
    for (int64_t i = 0; i < COUNT; i++) {
        columns->host[i] = make_value(i, round);
        columns->host[COUNT + i] = -1;
    }
    return columns->queue->dev->backend->to_device(columns->queue, columns->device, columns->host,
                                                   2 * COUNT * sizeof *columns->host);
}

static status expect_table(const table *columns, int round, const char *what)
{
    const backend_vtable *backend = columns->queue->dev->backend;
    TRY(backend->to_host(columns->queue, columns->host, columns->device,
                         2 * COUNT * sizeof *columns->host));
    TRY(backend->wait(columns->queue));
    for (int64_t i = 0; i < COUNT; i++)
        if (columns->host[COUNT + i] != make_value(i, round))
            return FAIL(ST_INTERNAL, "%s: element %lld is %d, wanted %d", what, (long long)i,
                        columns->host[COUNT + i], make_value(i, round));
    return ST_OK;
}

static status check_calls(const table *columns)
{
    static const char *const name[CALLS] = {"all gather", "reduce scatter",
                                            "broadcast and all reduce", "exchange"};
    for (int i = 0; i < CALLS; i++) {
        TRY(send_table(columns, i));
        TRY(call(columns, i));
        TRY(expect_table(columns, i, name[i]));
    }
    return ST_OK;
}

/* Each call is captured once and then run on other values. */
static status check_captured(const table *columns)
{
    const backend_vtable *backend = columns->queue->dev->backend;
    for (int i = 0; i < CALLS; i++) {
        graph *made = NULL;
        TRY(backend->wait(columns->queue));
        TRY(backend->capture_begin(columns->queue));
        status st = call(columns, i);
        TRY(backend->capture_end(columns->queue, &made));
        TRY(st);
        for (int round = 1; round < 4 && st == ST_OK; round++) {
            st = send_table(columns, round);
            if (st == ST_OK)
                st = backend->graph_launch(columns->queue, made);
            if (st == ST_OK)
                st = expect_table(columns, round, "a captured call");
        }
        backend->graph_free(&made);
        TRY(st);
    }
    return ST_OK;
}

static status check_host(const table *columns)
{
    int32_t own = 42, got = 0;
    TRY(columns->group.engine->host_all_gather(&columns->group, &own, &got, sizeof own));
    TRY(columns->group.engine->host_broadcast(&columns->group, &own, sizeof own, 0));
    return got == 42 && own == 42 ? ST_OK : FAIL(ST_INTERNAL, "host values: %d, %d", got, own);
}

static status check_collectives(device *dev, table *columns)
{
    const backend_vtable *backend = dev->backend;
    void *memory = NULL, *pinned = NULL;
    TRY(backend->stream_new(dev, &columns->queue));
    TRY(backend->alloc(dev, 2 * COUNT * sizeof *columns->device, &memory));
    TRY(backend->alloc_host(dev, 2 * COUNT * sizeof *columns->host, &pinned));
    columns->device = memory;
    columns->host = pinned;
    status st = check_calls(columns);
    if (st == ST_OK)
        st = check_captured(columns);
    if (st == ST_OK)
        st = check_host(columns);
    backend->release_host(dev, pinned);
    backend->release(dev, memory);
    backend->stream_free(&columns->queue);
    return st;
}

static status run_checks(device *dev, const comm_engine *engine)
{
    uint8_t id[COMM_ID_BYTES] = {0};
    const int self = 0;
    table columns = {.group = {.engine = engine, .name = "alone", .size = 1, .world_rank = &self}};
    comm_join join = {.size = 1, .deterministic = true, .timeout_s = 60, .id = id};
    void *world = NULL;
    TRY(engine->make_id(id));
    TRY(engine->join(&join, &world));
    status st = engine->attach(world, dev);
    if (st == ST_OK)
        st = engine->group_new(world, &self, 1, &columns.group.handle);
    if (st == ST_OK)
        st = check_collectives(dev, &columns);
    if (columns.group.handle)
        engine->group_free(columns.group.handle);
    status_note note = *status_last();
    engine->detach(world);
    engine->leave(world, st == ST_OK);
    status_set(&note);
    return st;
}

/* Makes the memory of a communicator that a process of this number made long ago. */
static void leave_memory(int pid, char name[64])
{
    snprintf(name, 64, "/tessera-nccl-%d-1", pid);
    const int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
    futimens(fd, (const struct timespec[2]){{0}, {0}});
    close(fd);
}

static bool take_memory(const char *name)
{
    return shm_unlink(name) == 0;
}

/* Memory whose maker was killed before all ranks had joined is gone after an engine was opened;
 * that of a process that lives stays. */
static status check_leftovers(device *dev, const comm_engine *engine)
{
    char dead[64], alive[64];
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    leave_memory(child, dead);
    leave_memory(getpid(), alive);
    status st = run_checks(dev, engine);
    const bool stays = take_memory(alive), left = take_memory(dead);
    TRY(st);
    return stays && !left ? ST_OK
                          : FAIL(ST_INTERNAL, "memory of a dead process is %s, of a live one %s",
                                 left ? "left" : "gone", stays ? "left" : "gone");
}

int main(int argc, char **argv)
{
    const comm_engine *engine;
    device *dev = NULL;
    log_init("alone", LOG_WARN, false);
    if (argc != 2) {
        fprintf(stderr, "nccl_alone cuda|emulated\n");
        return 64;
    }
    bool emulated = strcmp(argv[1], "emulated") == 0;
    device_options options = {.deterministic = true};
    status st = emulated ? emulated_open(0, true, &dev) : device_open(BACKEND_CUDA, &options, &dev);
    if (st == ST_OK)
        st = open_engine(&engine);
    if (st == ST_OK)
        st = emulated ? check_leftovers(dev, engine) : run_checks(dev, engine);
    device_close(&dev);
    if (st == ST_OK)
        printf("every collective of NCCL with one rank, called and captured\n");
    else
        printf("%s%s\n", st == ST_UNAVAILABLE ? "skipped: " : "", status_text());
    return st == ST_UNAVAILABLE ? SKIPPED : status_exit_code(st);
}
