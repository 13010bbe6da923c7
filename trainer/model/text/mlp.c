/* SPDX-License-Identifier: Apache-2.0 */
/* mlp.c: the dense MLP half of a decoder layer, as decoder.h describes it. */

#include "trainer/model/layers/layers.h"
#include "trainer/model/text/decoder.h"
#include "trainer/ops/table.h"

void mlp_bind(mlp *block, params *registry, int layer)
{
    char stem[96], name[128];
    snprintf(stem, sizeof stem, "%slayers.%d", registry->text_prefix, layer);
#define NAMED(part) (snprintf(name, sizeof name, "%s.mlp.%s", stem, part), name)
    block->layer = layer;
    block->norm = params_get(registry, "%s.post_attention_layernorm.weight", stem);
    block->gate = linear_bind(registry, NAMED("gate_proj"), false);
    block->up = linear_bind(registry, NAMED("up_proj"), false);
    block->down = linear_bind(registry, NAMED("down_proj"), false);
#undef NAMED
}

void mlp_saved_layout(mlp_saved *saved, space *sp, const shape *sizes, unsigned kinds)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t tokens = sizes->cap.tokens, wide = tensor_part(sizes->ranks, dims->intermediate);
    if (kinds & RECOMPUTE_CHEAP) {
        saved->rstd = space_take(sp, tokens, sizes->acc);
        saved->m = space_take(sp, tokens * dims->hidden, sizes->act);
        saved->a = space_take(sp, sizes->context_tokens * wide, sizes->act);
    }
    if (kinds & RECOMPUTE_FC1)
        saved->u = space_take(sp, sizes->context_tokens * 2 * wide, sizes->act);
}

void mlp_scratch_layout(mlp_scratch *scratch, space *sp, const shape *sizes, bool training)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t tc = sizes->context_tokens;
    *scratch = (mlp_scratch){0};
    if (sizes->ranks->tensor > 1)
        scratch->wide = space_take(sp, tc * dims->hidden, sizes->act);
    if (!training)
        return;
    scratch->da = space_take(sp, tc * tensor_part(sizes->ranks, dims->intermediate), sizes->act);
    scratch->dm = space_take(sp, tc * dims->hidden, sizes->act);
}

/* u = [gate | up] of m */
static status gate_up(const pass_context *ctx, const mlp *block, const mlp_saved *saved,
                      const mlp_scratch *scratch)
{
    int64_t tc = ctx->context_tokens, out = block->gate.out;
    const void *m;
    TRY(sequence_gather(ctx, (comm_at){"gather MLP input", block->layer}, saved->m,
                        ctx->dims->text.hidden, scratch->wide, &m));
    TRY(linear_fwd(ctx, &block->gate, tc, m, saved->u, 2 * out));
    return linear_fwd(ctx, &block->up, tc, m, at(saved->u, out, ctx->act), 2 * out);
}

status mlp_fwd(const pass_context *ctx, const mlp *block, const void *x, const mlp_saved *saved,
               const mlp_scratch *scratch, unsigned what, void *y)
{
    int64_t tc = ctx->context_tokens, out = block->gate.out;
    TRY(rmsnorm_fwd(ctx, block->norm, ctx->sizes.tokens, ctx->dims->text.hidden, x, saved->m,
                    saved->rstd));
    if (what & RECOMPUTE_FC1)
        TRY(gate_up(ctx, block, saved, scratch));
    TRY(op_swiglu_fwd(ctx->stream,
                      &(swiglu_fwd_args){.rows = tc, .width = out, .x = saved->u, .y = saved->a}));
    if (!y)
        return ST_OK;
    return linear_fwd_back(ctx, &block->down, (comm_at){"reduce MLP output", block->layer},
                           saved->a, x, scratch->wide, y);
}

status mlp_bwd(const pass_context *ctx, const mlp *block, const void *x, const mlp_saved *saved,
               const mlp_scratch *scratch, void *dy)
{
    const text_dims *dims = &ctx->dims->text;
    int64_t tc = ctx->context_tokens, out = block->gate.out;
    const void *all_dy, *m;
    TRY(sequence_gather(ctx, (comm_at){"gather MLP gradient", block->layer}, dy, dims->hidden,
                        scratch->wide, &all_dy));
    TRY(linear_bwd(ctx, &block->down, tc, saved->a, all_dy, 0, scratch->da,
                   false)); /* da [Tc, F] */
    TRY(op_swiglu_bwd(
        ctx->stream,
        &(swiglu_bwd_args){
            .rows = tc, .width = out, .x = saved->u, .dy = scratch->da, .dx = saved->u}));
    TRY(sequence_gather(ctx, (comm_at){"gather MLP input", block->layer}, saved->m, dims->hidden,
                        scratch->wide, &m));
    TRY(linear_bwd(ctx, &block->gate, tc, m, saved->u, 2 * out, scratch->dm,
                   false)); /* dm [Tc, H] */
    TRY(linear_bwd(ctx, &block->up, tc, m, at(saved->u, out, ctx->act), 2 * out, scratch->dm,
                   true));
    void *dm = scratch->wide ? scratch->wide : scratch->dm;
    TRY(sequence_reduce(ctx, (comm_at){"reduce MLP gradient", block->layer}, scratch->dm,
                        dims->hidden, dm));
    return rmsnorm_bwd(ctx, block->norm, ctx->sizes.tokens, dims->hidden, x, saved->rstd, dm, dy,
                       true);
}
