/* cudnn.h: the one door to cuDNN 9, loaded at run time where attention wants it. Its C graph API
 * alone; a machine without it trains with our own attention kernels.
 *
 * Built without cuDNN's headers this file gives nothing but cudnn_open, which says so. */
#ifndef TESSERA_TRAINER_DEVICE_CUDNN_H
#define TESSERA_TRAINER_DEVICE_CUDNN_H

#include "common/base/status.h"

/* Loads it once per process. UNAVAILABLE, with what is missing. */
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

/* After cudnn_open. */
const cudnn_library *cudnn(void);

/* Notes the failure of a call: its name, cuDNN's code and its last words. */
status cudnn_fail(const char *call, cudnnStatus_t error);

#define CUDNN_TRY(name, ...)                                                                       \
    do {                                                                                           \
        cudnnStatus_t cudnn_status_ = cudnn()->name(__VA_ARGS__);                                  \
        if (cudnn_status_ != CUDNN_STATUS_SUCCESS)                                                 \
            return cudnn_fail("cudnn" #name, cudnn_status_);                                       \
    } while (0)

#endif

#endif
