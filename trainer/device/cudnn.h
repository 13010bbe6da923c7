/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn.h: the only file through which the trainer reaches cuDNN 9. cudnn_open loads the library
 * when attention wants it; only the C interface of its graph API is used. A machine without cuDNN
 * trains with our own attention kernels.
 *
 * In a build without cuDNN's headers this file declares cudnn_open alone, which always fails and
 * says so. */
#ifndef TESSERA_TRAINER_DEVICE_CUDNN_H
#define TESSERA_TRAINER_DEVICE_CUDNN_H

#include "common/base/status.h"

/* Loads the library, once per process. UNAVAILABLE, with the reason, if it is missing or too
 * old. */
WARN_UNUSED status cudnn_open(void);

#ifdef TESSERA_CUDNN

#include <cudnn.h>

#define CUDNN_FUNCTIONS(X)                                                                         \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetErrorString)                                                                              \
    X(GetLastErrorString)                                                                          \
    X(GetVersion)                                                                                  \
    X(SetStream)                                                                                   \
    X(BackendCreateDescriptor)                                                                     \
    X(BackendDestroyDescriptor)                                                                    \
    X(BackendExecute)                                                                              \
    X(BackendFinalize)                                                                             \
    X(BackendGetAttribute)                                                                         \
    X(BackendSetAttribute)

typedef struct cudnn_library {
#define CUDNN_FIELD(name) __typeof__(&cudnn##name) name;
    CUDNN_FUNCTIONS(CUDNN_FIELD)
#undef CUDNN_FIELD
} cudnn_library;

/* The loaded library's functions. Valid after cudnn_open has succeeded, for the life of the
 * process. */
const cudnn_library *cudnn_api(void);

/* Returns BAD_DEVICE with the name of the failed call,
 * cuDNN's error and the last message it left. */
status cudnn_fail(const char *call, cudnnStatus_t error);

#define CUDNN_TRY(name, ...)                                                                       \
    do {                                                                                           \
        cudnnStatus_t cudnn_status_ = cudnn_api()->name(__VA_ARGS__);                              \
        if (cudnn_status_ != CUDNN_STATUS_SUCCESS)                                                 \
            return cudnn_fail("cudnn" #name, cudnn_status_);                                       \
    } while (0)

#endif

#endif
