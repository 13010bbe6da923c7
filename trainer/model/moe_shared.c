/* moe_shared.c: experts that ranks share: the part of moe.c between the router and the sum over a
 * token's experts.
 *
 * Each expert is on one of P ranks (exchange.h). With expert-tensor parallelism its width is also
 * cut over the tensor ranks. Each of these then sends the tokens of all of them, W = T x tensor,
 * and computes a part of every output. The outputs, the gradients of the inputs and the gradients
 * of the choices' weights are therefore summed over tensor ranks, and each takes its own tokens. */
#include "trainer/model/moe.h"

#include "trainer/model/sequence.h"
#include "trainer/ops/table.h"

/* True if the width of experts is cut over tensor ranks. */
static bool cuts_experts(const layout *l)
{
    return l->expert_tensor > 1;
}

/* W, the tokens whose slots this rank sends. */
static int64_t seen_tokens(const pass_context *r)
{
    return cuts_experts(&r->mesh->layout) ? r->context_tokens : r->n.tokens;
}

void moe_shared_layout(moe_scratch *t, space *sp, const shape *z)
{
    const text_dims *d = &z->d->text;
    int64_t choices = z->context_tokens * d->top_k;
    exchange_layout(&t->exchange, sp, z);
    if (!cuts_experts(z->ranks))
        return;
    t->wide = space_take(sp, z->context_tokens * d->hidden, z->act);
    t->wide_expert = space_take(sp, choices, sizeof(int32_t));
    t->wide_weight = space_take(sp, choices, z->acc);
    t->wide_dweight = space_take(sp, choices, z->acc);
}

/* wide [W, K] = x [T, K] of every tensor rank; x holds choices or their weights. */
static status gather_choices(const pass_context *r, const moe *w, const void *x, void *wide,
                             st_dtype dtype)
{
    return comm_all_gather(mesh_comm(r->mesh, MESH_TENSOR), r->s,
                           (comm_at){"gather choices", w->layer}, x, wide,
                           r->n.tokens * r->d->text.top_k, dtype);
}

/* *out [W, K] = the weights of the choices. */
static status see_weights(const pass_context *r, const moe *w, const moe_saved *k,
                          const moe_scratch *s, const void **out)
{
    *out = cuts_experts(&r->mesh->layout) ? s->wide_weight : k->weight;
    if (*out == k->weight)
        return ST_OK;
    return gather_choices(r, w, k->weight, s->wide_weight, r->s->dev->v->acc);
}

/* Sorts the slots of all W tokens, in place of those of this rank's own. */
static status see_slots(const pass_context *r, const moe *w, const moe_saved *k,
                        const moe_scratch *s)
{
    if (!cuts_experts(&r->mesh->layout))
        return ST_OK;
    TRY(gather_choices(r, w, k->expert, s->wide_expert, DT_I32));
    return op_permute(r->s, &(permute_args){.tokens = r->context_tokens,
                                            .experts = r->d->text.experts,
                                            .top_k = r->d->text.top_k,
                                            .expert = s->wide_expert,
                                            .offset = k->offset,
                                            .slot_row = k->slot_row,
                                            .row_token = k->row_token});
}

/* xp [W K, H] = the input of each slot's token. */
static status spread_shared(const pass_context *r, const moe *w, const moe_saved *k,
                            const moe_scratch *s)
{
    const void *m = k->m;
    if (cuts_experts(&r->mesh->layout))
        TRY(sequence_gather(r, (comm_at){"gather expert input", w->layer}, k->m, r->d->text.hidden,
                            s->wide, &m));
    return op_rows_gather(r->s, &(rows_gather_args){.n = seen_tokens(r) * r->d->text.top_k,
                                                    .width = r->d->text.hidden,
                                                    .index = k->row_token,
                                                    .x = m,
                                                    .y = s->xp});
}

/* y [T, H] = for each token the sum over its slots of o, times weight unless that is NULL. */
static status combine_shared(const pass_context *r, comm_at at, const moe_saved *k,
                             const moe_scratch *s, const void *weight, const void *o, void *y)
{
    const bool wide = cuts_experts(&r->mesh->layout);
    TRY(op_combine_fwd(r->s, &(combine_fwd_args){.tokens = seen_tokens(r),
                                                 .top_k = r->d->text.top_k,
                                                 .width = r->d->text.hidden,
                                                 .slot_row = k->slot_row,
                                                 .weight = weight,
                                                 .o = o,
                                                 .y = wide ? s->wide : y}));
    return wide ? sequence_reduce(r, at, s->wide, r->d->text.hidden, y) : ST_OK;
}

static exchange_weights weights_of(const moe *w)
{
    return (exchange_weights){.layer = w->layer,
                              .gate_up = w->gate_up,
                              .down = w->down,
                              .gate_up_adapter = w->gate_up_adapter,
                              .down_adapter = w->down_adapter};
}

status moe_shared_fwd(const pass_context *r, const moe *w, const void *x, const moe_saved *k,
                      const moe_scratch *s, void *y)
{
    const exchange_weights experts = weights_of(w);
    const void *weight;
    TRY(see_slots(r, w, k, s));
    TRY(spread_shared(r, w, k, s));
    TRY(exchange_fwd(r, &s->exchange, &experts, k->offset, s->xp, k->o));
    if (!y)
        return ST_OK;
    TRY(see_weights(r, w, k, s, &weight));
    TRY(combine_shared(r, (comm_at){"reduce expert output", w->layer}, k, s, weight, k->o, y));
    return add_to(r, r->n.tokens * r->d->text.hidden, x, y);
}

status moe_shared_bwd(const pass_context *r, const moe *w, const moe_saved *k, const moe_scratch *s,
                      const void *dy)
{
    const text_dims *d = &r->d->text;
    const bool wide = cuts_experts(&r->mesh->layout);
    const exchange_weights experts = weights_of(w);
    const void *weight, *all_dy = dy;
    TRY(see_weights(r, w, k, s, &weight));
    if (wide)
        TRY(sequence_gather(r, (comm_at){"gather expert gradient", w->layer}, dy, d->hidden,
                            s->wide, &all_dy));
    TRY(op_combine_bwd(r->s, &(combine_bwd_args){.tokens = seen_tokens(r),
                                                 .top_k = d->top_k,
                                                 .width = d->hidden,
                                                 .slot_row = k->slot_row,
                                                 .weight = weight,
                                                 .o = k->o,
                                                 .dy = all_dy,
                                                 .do_ = k->o,
                                                 .dweight = wide ? s->wide_dweight : s->dweight}));
    if (wide)
        TRY(comm_reduce_scatter(mesh_comm(r->mesh, MESH_TENSOR), r->s,
                                (comm_at){"reduce gradients of choices", w->layer}, s->wide_dweight,
                                s->dweight, r->n.tokens * d->top_k, r->s->dev->v->acc));
    TRY(spread_shared(r, w, k, s));
    TRY(exchange_bwd(r, &s->exchange, &experts, k->offset, s->xp, k->o));
    return combine_shared(r, (comm_at){"reduce expert gradient", w->layer}, k, s, NULL, s->xp,
                          s->dm);
}
