/* alone.c: the NCCL engine with a single rank, which is all of it that one GPU can show. The engine
 * is called directly, since comm.h calls none for a group of one rank. Every collective is called
 * on device memory and on host values; then each is captured and run again as a graph.
 *
 *   nccl_alone cuda|emulated
 *
 * Exit code 77: there is no GPU, or no NCCL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/program/log.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/open.h"
#include "trainer/parallel/comm_module.h"

enum { COUNT = 1000, CALLS = 4, SKIPPED = 77 };

typedef struct table {
    comm c;
    stream *s;
    int32_t *device, *host; /* [2][COUNT], host pinned */
} table;

static int32_t make_value(int64_t i, int round)
{
    return (int32_t)(i * 7 + 3 + 1000 * round);
}

static status open_engine(const comm_engine **out)
{
    comm_module_entry entry;
    TRY(module_open("libtessera_nccl.so", "tessera_nccl_engine", "NCCL engine",
                    "where nvcc and nccl.h are found", (void **)&entry));
    *out = entry(module_program(), NULL);
    return ST_OK;
}

/* Makes call number `which`, from the first half of device memory to the second. */
static status call(const table *t, int which)
{
    const comm_engine *e = t->c.engine;
    const int64_t first = 0, count = COUNT;
    int32_t *from = t->device, *to = from + COUNT;
    switch (which) {
    case 0:
        return e->all_gather(&t->c, t->s, from, to, COUNT, DT_I32);
    case 1:
        return e->reduce_scatter(&t->c, t->s, from, to, COUNT, DT_I32);
    case 2:
        TRY(t->s->dev->backend->copy(t->s, to, from, COUNT * sizeof *to));
        TRY(e->broadcast(&t->c, t->s, to, COUNT, DT_I32, 0));
        return e->all_reduce(&t->c, t->s, to, COUNT, DT_I32, COMM_SUM);
    default:
        return e->all_to_all(&t->c, t->s, from, &first, &count, to, &first, &count, DT_I32);
    }
}

/* Copies to the device: the values of this round into the first half, -1 into the second. */
static status send_table(const table *t, int round)
{
    for (int64_t i = 0; i < COUNT; i++) {
        t->host[i] = make_value(i, round);
        t->host[COUNT + i] = -1;
    }
    return t->s->dev->backend->to_device(t->s, t->device, t->host, 2 * COUNT * sizeof *t->host);
}

static status expect_table(const table *t, int round, const char *what)
{
    const backend_vtable *v = t->s->dev->backend;
    TRY(v->to_host(t->s, t->host, t->device, 2 * COUNT * sizeof *t->host));
    TRY(v->wait(t->s));
    for (int64_t i = 0; i < COUNT; i++)
        if (t->host[COUNT + i] != make_value(i, round))
            return FAIL(ST_INTERNAL, "%s: element %lld is %d, wanted %d", what, (long long)i,
                        t->host[COUNT + i], make_value(i, round));
    return ST_OK;
}

static status check_calls(const table *t)
{
    static const char *const name[CALLS] = {"all gather", "reduce scatter",
                                            "broadcast and all reduce", "exchange"};
    for (int i = 0; i < CALLS; i++) {
        TRY(send_table(t, i));
        TRY(call(t, i));
        TRY(expect_table(t, i, name[i]));
    }
    return ST_OK;
}

/* Each call is captured once and then run on other values. */
static status check_captured(const table *t)
{
    const backend_vtable *v = t->s->dev->backend;
    for (int i = 0; i < CALLS; i++) {
        graph *made = NULL;
        TRY(v->wait(t->s));
        TRY(v->capture_begin(t->s));
        status st = call(t, i);
        TRY(v->capture_end(t->s, &made));
        TRY(st);
        for (int round = 1; round < 4 && st == ST_OK; round++) {
            st = send_table(t, round);
            if (st == ST_OK)
                st = v->graph_launch(t->s, made);
            if (st == ST_OK)
                st = expect_table(t, round, "a captured call");
        }
        v->graph_free(&made);
        TRY(st);
    }
    return ST_OK;
}

static status check_host(const table *t)
{
    int32_t own = 42, got = 0;
    TRY(t->c.engine->host_all_gather(&t->c, &own, &got, sizeof own));
    TRY(t->c.engine->host_broadcast(&t->c, &own, sizeof own, 0));
    return got == 42 && own == 42 ? ST_OK : FAIL(ST_INTERNAL, "host values: %d, %d", got, own);
}

static status check_collectives(device *d, table *t)
{
    const backend_vtable *v = d->backend;
    void *memory = NULL, *pinned = NULL;
    TRY(v->stream_new(d, &t->s));
    TRY(v->alloc(d, 2 * COUNT * sizeof *t->device, &memory));
    TRY(v->alloc_host(d, 2 * COUNT * sizeof *t->host, &pinned));
    t->device = memory;
    t->host = pinned;
    status st = check_calls(t);
    if (st == ST_OK)
        st = check_captured(t);
    if (st == ST_OK)
        st = check_host(t);
    v->release_host(d, pinned);
    v->release(d, memory);
    v->stream_free(&t->s);
    return st;
}

static status run_checks(device *d, const comm_engine *e)
{
    uint8_t id[COMM_ID_BYTES] = {0};
    const int self = 0;
    table t = {.c = {.engine = e, .name = "alone", .size = 1, .world_rank = &self}};
    comm_join join = {.size = 1, .deterministic = true, .timeout_s = 60, .id = id};
    void *world = NULL;
    TRY(e->make_id(id));
    TRY(e->join(&join, &world));
    status st = e->attach(world, d);
    if (st == ST_OK)
        st = e->group_new(world, &self, 1, &t.c.handle);
    if (st == ST_OK)
        st = check_collectives(d, &t);
    if (t.c.handle)
        e->group_free(t.c.handle);
    status_note note = *status_last();
    e->detach(world);
    e->leave(world, st == ST_OK);
    status_set(&note);
    return st;
}

int main(int argc, char **argv)
{
    const comm_engine *e;
    device *d = NULL;
    log_init("alone", LOG_WARN, false);
    if (argc != 2) {
        fprintf(stderr, "nccl_alone cuda|emulated\n");
        return 64;
    }
    bool emulated = strcmp(argv[1], "emulated") == 0;
    device_options o = {.deterministic = true};
    status st = emulated ? emulated_open(0, true, &d) : device_open(BACKEND_CUDA, &o, &d);
    if (st == ST_OK)
        st = open_engine(&e);
    if (st == ST_OK)
        st = run_checks(d, e);
    device_close(&d);
    if (st == ST_OK)
        printf("every collective of NCCL with one rank, called and captured\n");
    else
        printf("%s%s\n", st == ST_UNAVAILABLE ? "skipped: " : "", status_text());
    return st == ST_UNAVAILABLE ? SKIPPED : status_exit_code(st);
}
