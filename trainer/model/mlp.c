/* mlp.c: the dense MLP half of a decoder layer, as mlp.h describes it. */
#include "trainer/model/mlp.h"

#include "trainer/model/sequence.h"
#include "trainer/ops/table.h"

void mlp_bind(mlp *w, params *p, int layer)
{
    char stem[96], name[128];
    snprintf(stem, sizeof stem, "%slayers.%d", p->text_prefix, layer);
#define NAMED(part) (snprintf(name, sizeof name, "%s.mlp.%s", stem, part), name)
    w->layer = layer;
    w->norm = params_get(p, "%s.post_attention_layernorm.weight", stem);
    w->gate = linear_bind(p, NAMED("gate_proj"), false);
    w->up = linear_bind(p, NAMED("up_proj"), false);
    w->down = linear_bind(p, NAMED("down_proj"), false);
#undef NAMED
}

void mlp_saved_layout(mlp_saved *k, space *sp, const shape *z, unsigned kinds)
{
    const text_dims *d = &z->d->text;
    int64_t t = z->cap.tokens, f = tensor_part(z->ranks, d->intermediate);
    if (kinds & RECOMPUTE_CHEAP) {
        k->rstd = space_take(sp, t, z->acc);
        k->m = space_take(sp, t * d->hidden, z->act);
        k->a = space_take(sp, z->context_tokens * f, z->act);
    }
    if (kinds & RECOMPUTE_FC1)
        k->u = space_take(sp, z->context_tokens * 2 * f, z->act);
}

void mlp_scratch_layout(mlp_scratch *t, space *sp, const shape *z, bool training)
{
    const text_dims *d = &z->d->text;
    int64_t tc = z->context_tokens;
    *t = (mlp_scratch){0};
    if (z->ranks->tensor > 1)
        t->wide = space_take(sp, tc * d->hidden, z->act);
    if (!training)
        return;
    t->da = space_take(sp, tc * tensor_part(z->ranks, d->intermediate), z->act);
    t->dm = space_take(sp, tc * d->hidden, z->act);
}

/* u = [gate | up] of m */
static status gate_up(const pass_context *r, const mlp *w, const mlp_saved *k, const mlp_scratch *s)
{
    int64_t tc = r->context_tokens, f = w->gate.out;
    const void *m;
    TRY(sequence_gather(r, (comm_at){"gather MLP input", w->layer}, k->m, r->d->text.hidden,
                        s->wide, &m));
    TRY(linear_fwd(r, &w->gate, tc, m, k->u, 2 * f));
    return linear_fwd(r, &w->up, tc, m, at(k->u, f, r->act), 2 * f);
}

status mlp_fwd(const pass_context *r, const mlp *w, const void *x, const mlp_saved *k,
               const mlp_scratch *s, unsigned what, void *y)
{
    int64_t tc = r->context_tokens, f = w->gate.out;
    TRY(rmsnorm_fwd(r, w->norm, r->n.tokens, r->d->text.hidden, x, k->m, k->rstd));
    if (what & RECOMPUTE_FC1)
        TRY(gate_up(r, w, k, s));
    TRY(op_swiglu_fwd(r->s, &(swiglu_fwd_args){.rows = tc, .width = f, .x = k->u, .y = k->a}));
    if (!y)
        return ST_OK;
    return linear_fwd_back(r, &w->down, (comm_at){"reduce MLP output", w->layer}, k->a, x, s->wide,
                           y);
}

status mlp_bwd(const pass_context *r, const mlp *w, const void *x, const mlp_saved *k,
               const mlp_scratch *s, void *dy)
{
    const text_dims *d = &r->d->text;
    int64_t tc = r->context_tokens, f = w->gate.out;
    const void *all_dy, *m;
    TRY(sequence_gather(r, (comm_at){"gather MLP gradient", w->layer}, dy, d->hidden, s->wide,
                        &all_dy));
    TRY(linear_bwd(r, &w->down, tc, k->a, all_dy, 0, s->da, false)); /* da [Tc, F] */
    TRY(op_swiglu_bwd(
        r->s, &(swiglu_bwd_args){.rows = tc, .width = f, .x = k->u, .dy = s->da, .dx = k->u}));
    TRY(sequence_gather(r, (comm_at){"gather MLP input", w->layer}, k->m, d->hidden, s->wide, &m));
    TRY(linear_bwd(r, &w->gate, tc, m, k->u, 2 * f, s->dm, false)); /* dm [Tc, H] */
    TRY(linear_bwd(r, &w->up, tc, m, at(k->u, f, r->act), 2 * f, s->dm, true));
    void *dm = s->wide ? s->wide : s->dm;
    TRY(sequence_reduce(r, (comm_at){"reduce MLP gradient", w->layer}, s->dm, d->hidden, dm));
    return rmsnorm_bwd(r, w->norm, r->n.tokens, d->hidden, x, k->rstd, dm, dy, true);
}
