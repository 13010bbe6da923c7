/* check_ranks.c: starts trainer check anew as a launcher of ranks, and runs as one of them. */
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

void check_for_one(conf *c)
{
    c->parallelism_world_size = 0;
    c->parallelism_data_parallel_shard_degree = -1;
    c->parallelism_data_parallel_replicate_degree = c->parallelism_tensor_parallel_degree =
        c->parallelism_context_parallel_degree = c->parallelism_pipeline_parallel_degree = 1;
    c->parallelism_expert_parallel_degree = c->parallelism_expert_tensor_parallel_degree = 1;
}

status check_for_ranks(conf *c, int n, layout *out)
{
    conf own = *c;
    if (own.parallelism_world_size == 0)
        own.parallelism_world_size = n;
    if (layout_of(&own, NULL, out) == ST_OK && out->world == n) {
        *c = own;
        return ST_OK;
    }
    check_for_one(c);
    c->parallelism_world_size = n;
    return layout_of(c, NULL, out);
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

status check_start_ranks(const conf *c, int n, int argc, char **argv, int64_t steps, trace *out)
{
    char self[STATUS_PATH_MAX], count[16], path[STATUS_PATH_MAX];
    char nproc[] = "--nproc", into[] = "--trace";
    pid_t child;
    char **command = calloc((size_t)argc + 6, sizeof *command);
    if (!command)
        return FAIL(ST_NO_MEMORY, "no memory for the command line of the ranks");
    int k = 0;
    status st = proc_self_path(self, sizeof self);
    snprintf(count, sizeof count, "%d", n);
    snprintf(path, sizeof path, "%s/.check-ranks-%d", c->job_dump_folder, (int)getpid());
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

status check_launch(conf *c, int n, int argc, char **argv)
{
    TRY(proc_follow_parent(getppid(), SIGTERM));
    return launch_ranks(c, n, argc, argv);
}

status check_as_rank(conf *c, int64_t steps, const char *path)
{
    world w;
    session s = {0};
    trace found;
    layout l;
    world_place place;
    TRY(world_place_find(&place));
    TRY(engine_choose(c, world_gpu(&place)));
    TRY(world_open(c, &w));
    world_fit(&w, c);
    status st = check_for_ranks(c, w.place.size, &l);
    if (st == ST_OK)
        st = session_resume(c, &w, NULL, &s);
    if (st == ST_OK)
        st = trace_steps(&s, 1, steps, &found);
    if (st == ST_OK && w.place.rank == 0)
        st = trace_write(&found, steps, path);
    session_close(&s);
    return world_close(&w, st);
}
