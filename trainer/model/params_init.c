/* params_init.c: first values of parameters. A value depends only on the seed, the name of its
 * tensor and its place there, so that all processors can draw at once. A value takes tens of
 * nanoseconds and a layer of 30B-A3B has some 600 million, so one processor alone would take
 * minutes for a few layers. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/proc.h"
#include "common/base/rng.h"
#include "trainer/device/pool.h"
#include "trainer/model/convert.h"
#include "trainer/model/params.h"

enum {
    PIECE = 1 << 12,  /* values that a task draws */
    BLOCK = 1 << 22,  /* values that are copied to the device at once */
    FEW = 1 << 22,    /* up to this many values, threads cost more than they save */
    THREADS_MAX = 64, /* with more, memory would be the limit */
};

/* Values [at, at + count) of one row, while they are drawn and copied. */
typedef struct drawing {
    const param *row;
    rng_key key;
    int64_t at, count;
    st_dtype acc, act;
    char *as_acc, *as_act; /* [count] in both dtypes; as_act is NULL if the row has no such copy */
} drawing;

static void first_values(const drawing *d, int64_t first, int64_t n, double *out)
{
    const param *row = d->row;
    for (int64_t i = 0; i < n; i++) {
        if (row->init == INIT_NORMAL)
            out[i] = row->init_std * rng_normal(d->key, (uint64_t)(first + i));
        else
            out[i] = row->init == INIT_ONE ? 1 : 0;
    }
}

static void draw_piece(const void *context, int64_t task, int thread)
{
    const drawing *d = context;
    double value[PIECE];
    const int64_t from = task * PIECE, n = d->count - from < PIECE ? d->count - from : PIECE;
    int64_t run, stored;
    (void)thread;
    for (int64_t done = 0; done < n; done += run) {
        run = slice_run(&d->row->held, d->at + from + done, n - done, &stored);
        first_values(d, stored, run, value + done);
    }
    convert_from_double(d->as_acc + from * (int64_t)st_dtype_size(d->acc), d->acc, value, n);
    if (d->as_act)
        convert_from_double(d->as_act + from * (int64_t)st_dtype_size(d->act), d->act, value, n);
}

static status send_values(const drawing *d, stream *s)
{
    const backend_vtable *v = s->dev->backend;
    const param *row = d->row;
    const int64_t place = d->at - row->own_first;
    const size_t acc = st_dtype_size(d->acc), act = st_dtype_size(d->act);
    TRY(v->to_device(s, (char *)row->value + (size_t)place * acc, d->as_acc,
                     (size_t)d->count * acc));
    if (d->as_act)
        TRY(v->to_device(s, (char *)row->own_act + (size_t)place * act, d->as_act,
                         (size_t)d->count * act));
    return v->wait(s); /* before the host buffers are written again */
}

static status init_row(drawing *d, stream *s, pool *threads)
{
    const param *row = d->row;
    const int64_t end = row->own_first + row->own_n;
    for (d->at = row->own_first; d->at < end; d->at += BLOCK) {
        d->count = end - d->at < BLOCK ? end - d->at : BLOCK;
        pool_run(threads, (d->count + PIECE - 1) / PIECE, draw_piece, d);
        TRY(send_values(d, s));
    }
    return ST_OK;
}

static status init_rows(params *p, stream *s, uint64_t seed, bool adapters_only)
{
    if (!device_has_storage(s->dev))
        return ST_OK;
    const backend_vtable *v = s->dev->backend;
    const int cpus = proc_cpus() < THREADS_MAX ? proc_cpus() : THREADS_MAX;
    char *as_acc = malloc(BLOCK * st_dtype_size(v->acc)), *as_act = NULL;
    pool *threads = NULL;
    status st = pool_new(p->total > FEW ? cpus : 1, &threads);
    if (v->act != v->acc)
        as_act = malloc(BLOCK * st_dtype_size(v->act));
    if (st == ST_OK && (!as_acc || (v->act != v->acc && !as_act)))
        st = FAIL(ST_NO_MEMORY, "no memory to initialise parameters");
    for (int64_t i = 0; i < p->count && st == ST_OK; i++) {
        drawing d = {.row = &p->list[i], .acc = v->acc, .act = v->act, .as_acc = as_acc};
        char purpose[160];
        if (adapters_only && !d.row->adapter)
            continue;
        snprintf(purpose, sizeof purpose, "weights/%s", d.row->name);
        d.key = rng_key_make(seed, purpose);
        d.as_act = d.row->own_act == d.row->value ? NULL : as_act;
        st = init_row(&d, s, threads);
    }
    pool_free(&threads);
    free(as_acc);
    free(as_act);
    return st;
}

status params_init(params *p, stream *s, uint64_t seed)
{
    return init_rows(p, s, seed, false);
}

status params_init_adapters(params *p, stream *s, uint64_t seed)
{
    return init_rows(p, s, seed, true);
}
