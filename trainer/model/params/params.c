/* SPDX-License-Identifier: Apache-2.0 */
/* params.c: the registry of params.h: rows by name, and values from and to the host. */
#include "trainer/model/params/params.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/dims/convert.h"
#include "trainer/model/params/quantised.h"

enum {
    CHUNK = 1 << 18, /* elements moved through the host at once */
    PIECE = 1 << 14, /* elements that a thread converts at once */
};

status params_new(const model_dims *dims, params **out)
{
    params *registry = calloc(1, sizeof *registry);
    if (!registry)
        return FAIL(ST_NO_MEMORY, "no memory for the parameter registry");
    status st = params_list(dims, registry);
    if (st != ST_OK) {
        params_free(&registry);
        return st;
    }
    registry->reshard = true;
    *out = registry;
    return ST_OK;
}

void params_free(params **registry)
{
    if (!*registry)
        return;
    assert(!(*registry)->acts.at); /* params_release first: device memory needs a stream */
    free((*registry)->spans);
    free((*registry)->adapters);
    free((*registry)->list);
    free(*registry);
    *registry = NULL;
}

const param *params_find(const params *registry, const char *name)
{
    for (int64_t i = 0; i < registry->count; i++) {
        if (strcmp(registry->list[i].name, name) == 0)
            return &registry->list[i];
    }
    return NULL;
}

param *params_get(params *registry, const char *fmt, ...)
{
    char name[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    param *row = (param *)params_find(registry, name);
    assert(row != NULL);
    return row;
}

int64_t params_trained(const params *registry)
{
    int64_t count = 0;
    for (int64_t i = 0; i < registry->count; i++)
        count += registry->list[i].frozen ? 0 : registry->list[i].count;
    return count;
}

bool params_trains(const params *registry, param_group group)
{
    for (int64_t i = 0; i < registry->count; i++)
        if (registry->list[i].group == group && !registry->list[i].frozen)
            return true;
    return false;
}

/* Values that threads convert, PIECE at a time. */
typedef struct conversion {
    void *to;
    st_dtype dtype;
    const double *from;
    int64_t count;
} conversion;

static void convert_piece(const void *context, int64_t task, int thread)
{
    const conversion *all = context;
    const int64_t first = task * PIECE, left = all->count - first;
    (void)thread;
    convert_from_double((char *)all->to + (size_t)first * st_dtype_size(all->dtype), all->dtype,
                        all->from + first, left < PIECE ? left : PIECE);
}

/* Writes values into an array of this type. host: [count] of any type. */
static status write_array(void *array, st_dtype dtype, stream *queue, int64_t at, int64_t count,
                          const double *from, void *host, pool *threads)
{
    const backend_vtable *backend = queue->dev->backend;
    const size_t size = st_dtype_size(dtype);
    const conversion all = {host, dtype, from, count};
    pool_run(threads, (count + PIECE - 1) / PIECE, convert_piece, &all);
    TRY(backend->to_device(queue, (char *)array + (size_t)at * size, host, (size_t)count * size));
    return backend->wait(queue); /* before the host buffer is written again or freed */
}

/* Writes stored values: what the model computes with, and the master values if there are any. */
static status write_own(const param *weight, stream *queue, int64_t at, int64_t count,
                        const double *from, pool *threads)
{
    const bool two = weight->value && weight->value != weight->own_act;
    void *host = malloc((size_t)(count > 0 ? count : 1) * sizeof(double));
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory to move %lld values", (long long)count);
    status st =
        write_array(weight->own_act, weight->act_dtype, queue, at, count, from, host, threads);
    if (st == ST_OK && two)
        st = write_array(weight->value, weight->value_dtype, queue, at, count, from, host, threads);
    free(host);
    return st;
}

status params_write_by(const param *weight, stream *queue, int64_t first, int64_t count,
                       const double *from, pool *threads)
{
    assert(first >= 0 && count >= 0 && first + count <= weight->n_local);
    int64_t begin = first > weight->own_first ? first : weight->own_first;
    int64_t own_end = weight->own_first + weight->own_n,
            end = first + count < own_end ? first + count : own_end;
    if (end <= begin)
        return ST_OK;
    if (weight->form != WEIGHT_PLAIN)
        return quantised_write(weight, queue, begin, end - begin, from + (begin - first), threads);
    return write_own(weight, queue, begin - weight->own_first, end - begin, from + (begin - first),
                     threads);
}

status params_write(const param *weight, stream *queue, int64_t first, int64_t count,
                    const double *from)
{
    return params_write_by(weight, queue, first, count, from, NULL);
}

status params_read_array(const void *array, st_dtype dtype, stream *queue, int64_t first,
                         int64_t count, double *to)
{
    const backend_vtable *backend = queue->dev->backend;
    size_t size = st_dtype_size(dtype);
    void *host = malloc((size_t)(count > 0 ? count : 1) * size);
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory to move %lld values", (long long)count);
    status st = backend->to_host(queue, host, (const char *)array + (size_t)first * size,
                                 (size_t)count * size);
    if (st == ST_OK)
        st = backend->wait(queue);
    if (st == ST_OK)
        convert_to_double(to, host, dtype, count);
    free(host);
    return st;
}

status params_read(const void *acc_array, stream *queue, int64_t first, int64_t count, double *to)
{
    return params_read_array(acc_array, queue->dev->backend->acc, queue, first, count, to);
}

status params_read_value(const param *weight, stream *queue, int64_t first, int64_t count,
                         double *to)
{
    st_dtype dtype;
    if (weight->form != WEIGHT_PLAIN)
        return quantised_read(weight, queue, first, count, to);
    const void *best = param_best(weight, &dtype);
    return params_read_array(best, dtype, queue, first, count, to);
}

status params_refresh(params *registry, stream *queue)
{
    double *chunk = malloc(CHUNK * sizeof *chunk);
    if (!chunk)
        return FAIL(ST_NO_MEMORY, "no memory to refresh parameters");
    status st = ST_OK;
    for (int64_t i = 0; i < registry->count && st == ST_OK; i++) {
        const param *row = &registry->list[i];
        if (!row->value || row->value == row->own_act)
            continue;
        for (int64_t at = 0; at < row->own_n && st == ST_OK; at += CHUNK) {
            int64_t count = row->own_n - at < CHUNK ? row->own_n - at : CHUNK;
            st = params_read_value(row, queue, at, count, chunk);
            if (st == ST_OK)
                st = write_own(row, queue, at, count, chunk, NULL);
        }
    }
    free(chunk);
    return st;
}
