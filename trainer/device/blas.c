/* blas.c: see blas.h. One copy per process, since a loaded library is the process's. */
#include "trainer/device/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static blas_library library;
static bool loaded;

/* The kernels for the instruction sets of this processor; NULL: OpenBLAS's own choice. */
static const char *core_type(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

static status find(void *handle, const char *name, void **out)
{
    *out = dlsym(handle, name);
    return *out ? ST_OK : FAIL(ST_UNAVAILABLE, "libopenblas.so.0 has no %s", name);
}

static status fill(void *handle)
{
    enum { BUILT_WITH_OPENMP = 2 };
    void *set_threads, *core_name, *parallel;
    TRY(find(handle, "cblas_sgemm", (void **)&library.sgemm));
    TRY(find(handle, "cblas_dgemm", (void **)&library.dgemm));
    TRY(find(handle, "openblas_set_num_threads", &set_threads));
    TRY(find(handle, "openblas_get_corename", &core_name));
    TRY(find(handle, "openblas_get_parallel", &parallel));
    ((void (*)(int))set_threads)(1);
    library.reentrant = ((int (*)(void))parallel)() != BUILT_WITH_OPENMP;
    library.core = ((char *(*)(void))core_name)();
    return ST_OK;
}

static status load(void)
{
    const char *core = getenv("OPENBLAS_CORETYPE") ? NULL : core_type();
    bool threads = !getenv("OPENBLAS_NUM_THREADS");
    if (core)
        setenv("OPENBLAS_CORETYPE", core, 1);
    if (threads)
        setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (core) /* for us alone, not for programs we start */
        unsetenv("OPENBLAS_CORETYPE");
    if (threads)
        unsetenv("OPENBLAS_NUM_THREADS");
    if (!handle)
        return FAIL(ST_UNAVAILABLE, "OpenBLAS can not be loaded: %s (Debian: libopenblas0)",
                    dlerror());
    return fill(handle);
}

status blas_open(void)
{
    pthread_mutex_lock(&lock);
    status st = loaded ? ST_OK : load();
    loaded = st == ST_OK;
    pthread_mutex_unlock(&lock);
    return st;
}

const blas_library *blas(void)
{
    return &library;
}
