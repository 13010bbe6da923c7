/* SPDX-License-Identifier: Apache-2.0 */
/* check_steps.c: records steps, compares two records, and runs trainer check on several ranks: as
 * the launcher that starts it once more for each of them, and as one of them. */
#include "trainer/cli/check_steps.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/proc.h"
#include "trainer/parallel/launcher.h"
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

/* Writes the first `count` steps as text, in hexadecimal floating point so that no bit is lost. */
static status trace_write(const trace *traced, int64_t count, const char *path)
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

static status trace_read(const char *path, int64_t length, trace *out)
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

/* ---- several ranks ---- */

void check_for_one(conf *options)
{
    options->parallelism_world_size = 0;
    options->parallelism_data_parallel_shard_degree = -1;
    options->parallelism_data_parallel_replicate_degree =
        options->parallelism_tensor_parallel_degree = options->parallelism_context_parallel_degree =
            options->parallelism_pipeline_parallel_degree = 1;
    options->parallelism_expert_parallel_degree =
        options->parallelism_expert_tensor_parallel_degree = 1;
}

status check_for_ranks(conf *options, int ranks, layout *out)
{
    conf own = *options;
    if (own.parallelism_world_size == 0)
        own.parallelism_world_size = ranks;
    if (layout_of(&own, NULL, out) == ST_OK && out->world == ranks) {
        *options = own;
        return ST_OK;
    }
    check_for_one(options);
    options->parallelism_world_size = ranks;
    return layout_of(options, NULL, out);
}

static status wait_for(pid_t child)
{
    int how;
    char what[64];
    while (waitpid(child, &how, 0) < 0)
        if (errno != EINTR)
            return FAIL(ST_OS, "waitpid: %s", strerror(errno));
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0)
        return ST_OK;
    proc_end_of(how, what, sizeof what);
    return FAIL(ST_UNAVAILABLE, "the ranks did not finish their steps: %s", what);
}

status check_start_ranks(const conf *options, int ranks, int argc, char **argv, int64_t steps,
                         trace *out)
{
    char self[STATUS_PATH_MAX], count[16], path[STATUS_PATH_MAX];
    char nproc[] = "--nproc", into[] = "--trace";
    pid_t child;
    char **command = calloc((size_t)argc + 6, sizeof *command);
    if (!command)
        return FAIL(ST_NO_MEMORY, "no memory for the command line of the ranks");
    int k = 0;
    status st = proc_self_path(self, sizeof self);
    snprintf(count, sizeof count, "%d", ranks);
    snprintf(path, sizeof path, "%s/.check-ranks-%d", options->job_dump_folder, (int)getpid());
    command[k++] = self;
    for (int i = 0; i < argc; i++)
        command[k++] = argv[i];
    command[k++] = nproc;
    command[k++] = count;
    command[k++] = into;
    command[k++] = path;
    if (st == ST_OK)
        st = proc_spawn(command, &child);
    if (st == ST_OK)
        st = wait_for(child);
    if (st == ST_OK)
        st = trace_read(path, steps, out);
    unlink(path);
    free(command);
    return st;
}

status check_launch(conf *options, int ranks, int argc, char **argv)
{
    TRY(proc_follow_parent(getppid(), SIGTERM));
    return launch_ranks(options, ranks, argc, argv);
}

status check_as_rank(conf *options, int64_t steps, const char *path)
{
    world job;
    session run = {0};
    trace found;
    layout degrees;
    world_place place;
    TRY(world_place_find(&place));
    TRY(engine_choose(options, world_gpu(&place)));
    TRY(world_open(options, &job));
    world_fit(&job, options);
    status st = check_for_ranks(options, job.place.size, &degrees);
    if (st == ST_OK)
        st = session_open(options, &job, SESSION_TRAIN, &run);
    if (st == ST_OK)
        st = trace_steps(&run, 1, steps, &found);
    if (st == ST_OK && job.place.rank == 0)
        st = trace_write(&found, steps, path);
    session_close(&run);
    return world_close(&job, st);
}
