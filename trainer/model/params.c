/* params.c: the registry's memory, first values, and access from the host. */
#include "trainer/model/params.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "trainer/model/convert.h"

enum { ALIGN = 64, CHUNK = 1 << 18 /* elements moved through the host at once */ };

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

void params_measure(params *p)
{
    p->block_elements = 0;
    for (int64_t i = 0; i < p->n; i++)
        p->block_elements += aligned(p->list[i].n_local);
}

status params_new(const model_dims *d, params **out)
{
    params *p = calloc(1, sizeof *p);
    if (!p)
        return FAIL(ST_NO_MEMORY, "no memory for the parameter registry");
    status st = params_list(d, p);
    if (st != ST_OK) {
        params_free(&p);
        return st;
    }
    params_measure(p);
    *out = p;
    return ST_OK;
}

void params_free(params **p)
{
    if (!*p)
        return;
    assert(!(*p)->values); /* params_release first: device memory needs a stream */
    free((*p)->list);
    free(*p);
    *p = NULL;
}

const param *params_find(const params *p, const char *name)
{
    for (int64_t i = 0; i < p->n; i++) {
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

int64_t params_trained(const params *p)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++)
        n += p->list[i].frozen ? 0 : p->list[i].count;
    return n;
}

bool params_trains(const params *p, param_group group)
{
    for (int64_t i = 0; i < p->n; i++)
        if (p->list[i].group == group && !p->list[i].frozen)
            return true;
    return false;
}

static void cut_up(params *p, const backend_vtable *v)
{
    size_t acc = st_dtype_size(v->acc), act = st_dtype_size(v->act);
    size_t at = 0, trained = 0;
#define PART(block, at, size) (block) ? (char *)(block) + (at) * (size) : NULL
    for (int64_t i = 0; i < p->n; i++) {
        param *row = &p->list[i];
        row->value = PART(p->values, at, acc);
        row->act = p->acts ? PART(p->acts, at, act) : row->value;
        row->unwanted = row->frozen && row->n_dims == 1 ? p->unwanted : NULL;
        at += (size_t)aligned(row->n_local);
        row->grad = row->moment1 = row->moment2 = NULL;
        if (row->frozen)
            continue;
        row->grad = PART(p->grads, trained, acc);
        row->moment1 = PART(p->moments1, trained, acc);
        row->moment2 = PART(p->moments2, trained, acc);
        trained += (size_t)aligned(row->n_local);
    }
#undef PART
}

/* Elements of the gradients' block, and of the vector that nobody wants. */
static int64_t count_trained(params *p)
{
    int64_t longest = 0;
    p->trained_elements = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const param *row = &p->list[i];
        if (!row->frozen)
            p->trained_elements += aligned(row->n_local);
        else if (row->n_dims == 1 && row->n_local > longest)
            longest = row->n_local;
    }
    return longest;
}

status params_alloc(params *p, stream *s, bool with_training)
{
    const backend_vtable *v = s->dev->v;
    size_t acc = st_dtype_size(v->acc), bytes = (size_t)p->block_elements * acc;
    status st;
    TRY_OR(undo, v->alloc(s->dev, bytes, &p->values));
    if (v->act != v->acc)
        TRY_OR(undo, v->alloc(s->dev, (size_t)p->block_elements * st_dtype_size(v->act), &p->acts));
    if (with_training) {
        int64_t longest = count_trained(p);
        bytes = (size_t)p->trained_elements * acc;
        if (longest)
            TRY_OR(undo, v->alloc(s->dev, (size_t)longest * acc, &p->unwanted));
        TRY_OR(undo, v->alloc(s->dev, bytes, &p->grads));
        TRY_OR(undo, v->alloc(s->dev, bytes, &p->moments1));
        TRY_OR(undo, v->alloc(s->dev, bytes, &p->moments2));
    }
    cut_up(p, v);
    return ST_OK;
undo:
    params_release(p, s);
    return status_context(st, "%lld parameters%s: ", (long long)p->total,
                          with_training ? " with gradients and two moments" : "");
}

void params_release(params *p, stream *s)
{
    void **blocks[] = {&p->values, &p->acts, &p->grads, &p->moments1, &p->moments2, &p->unwanted};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (*blocks[i])
            s->dev->v->release(s->dev, *blocks[i]);
        *blocks[i] = NULL;
    }
    cut_up(p, s->dev->v);
}

/* Values, and the compute copy where it is another dtype. */
status params_write(const param *p, stream *s, int64_t first, int64_t n, const double *from)
{
    const backend_vtable *v = s->dev->v;
    assert(first >= 0 && n >= 0 && first + n <= p->n_local);
    void *host = malloc((size_t)(n > 0 ? n : 1) * sizeof(double));
    if (!host)
        return FAIL(ST_NO_MEMORY, "no memory to move %lld values", (long long)n);
    status st = ST_OK;
    for (int copy = 0; copy < (p->act == p->value ? 1 : 2) && st == ST_OK; copy++) {
        st_dtype dtype = copy ? v->act : v->acc;
        size_t size = st_dtype_size(dtype);
        convert_from_double(host, dtype, from, n);
        char *to = (char *)(copy ? p->act : p->value) + (size_t)first * size;
        st = v->to_device(s, to, host, (size_t)n * size);
        if (st == ST_OK)
            st = v->wait(s); /* the host buffer is ours */
    }
    free(host);
    return st;
}

status params_read(const void *acc_array, stream *s, int64_t first, int64_t n, double *to)
{
    const backend_vtable *v = s->dev->v;
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

static void first_values(const param *row, rng_key key, int64_t first, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (row->init == INIT_NORMAL)
            out[i] = row->init_std * rng_normal(key, (uint64_t)(first + i));
        else
            out[i] = row->init == INIT_ONE ? 1 : 0;
    }
}

status params_init(params *p, stream *s, uint64_t seed)
{
    double *chunk = malloc(CHUNK * sizeof *chunk);
    if (!chunk)
        return FAIL(ST_NO_MEMORY, "no memory to initialise parameters");
    status st = ST_OK;
    for (int64_t i = 0; i < p->n && st == ST_OK; i++) {
        const param *row = &p->list[i];
        char purpose[160];
        snprintf(purpose, sizeof purpose, "weights/%s", row->name);
        rng_key key = rng_key_make(seed, purpose);
        for (int64_t at = 0; at < row->n_local && st == ST_OK; at += CHUNK) {
            int64_t n = row->n_local - at < CHUNK ? row->n_local - at : CHUNK, run, stored;
            for (int64_t done = 0; done < n; done += run) {
                run = slice_run(&row->held, at + done, n - done, &stored);
                first_values(row, key, stored, run, chunk + done);
            }
            st = params_write(row, s, at, n, chunk);
        }
    }
    free(chunk);
    return st;
}

status params_zero_grad(params *p, stream *s)
{
    size_t bytes = (size_t)p->trained_elements * st_dtype_size(s->dev->v->acc);
    return s->dev->v->zero(s, p->grads, bytes);
}

status params_refresh(params *p, stream *s)
{
    if (!p->acts)
        return ST_OK;
    double *chunk = malloc(CHUNK * sizeof *chunk);
    if (!chunk)
        return FAIL(ST_NO_MEMORY, "no memory to refresh parameters");
    status st = ST_OK;
    for (int64_t i = 0; i < p->n && st == ST_OK; i++) {
        const param *row = &p->list[i];
        for (int64_t at = 0; at < row->n_local && st == ST_OK; at += CHUNK) {
            int64_t n = row->n_local - at < CHUNK ? row->n_local - at : CHUNK;
            st = params_read(row->value, s, at, n, chunk);
            if (st == ST_OK)
                st = params_write(row, s, at, n, chunk);
        }
    }
    free(chunk);
    return st;
}
