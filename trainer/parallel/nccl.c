/* nccl.c: loads NCCL (nccl.h). Each function is looked up by its name; those of windows may be
 * missing. */
#include "trainer/parallel/nccl.h"

#include <dlfcn.h>

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
