/* SPDX-License-Identifier: Apache-2.0 */
/* product_bf16.h: the dense matrix product, which the GPU leaves to a library, for the harness: the
 * CPU's, of bf16 values, rounded to bf16 where the result is. */
#ifndef TESSERA_TESTS_SIMT_PRODUCT_BF16_H
#define TESSERA_TESTS_SIMT_PRODUCT_BF16_H

#include "trainer/device/backend.h"
#include "trainer/ops/gemm.h"

/* The stream of a CPU device in float that computes the products from now on.
 * Stays the caller's. */
void product_bf16_by(stream *cpu);

/* gemm of ops_table, on arrays in the host's memory. */
status product_bf16(stream *queue, const gemm_args *args);

#endif
