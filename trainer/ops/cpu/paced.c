/* paced.c: copies and sums at the pace of a link, on the CPU (paced.h). */
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "trainer/ops/cpu/cpu_ops.h"

static void sleep_until(int64_t ns)
{
    for (int64_t left; (left = ns - clock_ns()) > 0;) { /* a signal may end a sleep early */
        struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        nanosleep(&t, NULL);
    }
}

static void copy_run(const paced_run *r)
{
    if (r->x_bytes == 0 && r->bytes > 0)
        memset(r->y, 0, (size_t)r->bytes);
    if (r->x_bytes == 0)
        return;
    for (int64_t at = 0; at < r->bytes; at += r->x_bytes)
        memmove((char *)r->y + at, r->x, (size_t)min_i64(r->x_bytes, r->bytes - at));
}

status CPU_OP(paced_copy)(stream *s, const paced_copy_args *a)
{
    const int64_t from = clock_ns() + a->pace.wait_ns;
    (void)s;
    sleep_until(from);
    for (int i = 0; i < a->n; i++)
        copy_run(&a->run[i]);
    sleep_until(from + a->pace.span_ns);
    return ST_OK;
}

static void sum_part(const void *context, part p)
{
    const paced_sum_args *a = context;
    const real *x = a->x;
    real *y = a->y;
    for (int64_t i = p.begin; i < p.end; i++) {
        real sum = 0;
        for (int64_t piece = 0; piece < a->pieces; piece++)
            sum += x[piece * a->n + i];
        y[i] = sum;
    }
}

status CPU_OP(paced_sum)(stream *s, const paced_sum_args *a)
{
    const int64_t from = clock_ns() + a->pace.wait_ns;
    sleep_until(from);
    cpu_run(s, a->n, a->pieces, sum_part, a);
    sleep_until(from + a->pace.span_ns);
    return ST_OK;
}
