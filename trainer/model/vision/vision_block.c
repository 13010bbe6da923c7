/* SPDX-License-Identifier: Apache-2.0 */
/* vision_block.c: a block of the vision tower, as vision.h describes it.
 *
 *   a  = LN(x; norm1)
 *   [q|k|v] = a Wqkvt + bqkv            q, k = rope2d(q), rope2d(k)
 *   o  = softmax(q kt / sqrt(d)) v      per head, not causal, inside a frame pair
 *   x1 = x + o Wprojt + bproj
 *   y  = x1 + gelu_tanh(LN(x1; norm2) W1t + b1) W2t + b2
 */

#include <math.h>

#include "trainer/model/vision/vision.h"
#include "trainer/ops/table.h"

void vision_block_bind(vision_block *bound, params *registry, int block)
{
    char name[96];
#define NAMED(part) (snprintf(name, sizeof name, "model.visual.blocks.%d.%s", block, part), name)
    bound->norm1 = layernorm_bind(registry, NAMED("norm1"));
    bound->norm2 = layernorm_bind(registry, NAMED("norm2"));
    bound->qkv = linear_bind(registry, NAMED("attn.qkv"), true);
    bound->proj = linear_bind(registry, NAMED("attn.proj"), true);
    bound->fc1 = linear_bind(registry, NAMED("mlp.linear_fc1"), true);
    bound->fc2 = linear_bind(registry, NAMED("mlp.linear_fc2"), true);
#undef NAMED
}

void vision_saved_layout(vision_saved *saved, space *sp, const shape *sizes, unsigned kinds)
{
    const vision_dims *dims = &sizes->dims->vision;
    int64_t patches = sizes->cap.patches, hidden = dims->hidden;
    if (kinds & RECOMPUTE_CHEAP) {
        saved->mean1 = space_take(sp, patches, sizes->acc);
        saved->rstd1 = space_take(sp, patches, sizes->acc);
        saved->a = space_take(sp, patches * hidden, sizes->act);
        saved->mean2 = space_take(sp, patches, sizes->acc);
        saved->rstd2 = space_take(sp, patches, sizes->acc);
        saved->m = space_take(sp, patches * hidden, sizes->act);
        saved->g = space_take(sp, patches * dims->intermediate, sizes->act);
    }
    if (kinds & RECOMPUTE_QKV)
        saved->qkv = space_take(sp, patches * 3 * hidden, sizes->act);
    if (kinds & RECOMPUTE_ATTENTION) {
        saved->o = space_take(sp, patches * hidden, sizes->act);
        saved->lse = space_take(sp, patches * dims->heads, sizes->acc);
    }
    if (kinds & RECOMPUTE_PROJ)
        saved->x1 = space_take(sp, patches * hidden, sizes->act);
    if (kinds & RECOMPUTE_FC1)
        saved->f = space_take(sp, patches * dims->intermediate, sizes->act);
}

void vision_scratch_layout(vision_scratch *scratch, space *sp, const shape *sizes)
{
    const vision_dims *dims = &sizes->dims->vision;
    int64_t patches = sizes->cap.patches;
    scratch->wide = space_take(sp, patches * dims->intermediate, sizes->act);
    scratch->narrow = space_take(sp, patches * dims->hidden, sizes->act);
    scratch->dqkv = space_take(sp, patches * 3 * dims->hidden, sizes->act);
    scratch->work = space_take(sp, patches * dims->heads, sizes->acc);
}

/* Rotates q and k of qkv [S, 3D] in place; inverse: rotates them back. */
static status rotate_qk(const pass_context *ctx, void *qkv, bool inverse)
{
    const vision_dims *dims = &ctx->dims->vision;
    for (int part = 0; part < 2; part++)
        TRY(op_rope_apply(ctx->stream,
                          &(rope_apply_args){.rows = ctx->sizes.patches,
                                             .heads = dims->heads,
                                             .head_dim = dims_vision_head_dim(ctx->dims),
                                             .x_stride = 3 * dims->hidden,
                                             .cos = ctx->vision_cos,
                                             .sin = ctx->vision_sin,
                                             .x = at(qkv, part * dims->hidden, ctx->act),
                                             .inverse = inverse}));
    return ST_OK;
}

/* qkv = projection of a, with q and k rotated */
static status project_patches(const pass_context *ctx, const vision_block *block,
                              const vision_saved *saved)
{
    TRY(linear_fwd(ctx, &block->qkv, ctx->sizes.patches, saved->a, saved->qkv, 0));
    return rotate_qk(ctx, saved->qkv, false);
}

/* The arguments that attention's forward and backward have in common. */
static attention_fwd_args attention_of(const pass_context *ctx, const vision_saved *saved)
{
    const vision_dims *dims = &ctx->dims->vision;
    int64_t hidden = dims->hidden, head_dim = dims_vision_head_dim(ctx->dims);
    return (attention_fwd_args){.tokens = ctx->sizes.patches,
                                .heads = dims->heads,
                                .kv_heads = dims->heads,
                                .head_dim = head_dim,
                                .segments = ctx->sizes.frames,
                                .longest = ctx->sizes.frame,
                                .scale = 1 / sqrt((double)head_dim),
                                .cu = ctx->batch->cu_frames,
                                .q = saved->qkv,
                                .k = at(saved->qkv, hidden, ctx->act),
                                .v = at(saved->qkv, 2 * hidden, ctx->act),
                                .q_stride = 3 * hidden,
                                .k_stride = 3 * hidden,
                                .v_stride = 3 * hidden,
                                .o_stride = hidden,
                                .o = saved->o,
                                .lse = saved->lse};
}

static status attend_patches(const pass_context *ctx, const vision_saved *saved)
{
    const attention_fwd_args args = attention_of(ctx, saved);
    return op_attention_fwd(ctx->stream, &args);
}

status vision_block_fwd(const pass_context *ctx, const vision_block *block, const void *x,
                        const vision_saved *saved, unsigned what, void *y)
{
    const vision_dims *dims = &ctx->dims->vision;
    int64_t patches = ctx->sizes.patches, hidden = dims->hidden;
    TRY(layernorm_fwd(ctx, &block->norm1, patches, hidden, x, saved->a, saved->mean1,
                      saved->rstd1));
    if (what & RECOMPUTE_QKV)
        TRY(project_patches(ctx, block, saved));
    if (what & RECOMPUTE_ATTENTION)
        TRY(attend_patches(ctx, saved));
    if (what & RECOMPUTE_PROJ)
        TRY(linear_fwd_onto(ctx, &block->proj, patches, saved->o, x, saved->x1));
    TRY(layernorm_fwd(ctx, &block->norm2, patches, hidden, saved->x1, saved->m, saved->mean2,
                      saved->rstd2));
    if (what & RECOMPUTE_FC1)
        TRY(linear_fwd(ctx, &block->fc1, patches, saved->m, saved->f, 0));
    TRY(op_gelu_fwd(ctx->stream, &(gelu_fwd_args){.kind = GELU_TANH,
                                                  .n = patches * dims->intermediate,
                                                  .x = saved->f,
                                                  .y = saved->g}));
    return y ? linear_fwd_onto(ctx, &block->fc2, patches, saved->g, saved->x1, y) : ST_OK;
}

static status attention_bwd(const pass_context *ctx, const vision_saved *saved,
                            const vision_scratch *scratch)
{
    const int64_t hidden = ctx->dims->vision.hidden;
    const attention_fwd_args fwd = attention_of(ctx, saved);
    attention_bwd_args args = attention_bwd_of(&fwd);
    args.do_ = scratch->narrow;
    args.dq = scratch->dqkv;
    args.dk = at(scratch->dqkv, hidden, ctx->act);
    args.dv = at(scratch->dqkv, 2 * hidden, ctx->act);
    args.work = scratch->work;
    return op_attention_bwd(ctx->stream, &args);
}

status vision_block_bwd(const pass_context *ctx, const vision_block *block, const void *x,
                        const vision_saved *saved, const vision_scratch *scratch, void *dy)
{
    const vision_dims *dims = &ctx->dims->vision;
    int64_t patches = ctx->sizes.patches, hidden = dims->hidden;
    TRY(linear_bwd(ctx, &block->fc2, patches, saved->g, dy, 0, scratch->wide,
                   false)); /* dg [S, F] */
    TRY(op_gelu_bwd(ctx->stream, &(gelu_bwd_args){.kind = GELU_TANH,
                                                  .n = patches * dims->intermediate,
                                                  .x = saved->f,
                                                  .dy = scratch->wide,
                                                  .dx = scratch->wide})); /* df [S, F] */
    TRY(linear_bwd(ctx, &block->fc1, patches, saved->m, scratch->wide, 0, scratch->narrow,
                   false)); /* dm [S, D] */
    TRY(layernorm_bwd(ctx, &block->norm2, patches, hidden, saved->x1, saved->mean2, saved->rstd2,
                      scratch->narrow, dy, true));
    TRY(linear_bwd(ctx, &block->proj, patches, saved->o, dy, 0, scratch->narrow,
                   false));                  /* do [S, D] */
    TRY(attention_bwd(ctx, saved, scratch)); /* dqkv [S, 3D] */
    TRY(rotate_qk(ctx, scratch->dqkv, true));
    TRY(linear_bwd(ctx, &block->qkv, patches, saved->a, scratch->dqkv, 0, scratch->narrow,
                   false)); /* da [S, D] */
    return layernorm_bwd(ctx, &block->norm1, patches, hidden, x, saved->mean1, saved->rstd1,
                         scratch->narrow, dy, true);
}
