/* SPDX-License-Identifier: Apache-2.0 */
/* params_init.c: first values of parameters. A value depends only on the seed, the name of its
 * tensor and its place there, so that all processors can draw at once. A value takes tens of
 * nanoseconds and a layer of 30B-A3B has some 600 million, so one processor alone would take
 * minutes for a few layers.
 *
 * Letters: u, v the two uniform values of a normal one. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "trainer/device/pool.h"
#include "trainer/model/dims/convert.h"
#include "trainer/model/params/normals.h"
#include "trainer/model/params/params.h"
#include "trainer/model/params/quantised.h"

static normals_uniform *uniform_here(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return normals_uniform_avx2;
#endif
    return 0;
}

void normals_draw(rng_key key, uint64_t first, int64_t count, double *out)
{
    normals_uniform *const uniform = uniform_here();
    int64_t done = 0;
    double u[NORMALS_BATCH], v[NORMALS_BATCH];
    for (; uniform && count - done >= NORMALS_BATCH; done += NORMALS_BATCH) {
        uniform(key, first + (uint64_t)done, u, v);
        for (int i = 0; i < NORMALS_BATCH; i++)
            u[i] = sqrt(-2.0 * log(u[i]));
        for (int i = 0; i < NORMALS_BATCH; i++)
            out[done + i] = u[i] * cos(2.0 * M_PI * v[i]);
    }
    for (; done < count; done++)
        out[done] = rng_normal(key, first + (uint64_t)done);
}

enum {
    PIECE = 1 << 12,  /* values that a task draws */
    BLOCK = 1 << 21,  /* most values that are copied to the device at once */
    UPLOADS = 2,      /* while one block is copied, the next one is drawn */
    THREADS_MAX = 64, /* with more, memory would be the limit */
};

/* Pinned host memory of a block on its way to the device. */
typedef struct upload {
    void *as_act, *as_value; /* [block] in both types; as_value is NULL if they are the same */
    event *sent;
} upload;

/* Everything that the first values of all rows are made with. */
typedef struct initialiser {
    stream *queue;
    pool *threads;
    int64_t block, period; /* values of an upload; values of a row until it repeats */
    upload uploads[UPLOADS];
    int64_t begun; /* uploads so far; number i uses uploads[i % UPLOADS] */
} initialiser;

/* Values [at, at + count) of one row, while they are drawn and copied. */
typedef struct drawing {
    const param *row;
    rng_key key;
    int64_t at, count;
    char *as_act, *as_value; /* [count]; as_value is NULL if the row has no such copy */
    double *exact;           /* [count] where they are to be encoded, else NULL: as_act has them */
} drawing;

static void first_values(const drawing *draw, int64_t first, int64_t count, double *out)
{
    const param *row = draw->row;
    if (row->init == INIT_NORMAL)
        normals_draw(draw->key, (uint64_t)first, count, out);
    for (int64_t i = 0; i < count; i++) {
        if (row->init == INIT_NORMAL)
            out[i] *= row->init_std;
        else
            out[i] = row->init == INIT_ONE ? 1 : 0;
    }
}

static void draw_piece(const void *context, int64_t task, int thread)
{
    const drawing *draw = context;
    double value[PIECE];
    const int64_t from = task * PIECE,
                  count = draw->count - from < PIECE ? draw->count - from : PIECE;
    int64_t run, stored;
    (void)thread;
    for (int64_t done = 0; done < count; done += run) {
        run = slice_run(&draw->row->held, draw->at + from + done, count - done, &stored);
        first_values(draw, stored, run, value + done);
    }
    if (draw->exact) {
        memcpy(draw->exact + from, value, (size_t)count * sizeof *value);
        return;
    }
    const st_dtype act = draw->row->act_dtype, dtype = draw->row->value_dtype;
    convert_from_double(draw->as_act + from * (int64_t)st_dtype_size(act), act, value, count);
    if (draw->as_value)
        convert_from_double(draw->as_value + from * (int64_t)st_dtype_size(dtype), dtype, value,
                            count);
}

static status send_values(const drawing *draw, stream *queue)
{
    const backend_vtable *backend = queue->dev->backend;
    const param *row = draw->row;
    const int64_t place = draw->at - row->own_first;
    const size_t act = st_dtype_size(row->act_dtype), size = st_dtype_size(row->value_dtype);
    TRY(backend->to_device(queue, (char *)row->own_act + (size_t)place * act, draw->as_act,
                           (size_t)draw->count * act));
    if (draw->as_value)
        TRY(backend->to_device(queue, (char *)row->value + (size_t)place * size, draw->as_value,
                               (size_t)draw->count * size));
    return ST_OK;
}

/* Fills what this rank stores of a row with copies of its first `drawn` values. */
static status repeat_values(const drawing *draw, int64_t drawn, stream *queue)
{
    const backend_vtable *backend = queue->dev->backend;
    const param *row = draw->row;
    const size_t act = st_dtype_size(row->act_dtype), size = st_dtype_size(row->value_dtype);
    for (int64_t done = drawn, count; done < row->own_n; done += count) { /* doubles each time */
        count = row->own_n - done < done ? row->own_n - done : done;
        TRY(backend->copy(queue, (char *)row->own_act + (size_t)done * act, row->own_act,
                          (size_t)count * act));
        if (draw->as_value)
            TRY(backend->copy(queue, (char *)row->value + (size_t)done * size, row->value,
                              (size_t)count * size));
    }
    return ST_OK;
}

/* Draws a matrix that is stored in codes. */
static status init_codes(initialiser *all, drawing *draw)
{
    const param *row = draw->row;
    const int64_t most = quantised_run(row, BLOCK), end = row->own_first + row->own_n;
    const int64_t room = row->own_n < most ? row->own_n : most;
    status st = ST_OK;
    draw->exact = malloc((size_t)room * sizeof *draw->exact + 1);
    if (!draw->exact)
        return FAIL(ST_NO_MEMORY, "no memory to draw %lld values", (long long)room);
    for (draw->at = row->own_first; draw->at < end && st == ST_OK; draw->at += draw->count) {
        draw->count = end - draw->at < most ? end - draw->at : most;
        pool_run(all->threads, (draw->count + PIECE - 1) / PIECE, draw_piece, draw);
        st = params_write_by(row, all->queue, draw->at, draw->count, draw->exact, all->threads);
    }
    free(draw->exact);
    draw->exact = NULL;
    return st;
}

static status init_row(initialiser *all, drawing *draw)
{
    const backend_vtable *backend = all->queue->dev->backend;
    const param *row = draw->row;
    const int64_t drawn = row->own_n < all->period ? row->own_n : all->period;
    const int64_t end = row->own_first + drawn;
    for (draw->at = row->own_first; draw->at < end; draw->at += all->block) {
        const upload *next = &all->uploads[all->begun % UPLOADS];
        if (all->begun++ >= UPLOADS)
            TRY(backend->event_wait(all->queue->dev, next->sent));
        draw->count = end - draw->at < all->block ? end - draw->at : all->block;
        draw->as_act = next->as_act;
        draw->as_value = row->value && row->value != row->own_act ? next->as_value : NULL;
        pool_run(all->threads, (draw->count + PIECE - 1) / PIECE, draw_piece, draw);
        TRY(send_values(draw, all->queue));
        TRY(backend->event_record(all->queue, next->sent));
    }
    return drawn < row->own_n ? repeat_values(draw, drawn, all->queue) : ST_OK;
}

static status open_initialiser(const params *registry, initialiser *all)
{
    device *dev = all->queue->dev;
    const backend_vtable *backend = dev->backend;
    int64_t most = 1;
    for (int64_t i = 0; i < registry->count; i++)
        most = registry->list[i].own_n > most ? registry->list[i].own_n : most;
    most = most < all->period ? most : all->period;
    all->block = most < BLOCK ? most : BLOCK;
    const size_t block = (size_t)all->block;
    for (int i = 0; i < UPLOADS; i++) {
        upload *one = &all->uploads[i];
        TRY(backend->event_new(dev, &one->sent));
        TRY(backend->alloc_host(dev, block * st_dtype_size(registry->acts.dtype), &one->as_act));
        if (registry->moments1.at && backend->act != backend->acc)
            TRY(backend->alloc_host(dev, block * st_dtype_size(backend->acc), &one->as_value));
    }
    return pool_new(pool_share_of(registry->total, dev->host_ranks, THREADS_MAX), &all->threads);
}

static void close_initialiser(initialiser *all)
{
    device *dev = all->queue->dev;
    pool_free(&all->threads);
    for (int i = 0; i < UPLOADS; i++) {
        dev->backend->release_host(dev, all->uploads[i].as_act);
        dev->backend->release_host(dev, all->uploads[i].as_value);
        dev->backend->event_free(&all->uploads[i].sent);
    }
}

static status init_rows(params *registry, stream *queue, uint64_t seed, bool adapters_only,
                        int64_t period)
{
    if (adapters_only && registry->lora_rank == 0)
        return ST_OK;
    initialiser all = {.queue = queue, .period = period};
    status st = open_initialiser(registry, &all);
    for (int64_t i = 0; i < registry->count && st == ST_OK; i++) {
        drawing draw = {.row = &registry->list[i]};
        char purpose[160];
        if (adapters_only && !draw.row->adapter)
            continue;
        snprintf(purpose, sizeof purpose, "weights/%s", draw.row->name);
        draw.key = rng_key_make(seed, purpose);
        st = draw.row->form == WEIGHT_PLAIN ? init_row(&all, &draw) : init_codes(&all, &draw);
    }
    const status waited =
        queue->dev->backend->wait(queue); /* also after a failure, before memory is freed */
    close_initialiser(&all);
    return st == ST_OK ? waited : st;
}

status params_init(params *registry, stream *queue, uint64_t seed)
{
    return init_rows(registry, queue, seed, false, INT64_MAX);
}

status params_init_adapters(params *registry, stream *queue, uint64_t seed)
{
    return init_rows(registry, queue, seed, true, INT64_MAX);
}

status params_init_repeating(params *registry, stream *queue, uint64_t seed, int64_t period)
{
    return init_rows(registry, queue, seed, false, period);
}
