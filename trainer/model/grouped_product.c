/* grouped_product.c: a parameter of experts as the matrices of op_grouped_gemm. */
#include "trainer/model/grouped_product.h"

#include "trainer/model/quantised.h"
#include "trainer/ops/table.h"

status grouped_product(const pass_context *ctx, int mode, const param *weight, int64_t rows,
                       const int32_t *offset, void *x, void *y)
{
    if (mode == GROUPED_WGRAD && !weight->grad)
        return ST_OK; /* frozen */
    TRY(quantised_expand(ctx->stream, weight));
    return op_grouped_gemm(ctx->stream, &(grouped_gemm_args){.mode = mode,
                                                             .experts = weight->local[0],
                                                             .k = weight->local[1],
                                                             .n = weight->local[2],
                                                             .rows_cap = rows,
                                                             .offset = offset,
                                                             .x = x,
                                                             .w = weight->act,
                                                             .y = y,
                                                             .dw = weight->grad});
}
