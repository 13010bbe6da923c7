/* attention_block.c: the attention half of a decoder layer, as attention_block.h describes it.
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
#include "trainer/model/sequence.h"
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

void attention_saved_layout(attention_saved *k, space *sp, const shape *z, unsigned kinds)
{
    const text_dims *d = &z->d->text;
    int64_t t = z->context_tokens, heads = tensor_part(z->ranks, d->heads);
    int64_t kv_heads = tensor_part(z->ranks, d->kv_heads);
    int64_t wide = heads * d->head_dim, narrow = kv_heads * d->head_dim;
    if (kinds & RECOMPUTE_CHEAP) {
        k->rstd = space_take(sp, z->cap.tokens, z->acc);
        k->a = space_take(sp, z->cap.tokens * d->hidden, z->act);
        k->rstd_q = space_take(sp, t * heads, z->acc);
        k->rstd_k = space_take(sp, t * kv_heads, z->acc);
        k->qr = space_take(sp, t * wide, z->act);
        k->kr = space_take(sp, t * narrow, z->act);
    }
    if (kinds & RECOMPUTE_QKV) {
        k->q = space_take(sp, t * wide, z->act);
        k->k = space_take(sp, t * narrow, z->act);
        k->v = space_take(sp, t * narrow, z->act);
    }
    if (kinds & RECOMPUTE_ATTENTION) {
        k->o = space_take(sp, t * wide, z->act);
        k->lse = space_take(sp, t * heads, z->acc);
    }
}

void attention_scratch_layout(attention_scratch *t, space *sp, const shape *z, bool training)
{
    const text_dims *d = &z->d->text;
    int64_t n = z->context_tokens, heads = tensor_part(z->ranks, d->heads);
    int64_t wide = heads * d->head_dim;
    int64_t narrow = tensor_part(z->ranks, d->kv_heads) * d->head_dim;
    *t = (attention_scratch){0};
    if (z->ranks->tensor > 1)
        t->wide = space_take(sp, n * d->hidden, z->act);
    if (z->ranks->context > 1) {
        t->keys = space_take(sp, z->all_tokens * narrow, z->act);
        t->values = space_take(sp, z->all_tokens * narrow, z->act);
        t->ranks = space_take(sp, z->all_tokens * narrow, z->act);
    }
    if (!training)
        return;
    t->do_ = space_take(sp, n * wide, z->act);
    t->dq = space_take(sp, n * wide, z->act);
    t->dk = space_take(sp, n * narrow, z->act);
    t->dv = space_take(sp, n * narrow, z->act);
    t->da = space_take(sp, n * d->hidden, z->act);
    t->work = space_take(sp, n * heads, z->acc);
    if (z->ranks->context == 1)
        return;
    t->dkeys = space_take(sp, z->all_tokens * narrow, z->act);
    t->dvalues = space_take(sp, z->all_tokens * narrow, z->act);
}

/* The number of query heads, and below of key-value heads, that this rank has. */
static int64_t own_heads(const pass_context *r)
{
    return tensor_part(&r->mesh->layout, r->d->text.heads);
}

static int64_t own_kv_heads(const pass_context *r)
{
    return tensor_part(&r->mesh->layout, r->d->text.kv_heads);
}

/* y [Tc, heads, d] = mrope(RMSNorm_d(x)) */
static status norm_rope_fwd(const pass_context *r, const param *w, int64_t heads, const void *x,
                            void *y, void *rstd)
{
    return op_norm_rope_fwd(r->s, &(norm_rope_fwd_args){.rows = r->context_tokens,
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

/* dy [Tc, heads, d] holds the gradient of norm_rope_fwd's output on entry and that of x on return.
 */
static status norm_rope_bwd(const pass_context *r, const param *w, int64_t heads, const void *x,
                            const void *rstd, void *dy)
{
    return op_norm_rope_bwd(r->s, &(norm_rope_bwd_args){.rows = r->context_tokens,
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

/* Gathers the keys and values of the whole row for this rank's heads. */
static status gather_keys(const pass_context *r, int64_t layer, const attention_saved *k,
                          const attention_scratch *s, const void **out_k, const void **out_v)
{
    int64_t narrow = own_kv_heads(r) * r->d->text.head_dim;
    const comm_at at = {"gather keys and values", layer};
    TRY(keys_gather(r, at, k->kr, narrow, s->ranks, s->keys, out_k));
    return keys_gather(r, at, k->v, narrow, s->ranks, s->values, out_v);
}

/* The arguments that attention's forward and backward have in common. */
static attention_fwd_args core(const pass_context *r, const attention_saved *k, const void *keys,
                               const void *values)
{
    const text_dims *d = &r->d->text;
    int64_t wide = own_heads(r) * d->head_dim, narrow = own_kv_heads(r) * d->head_dim;
    return (attention_fwd_args){.tokens = r->context_tokens,
                                .heads = own_heads(r),
                                .kv_heads = own_kv_heads(r),
                                .head_dim = d->head_dim,
                                .segments = r->n.docs,
                                .longest = r->n.longest,
                                .causal = true,
                                .scale = 1 / sqrt((double)d->head_dim),
                                .cu = r->b->cu_docs,
                                .keys = r->all_tokens,
                                .cu_keys = r->b->cu_keys,
                                .place = r->b->query_key,
                                .q = k->qr,
                                .k = keys,
                                .v = values,
                                .q_stride = wide,
                                .k_stride = narrow,
                                .v_stride = narrow,
                                .o_stride = wide,
                                .o = k->o,
                                .lse = k->lse};
}

/* o [Tc, Q d] = attention inside each document. In a step of generation the queries are the last
 * tokens of their documents, and the keys of the others are in the cache. */
static status core_fwd(const pass_context *r, int64_t layer, const attention_saved *k,
                       const attention_scratch *s)
{
    const void *keys, *values;
    TRY(gather_keys(r, layer, k, s, &keys, &values));
    if (r->cache)
        TRY(kv_cache_keep(r, layer, keys, values));
    if (r->cache && r->cache->step)
        return kv_cache_attend(r, layer, k->qr, k->o);
    const attention_fwd_args a = core(r, k, keys, values);
    return op_attention_fwd(r->s, &a);
}

/* q, k, v = projections of a */
static status project_qkv(const pass_context *r, const attention_block *w, const attention_saved *k,
                          const attention_scratch *s)
{
    int64_t tc = r->context_tokens;
    const void *a;
    TRY(sequence_gather(r, (comm_at){"gather attention input", w->layer}, k->a, r->d->text.hidden,
                        s->wide, &a));
    TRY(linear_fwd(r, &w->q, tc, a, k->q, 0));
    TRY(linear_fwd(r, &w->k, tc, a, k->k, 0));
    return linear_fwd(r, &w->v, tc, a, k->v, 0);
}

status attention_block_fwd(const pass_context *r, const attention_block *w, const void *x,
                           const attention_saved *k, const attention_scratch *s, unsigned what,
                           void *y)
{
    TRY(rmsnorm_fwd(r, w->norm, r->n.tokens, r->d->text.hidden, x, k->a, k->rstd));
    if (what & RECOMPUTE_QKV)
        TRY(project_qkv(r, w, k, s));
    TRY(norm_rope_fwd(r, w->q_norm, own_heads(r), k->q, k->qr, k->rstd_q));
    TRY(norm_rope_fwd(r, w->k_norm, own_kv_heads(r), k->k, k->kr, k->rstd_k));
    if (what & RECOMPUTE_ATTENTION)
        TRY(core_fwd(r, w->layer, k, s));
    if (!(what & RECOMPUTE_PROJ))
        return ST_OK;
    return linear_fwd_back(r, &w->o, (comm_at){"reduce attention output", w->layer}, k->o, x,
                           s->wide, y);
}

/* Computes dq, dk, dv [Tc, ..], the gradients of rotated q, rotated k and v, from do_. Where
 * context ranks share the row, dk and dv are first those of the whole row and are then summed over
 * ranks. */
static status core_bwd(const pass_context *r, int64_t layer, const attention_saved *k,
                       const attention_scratch *s)
{
    const bool shared = r->b->cu_keys != NULL;
    const int64_t narrow = own_kv_heads(r) * r->d->text.head_dim;
    const comm_at at = {"reduce keys and values", layer};
    const void *keys, *values;
    TRY(gather_keys(r, layer, k, s, &keys, &values));
    const attention_fwd_args f = core(r, k, keys, values);
    attention_bwd_args a = attention_bwd_of(&f);
    a.do_ = s->do_;
    a.dq = s->dq;
    a.dk = shared ? s->dkeys : s->dk;
    a.dv = shared ? s->dvalues : s->dv;
    a.work = s->work;
    TRY(op_attention_bwd(r->s, &a));
    if (!shared)
        return ST_OK;
    TRY(keys_reduce(r, at, s->dkeys, narrow, s->ranks, s->dk));
    return keys_reduce(r, at, s->dvalues, narrow, s->ranks, s->dv);
}

status attention_block_bwd(const pass_context *r, const attention_block *w, const void *x,
                           const attention_saved *k, const attention_scratch *s, void *dy)
{
    const text_dims *d = &r->d->text;
    int64_t tc = r->context_tokens;
    const void *all_dy, *a;
    TRY(sequence_gather(r, (comm_at){"gather attention gradient", w->layer}, dy, d->hidden, s->wide,
                        &all_dy));
    TRY(linear_bwd(r, &w->o, tc, k->o, all_dy, 0, s->do_, false)); /* do [Tc, Q d] */
    TRY(core_bwd(r, w->layer, k, s));
    TRY(norm_rope_bwd(r, w->q_norm, own_heads(r), k->q, k->rstd_q, s->dq));
    TRY(norm_rope_bwd(r, w->k_norm, own_kv_heads(r), k->k, k->rstd_k, s->dk));
    TRY(sequence_gather(r, (comm_at){"gather attention input", w->layer}, k->a, d->hidden, s->wide,
                        &a));
    TRY(linear_bwd(r, &w->q, tc, a, s->dq, 0, s->da, false)); /* da [Tc, H] */
    TRY(linear_bwd(r, &w->k, tc, a, s->dk, 0, s->da, true));
    TRY(linear_bwd(r, &w->v, tc, a, s->dv, 0, s->da, true));
    void *da = s->wide ? s->wide : s->da;
    TRY(sequence_reduce(r, (comm_at){"reduce attention gradient", w->layer}, s->da, d->hidden, da));
    return rmsnorm_bwd(r, w->norm, r->n.tokens, d->hidden, x, k->rstd, da, dy, true);
}
