/* blas.h: the one door to OpenBLAS, opened when the first CPU device is.
 *
 * It is loaded at run time and not linked, because it reads its settings while it loads:
 *   OPENBLAS_CORETYPE     which kernels. A processor younger than the library gets the oldest ones
 *                         (SSE3: a quarter of the speed, measured on an Emerald Rapids with Debian
 *                         12's 0.3.21), so it is told by the instruction sets that are there.
 *                         Left alone where the user has set it.
 *   OPENBLAS_NUM_THREADS, OMP_NUM_THREADS   1, for the package's pthread and openmp flavours: the
 *                         device's pool is the only one (device/cpu.c). The openmp flavour looks at
 *                         OpenMP's number in each calling thread, so that setting it once by its
 *                         function holds for the main thread only. */
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
    const char *core; /* "SkylakeX": the kernels it chose */
    /* False for the flavour built with OpenMP, which promises nothing to threads that OpenMP did
     * not start (0.3.21 gave them other bits than the main thread). The device then keeps to one.
     */
    bool reentrant;
} blas_library;

/* Loads it once per process; call before other threads read the environment. UNAVAILABLE, with the
 * package to install, where it is missing. */
WARN_UNUSED status blas_open(void);

/* After blas_open. */
const blas_library *blas(void);

#endif
