/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn.c: loads cuDNN, checks its version and looks up its functions (cudnn.h). */
#include "trainer/device/cudnn.h"

#ifdef TESSERA_CUDNN

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

enum { MESSAGE_MAX = 512 };

static const char FILE_NAME[] = "libcudnn.so.9";
/* 9.6: the first with packed grouped-query attention and its backward. */
static const size_t LEAST_VERSION = 90600;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudnn_library library;
static bool loaded;

static status load_cudnn(void)
{
    void *handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return FAIL(ST_UNAVAILABLE, "cuDNN cannot be loaded: %s", dlerror());
#define FIND(name)                                                                                 \
    *(void **)&library.name = dlsym(handle, "cudnn" #name);                                        \
    if (!library.name)                                                                             \
        return FAIL(ST_UNAVAILABLE, "%s does not define cudnn" #name, FILE_NAME);
    CUDNN_FUNCTIONS(FIND)
#undef FIND
    if (library.GetVersion() < LEAST_VERSION)
        return FAIL(ST_UNAVAILABLE, "cuDNN %zu is too old: attention needs %zu or later",
                    library.GetVersion(), LEAST_VERSION);
    return ST_OK;
}

status cudnn_open(void)
{
    pthread_mutex_lock(&lock);
    status st = loaded ? ST_OK : load_cudnn();
    loaded = st == ST_OK;
    pthread_mutex_unlock(&lock);
    return st;
}

const cudnn_library *cudnn_api(void)
{
    return &library;
}

status cudnn_fail(const char *call, cudnnStatus_t error)
{
    char words[MESSAGE_MAX] = "";
    library.GetLastErrorString(words, sizeof words);
    return FAIL(ST_BAD_DEVICE, "%s: error %d, %s: %s", call, (int)error,
                library.GetErrorString(error), words);
}

#else

status cudnn_open(void)
{
    return FAIL(ST_UNAVAILABLE,
                "this program was built without cuDNN (its headers were not found)");
}

#endif
