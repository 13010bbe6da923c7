/* grouped_product.h: a product of rows with the matrices of their experts. */
#ifndef TESSERA_TRAINER_MODEL_GROUPED_PRODUCT_H
#define TESSERA_TRAINER_MODEL_GROUPED_PRODUCT_H

#include "trainer/model/pass_context.h"
#include "trainer/model/params.h"

/* Of rows by expert, x [rows, K] and y [rows, N], offset [E + 1] their borders: y = x W_e
 * (GROUPED_FWD), x = y Wt_e (GROUPED_DGRAD), or dW_e += xt y (GROUPED_WGRAD). W [E, K, N]: what
 * this rank has of it. */
WARN_UNUSED status grouped_product(const pass_context *r, int mode, const param *w, int64_t rows,
                                   const int32_t *offset, void *x, void *y);

#endif
