/* blas.c: see blas.h. One copy per process, since a loaded library is the process's. */
#include "trainer/device/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

static status find_symbol(void *handle, const char *name, void **out)
{
    *out = dlsym(handle, name);
    return *out ? ST_OK : FAIL(ST_UNAVAILABLE, "libopenblas.so.0 has no %s", name);
}

static status fill_library(void *handle)
{
    enum { BUILT_WITH_OPENMP = 2 };
    void *set_threads, *core_name, *parallel;
    TRY(find_symbol(handle, "cblas_sgemm", (void **)&library.sgemm));
    TRY(find_symbol(handle, "cblas_dgemm", (void **)&library.dgemm));
    TRY(find_symbol(handle, "openblas_set_num_threads", &set_threads));
    TRY(find_symbol(handle, "openblas_get_corename", &core_name));
    TRY(find_symbol(handle, "openblas_get_parallel", &parallel));
    ((void (*)(int))set_threads)(1);
    library.reentrant = ((int (*)(void))parallel)() != BUILT_WITH_OPENMP;
    library.core = ((char *(*)(void))core_name)();
    return ST_OK;
}

/* A variable of the environment while the library loads; put back after it, since it is meant for
 * us alone and not for programs we start. */
typedef struct setting {
    const char *name, *value; /* value NULL: leave as it is */
    char *before;             /* heap, or NULL: was not set */
} setting;

static void setting_apply(setting *s)
{
    const char *before = getenv(s->name);
    s->before = before ? strdup(before) : NULL;
    if (s->value)
        setenv(s->name, s->value, 1);
}

static void setting_restore(setting *s)
{
    if (s->value && s->before)
        setenv(s->name, s->before, 1);
    else if (s->value)
        unsetenv(s->name);
    free(s->before);
}

static status load_openblas(void)
{
    setting settings[] = {
        {"OPENBLAS_CORETYPE", getenv("OPENBLAS_CORETYPE") ? NULL : core_type(), NULL},
        {"OPENBLAS_NUM_THREADS", "1", NULL},
        {"OMP_NUM_THREADS", "1", NULL},
    };
    enum { N_SETTINGS = sizeof settings / sizeof settings[0] };
    for (int i = 0; i < N_SETTINGS; i++)
        setting_apply(&settings[i]);
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < N_SETTINGS; i++)
        setting_restore(&settings[i]);
    if (!handle)
        return FAIL(ST_UNAVAILABLE, "OpenBLAS cannot be loaded: %s (Debian: libopenblas0)",
                    dlerror());
    return fill_library(handle);
}

status blas_open(void)
{
    pthread_mutex_lock(&lock);
    status st = loaded ? ST_OK : load_openblas();
    loaded = st == ST_OK;
    pthread_mutex_unlock(&lock);
    return st;
}

const blas_library *blas(void)
{
    return &library;
}
