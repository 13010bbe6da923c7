/* SPDX-License-Identifier: Apache-2.0 */
/* blas.c: loads OpenBLAS under the right settings (blas.h). There is one table of functions per
 * process, since a loaded library belongs to the process. */
#include "trainer/device/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static blas_library library;
static bool loaded;

/* The kernels for the instruction sets of this processor. NULL leaves the choice to OpenBLAS. */
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
    return *out ? ST_OK
                : FAIL(ST_UNAVAILABLE,
                       "libopenblas.so.0 does not define %s; install a complete OpenBLAS (Debian: "
                       "libopenblas0)",
                       name);
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

/* An environment variable that is set while the library loads and restored after it: the value is
 * meant for OpenBLAS and not for programs that we start later. */
typedef struct setting {
    const char *name, *value; /* value NULL: leave the variable as it is */
    char *before;             /* what it held before, on the heap; NULL: it was not set */
} setting;

static void setting_apply(setting *one)
{
    const char *before = getenv(one->name);
    one->before = before ? strdup(before) : NULL;
    if (one->value)
        setenv(one->name, one->value, 1);
}

static void setting_restore(setting *one)
{
    if (one->value && one->before)
        setenv(one->name, one->before, 1);
    else if (one->value)
        unsetenv(one->name);
    free(one->before);
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
        return FAIL(ST_UNAVAILABLE,
                    "OpenBLAS cannot be loaded: %s; install it (Debian: libopenblas0)", dlerror());
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

const blas_library *blas_api(void)
{
    return &library;
}
