/* SPDX-License-Identifier: Apache-2.0 */
/* moe_shared.c: experts that ranks share: the part of moe.c between the router and the sum over a
 * token's experts.
 *
 * Each expert is on one of P ranks (exchange.h). With expert-tensor parallelism its width is also
 * cut over the tensor ranks. Each of these then sends the tokens of all of them, W = T x tensor,
 * and computes a part of every output. The outputs, the gradients of the inputs and the gradients
 * of the choices' weights are therefore summed over tensor ranks, and each takes its own tokens. */

#include "trainer/model/layers/layers.h"
#include "trainer/model/text/decoder.h"
#include "trainer/ops/table.h"

/* True if the width of experts is cut over tensor ranks. */
static bool cuts_experts(const layout *degrees)
{
    return degrees->expert_tensor > 1;
}

/* W, the tokens whose slots this rank sends. */
static int64_t seen_tokens(const pass_context *ctx)
{
    return cuts_experts(&ctx->mesh->layout) ? ctx->context_tokens : ctx->sizes.tokens;
}

void moe_shared_layout(moe_scratch *scratch, space *sp, const shape *sizes)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t choices = sizes->context_tokens * dims->top_k;
    exchange_layout(&scratch->exchange, sp, sizes);
    if (!cuts_experts(sizes->ranks))
        return;
    scratch->wide = space_take(sp, sizes->context_tokens * dims->hidden, sizes->act);
    scratch->wide_expert = space_take(sp, choices, sizeof(int32_t));
    scratch->wide_weight = space_take(sp, choices, sizes->acc);
    scratch->wide_dweight = space_take(sp, choices, sizes->acc);
}

/* wide [W, K] = x [T, K] of every tensor rank; x holds choices or their weights. */
static status gather_choices(const pass_context *ctx, const moe *block, const void *x, void *wide,
                             st_dtype dtype)
{
    return comm_all_gather(mesh_comm(ctx->mesh, MESH_TENSOR), ctx->stream,
                           (comm_at){"gather choices", block->layer}, x, wide,
                           ctx->sizes.tokens * ctx->dims->text.top_k, dtype);
}

/* *out [W, K] = the weights of the choices. */
static status see_weights(const pass_context *ctx, const moe *block, const moe_saved *saved,
                          const moe_scratch *scratch, const void **out)
{
    *out = cuts_experts(&ctx->mesh->layout) ? scratch->wide_weight : saved->weight;
    if (*out == saved->weight)
        return ST_OK;
    return gather_choices(ctx, block, saved->weight, scratch->wide_weight,
                          ctx->stream->dev->backend->acc);
}

/* Sorts the slots of all W tokens, in place of those of this rank's own. */
static status see_slots(const pass_context *ctx, const moe *block, const moe_saved *saved,
                        const moe_scratch *scratch)
{
    if (!cuts_experts(&ctx->mesh->layout))
        return ST_OK;
    TRY(gather_choices(ctx, block, saved->expert, scratch->wide_expert, DT_I32));
    return op_permute(ctx->stream, &(permute_args){.tokens = ctx->context_tokens,
                                                   .experts = ctx->dims->text.experts,
                                                   .top_k = ctx->dims->text.top_k,
                                                   .expert = scratch->wide_expert,
                                                   .offset = saved->offset,
                                                   .slot_row = saved->slot_row,
                                                   .row_token = saved->row_token});
}

/* xp [W K, H] = the input of each slot's token. */
static status spread_shared(const pass_context *ctx, const moe *block, const moe_saved *saved,
                            const moe_scratch *scratch)
{
    const void *m = saved->m;
    if (cuts_experts(&ctx->mesh->layout))
        TRY(sequence_gather(ctx, (comm_at){"gather expert input", block->layer}, saved->m,
                            ctx->dims->text.hidden, scratch->wide, &m));
    return op_rows_gather(ctx->stream,
                          &(rows_gather_args){.n = seen_tokens(ctx) * ctx->dims->text.top_k,
                                              .width = ctx->dims->text.hidden,
                                              .index = saved->row_token,
                                              .copies = ctx->dims->text.top_k,
                                              .places = saved->slot_row,
                                              .x = m,
                                              .y = scratch->xp});
}

/* y [T, H] = for each token the sum over its slots of o, times weight unless that is NULL. */
static status combine_shared(const pass_context *ctx, comm_at at, const moe_saved *saved,
                             const moe_scratch *scratch, const void *weight, const void *o, void *y)
{
    const bool wide = cuts_experts(&ctx->mesh->layout);
    TRY(op_combine_fwd(ctx->stream, &(combine_fwd_args){.tokens = seen_tokens(ctx),
                                                        .top_k = ctx->dims->text.top_k,
                                                        .width = ctx->dims->text.hidden,
                                                        .slot_row = saved->slot_row,
                                                        .weight = weight,
                                                        .o = o,
                                                        .y = wide ? scratch->wide : y}));
    return wide ? sequence_reduce(ctx, at, scratch->wide, ctx->dims->text.hidden, y) : ST_OK;
}

static exchange_weights weights_of(const moe *block)
{
    return (exchange_weights){.layer = block->layer,
                              .gate_up = block->gate_up,
                              .down = block->down,
                              .gate_up_adapter = block->gate_up_adapter,
                              .down_adapter = block->down_adapter};
}

status moe_shared_fwd(const pass_context *ctx, const moe *block, const void *x,
                      const moe_saved *saved, const moe_scratch *scratch, void *y)
{
    const exchange_weights experts = weights_of(block);
    const void *weight;
    TRY(see_slots(ctx, block, saved, scratch));
    TRY(spread_shared(ctx, block, saved, scratch));
    TRY(exchange_fwd(ctx, &scratch->exchange, &experts, saved->offset, scratch->xp, saved->o));
    if (!y)
        return ST_OK;
    TRY(see_weights(ctx, block, saved, scratch, &weight));
    TRY(combine_shared(ctx, (comm_at){"reduce expert output", block->layer}, saved, scratch, weight,
                       saved->o, y));
    return add_to(ctx, ctx->sizes.tokens * ctx->dims->text.hidden, x, y);
}

status moe_shared_bwd(const pass_context *ctx, const moe *block, const moe_saved *saved,
                      const moe_scratch *scratch, const void *dy)
{
    const text_dims *dims = &ctx->dims->text;
    const bool wide = cuts_experts(&ctx->mesh->layout);
    const exchange_weights experts = weights_of(block);
    const void *weight, *all_dy = dy;
    TRY(see_weights(ctx, block, saved, scratch, &weight));
    if (wide)
        TRY(sequence_gather(ctx, (comm_at){"gather expert gradient", block->layer}, dy,
                            dims->hidden, scratch->wide, &all_dy));
    TRY(op_combine_bwd(ctx->stream, &(combine_bwd_args){.tokens = seen_tokens(ctx),
                                                        .top_k = dims->top_k,
                                                        .width = dims->hidden,
                                                        .slot_row = saved->slot_row,
                                                        .weight = weight,
                                                        .o = saved->o,
                                                        .dy = all_dy,
                                                        .do_ = saved->o,
                                                        .dweight = wide ? scratch->wide_dweight
                                                                        : scratch->dweight}));
    if (wide)
        TRY(comm_reduce_scatter(mesh_comm(ctx->mesh, MESH_TENSOR), ctx->stream,
                                (comm_at){"reduce gradients of choices", block->layer},
                                scratch->wide_dweight, scratch->dweight,
                                ctx->sizes.tokens * dims->top_k, ctx->stream->dev->backend->acc));
    TRY(spread_shared(ctx, block, saved, scratch));
    TRY(exchange_bwd(ctx, &scratch->exchange, &experts, saved->offset, scratch->xp, saved->o));
    return combine_shared(ctx, (comm_at){"reduce expert gradient", block->layer}, saved, scratch,
                          NULL, scratch->xp, scratch->dm);
}
