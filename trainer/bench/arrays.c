/* arrays.c: makes the device arrays that a case calls its op on (cases.h). */
#include <stdlib.h>

#include "trainer/bench/cases.h"
#include "trainer/report/speed.h"

static void *hold(bench_case *bench, size_t bytes)
{
    void *array = NULL;
    if (bench->counted)
        return NULL;
    if (bench->st == ST_OK && bench->n_held == BENCH_ARRAYS)
        bench->st = FAIL(ST_INTERNAL, "bench: a case has more than %d arrays", BENCH_ARRAYS);
    if (bench->st == ST_OK)
        bench->st = bench->queue->dev->backend->alloc(bench->queue->dev, bytes, &array);
    if (bench->st == ST_OK)
        bench->held[bench->n_held++] = array;
    return array;
}

static void *numbers(bench_case *bench, int64_t count, size_t size)
{
    void *array = hold(bench, (size_t)count * size);
    if (bench->st == ST_OK && !bench->counted)
        bench->st = speed_fill(bench->queue, array, count, size);
    return array;
}

void *bench_act(bench_case *bench, int64_t count)
{
    return numbers(bench, count, st_dtype_size(bench->queue->dev->backend->act));
}

void *bench_acc(bench_case *bench, int64_t count)
{
    return numbers(bench, count, st_dtype_size(bench->queue->dev->backend->acc));
}

void *bench_raw(bench_case *bench, int64_t bytes)
{
    return hold(bench, (size_t)bytes);
}

void *bench_upload(bench_case *bench, const void *host, size_t bytes)
{
    void *array = hold(bench, bytes);
    if (bench->counted)
        return NULL;
    if (bench->st == ST_OK)
        bench->st = bench->queue->dev->backend->to_device(bench->queue, array, host, bytes);
    if (bench->st == ST_OK)
        bench->st = bench->queue->dev->backend->wait(bench->queue);
    return array;
}

int32_t *bench_ints_of(bench_case *bench, const int32_t *host, int64_t count)
{
    return bench_upload(bench, host, (size_t)count * sizeof *host);
}

int32_t *bench_ints(bench_case *bench, int64_t count,
                    int32_t (*value)(const bench_sizes *sizes, int64_t index))
{
    int32_t *host = malloc((size_t)(count > 0 ? count : 1) * sizeof *host);
    if (!host) {
        if (bench->st == ST_OK)
            bench->st = FAIL(ST_NO_MEMORY, "no memory for the arguments of an op");
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        host[i] = value(bench->sizes, i);
    int32_t *array = bench_ints_of(bench, host, count);
    free(host);
    return array;
}

double bench_act_bytes(const bench_case *bench)
{
    return (double)st_dtype_size(bench->queue->dev->backend->act);
}

double bench_acc_bytes(const bench_case *bench)
{
    return (double)st_dtype_size(bench->queue->dev->backend->acc);
}

double count_act_bytes(const bench_case *bench, double elements)
{
    return bench_act_bytes(bench) * elements;
}

double count_acc_bytes(const bench_case *bench, double elements)
{
    return bench_acc_bytes(bench) * elements;
}
