/* check_trace.c: records steps, compares two records, and keeps them in a file. */
#include "trainer/check/check_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "trainer/run/step.h"

status trace_steps(session *run, int64_t from, int64_t to, trace *out)
{
    for (int64_t step = from; step <= to; step++) {
        step_report report;
        status st = step_run(run, step, &report);
        if (st == ST_END)
            return FAIL(ST_BAD_INPUT,
                        "the stream ends before step %" PRId64 "; give fewer steps with --steps",
                        step);
        TRY(st);
        out->loss[step - 1] = report.loss;
        out->norm[step - 1][0] = report.grad_norm;
        memcpy(&out->norm[step - 1][1], report.group_norm, sizeof report.group_norm);
        if (run->world)
            world_is_steady(run->world, run->conf);
    }
    return ST_OK;
}

/* Letters: a, b as in the header's formula. */
double trace_distance(double a, double b)
{
    double size = fmax(fabs(a), fabs(b));
    return a == b ? 0.0 : size > 0.0 ? fabs(a - b) / size : INFINITY;
}

void trace_compare(const trace *first, const trace *second, int64_t count, double *out_loss,
                   double *out_norm)
{
    *out_loss = *out_norm = 0;
    for (int64_t i = 0; i < count; i++) {
        *out_loss = fmax(*out_loss, trace_distance(first->loss[i], second->loss[i]));
        for (int j = 0; j < 1 + GROUP_COUNT; j++)
            *out_norm = fmax(*out_norm, trace_distance(first->norm[i][j], second->norm[i][j]));
    }
}

status trace_write(const trace *traced, int64_t count, const char *path)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return FAIL_IN(ST_CANT_CREATE, path, "%s", strerror(errno));
    for (int64_t i = 0; i < count; i++) {
        fprintf(file, "%a", traced->loss[i]);
        for (int j = 0; j < 1 + GROUP_COUNT; j++)
            fprintf(file, " %a", traced->norm[i][j]);
        fprintf(file, "\n");
    }
    const bool bad = ferror(file);
    if (fclose(file) != 0 || bad)
        return FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno));
    return ST_OK;
}

status trace_read(const char *path, int64_t length, trace *out)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    int want = 0, got = 0;
    for (int64_t i = 0; i < length; i++) {
        got += fscanf(file, "%la", &out->loss[i]);
        want++;
        for (int j = 0; j < 1 + GROUP_COUNT; j++, want++)
            got += fscanf(file, "%la", &out->norm[i][j]);
    }
    fclose(file);
    return got == want ? ST_OK
                       : FAIL_IN(ST_BAD_INPUT, path,
                                 "it has %d of %d numbers: the ranks ended early", got, want);
}
