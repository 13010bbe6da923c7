/* SPDX-License-Identifier: Apache-2.0 */
/* attention_block.c: the attention half of a decoder layer, as decoder.h describes it.
 *
 *   a = RMSNorm(x)
 *   q = a Wqt [T, Q, d]   k = a Wkt [T, C, d]   v = a Wvt [T, C, d]
 *   q = mrope(RMSNorm_d(q; q_norm))             k = mrope(RMSNorm_d(k; k_norm))     per head
 *   o_i = causal softmax(q_i k_jt / sqrt(d)) v_j,  j = i / (Q / C), inside each document
 *   y = x + o Wot
 */

#include <math.h>

#include "trainer/model/layers/layers.h"
#include "trainer/model/text/decoder.h"
#include "trainer/model/text/kv_cache.h"
#include "trainer/ops/table.h"

void attention_block_bind(attention_block *block, params *registry, int layer)
{
    char stem[96], name[128];
    snprintf(stem, sizeof stem, "%slayers.%d", registry->text_prefix, layer);
#define NAMED(part) (snprintf(name, sizeof name, "%s.self_attn.%s", stem, part), name)
    block->layer = layer;
    block->norm = params_get(registry, "%s.input_layernorm.weight", stem);
    block->q = linear_bind(registry, NAMED("q_proj"), false);
    block->k = linear_bind(registry, NAMED("k_proj"), false);
    block->v = linear_bind(registry, NAMED("v_proj"), false);
    block->o = linear_bind(registry, NAMED("o_proj"), false);
    block->q_norm = params_get(registry, "%s.self_attn.q_norm.weight", stem);
    block->k_norm = params_get(registry, "%s.self_attn.k_norm.weight", stem);
#undef NAMED
}

void attention_saved_layout(attention_saved *saved, space *sp, const shape *sizes, unsigned kinds)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t context_tokens = sizes->context_tokens, heads = tensor_part(sizes->ranks, dims->heads);
    int64_t kv_heads = tensor_part(sizes->ranks, dims->kv_heads);
    int64_t wide = heads * dims->head_dim, narrow = kv_heads * dims->head_dim;
    if (kinds & RECOMPUTE_CHEAP) {
        saved->rstd = space_take(sp, sizes->cap.tokens, sizes->acc);
        saved->a = space_take(sp, sizes->cap.tokens * dims->hidden, sizes->act);
        saved->rstd_q = space_take(sp, context_tokens * heads, sizes->acc);
        saved->rstd_k = space_take(sp, context_tokens * kv_heads, sizes->acc);
        saved->qr = space_take(sp, context_tokens * wide, sizes->act);
        saved->kr = space_take(sp, context_tokens * narrow, sizes->act);
    }
    if (kinds & RECOMPUTE_QKV) {
        saved->q = space_take(sp, context_tokens * wide, sizes->act);
        saved->k = space_take(sp, context_tokens * narrow, sizes->act);
        saved->v = space_take(sp, context_tokens * narrow, sizes->act);
    }
    if (kinds & RECOMPUTE_ATTENTION) {
        saved->o = space_take(sp, context_tokens * wide, sizes->act);
        saved->lse = space_take(sp, context_tokens * heads, sizes->acc);
    }
}

void attention_scratch_layout(attention_scratch *scratch, space *sp, const shape *sizes,
                              bool training)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t context_tokens = sizes->context_tokens, heads = tensor_part(sizes->ranks, dims->heads);
    int64_t wide = heads * dims->head_dim;
    int64_t narrow = tensor_part(sizes->ranks, dims->kv_heads) * dims->head_dim;
    *scratch = (attention_scratch){0};
    if (sizes->ranks->tensor > 1)
        scratch->wide = space_take(sp, context_tokens * dims->hidden, sizes->act);
    if (sizes->ranks->context > 1) {
        scratch->keys = space_take(sp, sizes->all_tokens * narrow, sizes->act);
        scratch->values = space_take(sp, sizes->all_tokens * narrow, sizes->act);
        scratch->ranks = space_take(sp, sizes->all_tokens * narrow, sizes->act);
    }
    if (!training)
        return;
    scratch->do_ = space_take(sp, context_tokens * wide, sizes->act);
    scratch->dq = space_take(sp, context_tokens * wide, sizes->act);
    scratch->dk = space_take(sp, context_tokens * narrow, sizes->act);
    scratch->dv = space_take(sp, context_tokens * narrow, sizes->act);
    scratch->da = space_take(sp, context_tokens * dims->hidden, sizes->act);
    scratch->work = space_take(sp, context_tokens * heads, sizes->acc);
    if (sizes->ranks->context == 1)
        return;
    scratch->dkeys = space_take(sp, sizes->all_tokens * narrow, sizes->act);
    scratch->dvalues = space_take(sp, sizes->all_tokens * narrow, sizes->act);
}

/* The number of query heads that this rank has; below, of key-value heads. */
static int64_t own_heads(const pass_context *ctx)
{
    return tensor_part(&ctx->mesh->layout, ctx->dims->text.heads);
}

static int64_t own_kv_heads(const pass_context *ctx)
{
    return tensor_part(&ctx->mesh->layout, ctx->dims->text.kv_heads);
}

/* y [Tc, heads, d] = mrope(RMSNorm_d(x)) */
static status norm_rope_fwd(const pass_context *ctx, const param *weight, int64_t heads,
                            const void *x, void *y, void *rstd)
{
    return op_norm_rope_fwd(ctx->stream, &(norm_rope_fwd_args){.rows = ctx->context_tokens,
                                                               .heads = heads,
                                                               .head_dim = ctx->dims->text.head_dim,
                                                               .eps = ctx->dims->text.rms_eps,
                                                               .x = x,
                                                               .w = weight->act,
                                                               .cos = ctx->text_cos,
                                                               .sin = ctx->text_sin,
                                                               .y = y,
                                                               .rstd = rstd});
}

/* dy [Tc, heads, d] holds the gradient of norm_rope_fwd's y on entry and that of x on return. */
static status norm_rope_bwd(const pass_context *ctx, const param *weight, int64_t heads,
                            const void *x, const void *rstd, void *dy)
{
    return op_norm_rope_bwd(ctx->stream, &(norm_rope_bwd_args){.rows = ctx->context_tokens,
                                                               .heads = heads,
                                                               .head_dim = ctx->dims->text.head_dim,
                                                               .x = x,
                                                               .w = weight->act,
                                                               .cos = ctx->text_cos,
                                                               .sin = ctx->text_sin,
                                                               .rstd = rstd,
                                                               .dy = dy,
                                                               .dx = dy,
                                                               .dw = param_gradient(weight)});
}

/* Gathers the keys and values of the whole row for this rank's heads. */
static status gather_keys(const pass_context *ctx, int64_t layer, const attention_saved *saved,
                          const attention_scratch *scratch, const void **out_k, const void **out_v)
{
    int64_t narrow = own_kv_heads(ctx) * ctx->dims->text.head_dim;
    const comm_at at = {"gather keys and values", layer};
    TRY(keys_gather(ctx, at, saved->kr, narrow, scratch->ranks, scratch->keys, out_k));
    return keys_gather(ctx, at, saved->v, narrow, scratch->ranks, scratch->values, out_v);
}

/* The arguments that attention's forward and backward have in common. */
static attention_fwd_args core(const pass_context *ctx, const attention_saved *saved,
                               const void *keys, const void *values)
{
    const text_dims *dims = &ctx->dims->text;
    int64_t wide = own_heads(ctx) * dims->head_dim, narrow = own_kv_heads(ctx) * dims->head_dim;
    return (attention_fwd_args){.tokens = ctx->context_tokens,
                                .heads = own_heads(ctx),
                                .kv_heads = own_kv_heads(ctx),
                                .head_dim = dims->head_dim,
                                .segments = ctx->sizes.docs,
                                .longest = ctx->sizes.longest,
                                .causal = true,
                                .scale = 1 / sqrt((double)dims->head_dim),
                                .cu = ctx->batch->cu_docs,
                                .keys = ctx->all_tokens,
                                .cu_keys = ctx->batch->cu_keys,
                                .place = ctx->batch->query_key,
                                .prefix = ctx->batch->has_prefixes ? ctx->batch->doc_prefix : NULL,
                                .q = saved->qr,
                                .k = keys,
                                .v = values,
                                .q_stride = wide,
                                .k_stride = narrow,
                                .v_stride = narrow,
                                .o_stride = wide,
                                .o = saved->o,
                                .lse = saved->lse};
}

/* o [Tc, Q d] = attention inside each document. In a step of generation the queries are the last
 * tokens of their documents, and the keys of the others are in the cache. */
static status core_fwd(const pass_context *ctx, int64_t layer, const attention_saved *saved,
                       const attention_scratch *scratch)
{
    const void *keys, *values;
    TRY(gather_keys(ctx, layer, saved, scratch, &keys, &values));
    if (ctx->cache)
        TRY(kv_cache_keep(ctx, layer, keys, values));
    if (ctx->cache && ctx->cache->step)
        return kv_cache_attend(ctx, layer, saved->qr, saved->o);
    const attention_fwd_args args = core(ctx, saved, keys, values);
    return op_attention_fwd(ctx->stream, &args);
}

/* q, k, v = projections of a */
static status project_qkv(const pass_context *ctx, const attention_block *block,
                          const attention_saved *saved, const attention_scratch *scratch)
{
    int64_t tc = ctx->context_tokens;
    const void *a;
    TRY(sequence_gather(ctx, (comm_at){"gather attention input", block->layer}, saved->a,
                        ctx->dims->text.hidden, scratch->wide, &a));
    TRY(linear_fwd(ctx, &block->q, tc, a, saved->q, 0));
    TRY(linear_fwd(ctx, &block->k, tc, a, saved->k, 0));
    return linear_fwd(ctx, &block->v, tc, a, saved->v, 0);
}

status attention_block_fwd(const pass_context *ctx, const attention_block *block, const void *x,
                           const attention_saved *saved, const attention_scratch *scratch,
                           unsigned what, void *y)
{
    TRY(rmsnorm_fwd(ctx, block->norm, ctx->sizes.tokens, ctx->dims->text.hidden, x, saved->a,
                    saved->rstd));
    if (what & RECOMPUTE_QKV)
        TRY(project_qkv(ctx, block, saved, scratch));
    TRY(norm_rope_fwd(ctx, block->q_norm, own_heads(ctx), saved->q, saved->qr, saved->rstd_q));
    TRY(norm_rope_fwd(ctx, block->k_norm, own_kv_heads(ctx), saved->k, saved->kr, saved->rstd_k));
    if (what & RECOMPUTE_ATTENTION)
        TRY(core_fwd(ctx, block->layer, saved, scratch));
    if (!(what & RECOMPUTE_PROJ))
        return ST_OK;
    return linear_fwd_back(ctx, &block->o, (comm_at){"reduce attention output", block->layer},
                           saved->o, x, scratch->wide, y);
}

/* Computes dq, dk, dv [Tc, ..], the gradients of rotated q, rotated k and v, from do_. If
 * context ranks share the row, dk and dv are first those of the whole row and are then summed over
 * ranks. */
static status core_bwd(const pass_context *ctx, int64_t layer, const attention_saved *saved,
                       const attention_scratch *scratch)
{
    const bool shared = ctx->batch->cu_keys != NULL;
    const int64_t narrow = own_kv_heads(ctx) * ctx->dims->text.head_dim;
    const comm_at at = {"reduce keys and values", layer};
    const void *keys, *values;
    TRY(gather_keys(ctx, layer, saved, scratch, &keys, &values));
    const attention_fwd_args fwd = core(ctx, saved, keys, values);
    attention_bwd_args args = attention_bwd_of(&fwd);
    args.do_ = scratch->do_;
    args.dq = scratch->dq;
    args.dk = shared ? scratch->dkeys : scratch->dk;
    args.dv = shared ? scratch->dvalues : scratch->dv;
    args.work = scratch->work;
    TRY(op_attention_bwd(ctx->stream, &args));
    if (!shared)
        return ST_OK;
    TRY(keys_reduce(ctx, at, scratch->dkeys, narrow, scratch->ranks, scratch->dk));
    return keys_reduce(ctx, at, scratch->dvalues, narrow, scratch->ranks, scratch->dv);
}

status attention_block_bwd(const pass_context *ctx, const attention_block *block, const void *x,
                           const attention_saved *saved, const attention_scratch *scratch, void *dy)
{
    const text_dims *dims = &ctx->dims->text;
    int64_t tc = ctx->context_tokens;
    const void *all_dy, *a;
    TRY(sequence_gather(ctx, (comm_at){"gather attention gradient", block->layer}, dy, dims->hidden,
                        scratch->wide, &all_dy));
    TRY(linear_bwd(ctx, &block->o, tc, saved->o, all_dy, 0, scratch->do_,
                   false)); /* do [Tc, Q d] */
    TRY(core_bwd(ctx, block->layer, saved, scratch));
    TRY(norm_rope_bwd(ctx, block->q_norm, own_heads(ctx), saved->q, saved->rstd_q, scratch->dq));
    TRY(norm_rope_bwd(ctx, block->k_norm, own_kv_heads(ctx), saved->k, saved->rstd_k, scratch->dk));
    TRY(sequence_gather(ctx, (comm_at){"gather attention input", block->layer}, saved->a,
                        dims->hidden, scratch->wide, &a));
    TRY(linear_bwd(ctx, &block->q, tc, a, scratch->dq, 0, scratch->da, false)); /* da [Tc, H] */
    TRY(linear_bwd(ctx, &block->k, tc, a, scratch->dk, 0, scratch->da, true));
    TRY(linear_bwd(ctx, &block->v, tc, a, scratch->dv, 0, scratch->da, true));
    void *da = scratch->wide ? scratch->wide : scratch->da;
    TRY(sequence_reduce(ctx, (comm_at){"reduce attention gradient", block->layer}, scratch->da,
                        dims->hidden, da));
    return rmsnorm_bwd(ctx, block->norm, ctx->sizes.tokens, dims->hidden, x, saved->rstd, da, dy,
                       true);
}
