/* SPDX-License-Identifier: Apache-2.0 */
/* layers.c: linear maps and norms over the registry's parameters, by the ops of ops/table.h, and
 * the moves between the views of a row. */
#include "trainer/model/layers/layers.h"

#include <assert.h>

#include "trainer/model/params/quantised.h"
#include "trainer/ops/table.h"

static st_dtype act_of(const pass_context *ctx)
{
    return ctx->stream->dev->backend->act;
}

status sequence_gather(const pass_context *ctx, comm_at at, const void *x, int64_t width,
                       void *room, const void **out)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_TENSOR);
    *out = group->size > 1 ? room : x;
    if (group->size == 1)
        return ST_OK;
    return comm_all_gather(group, ctx->stream, at, x, room, ctx->sizes.tokens * width, act_of(ctx));
}

status sequence_reduce(const pass_context *ctx, comm_at at, const void *x, int64_t width, void *y)
{
    return comm_reduce_scatter(mesh_comm(ctx->mesh, MESH_TENSOR), ctx->stream, at, x, y,
                               ctx->sizes.tokens * width, act_of(ctx));
}

static status reorder_rows(const pass_context *ctx, const int32_t *index, int64_t width,
                           const void *x, void *y)
{
    return op_rows_gather(
        ctx->stream,
        &(rows_gather_args){.n = ctx->all_tokens, .width = width, .index = index, .x = x, .y = y});
}

status keys_gather(const pass_context *ctx, comm_at at, const void *x, int64_t width, void *ranks,
                   void *packed, const void **out)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_CONTEXT);
    *out = group->size > 1 ? packed : x;
    if (group->size == 1)
        return ST_OK;
    TRY(comm_all_gather(group, ctx->stream, at, x, ranks, ctx->context_tokens * width,
                        act_of(ctx)));
    return reorder_rows(ctx, ctx->batch->key_row, width, ranks, packed);
}

status keys_reduce(const pass_context *ctx, comm_at at, const void *x, int64_t width, void *ranks,
                   void *y)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_CONTEXT);
    if (group->size > 1)
        TRY(reorder_rows(ctx, ctx->batch->key_back, width, x, ranks));
    return comm_reduce_scatter(group, ctx->stream, at, group->size > 1 ? ranks : x, y,
                               ctx->context_tokens * width, act_of(ctx));
}

status features_gather(const pass_context *ctx, comm_at at, const void *x, void *room,
                       const void **out)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_ROW);
    *out = group->size > 1 ? room : x;
    if (group->size == 1)
        return ST_OK;
    return comm_all_gather(group, ctx->stream, at, x, room,
                           ctx->batch->feature_rows * ctx->dims->text.hidden, act_of(ctx));
}

status features_reduce(const pass_context *ctx, comm_at at, const void *x, void *y)
{
    return comm_reduce_scatter(mesh_comm(ctx->mesh, MESH_ROW), ctx->stream, at, x, y,
                               ctx->batch->feature_rows * ctx->dims->text.hidden, act_of(ctx));
}

static const double layernorm_eps =
    1e-6; /* a constant of transformers' code; no key of config.json */

linear linear_bind(params *registry, const char *name, bool with_bias)
{
    linear map = {.w = params_get(registry, "%s.weight", name)};
    map.b = with_bias ? params_get(registry, "%s.bias", name) : NULL;
    map.out = map.w->local[0];
    map.adapter = lora_bind(map.w);
    map.in = map.w->n_local /
             map.out; /* not shape[1]: the patch embedding's matrix has five dimensions */
    return map;
}

layernorm layernorm_bind(params *registry, const char *name)
{
    return (layernorm){params_get(registry, "%s.weight", name),
                       params_get(registry, "%s.bias", name)};
}

static gemm_args forward_args(const linear *map, int64_t rows, const void *x, void *y)
{
    return (gemm_args){.m = rows,
                       .n = map->out,
                       .k = map->in,
                       .alpha = 1,
                       .a = x,
                       .lda = map->in,
                       .b = map->w->act,
                       .ldb = map->in,
                       .trans_b = true,
                       .bias = map->b ? map->b->act : NULL,
                       .c = y,
                       .ldc = map->out};
}

/* z = x (W + s B A)t and the lengths of its rows, in the scratch of adapters. W is expanded. */
static status measure_rows(const pass_context *ctx, const linear *map, int64_t rows, const void *x)
{
    const lora *adapter = &map->adapter;
    const gemm_args inner = forward_args(map, rows, x, ctx->lora->z);
    TRY(op_gemm(ctx->stream, &inner));
    TRY(lora_linear_fwd(ctx, adapter, rows, x, ctx->lora->z, map->out));
    return op_dora_norm(ctx->stream, &(dora_norm_args){.out = map->out,
                                                       .in = map->in,
                                                       .rank = adapter->rank,
                                                       .scale = adapter->scale,
                                                       .w = map->w->act,
                                                       .a = adapter->a->act,
                                                       .b = adapter->b->act,
                                                       .norm = ctx->lora->norm});
}

/* A map whose rows have lengths has no bias: those of decoder layers have none. */
static status forward_dora(const pass_context *ctx, const linear *map, const gemm_args *args)
{
    assert(!args->bias);
    TRY(measure_rows(ctx, map, args->m, args->a));
    return op_dora_fwd(ctx->stream, &(dora_fwd_args){.rows = args->m,
                                                     .n = map->out,
                                                     .y_stride = args->ldc,
                                                     .z = ctx->lora->z,
                                                     .m = map->adapter.lengths->act,
                                                     .norm = ctx->lora->norm,
                                                     .residual = args->residual,
                                                     .y = args->c});
}

/* The product, plus the adapter's if there is one. */
static status forward_linear(const pass_context *ctx, const linear *map, const gemm_args *args)
{
    TRY(quantised_expand(ctx->stream, map->w));
    if (map->adapter.lengths)
        return forward_dora(ctx, map, args);
    TRY(op_gemm(ctx->stream, args));
    return map->adapter.a
               ? lora_linear_fwd(ctx, &map->adapter, args->m, args->a, args->c, args->ldc)
               : ST_OK;
}

status linear_fwd(const pass_context *ctx, const linear *map, int64_t rows, const void *x, void *y,
                  int64_t y_stride)
{
    gemm_args args = forward_args(map, rows, x, y);
    args.ldc = y_stride ? y_stride : map->out;
    return forward_linear(ctx, map, &args);
}

status linear_fwd_biased(const pass_context *ctx, const linear *map, int64_t rows, const void *x,
                         const void *bias, void *y)
{
    gemm_args args = forward_args(map, rows, x, y);
    args.bias = bias ? bias : args.bias;
    return forward_linear(ctx, map, &args);
}

status linear_fwd_onto(const pass_context *ctx, const linear *map, int64_t rows, const void *x,
                       const void *residual, void *y)
{
    gemm_args args = forward_args(map, rows, x, y);
    args.residual = residual;
    return forward_linear(ctx, map, &args);
}

status linear_fwd_back(const pass_context *ctx, const linear *map, comm_at where, const void *x,
                       const void *residual, void *room, void *y)
{
    if (ctx->mesh->layout.tensor == 1)
        return linear_fwd_onto(ctx, map, ctx->context_tokens, x, residual, y);
    TRY(linear_fwd(ctx, map, ctx->context_tokens, x, room, 0));
    TRY(sequence_reduce(ctx, where, room, map->out, y));
    return add_to(ctx, ctx->sizes.tokens * map->out, residual, y);
}

/* Adds the gradient of the lengths; z in the scratch becomes the gradient of z, and W stays
 * expanded. */
static status backward_dora(const pass_context *ctx, const linear *map, int64_t rows, const void *x,
                            const void *dy, int64_t dy_stride)
{
    TRY(quantised_expand(ctx->stream, map->w));
    TRY(measure_rows(ctx, map, rows, x));
    return op_dora_bwd(ctx->stream, &(dora_bwd_args){.rows = rows,
                                                     .n = map->out,
                                                     .dy_stride = dy_stride,
                                                     .dy = dy,
                                                     .z = ctx->lora->z,
                                                     .m = map->adapter.lengths->act,
                                                     .norm = ctx->lora->norm,
                                                     .dz = ctx->lora->z,
                                                     .dm = param_gradient(map->adapter.lengths)});
}

status linear_bwd(const pass_context *ctx, const linear *map, int64_t rows, const void *x,
                  const void *dy, int64_t dy_stride, void *dx, bool dx_add)
{
    int64_t stride = dy_stride ? dy_stride : map->out;
    if (map->adapter.lengths) {
        TRY(backward_dora(ctx, map, rows, x, dy, stride));
        dy = ctx->lora->z;
        stride = map->out;
    }
    if (map->w->grad)
        TRY(op_gemm(ctx->stream, &(gemm_args){.m = map->out,
                                              .n = map->in,
                                              .k = rows,
                                              .alpha = 1,
                                              .a = dy,
                                              .lda = stride,
                                              .trans_a = true,
                                              .b = x,
                                              .ldb = map->in,
                                              .c = map->w->grad,
                                              .ldc = map->in,
                                              .c_acc = true,
                                              .accumulate = true}));
    if (map->b && map->b->grad)
        TRY(op_bias_grad(
            ctx->stream,
            &(bias_grad_args){.rows = rows, .n = map->out, .dy = dy, .db = map->b->grad}));
    if (dx && !map->adapter.lengths) /* those have had it expanded */
        TRY(quantised_expand(ctx->stream, map->w));
    if (dx)
        TRY(op_gemm(ctx->stream, &(gemm_args){.m = rows,
                                              .n = map->in,
                                              .k = map->out,
                                              .alpha = 1,
                                              .a = dy,
                                              .lda = stride,
                                              .b = map->w->act,
                                              .ldb = map->in,
                                              .c = dx,
                                              .ldc = map->in,
                                              .accumulate = dx_add}));
    return map->adapter.a ? lora_linear_bwd(ctx, &map->adapter, rows, x, dy, stride, dx) : ST_OK;
}

status layernorm_fwd(const pass_context *ctx, const layernorm *norm, int64_t rows, int64_t width,
                     const void *x, void *y, void *mean, void *rstd)
{
    return op_layernorm_fwd(ctx->stream, &(layernorm_fwd_args){.rows = rows,
                                                               .n = width,
                                                               .eps = layernorm_eps,
                                                               .x = x,
                                                               .w = norm->w->act,
                                                               .b = norm->b->act,
                                                               .y = y,
                                                               .mean = mean,
                                                               .rstd = rstd});
}

status layernorm_bwd(const pass_context *ctx, const layernorm *norm, int64_t rows, int64_t width,
                     const void *x, const void *mean, const void *rstd, const void *dy, void *dx,
                     bool dx_add)
{
    return op_layernorm_bwd(ctx->stream, &(layernorm_bwd_args){.rows = rows,
                                                               .n = width,
                                                               .x = x,
                                                               .w = norm->w->act,
                                                               .mean = mean,
                                                               .rstd = rstd,
                                                               .dy = dy,
                                                               .dx = dx,
                                                               .dw = param_gradient(norm->w),
                                                               .db = param_gradient(norm->b),
                                                               .dx_accumulate = dx_add});
}

status rmsnorm_fwd(const pass_context *ctx, const param *weight, int64_t rows, int64_t width,
                   const void *x, void *y, void *rstd)
{
    return op_rmsnorm_fwd(ctx->stream, &(rmsnorm_fwd_args){.rows = rows,
                                                           .n = width,
                                                           .eps = ctx->dims->text.rms_eps,
                                                           .x = x,
                                                           .w = weight->act,
                                                           .y = y,
                                                           .rstd = rstd});
}

status rmsnorm_bwd(const pass_context *ctx, const param *weight, int64_t rows, int64_t width,
                   const void *x, const void *rstd, const void *dy, void *dx, bool dx_add)
{
    return op_rmsnorm_bwd(ctx->stream, &(rmsnorm_bwd_args){.rows = rows,
                                                           .n = width,
                                                           .x = x,
                                                           .w = weight->act,
                                                           .rstd = rstd,
                                                           .dy = dy,
                                                           .dx = dx,
                                                           .dw = param_gradient(weight),
                                                           .dx_accumulate = dx_add});
}

status add_to(const pass_context *ctx, int64_t count, const void *x, void *y)
{
    return op_add(ctx->stream, &(add_args){.n = count, .a = x, .y = y});
}
