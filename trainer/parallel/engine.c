/* engine.c: implements engine.h. A GPU is tried by opening it. The launcher does so in a child
 * process, since its ranks are forked from it and must find CUDA untouched. */
#include "trainer/parallel/engine.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/program/log.h"
#include "trainer/device/backend.h"
#include "trainer/ops/open.h"

static bool is_open(const conf *options)
{
    return options->training_backend == BACKEND_AUTO && options->comm_engine == ENGINE_AUTO;
}

/* Takes the GPU if it can be opened, otherwise the CPU, as a run of one rank would. */
static status find_backend(conf *options, int gpu)
{
    device_options how = {.index = gpu, .threads = 1, .attention = options->training_attention};
    device *dev = NULL;
    TRY(device_open(BACKEND_AUTO, &how, &dev));
    options->training_backend = dev->backend->immediate ? BACKEND_CPU : BACKEND_CUDA;
    device_close(&dev);
    return ST_OK;
}

status engine_choose(conf *options, int gpu)
{
    if (is_open(options))
        TRY(find_backend(options, gpu));
    if (options->comm_engine == ENGINE_AUTO)
        options->comm_engine = options->training_backend == BACKEND_CUDA ? ENGINE_NCCL : ENGINE_MPI;
    if (options->comm_engine == ENGINE_MPI)
        return ST_OK;
    if (options->training_backend == BACKEND_CPU)
        return FAIL(ST_CONFIG, "comm.engine is nccl, which works between GPUs, but "
                               "training.backend is cpu: leave one of them at auto");
    options->training_backend = BACKEND_CUDA;
    return ST_OK;
}

status engine_choose_apart(conf *options)
{
    int how;
    if (!is_open(options))
        return engine_choose(options, 0);
    pid_t child = fork();
    if (child == 0) {
        status st = engine_choose(options, 0);
        if (st != ST_OK)
            log_status();
        _exit(st != ST_OK ? status_exit_code(st) : options->training_backend == BACKEND_CUDA);
    }
    if (child < 0 || waitpid(child, &how, 0) != child)
        return FAIL(ST_OS, "fork: %s", strerror(errno));
    if (!WIFEXITED(how) || WEXITSTATUS(how) > 1)
        return FAIL(ST_UNAVAILABLE, "it could not be determined whether this machine has a GPU "
                                    "that works: see the error above");
    options->training_backend = WEXITSTATUS(how) == 1 ? BACKEND_CUDA : BACKEND_CPU;
    return engine_choose(options, 0);
}
