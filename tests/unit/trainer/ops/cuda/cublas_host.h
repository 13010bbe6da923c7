/* SPDX-License-Identifier: Apache-2.0 */
/* cublas_host.h: cuBLASLt as loops on the host, in place of trainer/device/cublas.c. It takes
 * literally what gemm.c describes (column-major order, strides, transpositions, types) and computes
 * it, so that a wrong description gives a wrong product. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_OPS_CUDA_CUBLAS_HOST_H
#define TESSERA_TESTS_UNIT_TRAINER_OPS_CUDA_CUBLAS_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "trainer/device/cublas.h"

enum { CUBLAS_HOST_WORKSPACE = 4096 };

extern struct cublas_host {
    int64_t alive;           /* objects that exist now */
    int64_t asked, products; /* calls of the heuristic; products computed */
    uint32_t align[4];       /* alignment in the last request: first operand, second, C, D */
    uint32_t schemes;
    bool refuse; /* the heuristic finds no algorithm */
} cublas_host;

#endif
