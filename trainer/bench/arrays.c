/* arrays.c: makes the device arrays that a case calls its op on (cases.h). */
#include <stdlib.h>

#include "trainer/bench/cases.h"
#include "trainer/report/speed.h"

static void *hold(bench_case *c, size_t bytes)
{
    void *p = NULL;
    if (c->counted)
        return NULL;
    if (c->st == ST_OK && c->n_held == BENCH_ARRAYS)
        c->st = FAIL(ST_INTERNAL, "bench: a case has more than %d arrays", BENCH_ARRAYS);
    if (c->st == ST_OK)
        c->st = c->queue->dev->backend->alloc(c->queue->dev, bytes, &p);
    if (c->st == ST_OK)
        c->held[c->n_held++] = p;
    return p;
}

static void *numbers(bench_case *c, int64_t n, size_t size)
{
    void *p = hold(c, (size_t)n * size);
    if (c->st == ST_OK && !c->counted)
        c->st = speed_fill(c->queue, p, n, size);
    return p;
}

void *bench_act(bench_case *c, int64_t n)
{
    return numbers(c, n, st_dtype_size(c->queue->dev->backend->act));
}

void *bench_acc(bench_case *c, int64_t n)
{
    return numbers(c, n, st_dtype_size(c->queue->dev->backend->acc));
}

void *bench_raw(bench_case *c, int64_t bytes)
{
    return hold(c, (size_t)bytes);
}

void *bench_upload(bench_case *c, const void *host, size_t bytes)
{
    void *p = hold(c, bytes);
    if (c->counted)
        return NULL;
    if (c->st == ST_OK)
        c->st = c->queue->dev->backend->to_device(c->queue, p, host, bytes);
    if (c->st == ST_OK)
        c->st = c->queue->dev->backend->wait(c->queue);
    return p;
}

int32_t *bench_ints_of(bench_case *c, const int32_t *host, int64_t n)
{
    return bench_upload(c, host, (size_t)n * sizeof *host);
}

int32_t *bench_ints(bench_case *c, int64_t n, int32_t (*value)(const bench_sizes *z, int64_t i))
{
    int32_t *host = malloc((size_t)(n > 0 ? n : 1) * sizeof *host);
    if (!host) {
        if (c->st == ST_OK)
            c->st = FAIL(ST_NO_MEMORY, "no memory for the arguments of an op");
        return NULL;
    }
    for (int64_t i = 0; i < n; i++)
        host[i] = value(c->sizes, i);
    int32_t *p = bench_ints_of(c, host, n);
    free(host);
    return p;
}

double bench_act_bytes(const bench_case *c)
{
    return (double)st_dtype_size(c->queue->dev->backend->act);
}

double bench_acc_bytes(const bench_case *c)
{
    return (double)st_dtype_size(c->queue->dev->backend->acc);
}
