/* SPDX-License-Identifier: Apache-2.0 */
/* cublas.c: loads cuBLASLt and looks up its functions (cublas.h). */
#include "trainer/device/cublas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define FILE_NAME  "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cublas_library library;
static bool loaded;

static status load_cublas(void)
{
    void *handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return FAIL(ST_UNAVAILABLE,
                    "CUDA: cuBLASLt cannot be loaded: %s; it comes with the CUDA toolkit (set "
                    "LD_LIBRARY_PATH to its folder)",
                    dlerror());
#define FIND(name)                                                                                 \
    *(void **)&library.name = dlsym(handle, "cublasLt" #name);                                     \
    if (!library.name)                                                                             \
        return FAIL(ST_UNAVAILABLE, "CUDA: " FILE_NAME " does not define cublasLt" #name);
    CUBLAS_FUNCTIONS(FIND)
#undef FIND
    return ST_OK;
}

status cublas_open(void)
{
    pthread_mutex_lock(&lock);
    status st = loaded ? ST_OK : load_cublas();
    loaded = st == ST_OK;
    pthread_mutex_unlock(&lock);
    return st;
}

const cublas_library *cublas_api(void)
{
    return &library;
}
