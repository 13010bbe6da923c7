/* check_trace.c: records steps, compares two records, and keeps them in a file. */
#include "trainer/check/check_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "trainer/run/step.h"

status trace_steps(session *s, int64_t from, int64_t to, trace *out)
{
    for (int64_t step = from; step <= to; step++) {
        step_report r;
        status st = step_run(s, step, &r);
        if (st == ST_END)
            return FAIL(ST_BAD_INPUT,
                        "the stream ends before step %" PRId64 "; give fewer steps with --steps",
                        step);
        TRY(st);
        out->loss[step - 1] = r.loss;
        out->norm[step - 1][0] = r.grad_norm;
        memcpy(&out->norm[step - 1][1], r.group_norm, sizeof r.group_norm);
        if (s->world)
            world_is_steady(s->world, s->conf);
    }
    return ST_OK;
}

double trace_distance(double a, double b)
{
    double size = fmax(fabs(a), fabs(b));
    return a == b ? 0.0 : size > 0.0 ? fabs(a - b) / size : INFINITY;
}

void trace_compare(const trace *a, const trace *b, int64_t n, double *out_loss, double *out_norm)
{
    *out_loss = *out_norm = 0;
    for (int64_t i = 0; i < n; i++) {
        *out_loss = fmax(*out_loss, trace_distance(a->loss[i], b->loss[i]));
        for (int g = 0; g < 1 + GROUP_COUNT; g++)
            *out_norm = fmax(*out_norm, trace_distance(a->norm[i][g], b->norm[i][g]));
    }
}

status trace_write(const trace *t, int64_t n, const char *path)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return FAIL_IN(ST_CANT_CREATE, path, "%s", strerror(errno));
    for (int64_t i = 0; i < n; i++) {
        fprintf(f, "%a", t->loss[i]);
        for (int g = 0; g < 1 + GROUP_COUNT; g++)
            fprintf(f, " %a", t->norm[i][g]);
        fprintf(f, "\n");
    }
    const bool bad = ferror(f);
    if (fclose(f) != 0 || bad)
        return FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno));
    return ST_OK;
}

status trace_read(const char *path, int64_t n, trace *out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    int want = 0, got = 0;
    for (int64_t i = 0; i < n; i++) {
        got += fscanf(f, "%la", &out->loss[i]);
        want++;
        for (int g = 0; g < 1 + GROUP_COUNT; g++, want++)
            got += fscanf(f, "%la", &out->norm[i][g]);
    }
    fclose(f);
    return got == want ? ST_OK
                       : FAIL_IN(ST_BAD_INPUT, path,
                                 "it has %d of %d numbers: the ranks ended early", got, want);
}
