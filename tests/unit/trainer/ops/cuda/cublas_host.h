/* cublas_host.h: cuBLASLt as loops on the host, in place of trainer/device/cublas.c: what gemm.c
 * tells the library is taken at its word (column-major, strides, transpositions, types) and
 * computed, so that a wrong word is a wrong product. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_OPS_CUDA_CUBLAS_HOST_H
#define TESSERA_TESTS_UNIT_TRAINER_OPS_CUDA_CUBLAS_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "trainer/device/cublas.h"

enum { CUBLAS_HOST_WORKSPACE = 4096 };

extern struct cublas_host {
    int64_t alive;           /* objects made and not destroyed */
    int64_t asked, products; /* heuristics, products */
    uint32_t align[4];       /* of the last preference: first operand, second, C, D */
    uint32_t schemes;
    bool refuse; /* no algorithm is found */
} cublas_host;

#endif
