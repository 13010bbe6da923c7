/* paced.c: copies and sums at the pace of a link, on the CPU (paced.h). */
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "trainer/ops/cpu/cpu_ops.h"

static void sleep_until(int64_t ns)
{
    for (int64_t left; (left = ns - clock_ns()) > 0;) { /* a signal may end a sleep early */
        struct timespec now = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        nanosleep(&now, NULL);
    }
}

static void copy_run(const paced_run *run_of)
{
    if (run_of->x_bytes == 0 && run_of->bytes > 0)
        memset(run_of->y, 0, (size_t)run_of->bytes);
    if (run_of->x_bytes == 0)
        return;
    for (int64_t at = 0; at < run_of->bytes; at += run_of->x_bytes)
        memmove((char *)run_of->y + at, run_of->x,
                (size_t)min_i64(run_of->x_bytes, run_of->bytes - at));
}

status CPU_OP(paced_copy)(stream *queue, const paced_copy_args *args)
{
    const int64_t from = clock_ns() + args->pace.wait_ns;
    (void)queue;
    sleep_until(from);
    for (int i = 0; i < args->n; i++)
        copy_run(&args->run[i]);
    sleep_until(from + args->pace.span_ns);
    return ST_OK;
}

static void sum_part(const void *context, part todo)
{
    const paced_sum_args *args = context;
    const real *x = args->x;
    real *y = args->y;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        real sum = 0;
        for (int64_t piece = 0; piece < args->pieces; piece++)
            sum += x[piece * args->n + i];
        y[i] = sum;
    }
}

status CPU_OP(paced_sum)(stream *queue, const paced_sum_args *args)
{
    const int64_t from = clock_ns() + args->pace.wait_ns;
    sleep_until(from);
    cpu_run(queue, args->n, args->pieces, sum_part, args);
    sleep_until(from + args->pace.span_ns);
    return ST_OK;
}
