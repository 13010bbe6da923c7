/* check_ranks.c: runs trainer check on several ranks: as the launcher that starts it
 * once more for each of them, and as one of them. */
#include "trainer/check/check_ranks.h"

#include <errno.h>
#include <signal.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/program/log.h"
#include "common/base/proc.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/launcher.h"

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
        st = session_resume(options, &job, NULL, &run);
    if (st == ST_OK)
        st = trace_steps(&run, 1, steps, &found);
    if (st == ST_OK && job.place.rank == 0)
        st = trace_write(&found, steps, path);
    session_close(&run);
    return world_close(&job, st);
}
