/* params.c: the registry of params.h: rows by name, and values from and to the host. */
#include "trainer/model/params.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/convert.h"
#include "trainer/parallel/comm_simulated.h"

enum { CHUNK = 1 << 18 /* elements moved through the host at once */ };

status params_new(const model_dims *dims, params **out)
{
    params *p = calloc(1, sizeof *p);
    if (!p)
        return FAIL(ST_NO_MEMORY, "no memory for the parameter registry");
    status st = params_list(dims, p);
    if (st != ST_OK) {
        params_free(&p);
        return st;
    }
    p->reshard = true;
    *out = p;
    return ST_OK;
}

void params_free(params **p)
{
    if (!*p)
        return;
    assert(!(*p)->values); /* params_release first: device memory needs a stream */
    free((*p)->spans);
    free((*p)->adapters);
    free((*p)->list);
    free(*p);
    *p = NULL;
}

const param *params_find(const params *p, const char *name)
{
    for (int64_t i = 0; i < p->count; i++) {
        if (strcmp(p->list[i].name, name) == 0)
            return &p->list[i];
    }
    return NULL;
}

param *params_get(params *p, const char *fmt, ...)
{
    char name[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    param *row = (param *)params_find(p, name);
    assert(row != NULL);
    return row;
}

status params_may_be_kept(const params *p)
{
    if (!p->mesh || !comm_is_simulated(mesh_comm(p->mesh, MESH_WORLD)))
        return ST_OK;
    return FAIL(ST_CONFIG, "comm.engine is replay, which simulates the other ranks: no model is "
                           "trained, so its values cannot be written");
}

int64_t params_trained(const params *p)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->count; i++)
        n += p->list[i].frozen ? 0 : p->list[i].count;
    return n;
}

bool params_trains(const params *p, param_group group)
{
    for (int64_t i = 0; i < p->count; i++)
        if (p->list[i].group == group && !p->list[i].frozen)
            return true;
    return false;
}

/* Writes stored values, and the copy that the model computes with if it has another dtype. */
static status write_own(const param *p, stream *s, int64_t at, int64_t n, const double *from)
{
    const backend_vtable *v = s->dev->backend;
    void *host = malloc((size_t)(n > 0 ? n : 1) * sizeof(double));
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory to move %lld values", (long long)n);
    status st = ST_OK;
    for (int copy = 0; copy < (p->own_act == p->value ? 1 : 2) && st == ST_OK; copy++) {
        st_dtype dtype = copy ? v->act : v->acc;
        size_t size = st_dtype_size(dtype);
        convert_from_double(host, dtype, from, n);
        char *to = (char *)(copy ? p->own_act : p->value) + (size_t)at * size;
        st = v->to_device(s, to, host, (size_t)n * size);
        if (st == ST_OK)
            st = v->wait(s); /* before the host buffer is written again or freed */
    }
    free(host);
    return st;
}

status params_write(const param *p, stream *s, int64_t first, int64_t n, const double *from)
{
    assert(first >= 0 && n >= 0 && first + n <= p->n_local);
    int64_t begin = first > p->own_first ? first : p->own_first;
    int64_t own_end = p->own_first + p->own_n, end = first + n < own_end ? first + n : own_end;
    if (end <= begin || !device_has_storage(s->dev))
        return ST_OK;
    return write_own(p, s, begin - p->own_first, end - begin, from + (begin - first));
}

status params_read(const void *acc_array, stream *s, int64_t first, int64_t n, double *to)
{
    const backend_vtable *v = s->dev->backend;
    size_t size = st_dtype_size(v->acc);
    void *host = malloc((size_t)(n > 0 ? n : 1) * size);
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory to move %lld values", (long long)n);
    status st =
        v->to_host(s, host, (const char *)acc_array + (size_t)first * size, (size_t)n * size);
    if (st == ST_OK)
        st = v->wait(s);
    if (st == ST_OK)
        convert_to_double(to, host, v->acc, n);
    free(host);
    return st;
}

status params_refresh(params *p, stream *s)
{
    if (!p->acts || !device_has_storage(s->dev))
        return ST_OK;
    double *chunk = malloc(CHUNK * sizeof *chunk);
    if (!chunk)
        return FAIL(ST_NO_MEMORY, "no memory to refresh parameters");
    status st = ST_OK;
    for (int64_t i = 0; i < p->count && st == ST_OK; i++) {
        const param *row = &p->list[i];
        for (int64_t at = 0; at < row->own_n && st == ST_OK; at += CHUNK) {
            int64_t n = row->own_n - at < CHUNK ? row->own_n - at : CHUNK;
            st = params_read(row->value, s, at, n, chunk);
            if (st == ST_OK)
                st = write_own(row, s, at, n, chunk);
        }
    }
    free(chunk);
    return st;
}
