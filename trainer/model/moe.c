/* moe.c: router and experts of a decoder layer; the experts here are all on this rank.
 *
 *   m = RMSNorm(x)                         z = m Wgt [T, E],  p = softmax(z)
 *   experts e(t, k), weights w(t, k) = the K largest p, rescaled to sum 1
 *   slot s of (t, k):  [g|u] = m_t GU_e,   a = silu(g) * u,   o = a DN_e
 *   y_t = x_t + sum_k w(t, k) o(t, k)
 *
 * Backward: do = w dy, dw = <dy, o>; dDN_e = at do, da = do DN_et; dGU_e = mt [dg|du];
 * dm_t = sum_k [dg|du] GU_et + dz Wg, where dz comes from dw and from the auxiliary loss. */
#include "trainer/model/moe.h"

#include "trainer/model/grouped_product.h"
#include "trainer/ops/table.h"

void moe_bind(moe *w, params *p, int layer)
{
    char stem[96], name[128];
    snprintf(stem, sizeof stem, "%slayers.%d", p->text_prefix, layer);
    snprintf(name, sizeof name, "%s.mlp.gate", stem);
    w->layer = layer;
    w->norm = params_get(p, "%s.post_attention_layernorm.weight", stem);
    w->gate = linear_bind(p, name, false);
    w->gate_up = params_get(p, "%s.mlp.experts.gate_up_proj", stem);
    w->down = params_get(p, "%s.mlp.experts.down_proj", stem);
    w->gate_up_adapter = lora_bind(w->gate_up);
    w->down_adapter = lora_bind(w->down);
}

void moe_saved_layout(moe_saved *k, space *sp, const shape *z, unsigned kinds)
{
    const text_dims *d = &z->d->text;
    int64_t t = z->cap.tokens, slots = t * z->ranks->expert_tensor * d->top_k;
    if (kinds & RECOMPUTE_CHEAP) {
        k->rstd = space_take(sp, t, z->acc);
        k->m = space_take(sp, t * d->hidden, z->act);
    }
    if (kinds & RECOMPUTE_ROUTE) {
        k->probs = space_take(sp, t * d->experts, z->acc);
        k->expert = space_take(sp, t * d->top_k, sizeof(int32_t));
        k->weight = space_take(sp, t * d->top_k, z->acc);
        k->offset = space_take(sp, d->experts + 1, sizeof(int32_t));
        k->slot_row = space_take(sp, slots, sizeof(int32_t));
        k->row_token = space_take(sp, slots, sizeof(int32_t));
    }
    if ((kinds & RECOMPUTE_FC1) && !moe_is_shared(z->ranks))
        k->gu = space_take(sp, slots * 2 * d->expert_width, z->act);
    if (kinds & RECOMPUTE_FC2)
        k->o = space_take(sp, slots * d->hidden, z->act);
}

void moe_scratch_layout(moe_scratch *t, space *sp, const shape *z, bool training)
{
    const text_dims *d = &z->d->text;
    int64_t n = z->cap.tokens, slots = n * z->ranks->expert_tensor * d->top_k;
    t->logits = space_take(sp, n * d->experts, z->act);
    t->xp = space_take(sp, slots * d->hidden, z->act);
    if (moe_is_shared(z->ranks))
        moe_shared_layout(t, sp, z);
    else
        t->a = space_take(sp, slots * d->expert_width, z->act);
    if (!training)
        return;
    t->dweight = space_take(sp, n * d->top_k, z->acc);
    t->dm = space_take(sp, n * d->hidden, z->act);
}

/* True if other ranks of the pipeline stage add to the statistics too. */
static bool shares_stage(const pass_context *r)
{
    return r->mesh && mesh_comm(r->mesh, MESH_STAGE)->size > 1;
}

void moe_aux_layout(moe_aux *aux, space *sp, int64_t experts, size_t acc)
{
    aux->count_total = space_take(sp, moe_aux_elements(experts), acc);
    aux->sent = space_take(sp, moe_aux_elements(experts), acc);
    aux->prob_sum = sp->base ? at(aux->count_total, experts, acc) : NULL;
    aux->of_batch = sp->base ? at(aux->count_total, 2 * experts, acc) : NULL;
}

status moe_aux_clear(const pass_context *r, const moe_aux *aux)
{
    const backend_vtable *v = r->s->dev->v;
    TRY(v->zero(r->s, aux->count_total, (size_t)(2 * r->d->text.experts) * r->acc));
    return v->copy(r->s, aux->of_batch, r->b->aux_scale, 2 * r->acc);
}

static status aux_op(const pass_context *r, const moe_aux *aux, int phase, const int32_t *count,
                     const void *probs, void *dlogits)
{
    return op_route_aux(
        r->s, &(route_aux_args){.phase = phase,
                                .tokens = r->n.tokens,
                                .experts = r->d->text.experts,
                                .n_layers = aux->n_layers,
                                .n_valid = r->b->n_tokens,
                                .all_valid = shares_stage(r) ? at(aux->of_batch, 1, r->acc) : NULL,
                                .count = count,
                                .probs = probs,
                                .count_total = aux->count_total,
                                .prob_sum = aux->prob_sum,
                                .aux = aux->value,
                                .scale = shares_stage(r) ? aux->of_batch : r->b->aux_scale,
                                .dlogits = dlogits});
}

/* Runs the router: probabilities, choices and their weights, slots sorted by expert. */
static status route_tokens(const pass_context *r, const moe *w, const moe_saved *k,
                           const moe_scratch *s, int32_t *count)
{
    const text_dims *d = &r->d->text;
    const void *bias = r->router_bias ? at(r->router_bias, w->layer * d->experts, r->act) : NULL;
    TRY(linear_fwd_biased(r, &w->gate, r->n.tokens, k->m, bias, s->logits));
    TRY(op_route_fwd(r->s, &(route_fwd_args){.tokens = r->n.tokens,
                                             .experts = d->experts,
                                             .top_k = d->top_k,
                                             .norm_topk = d->norm_topk_prob,
                                             .n_valid = r->b->n_tokens,
                                             .logits = s->logits,
                                             .expert = k->expert,
                                             .weight = k->weight,
                                             .probs = k->probs,
                                             .count = count}));
    return op_permute(r->s, &(permute_args){.tokens = r->n.tokens,
                                            .experts = d->experts,
                                            .top_k = d->top_k,
                                            .expert = k->expert,
                                            .offset = k->offset,
                                            .slot_row = k->slot_row,
                                            .row_token = k->row_token});
}

/* xp [slots, H] = the input of each slot's token. */
static status spread_tokens(const pass_context *r, const moe_saved *k, void *xp)
{
    return op_rows_gather(r->s, &(rows_gather_args){.n = r->n.tokens * r->d->text.top_k,
                                                    .width = r->d->text.hidden,
                                                    .index = k->row_token,
                                                    .x = k->m,
                                                    .y = xp});
}

static int64_t slots_of(const pass_context *r)
{
    return r->n.tokens * r->d->text.top_k;
}

/* a = silu(gate) * up, for the slots in use */
static status activate(const pass_context *r, const moe_saved *k, void *a)
{
    const text_dims *d = &r->d->text;
    return op_swiglu_fwd(r->s, &(swiglu_fwd_args){.rows = r->n.tokens * d->top_k,
                                                  .width = d->expert_width,
                                                  .n_valid = k->offset + d->experts,
                                                  .x = k->gu,
                                                  .y = a});
}

/* gu = xp GU_e for each slot, and a = silu(g) * u. drop_gu: gu need not be written. */
static status gate_up(const pass_context *r, const moe *w, const moe_saved *k, const moe_scratch *s,
                      bool drop_gu)
{
    if (w->gate_up_adapter.a) { /* the adapter adds to gu, so the activation comes after it */
        TRY(grouped_product(r, GROUPED_FWD, w->gate_up, slots_of(r), k->offset, s->xp, k->gu));
        TRY(lora_experts_fwd(r, &w->gate_up_adapter, slots_of(r), k->offset, s->xp, k->gu));
        return activate(r, k, s->a);
    }
    return op_grouped_gemm(r->s, &(grouped_gemm_args){.mode = GROUPED_FWD,
                                                      .experts = w->gate_up->shape[0],
                                                      .k = w->gate_up->shape[1],
                                                      .n = w->gate_up->shape[2],
                                                      .rows_cap = slots_of(r),
                                                      .offset = k->offset,
                                                      .x = s->xp,
                                                      .w = w->gate_up->act,
                                                      .y = k->gu,
                                                      .gated = s->a,
                                                      .y_dropped = drop_gu});
}

/* Norm and, if `what` names them, choices; then the statistics of the auxiliary loss. */
static status router_fwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
                         const moe_scratch *s, int32_t *count, const moe_aux *aux, unsigned what)
{
    TRY(rmsnorm_fwd(r, w->norm, r->n.tokens, r->d->text.hidden, x, k->m, k->rstd));
    if (what & RECOMPUTE_ROUTE)
        TRY(route_tokens(r, w, k, s, count));
    return aux && aux->on ? aux_op(r, aux, AUX_ADD_STATS, count, k->probs, NULL) : ST_OK;
}

/* Runs the experts on the slots: the arrays of kinds RECOMPUTE_FC1 and RECOMPUTE_FC2. */
static status experts_fwd(const pass_context *r, const moe *w, const moe_saved *k,
                          const moe_scratch *s, bool once, unsigned what)
{
    TRY(spread_tokens(r, k, s->xp));
    TRY(what & RECOMPUTE_FC1 ? gate_up(r, w, k, s, once) : activate(r, k, s->a));
    if (!(what & RECOMPUTE_FC2))
        return ST_OK;
    TRY(grouped_product(r, GROUPED_FWD, w->down, slots_of(r), k->offset, s->a, k->o));
    return w->down_adapter.a
               ? lora_experts_fwd(r, &w->down_adapter, slots_of(r), k->offset, s->a, k->o)
               : ST_OK;
}

static status combine_slots(const pass_context *r, const moe_saved *k, const void *x, void *y)
{
    return op_combine_fwd(r->s, &(combine_fwd_args){.tokens = r->n.tokens,
                                                    .top_k = r->d->text.top_k,
                                                    .width = r->d->text.hidden,
                                                    .slot_row = k->slot_row,
                                                    .weight = k->weight,
                                                    .o = k->o,
                                                    .residual = x,
                                                    .y = y});
}

static status slots_fwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
                        const moe_scratch *s, bool once, void *y)
{
    TRY(experts_fwd(r, w, k, s, once, RECOMPUTE_ALL));
    return combine_slots(r, k, x, y);
}

status moe_fwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
               const moe_scratch *s, int32_t *count, const moe_aux *aux, bool once, void *y)
{
    bool done;
    TRY(run_piece(r, REPLAY_ROUTER, REPLAY_FORWARD, w->layer, &done));
    if (!done)
        TRY(graph_replay_end(r->s, router_fwd(r, w, x, k, s, count, aux, RECOMPUTE_ALL)));
    if (moe_is_shared(&r->mesh->layout)) /* not a piece: the host may read counts in between */
        return moe_shared_fwd(r, w, x, k, s, y);
    TRY(run_piece(r, REPLAY_EXPERTS, REPLAY_FORWARD, w->layer, &done));
    return done ? ST_OK : graph_replay_end(r->s, slots_fwd(r, w, x, k, s, once, y));
}

status moe_recomputed(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
                      const moe_scratch *s, int32_t *count, unsigned what, bool *out_fresh)
{
    const bool is_shared = moe_is_shared(&r->mesh->layout);
    bool done;
    *out_fresh = !is_shared && (what & (RECOMPUTE_FC1 | RECOMPUTE_FC2));
    TRY(run_piece(r, REPLAY_ROUTER, REPLAY_AGAIN, w->layer, &done));
    if (!done)
        TRY(graph_replay_end(r->s, router_fwd(r, w, x, k, s, count, NULL, what)));
    if (is_shared)
        return what & RECOMPUTE_FC2 ? moe_shared_fwd(r, w, x, k, s, NULL) : ST_OK;
    if (!*out_fresh)
        return ST_OK;
    TRY(run_piece(r, REPLAY_EXPERTS, REPLAY_AGAIN, w->layer, &done));
    return done ? ST_OK : graph_replay_end(r->s, experts_fwd(r, w, k, s, false, what));
}

status moe_aux_value(const pass_context *r, const moe_aux *aux)
{
    return aux_op(r, aux, AUX_FINISH, NULL, NULL, NULL);
}

status moe_aux_sum(const pass_context *r, const moe_aux *aux)
{
    if (shares_stage(r))
        TRY(comm_all_reduce(mesh_comm(r->mesh, MESH_STAGE), r->s,
                            (comm_at){"sum router statistics", -1}, aux->count_total,
                            moe_aux_elements(r->d->text.experts), r->s->dev->v->acc, COMM_SUM));
    return moe_aux_value(r, aux);
}

/* Adds the gradients of an expert matrix and its adapter, and replaces x by its gradient. */
static status product_bwd(const pass_context *r, const moe_saved *k, const param *w,
                          const lora *adapter, void *x, void *dy)
{
    TRY(grouped_product(r, GROUPED_WGRAD, w, slots_of(r), k->offset, x, dy));
    if (adapter->a)
        TRY(lora_experts_grads(r, adapter, slots_of(r), k->offset, x, dy));
    TRY(grouped_product(r, GROUPED_DGRAD, w, slots_of(r), k->offset, x, dy));
    return adapter->a ? lora_experts_dx(r, adapter, slots_of(r), k->offset, x) : ST_OK;
}

/* Adds the gradients of the experts' weights; s->dm [T, H] = the experts' part of m's gradient. */
static status experts_bwd(const pass_context *r, const moe *w, const moe_saved *k,
                          const moe_scratch *s, bool fresh, const void *dy)
{
    const text_dims *d = &r->d->text;
    TRY(op_combine_bwd(r->s, &(combine_bwd_args){.tokens = r->n.tokens,
                                                 .top_k = d->top_k,
                                                 .width = d->hidden,
                                                 .slot_row = k->slot_row,
                                                 .weight = k->weight,
                                                 .o = k->o,
                                                 .dy = dy,
                                                 .do_ = k->o,
                                                 .dweight = s->dweight}));
    if (!fresh)
        TRY(activate(r, k, s->a));
    TRY(product_bwd(r, k, w->down, &w->down_adapter, s->a, k->o)); /* s->a: da [slots, I] */
    TRY(op_swiglu_bwd(r->s, &(swiglu_bwd_args){.rows = r->n.tokens * d->top_k,
                                               .width = d->expert_width,
                                               .n_valid = k->offset + d->experts,
                                               .x = k->gu,
                                               .dy = s->a,
                                               .dx = k->gu})); /* [dg|du] [slots, 2I] */
    if (!fresh)
        TRY(spread_tokens(r, k, s->xp));
    TRY(product_bwd(r, k, w->gate_up, &w->gate_up_adapter, s->xp, k->gu)); /* dxp [slots, H] */
    return op_combine_fwd(
        r->s, &(combine_fwd_args){.tokens = r->n.tokens,
                                  .top_k = d->top_k,
                                  .width = d->hidden,
                                  .slot_row = k->slot_row,
                                  .weight = NULL, /* the plain sum over a token's slots */
                                  .o = s->xp,
                                  .y = s->dm});
}

/* dlogits [T, E] from dweight and the auxiliary loss, then through gate and norm to dy. */
static status router_bwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
                         const moe_scratch *s, const int32_t *count, const moe_aux *aux, void *dy)
{
    const text_dims *d = &r->d->text;
    TRY(op_route_bwd(r->s, &(route_bwd_args){.tokens = r->n.tokens,
                                             .experts = d->experts,
                                             .top_k = d->top_k,
                                             .norm_topk = d->norm_topk_prob,
                                             .n_valid = r->b->n_tokens,
                                             .expert = k->expert,
                                             .weight = k->weight,
                                             .probs = k->probs,
                                             .dweight = s->dweight,
                                             .dlogits = s->logits}));
    if (aux->on)
        TRY(aux_op(r, aux, AUX_GRAD, count, k->probs, s->logits));
    TRY(linear_bwd(r, &w->gate, r->n.tokens, k->m, s->logits, 0, s->dm, true));
    return rmsnorm_bwd(r, w->norm, r->n.tokens, d->hidden, x, k->rstd, s->dm, dy, true);
}

status moe_bwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
               const moe_scratch *s, const int32_t *count, const moe_aux *aux, bool fresh, void *dy)
{
    bool done;
    if (moe_is_shared(&r->mesh->layout)) {
        TRY(moe_shared_bwd(r, w, k, s, dy));
    } else {
        TRY(run_piece(r, REPLAY_EXPERTS, REPLAY_BACKWARD, w->layer, &done));
        if (!done)
            TRY(graph_replay_end(r->s, experts_bwd(r, w, k, s, fresh, dy)));
    }
    TRY(run_piece(r, REPLAY_ROUTER, REPLAY_BACKWARD, w->layer, &done));
    return done ? ST_OK : graph_replay_end(r->s, router_bwd(r, w, x, k, s, count, aux, dy));
}
