/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.c: loads NCCL (nccl.h), and sets what it reads from the environment. Each function is looked up
 * by its name; those of windows may be missing. */
#include "trainer/parallel/comm/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"

/* NCCL 2.18 has both communicators that do not block and ncclCommSplit. */
enum { LEAST_VERSION = NCCL_VERSION(2, 18, 1) };

static const char file_name[] = "libnccl.so.2";
static nccl_library library;
static bool loaded;

static status find_functions(void *handle)
{
#define FIND(name)                                                                                 \
    *(void **)&library.name = dlsym(handle, "nccl" #name);                                         \
    if (!library.name)                                                                             \
        return FAIL(ST_UNAVAILABLE, "%s has no nccl" #name, file_name);
    NCCL_FUNCTIONS(FIND)
#undef FIND
    *(void **)&library.CommRevoke = dlsym(handle, "ncclCommRevoke");
    return ST_OK;
}

static void find_windows(void *handle)
{
    library.TeamLsa = dlsym(handle, "ncclTeamLsa");
    library.windows = library.TeamLsa != NULL;
#define FIND(name)                                                                                 \
    *(void **)&library.name = dlsym(handle, "nccl" #name);                                         \
    library.windows = library.windows && library.name;
    NCCL_WINDOW_FUNCTIONS(FIND)
#undef FIND
}

/* There is no lock: only the thread that trains opens engines. */
status nccl_open(void)
{
    if (loaded)
        return ST_OK;
    void *handle = dlopen(file_name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL cannot be loaded: %s (it is installed apart from the CUDA toolkit; "
                    "LD_LIBRARY_PATH can name its folder)",
                    dlerror());
    TRY(find_functions(handle));
    if (library.GetVersion(&library.version) != ncclSuccess || library.version < LEAST_VERSION)
        return FAIL(ST_UNAVAILABLE, "%s has version code %d, but the engine needs at least %d",
                    file_name, library.version, (int)LEAST_VERSION);
    find_windows(handle);
    loaded = true;
    return ST_OK;
}

const nccl_library *nccl_api(void)
{
    return &library;
}

/* ---- settings ---- */

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
