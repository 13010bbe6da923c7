/* SPDX-License-Identifier: Apache-2.0 */
/* merge.c: the mergers, and rows into and out of the token stream, as vision.h describes them.
 *
 *   final:      z = reshape(LN_D(x), [M, W])      deepstack:  z = LN_W(reshape(x, [M, W]))
 *   y = gelu_erf(z F1t + c1) F2t + c2
 *
 * In merge order four consecutive patches make one row, so the reshape moves nothing. */

#include "trainer/model/vision/vision.h"
#include "trainer/ops/table.h"

static int64_t factor(const model_dims *dims) /* patches per merged row */
{
    return dims->vision.merge * dims->vision.merge;
}

void merger_bind(merger *block, params *registry, int index)
{
    char stem[64], name[96];
    if (index < 0)
        snprintf(stem, sizeof stem, "model.visual.merger");
    else
        snprintf(stem, sizeof stem, "model.visual.deepstack_merger_list.%d", index);
    block->wide_norm = index >= 0;
    snprintf(name, sizeof name, "%s.norm", stem);
    block->norm = layernorm_bind(registry, name);
    snprintf(name, sizeof name, "%s.linear_fc1", stem);
    block->fc1 = linear_bind(registry, name, true);
    snprintf(name, sizeof name, "%s.linear_fc2", stem);
    block->fc2 = linear_bind(registry, name, true);
}

void merger_saved_layout(merger_saved *saved, space *sp, const shape *sizes, unsigned kinds)
{
    int64_t patches = sizes->cap.patches, hidden = sizes->dims->vision.hidden;
    if (kinds & RECOMPUTE_CHEAP) {
        saved->mean = space_take(sp, patches, sizes->acc);
        saved->rstd = space_take(sp, patches, sizes->acc);
        saved->z = space_take(sp, patches * hidden, sizes->act);
        saved->g = space_take(sp, patches * hidden, sizes->act);
    }
    if (kinds & RECOMPUTE_FC1)
        saved->f = space_take(sp, patches * hidden, sizes->act);
}

void merger_scratch_layout(merger_scratch *scratch, space *sp, const shape *sizes)
{
    int64_t patches = sizes->cap.patches, hidden = sizes->dims->vision.hidden;
    scratch->dg = space_take(sp, patches * hidden, sizes->act);
    scratch->dz = space_take(sp, patches * hidden, sizes->act);
}

static int64_t norm_rows(const pass_context *ctx, const merger *block)
{
    return block->wide_norm ? ctx->sizes.patches / factor(ctx->dims) : ctx->sizes.patches;
}

static int64_t norm_width(const pass_context *ctx, const merger *block)
{
    return ctx->dims->vision.hidden * (block->wide_norm ? factor(ctx->dims) : 1);
}

status merger_fwd(const pass_context *ctx, const merger *block, const void *x,
                  const merger_saved *saved, unsigned what, void *y)
{
    int64_t merged = ctx->sizes.patches / factor(ctx->dims),
            count = ctx->sizes.patches * ctx->dims->vision.hidden;
    TRY(layernorm_fwd(ctx, &block->norm, norm_rows(ctx, block), norm_width(ctx, block), x, saved->z,
                      saved->mean, saved->rstd));
    if (what & RECOMPUTE_FC1)
        TRY(linear_fwd(ctx, &block->fc1, merged, saved->z, saved->f, 0));
    TRY(op_gelu_fwd(ctx->stream,
                    &(gelu_fwd_args){.kind = GELU_ERF, .n = count, .x = saved->f, .y = saved->g}));
    return y ? linear_fwd(ctx, &block->fc2, merged, saved->g, y, 0) : ST_OK;
}

status merger_bwd(const pass_context *ctx, const merger *block, const void *x,
                  const merger_saved *saved, const merger_scratch *scratch, const void *dy,
                  void *dx, bool dx_add)
{
    int64_t merged = ctx->sizes.patches / factor(ctx->dims),
            count = ctx->sizes.patches * ctx->dims->vision.hidden;
    TRY(linear_bwd(ctx, &block->fc2, merged, saved->g, dy, 0, scratch->dg, false)); /* dg [M, W] */
    TRY(op_gelu_bwd(
        ctx->stream,
        &(gelu_bwd_args){
            .kind = GELU_ERF, .n = count, .x = saved->f, .dy = scratch->dg, .dx = scratch->dg}));
    TRY(linear_bwd(ctx, &block->fc1, merged, saved->z, scratch->dg, 0, scratch->dz,
                   false)); /* dz [M, W] */
    return layernorm_bwd(ctx, &block->norm, norm_rows(ctx, block), norm_width(ctx, block), x,
                         saved->mean, saved->rstd, scratch->dz, dx ? dx : scratch->dz,
                         dx && dx_add);
}

status merge_insert(const pass_context *ctx, const void *y, void *h)
{
    return op_rows_gather(ctx->stream, &(rows_gather_args){.n = ctx->sizes.tokens,
                                                           .width = ctx->dims->text.hidden,
                                                           .index = ctx->batch->visual_index,
                                                           .x = y,
                                                           .y = h,
                                                           .keep = true});
}

status merge_add(const pass_context *ctx, const void *y, void *h, void *scratch)
{
    TRY(op_rows_gather(ctx->stream, &(rows_gather_args){.n = ctx->sizes.tokens,
                                                        .width = ctx->dims->text.hidden,
                                                        .index = ctx->batch->visual_index,
                                                        .x = y,
                                                        .y = scratch}));
    return add_to(ctx, ctx->sizes.tokens * ctx->dims->text.hidden, scratch, h);
}

status merge_collect(const pass_context *ctx, const void *dh, void *dy)
{
    const layout *degrees = &ctx->mesh->layout;
    int64_t merged = ctx->batch->feature_rows * degrees->context * degrees->tensor,
            hidden = ctx->dims->text.hidden;
    TRY(ctx->stream->dev->backend->zero(ctx->stream, dy, (size_t)(merged * hidden) * ctx->act));
    return op_rows_scatter(ctx->stream,
                           &(rows_scatter_args){.n = ctx->sizes.tokens,
                                                .width = hidden,
                                                .y_rows = merged,
                                                .index = ctx->batch->visual_index,
                                                .x = dh,
                                                .y = dy,
                                                .distinct = ctx->batch->visual_distinct});
}
