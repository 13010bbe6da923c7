/* grouped_product.h: multiplies rows that are sorted by expert with their experts' matrices. */
#ifndef TESSERA_TRAINER_MODEL_GROUPED_PRODUCT_H
#define TESSERA_TRAINER_MODEL_GROUPED_PRODUCT_H

#include "trainer/model/pass_context.h"
#include "trainer/model/params.h"

/* Computes, for every expert e of this rank and its rows of x [rows, K] and y [rows, N],
 *
 *   GROUPED_FWD    y = x W_e
 *   GROUPED_DGRAD  x = y W_et
 *   GROUPED_WGRAD  dW_e += xt y; skipped if `weight` is frozen
 *
 * W [E, K, N] is this rank's part of parameter `weight`. offset [E + 1], on the device, holds the
 * first row of each expert. The modes are those of ops/gemm.h. */
WARN_UNUSED status grouped_product(const pass_context *ctx, int mode, const param *weight,
                                   int64_t rows, const int32_t *offset, void *x, void *y);

#endif
