/* SPDX-License-Identifier: Apache-2.0 */
/* blas.h: the only file through which the trainer reaches OpenBLAS. blas_open loads the library
 * when the first CPU device is opened.
 *
 * It is loaded at run time and not linked, because OpenBLAS reads its settings while it loads, and
 * these must be set first:
 *
 *   OPENBLAS_CORETYPE     which kernels to use. A processor younger than the library would get its
 *                         oldest kernels (SSE3, a quarter of the speed of AVX-512), so we name the
 *                         kernels that suit the instruction sets we find. A value that the user has
 *                         set stays.
 *   OPENBLAS_NUM_THREADS, OMP_NUM_THREADS
 *                         1, for the package's pthread and OpenMP flavours: the device's pool is to
 *                         be the only one (cpu.c). The OpenMP flavour looks at OpenMP's number in
 *                         every calling thread, so that its own function sets it for the main
 *                         thread only, and the environment is the one way that works for all. */
#ifndef TESSERA_TRAINER_DEVICE_BLAS_H
#define TESSERA_TRAINER_DEVICE_BLAS_H

#include <cblas.h>
#include <stdbool.h>

#include "common/base/status.h"

typedef struct blas_library {
    void (*sgemm)(CBLAS_LAYOUT, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, blasint, blasint, blasint, float,
                  const float *, blasint, const float *, blasint, float, float *, blasint);
    void (*dgemm)(CBLAS_LAYOUT, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, blasint, blasint, blasint, double,
                  const double *, blasint, const double *, blasint, double, double *, blasint);
    const char *core; /* the kernels that the library chose, such as "SkylakeX" */
    /* False for the flavour built with OpenMP. It promises nothing to threads that OpenMP did not
     * start (0.3.21 gave such threads other bits than the main thread), so the device then uses one
     * thread. */
    bool reentrant;
} blas_library;

/* Loads the library, once per process. Call it before other threads read the environment, which it
 * changes for a moment. UNAVAILABLE, with the package to install, if the library is missing. */
WARN_UNUSED status blas_open(void);

/* The loaded library's functions.
 * Valid after blas_open has succeeded, for the life of the process. */
const blas_library *blas_api(void);

#endif
