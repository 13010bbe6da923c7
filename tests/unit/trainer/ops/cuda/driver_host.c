/* SPDX-License-Identifier: Apache-2.0 */
/* driver_host.c: a libcuda.so.1 for a machine that has none. It is enough for cuDNN to compile a
 * graph for a GPU that the test describes, and to load the result. There is no device, and cuInit
 * says so. */
#include <stddef.h>

enum { SUCCESS = 0, NO_DEVICE = 100, DRIVER_VERSION = 13000 };

#define ANSWERS(name, ...)                                                                         \
    int name(__VA_ARGS__);                                                                         \
    int name(__VA_ARGS__)

static int give_handle(void **out)
{
    static char something;
    *out = &something;
    return SUCCESS;
}

ANSWERS(cuInit, unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}

ANSWERS(cuDriverGetVersion, int *version)
{
    *version = DRIVER_VERSION;
    return SUCCESS;
}

ANSWERS(cuGetErrorString, int error, const char **out)
{
    (void)error;
    *out = "of a stand-in";
    return SUCCESS;
}

ANSWERS(cuGetErrorName, int error, const char **out)
{
    return cuGetErrorString(error, out);
}

ANSWERS(cuLibraryLoadData, void **out)
{
    return give_handle(out);
}

ANSWERS(cuLibraryGetKernel, void **out)
{
    return give_handle(out);
}

ANSWERS(cuKernelGetFunction, void **out)
{
    return give_handle(out);
}

/* Functions that cuDNN looks up, and calls at most while it shuts down. */
#define IS_THERE(name)                                                                             \
    ANSWERS(name, void)                                                                            \
    {                                                                                              \
        return SUCCESS;                                                                            \
    }
IS_THERE(cuCtxGetCurrent)
IS_THERE(cuCtxGetLimit)
IS_THERE(cuCtxPopCurrent)
IS_THERE(cuCtxPushCurrent)
IS_THERE(cuDeviceGet)
IS_THERE(cuDeviceGetCount)
IS_THERE(cuKernelGetAttribute)
IS_THERE(cuKernelSetAttribute)
IS_THERE(cuLaunchCooperativeKernel)
IS_THERE(cuLaunchKernel)
IS_THERE(cuLaunchKernelEx)
IS_THERE(cuLibraryLoadFromFile)
IS_THERE(cuLibraryUnload)
IS_THERE(cuLinkAddData)
IS_THERE(cuLinkComplete)
IS_THERE(cuLinkCreate)
IS_THERE(cuLinkDestroy)
IS_THERE(cuOccupancyMaxPotentialClusterSize)
IS_THERE(cuStreamGetCtx)
