/* mlp.c: see mlp.h. */
#include "trainer/model/mlp.h"

#include "trainer/ops/table.h"

void mlp_bind(mlp *w, params *p, int layer)
{
    char stem[96], name[128];
    snprintf(stem, sizeof stem, "%slayers.%d", p->text_prefix, layer);
#define NAMED(part) (snprintf(name, sizeof name, "%s.mlp.%s", stem, part), name)
    w->norm = params_get(p, "%s.post_attention_layernorm.weight", stem);
    w->gate = linear_bind(p, NAMED("gate_proj"), false);
    w->up = linear_bind(p, NAMED("up_proj"), false);
    w->down = linear_bind(p, NAMED("down_proj"), false);
#undef NAMED
}

void mlp_saved_layout(mlp_saved *k, space *sp, const shape *z)
{
    const text_dims *d = &z->d->text;
    int64_t t = z->cap.tokens;
    k->rstd = space_take(sp, t, z->acc);
    k->m = space_take(sp, t * d->hidden, z->act);
    k->u = space_take(sp, t * 2 * d->intermediate, z->act);
    k->a = space_take(sp, t * d->intermediate, z->act);
}

void mlp_scratch_layout(mlp_scratch *t, space *sp, const shape *z)
{
    t->da = space_take(sp, z->cap.tokens * z->d->text.intermediate, z->act);
    t->dm = space_take(sp, z->cap.tokens * z->d->text.hidden, z->act);
}

status mlp_fwd(const run *r, const mlp *w, const void *x, const mlp_saved *k, void *y)
{
    const text_dims *d = &r->d->text;
    int64_t t = r->n.tokens, f = d->intermediate;
    TRY(rmsnorm_fwd(r, w->norm, t, d->hidden, x, k->m, k->rstd));
    TRY(linear_fwd(r, &w->gate, t, k->m, k->u, 2 * f));
    TRY(linear_fwd(r, &w->up, t, k->m, at(k->u, f, r->act), 2 * f));
    TRY(op_swiglu_fwd(r->s, &(swiglu_fwd_args){.rows = t, .width = f, .x = k->u, .y = k->a}));
    if (!y)
        return ST_OK;
    return linear_fwd_onto(r, &w->down, t, k->a, x, y);
}

status mlp_bwd(const run *r, const mlp *w, const void *x, const mlp_saved *k, const mlp_scratch *s,
               void *dy)
{
    const text_dims *d = &r->d->text;
    int64_t t = r->n.tokens, f = d->intermediate;
    TRY(linear_bwd(r, &w->down, t, k->a, dy, 0, s->da, false)); /* da [T, F] */
    TRY(op_swiglu_bwd(
        r->s, &(swiglu_bwd_args){.rows = t, .width = f, .x = k->u, .dy = s->da, .dx = k->u}));
    TRY(linear_bwd(r, &w->gate, t, k->m, k->u, 2 * f, s->dm, false)); /* dm [T, H] */
    TRY(linear_bwd(r, &w->up, t, k->m, at(k->u, f, r->act), 2 * f, s->dm, true));
    return rmsnorm_bwd(r, w->norm, t, d->hidden, x, k->rstd, s->dm, dy, true);
}
