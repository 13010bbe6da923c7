/* SPDX-License-Identifier: Apache-2.0 */
/* cublas.h: the only file through which the trainer reaches cuBLASLt. cublas_open loads the library
 * when the first CUDA device is opened.
 *
 * It is loaded at run time and not linked, so that a machine without it is told which file is
 * missing, and so that a program that does not use CUDA starts without the library's hundreds of
 * megabytes. */
#ifndef TESSERA_TRAINER_DEVICE_CUBLAS_H
#define TESSERA_TRAINER_DEVICE_CUBLAS_H

#include <cublasLt.h>

#include "common/base/status.h"

#define CUBLAS_FUNCTIONS(X)                                                                        \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetStatusString)                                                                             \
    X(GetVersion)                                                                                  \
    X(Matmul)                                                                                      \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)

typedef struct cublas_library {
#define CUBLAS_FIELD(name) __typeof__(&cublasLt##name) name;
    CUBLAS_FUNCTIONS(CUBLAS_FIELD)
#undef CUBLAS_FIELD
} cublas_library;

/* Loads the library, once per process. UNAVAILABLE, with the file or function that is missing. */
WARN_UNUSED status cublas_open(void);

/* The loaded library's functions. Valid after cublas_open has succeeded, for the life of the
 * process. */
const cublas_library *cublas_api(void);

/* Calls a function of the library. If it fails, returns BAD_DEVICE with the function's name, the
 * error's number and cuBLAS's text for it. */
#define CUBLAS_TRY(call)                                                                           \
    do {                                                                                           \
        cublasStatus_t cublas_status_ = cublas_api()->call;                                        \
        if (cublas_status_ != CUBLAS_STATUS_SUCCESS)                                               \
            return FAIL(ST_BAD_DEVICE, "cublasLt%.*s: error %d, %s", CUBLAS_NAME(#call),           \
                        (int)cublas_status_, cublas_api()->GetStatusString(cublas_status_));       \
    } while (0)
#define CUBLAS_NAME(text) (int)(__builtin_strchr(text, 40) - (text)), (text)

#endif
