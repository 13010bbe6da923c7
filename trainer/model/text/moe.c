/* SPDX-License-Identifier: Apache-2.0 */
/* moe.c: router and experts of a decoder layer; the experts here are all on this rank.
 *
 *   m = RMSNorm(x)                         z = m Wgt [T, E],  p = softmax(z)
 *   experts e(t, k), weights w(t, k) = the K largest p, rescaled to sum 1
 *   slot s of (t, k):  [g|u] = m_t GU_e,   a = silu(g) * u,   o = a DN_e
 *   y_t = x_t + sum_k w(t, k) o(t, k)
 *
 * Backward: do = w dy, dw = <dy, o>; dDN_e = at do, da = do DN_et; dGU_e = mt [dg|du];
 * dm_t = sum_k [dg|du] GU_et + dz Wg, where dz comes from dw and from the auxiliary loss. */

#include "trainer/model/layers/layers.h"
#include "trainer/model/params/quantised.h"
#include "trainer/model/text/decoder.h"
#include "trainer/ops/table.h"

void moe_bind(moe *block, params *registry, int layer)
{
    char stem[96], name[128];
    snprintf(stem, sizeof stem, "%slayers.%d", registry->text_prefix, layer);
    snprintf(name, sizeof name, "%s.mlp.gate", stem);
    block->layer = layer;
    block->norm = params_get(registry, "%s.post_attention_layernorm.weight", stem);
    block->gate = linear_bind(registry, name, false);
    block->gate_up = params_get(registry, "%s.mlp.experts.gate_up_proj", stem);
    block->down = params_get(registry, "%s.mlp.experts.down_proj", stem);
    block->gate_up_adapter = lora_bind(block->gate_up);
    block->down_adapter = lora_bind(block->down);
}

void moe_saved_layout(moe_saved *saved, space *sp, const shape *sizes, unsigned kinds)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t tokens = sizes->cap.tokens, slots = tokens * sizes->ranks->expert_tensor * dims->top_k;
    if (kinds & RECOMPUTE_CHEAP) {
        saved->rstd = space_take(sp, tokens, sizes->acc);
        saved->m = space_take(sp, tokens * dims->hidden, sizes->act);
    }
    if (kinds & RECOMPUTE_ROUTE) {
        saved->probs = space_take(sp, tokens * dims->experts, sizes->acc);
        saved->expert = space_take(sp, tokens * dims->top_k, sizeof(int32_t));
        saved->weight = space_take(sp, tokens * dims->top_k, sizes->acc);
        saved->offset = space_take(sp, dims->experts + 1, sizeof(int32_t));
        saved->slot_row = space_take(sp, slots, sizeof(int32_t));
        saved->row_token = space_take(sp, slots, sizeof(int32_t));
    }
    if ((kinds & RECOMPUTE_FC1) && !exchange_is_needed(sizes->ranks))
        saved->gu = space_take(sp, slots * 2 * dims->expert_width, sizes->act);
    if (kinds & RECOMPUTE_FC2)
        saved->o = space_take(sp, slots * dims->hidden, sizes->act);
}

void moe_scratch_layout(moe_scratch *scratch, space *sp, const shape *sizes, bool training)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t tokens = sizes->cap.tokens, slots = tokens * sizes->ranks->expert_tensor * dims->top_k;
    scratch->logits = space_take(sp, tokens * dims->experts, sizes->act);
    scratch->xp = space_take(sp, slots * dims->hidden, sizes->act);
    if (exchange_is_needed(sizes->ranks))
        moe_shared_layout(scratch, sp, sizes);
    else
        scratch->a = space_take(sp, slots * dims->expert_width, sizes->act);
    if (!training)
        return;
    scratch->dweight = space_take(sp, tokens * dims->top_k, sizes->acc);
    scratch->dm = space_take(sp, tokens * dims->hidden, sizes->act);
}

/* True if other ranks of the pipeline stage add to the statistics too. */
static bool shares_stage(const pass_context *ctx)
{
    return ctx->mesh && mesh_comm(ctx->mesh, MESH_STAGE)->size > 1;
}

void moe_aux_layout(moe_aux *aux, space *sp, int64_t experts, size_t acc)
{
    aux->count_total = space_take(sp, moe_aux_elements(experts), acc);
    aux->sent = space_take(sp, moe_aux_elements(experts), acc);
    aux->prob_sum = sp->base ? at(aux->count_total, experts, acc) : NULL;
    aux->of_batch = sp->base ? at(aux->count_total, 2 * experts, acc) : NULL;
}

status moe_aux_clear(const pass_context *ctx, const moe_aux *aux)
{
    const backend_vtable *backend = ctx->stream->dev->backend;
    TRY(backend->zero(ctx->stream, aux->count_total,
                      (size_t)(2 * ctx->dims->text.experts) * ctx->acc));
    return backend->copy(ctx->stream, aux->of_batch, ctx->batch->aux_scale, 2 * ctx->acc);
}

static const int32_t *token_samples(const pass_context *ctx)
{
    return ctx->batch->has_prefixes ? ctx->batch->token_samples : NULL;
}

static status aux_op(const pass_context *ctx, const moe_aux *aux, int phase, const int32_t *count,
                     const void *probs, void *dlogits)
{
    return op_route_aux(
        ctx->stream,
        &(route_aux_args){
            .phase = phase,
            .tokens = ctx->sizes.tokens,
            .experts = ctx->dims->text.experts,
            .n_layers = aux->n_layers,
            .n_valid = ctx->batch->n_tokens,
            .all_valid = at(shares_stage(ctx) ? aux->of_batch : ctx->batch->aux_scale, 1, ctx->acc),
            .samples = token_samples(ctx),
            .count = count,
            .probs = probs,
            .count_total = aux->count_total,
            .prob_sum = aux->prob_sum,
            .aux = aux->value,
            .scale = shares_stage(ctx) ? aux->of_batch : ctx->batch->aux_scale,
            .dlogits = dlogits});
}

/* Runs the router: probabilities, choices and their weights, slots sorted by expert. */
static status route_tokens(const pass_context *ctx, const moe *block, const moe_saved *saved,
                           const moe_scratch *scratch, int32_t *count)
{
    const text_dims *dims = &ctx->dims->text;
    const void *bias =
        ctx->router_bias ? at(ctx->router_bias, block->layer * dims->experts, ctx->act) : NULL;
    TRY(linear_fwd_biased(ctx, &block->gate, ctx->sizes.tokens, saved->m, bias, scratch->logits));
    TRY(op_route_fwd(ctx->stream, &(route_fwd_args){.tokens = ctx->sizes.tokens,
                                                    .experts = dims->experts,
                                                    .top_k = dims->top_k,
                                                    .norm_topk = dims->norm_topk_prob,
                                                    .n_valid = ctx->batch->n_tokens,
                                                    .logits = scratch->logits,
                                                    .expert = saved->expert,
                                                    .weight = saved->weight,
                                                    .probs = saved->probs,
                                                    .count = count,
                                                    .samples = token_samples(ctx)}));
    return op_permute(ctx->stream, &(permute_args){.tokens = ctx->sizes.tokens,
                                                   .experts = dims->experts,
                                                   .top_k = dims->top_k,
                                                   .expert = saved->expert,
                                                   .offset = saved->offset,
                                                   .slot_row = saved->slot_row,
                                                   .row_token = saved->row_token});
}

/* xp [slots, H] = the input of each slot's token. */
static status spread_tokens(const pass_context *ctx, const moe_saved *saved, void *xp)
{
    return op_rows_gather(ctx->stream,
                          &(rows_gather_args){.n = ctx->sizes.tokens * ctx->dims->text.top_k,
                                              .width = ctx->dims->text.hidden,
                                              .index = saved->row_token,
                                              .copies = ctx->dims->text.top_k,
                                              .places = saved->slot_row,
                                              .x = saved->m,
                                              .y = xp});
}

static int64_t slots_of(const pass_context *ctx)
{
    return ctx->sizes.tokens * ctx->dims->text.top_k;
}

/* a = silu(gate) * up, for the slots in use */
static status activate(const pass_context *ctx, const moe_saved *saved, void *a)
{
    const text_dims *dims = &ctx->dims->text;
    return op_swiglu_fwd(ctx->stream, &(swiglu_fwd_args){.rows = ctx->sizes.tokens * dims->top_k,
                                                         .width = dims->expert_width,
                                                         .n_valid = saved->offset + dims->experts,
                                                         .x = saved->gu,
                                                         .y = a});
}

/* gu = xp GU_e for each slot, and a = silu(g) * u. drop_gu: gu need not be written. */
static status gate_up(const pass_context *ctx, const moe *block, const moe_saved *saved,
                      const moe_scratch *scratch, bool drop_gu)
{
    if (block->gate_up_adapter.a) { /* the adapter adds to gu, so the activation comes after it */
        TRY(experts_product(ctx, block->gate_up, &block->gate_up_adapter, slots_of(ctx),
                            saved->offset, scratch->xp, saved->gu));
        return activate(ctx, saved, scratch->a);
    }
    TRY(quantised_expand(ctx->stream, block->gate_up));
    return op_grouped_gemm(ctx->stream, &(grouped_gemm_args){.mode = GROUPED_FWD,
                                                             .experts = block->gate_up->shape[0],
                                                             .k = block->gate_up->shape[1],
                                                             .n = block->gate_up->shape[2],
                                                             .rows_cap = slots_of(ctx),
                                                             .offset = saved->offset,
                                                             .x = scratch->xp,
                                                             .w = block->gate_up->act,
                                                             .y = saved->gu,
                                                             .gated = scratch->a,
                                                             .y_dropped = drop_gu});
}

/* Norm and, if `what` names them, choices; then the statistics of the auxiliary loss. */
static status router_fwd(const pass_context *ctx, const moe *block, const void *x,
                         const moe_saved *saved, const moe_scratch *scratch, int32_t *count,
                         const moe_aux *aux, unsigned what)
{
    TRY(rmsnorm_fwd(ctx, block->norm, ctx->sizes.tokens, ctx->dims->text.hidden, x, saved->m,
                    saved->rstd));
    if (what & RECOMPUTE_ROUTE)
        TRY(route_tokens(ctx, block, saved, scratch, count));
    return aux && aux->on ? aux_op(ctx, aux, AUX_ADD_STATS, count, saved->probs, NULL) : ST_OK;
}

/* Runs the experts on the slots: the arrays of kinds RECOMPUTE_FC1 and RECOMPUTE_FC2. */
static status experts_fwd(const pass_context *ctx, const moe *block, const moe_saved *saved,
                          const moe_scratch *scratch, bool once, unsigned what)
{
    TRY(spread_tokens(ctx, saved, scratch->xp));
    TRY(what & RECOMPUTE_FC1 ? gate_up(ctx, block, saved, scratch, once)
                             : activate(ctx, saved, scratch->a));
    if (!(what & RECOMPUTE_FC2))
        return ST_OK;
    return experts_product(ctx, block->down, &block->down_adapter, slots_of(ctx), saved->offset,
                           scratch->a, saved->o);
}

static status combine_slots(const pass_context *ctx, const moe_saved *saved, const void *x, void *y)
{
    return op_combine_fwd(ctx->stream, &(combine_fwd_args){.tokens = ctx->sizes.tokens,
                                                           .top_k = ctx->dims->text.top_k,
                                                           .width = ctx->dims->text.hidden,
                                                           .slot_row = saved->slot_row,
                                                           .weight = saved->weight,
                                                           .o = saved->o,
                                                           .residual = x,
                                                           .y = y});
}

static status slots_fwd(const pass_context *ctx, const moe *block, const void *x,
                        const moe_saved *saved, const moe_scratch *scratch, bool once, void *y)
{
    TRY(experts_fwd(ctx, block, saved, scratch, once, RECOMPUTE_ALL));
    return combine_slots(ctx, saved, x, y);
}

status moe_fwd(const pass_context *ctx, const moe *block, const void *x, const moe_saved *saved,
               const moe_scratch *scratch, int32_t *count, const moe_aux *aux, bool once, void *y)
{
    bool done;
    TRY(run_piece(ctx, REPLAY_ROUTER, REPLAY_FORWARD, block->layer, &done));
    if (!done)
        TRY(graph_replay_end(ctx->stream,
                             router_fwd(ctx, block, x, saved, scratch, count, aux, RECOMPUTE_ALL)));
    if (exchange_is_needed(
            &ctx->mesh->layout)) /* not a piece: the host may read counts in between */
        return moe_shared_fwd(ctx, block, x, saved, scratch, y);
    TRY(run_piece(ctx, REPLAY_EXPERTS, REPLAY_FORWARD, block->layer, &done));
    return done ? ST_OK
                : graph_replay_end(ctx->stream, slots_fwd(ctx, block, x, saved, scratch, once, y));
}

status moe_recomputed(const pass_context *ctx, const moe *block, const void *x,
                      const moe_saved *saved, const moe_scratch *scratch, int32_t *count,
                      unsigned what, bool *out_fresh)
{
    const bool is_shared = exchange_is_needed(&ctx->mesh->layout);
    bool done;
    *out_fresh = !is_shared && (what & (RECOMPUTE_FC1 | RECOMPUTE_FC2));
    TRY(run_piece(ctx, REPLAY_ROUTER, REPLAY_AGAIN, block->layer, &done));
    if (!done)
        TRY(graph_replay_end(ctx->stream,
                             router_fwd(ctx, block, x, saved, scratch, count, NULL, what)));
    if (is_shared)
        return what & RECOMPUTE_FC2 ? moe_shared_fwd(ctx, block, x, saved, scratch, NULL) : ST_OK;
    if (!*out_fresh)
        return ST_OK;
    TRY(run_piece(ctx, REPLAY_EXPERTS, REPLAY_AGAIN, block->layer, &done));
    return done ? ST_OK
                : graph_replay_end(ctx->stream,
                                   experts_fwd(ctx, block, saved, scratch, false, what));
}

status moe_aux_value(const pass_context *ctx, const moe_aux *aux)
{
    return aux_op(ctx, aux, AUX_FINISH, NULL, NULL, NULL);
}

status moe_aux_sum(const pass_context *ctx, const moe_aux *aux)
{
    if (shares_stage(ctx))
        TRY(comm_all_reduce(mesh_comm(ctx->mesh, MESH_STAGE), ctx->stream,
                            (comm_at){"sum router statistics", -1}, aux->count_total,
                            moe_aux_elements(ctx->dims->text.experts),
                            ctx->stream->dev->backend->acc, COMM_SUM));
    return moe_aux_value(ctx, aux);
}

/* Adds the gradients of the experts' weights; scratch->dm [T, H] = the experts' part of m's
 * gradient. */
static status experts_bwd(const pass_context *ctx, const moe *block, const moe_saved *saved,
                          const moe_scratch *scratch, bool fresh, const void *dy)
{
    const text_dims *dims = &ctx->dims->text;
    TRY(op_combine_bwd(ctx->stream, &(combine_bwd_args){.tokens = ctx->sizes.tokens,
                                                        .top_k = dims->top_k,
                                                        .width = dims->hidden,
                                                        .slot_row = saved->slot_row,
                                                        .weight = saved->weight,
                                                        .o = saved->o,
                                                        .dy = dy,
                                                        .do_ = saved->o,
                                                        .dweight = scratch->dweight}));
    if (!fresh)
        TRY(activate(ctx, saved, scratch->a));
    TRY(experts_product_bwd(ctx, block->down, &block->down_adapter, slots_of(ctx), saved->offset,
                            scratch->a, saved->o, scratch->a)); /* da [slots, I] in a */
    TRY(op_swiglu_bwd(ctx->stream, &(swiglu_bwd_args){.rows = ctx->sizes.tokens * dims->top_k,
                                                      .width = dims->expert_width,
                                                      .n_valid = saved->offset + dims->experts,
                                                      .x = saved->gu,
                                                      .dy = scratch->a,
                                                      .dx = saved->gu})); /* [dg|du] [slots, 2I] */
    if (!fresh)
        TRY(spread_tokens(ctx, saved, scratch->xp));
    TRY(experts_product_bwd(ctx, block->gate_up, &block->gate_up_adapter, slots_of(ctx),
                            saved->offset, scratch->xp, saved->gu,
                            scratch->xp)); /* dxp [slots, H] */
    return op_combine_fwd(
        ctx->stream, &(combine_fwd_args){.tokens = ctx->sizes.tokens,
                                         .top_k = dims->top_k,
                                         .width = dims->hidden,
                                         .slot_row = saved->slot_row,
                                         .weight = NULL, /* the plain sum over a token's slots */
                                         .o = scratch->xp,
                                         .y = scratch->dm});
}

/* dlogits [T, E] from dweight and the auxiliary loss, then through gate and norm to dy. */
static status router_bwd(const pass_context *ctx, const moe *block, const void *x,
                         const moe_saved *saved, const moe_scratch *scratch, const int32_t *count,
                         const moe_aux *aux, void *dy)
{
    const text_dims *dims = &ctx->dims->text;
    TRY(op_route_bwd(ctx->stream, &(route_bwd_args){.tokens = ctx->sizes.tokens,
                                                    .experts = dims->experts,
                                                    .top_k = dims->top_k,
                                                    .norm_topk = dims->norm_topk_prob,
                                                    .n_valid = ctx->batch->n_tokens,
                                                    .expert = saved->expert,
                                                    .weight = saved->weight,
                                                    .probs = saved->probs,
                                                    .dweight = scratch->dweight,
                                                    .dlogits = scratch->logits}));
    if (aux->on)
        TRY(aux_op(ctx, aux, AUX_GRAD, count, saved->probs, scratch->logits));
    TRY(linear_bwd(ctx, &block->gate, ctx->sizes.tokens, saved->m, scratch->logits, 0, scratch->dm,
                   true));
    return rmsnorm_bwd(ctx, block->norm, ctx->sizes.tokens, dims->hidden, x, saved->rstd,
                       scratch->dm, dy, true);
}

status moe_bwd(const pass_context *ctx, const moe *block, const void *x, const moe_saved *saved,
               const moe_scratch *scratch, const int32_t *count, const moe_aux *aux, bool fresh,
               void *dy)
{
    bool done;
    if (exchange_is_needed(&ctx->mesh->layout)) {
        TRY(moe_shared_bwd(ctx, block, saved, scratch, dy));
    } else {
        TRY(run_piece(ctx, REPLAY_EXPERTS, REPLAY_BACKWARD, block->layer, &done));
        if (!done)
            TRY(graph_replay_end(ctx->stream, experts_bwd(ctx, block, saved, scratch, fresh, dy)));
    }
    TRY(run_piece(ctx, REPLAY_ROUTER, REPLAY_BACKWARD, block->layer, &done));
    return done ? ST_OK
                : graph_replay_end(ctx->stream,
                                   router_bwd(ctx, block, x, saved, scratch, count, aux, dy));
}
