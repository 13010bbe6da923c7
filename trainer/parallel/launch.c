#include "trainer/parallel/launch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/proc.h"

enum { RANKS_MAX = 1024 };

/* What Open MPI needs where ranks are more than cores (else they wait spinning, a thousand times
 * slower), in a container (root), and to leave threads alone; and how long ranks may take to tell
 * what happened when one has died. */
static const char *const mpirun_settings[] = {"--allow-run-as-root",
                                              "--oversubscribe",
                                              "--bind-to",
                                              "none",
                                              "--mca",
                                              "mpi_yield_when_idle",
                                              "1",
                                              "--mca",
                                              "odls_base_sigkill_timeout",
                                              "6",
                                              "--quiet"};
enum { N_SETTINGS = sizeof mpirun_settings / sizeof *mpirun_settings };

status launch_take(int *argc, char **argv, int *out)
{
    int kept = 1;
    *out = 0;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--nproc") != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        char *end = NULL;
        long n = i + 1 < *argc ? strtol(argv[i + 1], &end, 10) : 0;
        if (n < 1 || n > RANKS_MAX || *end)
            return FAIL(ST_USAGE, "--nproc takes the number of ranks to start here, 1 to %d",
                        RANKS_MAX);
        *out = (int)n;
        i++;
    }
    *argc = kept;
    return ST_OK;
}

static status exec_mpirun(char *self, int n, int argc, char **argv)
{
    char count[16], said[1024] = "";
    char **to = calloc((size_t)argc + N_SETTINGS + 8, sizeof *to);
    int k = 0;
    if (!to)
        return FAIL(ST_NO_MEMORY, "no memory for the command line of mpirun");
    snprintf(count, sizeof count, "%d", n);
    to[k++] = (char *)"mpirun";
    to[k++] = (char *)"-np";
    to[k++] = count;
    for (int i = 0; i < N_SETTINGS; i++)
        to[k++] = (char *)mpirun_settings[i];
    for (int i = 0; i < k; i++)
        snprintf(said + strlen(said), sizeof said - strlen(said), " %s", to[i]);
    log_info("starting %d ranks:%s trainer %s ..", n, said, argv[0]);
    to[k++] = self;
    for (int i = 0; i < argc; i++)
        to[k++] = argv[i];
    execvp(to[0], to);
    int err = errno;
    free(to);
    return FAIL(ST_UNAVAILABLE,
                "mpirun: %s (CPU ranks run under Open MPI: deploy/install-deps brings it)",
                strerror(err));
}

status launch_ranks(const conf *c, int n, int argc, char **argv)
{
    char self[PATH_MAX];
    TRY(proc_self_path(self, sizeof self));
    if (getenv("OMPI_COMM_WORLD_RANK") || getenv("RANK"))
        return FAIL(ST_USAGE, "--nproc: this process was started as a rank already");
    if (c->comm_engine == ENGINE_NCCL || c->training_backend == BACKEND_CUDA)
        return FAIL(ST_CONFIG, "--nproc: ranks on GPUs are not there yet; training.backend cpu is");
    return exec_mpirun(self, n, argc, argv);
}
