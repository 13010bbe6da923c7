/* SPDX-License-Identifier: Apache-2.0 */
/* lora.c: products of experts, and the work of adapters in forward and backward (layers.h).
 * lora_params.c has the adapters' rows of the registry and merged values. */

#include "trainer/model/layers/layers.h"
#include "trainer/model/params/quantised.h"
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

lora lora_bind(const param *weight)
{
    if (!weight->lora)
        return (lora){0};
    const param *pair = weight + weight->lora;
    return (lora){.a = pair,
                  .b = pair + 1,
                  .lengths = weight->dora ? pair + 2 : NULL,
                  .scale = weight->lora_scale,
                  .rank = pair->shape[weight->n_dims == 2 ? 0 : 2]};
}

/* The most rows that a matrix of a decoder layer has, on one rank. */
static int64_t longest_out(const text_dims *dims)
{
    const int64_t heads = dims->heads * dims->head_dim;
    const int64_t most = heads > dims->hidden ? heads : dims->hidden;
    return most > dims->intermediate ? most : dims->intermediate;
}

void lora_scratch_layout(lora_scratch *scratch, space *sp, const shape *sizes, lora_modes modes,
                         int64_t slots)
{
    const int64_t rank = modes.rank;
    const bool experts = modes.experts;
    const text_dims *dims = &sizes->dims->text;
    const int64_t width = dims->expert_width / sizes->ranks->expert_tensor;
    slots = experts && slots > sizes->context_tokens ? slots : sizes->context_tokens;
    int64_t wide = 2 * width > dims->hidden ? 2 * width : dims->hidden;
    *scratch = (lora_scratch){0};
    if (rank == 0)
        return;
    scratch->xa = space_take(sp, slots * rank, sizes->act);
    scratch->dxa = space_take(sp, slots * rank, sizes->act);
    if (experts)
        scratch->wide = space_take(sp, slots * wide, sizes->act);
    if (!modes.dora)
        return;
    scratch->z = space_take(sp, sizes->context_tokens * longest_out(dims), sizes->act);
    scratch->norm = space_take(sp, longest_out(dims), sizes->act);
}

/* xa [rows, r] = x At */
static status shrink_rows(const pass_context *ctx, const lora *adapter, int64_t rows, const void *x)
{
    int64_t in = adapter->a->local[1];
    return op_gemm(ctx->stream, &(gemm_args){.m = rows,
                                             .n = adapter->rank,
                                             .k = in,
                                             .alpha = 1,
                                             .a = x,
                                             .lda = in,
                                             .b = adapter->a->act,
                                             .ldb = in,
                                             .trans_b = true,
                                             .c = ctx->lora->xa,
                                             .ldc = adapter->rank});
}

status lora_linear_fwd(const pass_context *ctx, const lora *adapter, int64_t rows, const void *x,
                       void *y, int64_t y_stride)
{
    TRY(shrink_rows(ctx, adapter, rows, x));
    return op_gemm(ctx->stream, &(gemm_args){.m = rows,
                                             .n = adapter->b->local[0],
                                             .k = adapter->rank,
                                             .alpha = adapter->scale,
                                             .a = ctx->lora->xa,
                                             .lda = adapter->rank,
                                             .b = adapter->b->act,
                                             .ldb = adapter->rank,
                                             .trans_b = true,
                                             .c = y,
                                             .ldc = y_stride,
                                             .accumulate = true});
}

/* dW [m, n] += alpha xt y of `rows` rows */
static status weight_gradient(const pass_context *ctx, const param *weight, int64_t rows,
                              double alpha, const void *x, int64_t x_stride, const void *y,
                              int64_t y_stride)
{
    if (!weight->grad)
        return ST_OK; /* the user has frozen this half */
    return op_gemm(ctx->stream, &(gemm_args){.m = weight->local[0],
                                             .n = weight->local[1],
                                             .k = rows,
                                             .alpha = alpha,
                                             .a = x,
                                             .lda = x_stride,
                                             .trans_a = true,
                                             .b = y,
                                             .ldb = y_stride,
                                             .c = weight->grad,
                                             .ldc = weight->local[1],
                                             .c_acc = true,
                                             .accumulate = true});
}

status lora_linear_bwd(const pass_context *ctx, const lora *adapter, int64_t rows, const void *x,
                       const void *dy, int64_t dy_stride, void *dx)
{
    int64_t in = adapter->a->local[1], out = adapter->b->local[0];
    TRY(shrink_rows(ctx, adapter, rows, x));
    TRY(weight_gradient(ctx, adapter->b, rows, adapter->scale, dy, dy_stride, ctx->lora->xa,
                        adapter->rank));
    TRY(op_gemm(ctx->stream, &(gemm_args){.m = rows,
                                          .n = adapter->rank,
                                          .k = out,
                                          .alpha = adapter->scale,
                                          .a = dy,
                                          .lda = dy_stride,
                                          .b = adapter->b->act,
                                          .ldb = adapter->rank,
                                          .c = ctx->lora->dxa,
                                          .ldc = adapter->rank}));
    TRY(weight_gradient(ctx, adapter->a, rows, 1, ctx->lora->dxa, adapter->rank, x, in));
    if (!dx)
        return ST_OK;
    return op_gemm(ctx->stream, &(gemm_args){.m = rows,
                                             .n = in,
                                             .k = adapter->rank,
                                             .alpha = 1,
                                             .a = ctx->lora->dxa,
                                             .lda = adapter->rank,
                                             .b = adapter->a->act,
                                             .ldb = in,
                                             .c = dx,
                                             .ldc = in,
                                             .accumulate = true});
}

/* op_grouped_gemm has no factor, so x [rows, r] is scaled by a separate op. */
static status scaled(const pass_context *ctx, const lora *adapter, int64_t rows, void *x)
{
    return op_scale(ctx->stream,
                    &(scale_args){.n = rows * adapter->rank, .factor = adapter->scale, .y = x});
}

/* xa [rows, r] = s x A */
static status shrink_slots(const pass_context *ctx, const lora *adapter, int64_t rows,
                           const int32_t *offset, void *x)
{
    TRY(grouped_product(ctx, GROUPED_FWD, adapter->a, rows, offset, x, ctx->lora->xa));
    return scaled(ctx, adapter, rows, ctx->lora->xa);
}

static status add_slots(const pass_context *ctx, int64_t elements, void *y)
{
    return op_add(ctx->stream, &(add_args){.n = elements, .a = ctx->lora->wide, .y = y});
}

/* y += s (x A_e) B_e over `rows` slots sorted by expert. offset [E + 1] holds the first slot of each
 * expert, E being the experts of this rank (ops/gemm.h). x and dy are not written. */
static status lora_experts_fwd(const pass_context *ctx, const lora *adapter, int64_t rows,
                               const int32_t *offset, void *x, void *y)
{
    TRY(shrink_slots(ctx, adapter, rows, offset, x));
    TRY(grouped_product(ctx, GROUPED_FWD, adapter->b, rows, offset, ctx->lora->xa,
                        ctx->lora->wide));
    return add_slots(ctx, rows * adapter->b->local[2], y);
}

/* Backward comes in two calls, because x is replaced by its gradient between them. This one adds the
 * gradients of A and B and leaves dxa in the scratch; lora_experts_dx then adds the adapter's part to
 * dx. */
static status lora_experts_grads(const pass_context *ctx, const lora *adapter, int64_t rows,
                                 const int32_t *offset, void *x, void *dy)
{
    TRY(shrink_slots(ctx, adapter, rows, offset, x));
    TRY(grouped_product(ctx, GROUPED_WGRAD, adapter->b, rows, offset, ctx->lora->xa, dy));
    TRY(grouped_product(ctx, GROUPED_DGRAD, adapter->b, rows, offset, ctx->lora->dxa, dy));
    TRY(scaled(ctx, adapter, rows, ctx->lora->dxa));
    return grouped_product(ctx, GROUPED_WGRAD, adapter->a, rows, offset, x, ctx->lora->dxa);
}

static status lora_experts_dx(const pass_context *ctx, const lora *adapter, int64_t rows,
                              const int32_t *offset, void *dx)
{
    TRY(grouped_product(ctx, GROUPED_DGRAD, adapter->a, rows, offset, ctx->lora->wide,
                        ctx->lora->dxa));
    return add_slots(ctx, rows * adapter->a->local[1], dx);
}

status experts_product(const pass_context *ctx, const param *weight, const lora *adapter,
                       int64_t rows, const int32_t *offset, void *x, void *y)
{
    TRY(grouped_product(ctx, GROUPED_FWD, weight, rows, offset, x, y));
    return adapter->a ? lora_experts_fwd(ctx, adapter, rows, offset, x, y) : ST_OK;
}

status experts_product_bwd(const pass_context *ctx, const param *weight, const lora *adapter,
                           int64_t rows, const int32_t *offset, void *x, void *dy, void *dx)
{
    TRY(grouped_product(ctx, GROUPED_WGRAD, weight, rows, offset, x, dy));
    if (adapter->a)
        TRY(lora_experts_grads(ctx, adapter, rows, offset, x, dy));
    TRY(grouped_product(ctx, GROUPED_DGRAD, weight, rows, offset, dx, dy));
    return adapter->a ? lora_experts_dx(ctx, adapter, rows, offset, dx) : ST_OK;
}
