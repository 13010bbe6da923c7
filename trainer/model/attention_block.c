/* attention_block.c: see attention_block.h.
 *
 *   a = RMSNorm(x)
 *   q = a Wqt [T, Q, d]   k = a Wkt [T, C, d]   v = a Wvt [T, C, d]
 *   q = mrope(RMSNorm_d(q; q_norm))             k = mrope(RMSNorm_d(k; k_norm))     per head
 *   o_i = causal softmax(q_i k_jt / sqrt(d)) v_j,  j = i / (Q / C), inside each document
 *   y = x + o Wot
 */
#include "trainer/model/attention_block.h"

#include <math.h>

#include "trainer/model/kv_cache.h"
#include "trainer/ops/table.h"

void attention_block_bind(attention_block *w, params *p, int layer)
{
    char stem[96], name[128];
    snprintf(stem, sizeof stem, "%slayers.%d", p->text_prefix, layer);
#define NAMED(part) (snprintf(name, sizeof name, "%s.self_attn.%s", stem, part), name)
    w->layer = layer;
    w->norm = params_get(p, "%s.input_layernorm.weight", stem);
    w->q = linear_bind(p, NAMED("q_proj"), false);
    w->k = linear_bind(p, NAMED("k_proj"), false);
    w->v = linear_bind(p, NAMED("v_proj"), false);
    w->o = linear_bind(p, NAMED("o_proj"), false);
    w->q_norm = params_get(p, "%s.self_attn.q_norm.weight", stem);
    w->k_norm = params_get(p, "%s.self_attn.k_norm.weight", stem);
#undef NAMED
}

void attention_saved_layout(attention_saved *k, space *sp, const shape *z)
{
    const text_dims *d = &z->d->text;
    int64_t t = z->cap.tokens, wide = d->heads * d->head_dim, narrow = d->kv_heads * d->head_dim;
    k->rstd = space_take(sp, t, z->acc);
    k->a = space_take(sp, t * d->hidden, z->act);
    k->q = space_take(sp, t * wide, z->act);
    k->k = space_take(sp, t * narrow, z->act);
    k->v = space_take(sp, t * narrow, z->act);
    k->rstd_q = space_take(sp, t * d->heads, z->acc);
    k->rstd_k = space_take(sp, t * d->kv_heads, z->acc);
    k->qr = space_take(sp, t * wide, z->act);
    k->kr = space_take(sp, t * narrow, z->act);
    k->o = space_take(sp, t * wide, z->act);
    k->lse = space_take(sp, t * d->heads, z->acc);
}

void attention_scratch_layout(attention_scratch *t, space *sp, const shape *z)
{
    const text_dims *d = &z->d->text;
    int64_t n = z->cap.tokens, wide = d->heads * d->head_dim, narrow = d->kv_heads * d->head_dim;
    t->do_ = space_take(sp, n * wide, z->act);
    t->dq = space_take(sp, n * wide, z->act);
    t->dk = space_take(sp, n * narrow, z->act);
    t->dv = space_take(sp, n * narrow, z->act);
    t->da = space_take(sp, n * d->hidden, z->act);
    t->work = space_take(sp, n * d->heads, z->acc);
}

/* y [T, heads, d] = mrope(RMSNorm_d(x)) */
static status norm_rope_fwd(const run *r, const param *w, int64_t heads, const void *x, void *y,
                            void *rstd)
{
    return op_norm_rope_fwd(r->s, &(norm_rope_fwd_args){.rows = r->n.tokens,
                                                        .heads = heads,
                                                        .head_dim = r->d->text.head_dim,
                                                        .eps = r->d->text.rms_eps,
                                                        .x = x,
                                                        .w = w->act,
                                                        .cos = r->text_cos,
                                                        .sin = r->text_sin,
                                                        .y = y,
                                                        .rstd = rstd});
}

/* dy [T, heads, d]: of the rotated on entry, of x on return. */
static status norm_rope_bwd(const run *r, const param *w, int64_t heads, const void *x,
                            const void *rstd, void *dy)
{
    return op_norm_rope_bwd(r->s, &(norm_rope_bwd_args){.rows = r->n.tokens,
                                                        .heads = heads,
                                                        .head_dim = r->d->text.head_dim,
                                                        .x = x,
                                                        .w = w->act,
                                                        .cos = r->text_cos,
                                                        .sin = r->text_sin,
                                                        .rstd = rstd,
                                                        .dy = dy,
                                                        .dx = dy,
                                                        .dw = param_gradient(w)});
}

/* o [T, Q d] of the rotated q and k, inside each document; of the last token alone, where the
 * others are in the cache. */
static status core_fwd(const run *r, int64_t layer, const attention_saved *k)
{
    const text_dims *d = &r->d->text;
    int64_t wide = d->heads * d->head_dim, narrow = d->kv_heads * d->head_dim;
    if (r->cache)
        TRY(kv_cache_keep(r, layer, k->kr, k->v));
    if (r->cache && r->cache->step)
        return kv_cache_attend(r, layer, k->qr, k->o);
    return op_attention_fwd(r->s, &(attention_fwd_args){.tokens = r->n.tokens,
                                                        .heads = d->heads,
                                                        .kv_heads = d->kv_heads,
                                                        .head_dim = d->head_dim,
                                                        .segments = r->n.docs,
                                                        .longest = r->n.longest,
                                                        .causal = true,
                                                        .scale = 1 / sqrt((double)d->head_dim),
                                                        .cu = r->b->cu_docs,
                                                        .q = k->qr,
                                                        .k = k->kr,
                                                        .v = k->v,
                                                        .q_stride = wide,
                                                        .k_stride = narrow,
                                                        .v_stride = narrow,
                                                        .o_stride = wide,
                                                        .o = k->o,
                                                        .lse = k->lse});
}

status attention_block_fwd(const run *r, const attention_block *w, const void *x,
                           const attention_saved *k, void *y)
{
    const text_dims *d = &r->d->text;
    int64_t t = r->n.tokens;
    TRY(rmsnorm_fwd(r, w->norm, t, d->hidden, x, k->a, k->rstd));
    TRY(linear_fwd(r, &w->q, t, k->a, k->q, 0));
    TRY(linear_fwd(r, &w->k, t, k->a, k->k, 0));
    TRY(linear_fwd(r, &w->v, t, k->a, k->v, 0));
    TRY(norm_rope_fwd(r, w->q_norm, d->heads, k->q, k->qr, k->rstd_q));
    TRY(norm_rope_fwd(r, w->k_norm, d->kv_heads, k->k, k->kr, k->rstd_k));
    TRY(core_fwd(r, w->layer, k));
    return linear_fwd_onto(r, &w->o, t, k->o, x, y);
}

/* dq, dk, dv of the rotated q and k, from do_. */
static status core_bwd(const run *r, const attention_saved *k, const attention_scratch *s)
{
    const text_dims *d = &r->d->text;
    int64_t wide = d->heads * d->head_dim, narrow = d->kv_heads * d->head_dim;
    return op_attention_bwd(r->s, &(attention_bwd_args){.tokens = r->n.tokens,
                                                        .heads = d->heads,
                                                        .kv_heads = d->kv_heads,
                                                        .head_dim = d->head_dim,
                                                        .segments = r->n.docs,
                                                        .longest = r->n.longest,
                                                        .causal = true,
                                                        .scale = 1 / sqrt((double)d->head_dim),
                                                        .cu = r->b->cu_docs,
                                                        .q = k->qr,
                                                        .k = k->kr,
                                                        .v = k->v,
                                                        .o = k->o,
                                                        .lse = k->lse,
                                                        .do_ = s->do_,
                                                        .q_stride = wide,
                                                        .k_stride = narrow,
                                                        .v_stride = narrow,
                                                        .o_stride = wide,
                                                        .dq = s->dq,
                                                        .dk = s->dk,
                                                        .dv = s->dv,
                                                        .work = s->work});
}

status attention_block_bwd(const run *r, const attention_block *w, const void *x,
                           const attention_saved *k, const attention_scratch *s, void *dy)
{
    const text_dims *d = &r->d->text;
    int64_t t = r->n.tokens;
    TRY(linear_bwd(r, &w->o, t, k->o, dy, 0, s->do_, false)); /* do [T, Q d] */
    TRY(core_bwd(r, k, s));
    TRY(norm_rope_bwd(r, w->q_norm, d->heads, k->q, k->rstd_q, s->dq));
    TRY(norm_rope_bwd(r, w->k_norm, d->kv_heads, k->k, k->rstd_k, s->dk));
    TRY(linear_bwd(r, &w->q, t, k->a, s->dq, 0, s->da, false)); /* da [T, H] */
    TRY(linear_bwd(r, &w->k, t, k->a, s->dk, 0, s->da, true));
    TRY(linear_bwd(r, &w->v, t, k->a, s->dv, 0, s->da, true));
    return rmsnorm_bwd(r, w->norm, t, d->hidden, x, k->rstd, s->da, dy, true);
}
