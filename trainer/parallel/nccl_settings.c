/* nccl_settings.c: the environment variables that decide how NCCL works (nccl_settings.h). */
#include "trainer/parallel/nccl_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/parallel/nccl.h"

/* Sets a variable of NCCL unless the user has set it. */
static void set_unless(const char *name, const char *value)
{
    if (!getenv(name))
        setenv(name, value, 1);
}

/* Writes all that are set, as "NAME=value NAME=value". */
static void list_settings(char *out, size_t size)
{
    extern char **environ;
    size_t used = 0;
    out[0] = 0;
    for (char **at = environ; *at; at++) {
        const bool is_of_nccl = strncmp(*at, "NCCL_", 5) == 0;
        const size_t length = strlen(*at);
        if (!is_of_nccl || used + length + 2 > size)
            continue;
        used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? " " : "", *at);
    }
}

static void tell_settings(void)
{
    enum { MOST = 1024, MAJOR = 10000, MINOR = 100 };
    char settings[MOST];
    const int version = nccl_api()->version;
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    list_settings(settings, sizeof settings);
    log_info("NCCL %d.%d.%d with %s", version / MAJOR, version % MAJOR / MINOR, version % MINOR,
             settings);
    if (connections && atoi(connections) == 1)
        log_warn(
            "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one way to the GPU, so transfers "
            "wait for the kernels that were queued before them; unset it");
}

void nccl_settings(bool deterministic, bool tell)
{
    /* The NVLink switch sums in an order that differs from call to call. NVLS is its use inside one
     * machine, NVLSTree the one between several. */
    if (deterministic)
        set_unless("NCCL_ALGO", "^NVLS,NVLSTree");
    /* Communicators that share a GPU then run in the order in which the host calls them. */
    set_unless("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
    if (tell)
        tell_settings();
}
