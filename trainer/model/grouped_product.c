/* grouped_product.c: a parameter of experts as the matrices of op_grouped_gemm. */
#include "trainer/model/grouped_product.h"

#include "trainer/ops/table.h"

status grouped_product(const pass_context *ctx, int mode, const param *w, int64_t rows,
                       const int32_t *offset, void *x, void *y)
{
    if (mode == GROUPED_WGRAD && !w->grad)
        return ST_OK; /* frozen */
    return op_grouped_gemm(ctx->stream, &(grouped_gemm_args){.mode = mode,
                                                             .experts = w->local[0],
                                                             .k = w->local[1],
                                                             .n = w->local[2],
                                                             .rows_cap = rows,
                                                             .offset = offset,
                                                             .x = x,
                                                             .w = w->act,
                                                             .y = y,
                                                             .dw = w->grad});
}
