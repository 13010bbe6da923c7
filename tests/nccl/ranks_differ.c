/* ranks_differ.c: the third call of the last rank differs from the third call of the others. The
 * next wait must tell all ranks how, and all later calls must fail.
 *
 *   mpirun -np N ranks_differ DEVICE WHAT EXPECTED [--section.key VALUE ..]
 *
 * DEVICE: emulated, or shapes (trainer/device/shapes.h).
 *
 * WHAT differs: order, count, type, reduction, root, stream, message; on shapes also place (a
 * buffer that lies in no allocation); or nothing, which must succeed.
 *
 * EXPECTED: words that the error must contain. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "tests/emulated/emulated.h"
#include "trainer/device/shapes.h"
#include "trainer/ops/open.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"

enum { COUNT = 100, BYTES = 8 * COUNT * 64 };

typedef struct table {
    const comm *c;
    stream *s, *other;
    char *memory;
} table;

static const comm_at at = {"test", -1};

static status gather_table(const table *t, stream *s)
{
    return comm_all_gather(t->c, s, at, t->memory, t->memory + BYTES / 2, COUNT, DT_F32);
}

static status sum_table(const table *t, int64_t count, st_dtype dtype, comm_reduction r)
{
    return comm_all_reduce(t->c, t->s, at, t->memory, count, dtype, r);
}

/* A message from the last rank to the first. */
static status send_message(const table *t, bool last, int64_t count)
{
    if (last)
        return comm_send(t->c, t->s, at, t->memory, count, DT_I32, 0);
    if (t->c->rank == 0)
        return comm_recv(t->c, t->s, at, t->memory, COUNT, DT_I32, t->c->size - 1);
    return ST_OK;
}

static status third_call(const table *t, const char *what, bool last)
{
    if (strcmp(what, "order") == 0)
        return last ? sum_table(t, COUNT, DT_F32, COMM_SUM) : gather_table(t, t->s);
    if (strcmp(what, "count") == 0)
        return sum_table(t, last ? COUNT - 1 : COUNT, DT_F32, COMM_SUM);
    if (strcmp(what, "type") == 0)
        return sum_table(t, COUNT, last ? DT_I32 : DT_F32, COMM_SUM);
    if (strcmp(what, "reduction") == 0)
        return sum_table(t, COUNT, DT_F32, last ? COMM_MAX : COMM_SUM);
    if (strcmp(what, "root") == 0)
        return comm_broadcast(t->c, t->s, at, t->memory, COUNT, DT_U8, last);
    if (strcmp(what, "stream") == 0)
        return gather_table(t, last ? t->other : t->s);
    if (strcmp(what, "place") == 0)
        return comm_broadcast(t->c, t->s, at, t->memory + (last ? BYTES : 0), COUNT, DT_U8, 0);
    if (strcmp(what, "message") == 0)
        return send_message(t, last, COUNT + 1);
    return send_message(t, last, COUNT);
}

static status call_all(const table *t, const char *what)
{
    const backend_vtable *v = t->s->dev->backend;
    TRY(gather_table(t, t->s));
    TRY(sum_table(t, COUNT, DT_I64, COMM_SUM));
    TRY(third_call(t, what, t->c->rank == t->c->size - 1));
    TRY(gather_table(t, t->s)); /* after the others on its stream */
    TRY(v->wait(t->s));
    return v->wait(t->other);
}

static status run_difference(const world *w, const char *where, const char *what)
{
    device_options o = {0};
    layout l = {1, w->place.size, 1, 1, 1, 1, 1, w->place.size, 1};
    device *d = NULL;
    mesh m = {0};
    table t = {0};
    void *memory = NULL;
    TRY(strcmp(where, "shapes") == 0 ? device_open(BACKEND_SHAPES, &o, &d)
                                     : emulated_open(0, false, &d));
    TRY(world_attach(w, d));
    TRY(mesh_open(&l, w->place.rank, w->engine, w->joined, w->ledger, &m));
    TRY(d->backend->stream_new(d, &t.s));
    TRY(d->backend->stream_new(d, &t.other));
    TRY(d->backend->alloc(d, BYTES, &memory));
    t.memory = memory;
    t.c = mesh_comm(&m, MESH_WORLD);
    status st = call_all(&t, what);
    status_note note = *status_last();
    if (st != ST_OK && gather_table(&t, t.s) == ST_OK)
        st = FAIL(ST_INTERNAL, "a call after the one that failed went well");
    else
        status_set(&note);
    d->backend->stream_free(&t.s);
    d->backend->stream_free(&t.other);
    d->backend->release(d, memory);
    mesh_close(&m);
    world_detach(w);
    device_close(&d);
    return st;
}

int main(int argc, char **argv)
{
    conf c;
    world w = {0};
    char said[STATUS_MESSAGE_MAX] = "";
    int rank = -1;
    status st = conf_load(&c, &argc, argv);
    log_init("differ", LOG_ERROR, false);
    if (st != ST_OK || argc != 4) {
        fprintf(stderr, "ranks_differ DEVICE WHAT EXPECTED [--section.key VALUE ..]\n");
        return 64;
    }
    const bool differs = strcmp(argv[2], "nothing") != 0;
    st = world_open(&c, &w);
    if (st == ST_OK) {
        st = run_difference(&w, argv[1], argv[2]);
        snprintf(said, sizeof said, "%s", st == ST_OK ? "" : status_text());
        rank = w.place.rank;
        if (world_close(&w, st) != ST_OK && !differs)
            st = ST_INTERNAL;
    }
    conf_done(&c);
    if (differs ? st == ST_OK || !strstr(said, argv[3]) : st != ST_OK) {
        fprintf(stderr, "rank %d: wanted the error \"%s\", got \"%s\"\n", rank, argv[3], said);
        return 1;
    }
    return 0;
}
