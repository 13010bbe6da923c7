/* vision_block.c: a block of the vision tower, as vision_block.h describes it.
 *
 *   a  = LN(x; norm1)
 *   [q|k|v] = a Wqkvt + bqkv            q, k = rope2d(q), rope2d(k)
 *   o  = softmax(q kt / sqrt(d)) v      per head, not causal, inside a frame pair
 *   x1 = x + o Wprojt + bproj
 *   y  = x1 + gelu_tanh(LN(x1; norm2) W1t + b1) W2t + b2
 */
#include "trainer/model/vision_block.h"

#include <math.h>

#include "trainer/ops/table.h"

void vision_block_bind(vision_block *w, params *p, int block)
{
    char name[96];
#define NAMED(part) (snprintf(name, sizeof name, "model.visual.blocks.%d.%s", block, part), name)
    w->norm1 = layernorm_bind(p, NAMED("norm1"));
    w->norm2 = layernorm_bind(p, NAMED("norm2"));
    w->qkv = linear_bind(p, NAMED("attn.qkv"), true);
    w->proj = linear_bind(p, NAMED("attn.proj"), true);
    w->fc1 = linear_bind(p, NAMED("mlp.linear_fc1"), true);
    w->fc2 = linear_bind(p, NAMED("mlp.linear_fc2"), true);
#undef NAMED
}

void vision_saved_layout(vision_saved *k, space *sp, const shape *z, unsigned kinds)
{
    const vision_dims *v = &z->d->vision;
    int64_t s = z->cap.patches, d = v->hidden;
    if (kinds & RECOMPUTE_CHEAP) {
        k->mean1 = space_take(sp, s, z->acc);
        k->rstd1 = space_take(sp, s, z->acc);
        k->a = space_take(sp, s * d, z->act);
        k->mean2 = space_take(sp, s, z->acc);
        k->rstd2 = space_take(sp, s, z->acc);
        k->m = space_take(sp, s * d, z->act);
        k->g = space_take(sp, s * v->intermediate, z->act);
    }
    if (kinds & RECOMPUTE_QKV)
        k->qkv = space_take(sp, s * 3 * d, z->act);
    if (kinds & RECOMPUTE_ATTENTION) {
        k->o = space_take(sp, s * d, z->act);
        k->lse = space_take(sp, s * v->heads, z->acc);
    }
    if (kinds & RECOMPUTE_PROJ)
        k->x1 = space_take(sp, s * d, z->act);
    if (kinds & RECOMPUTE_FC1)
        k->f = space_take(sp, s * v->intermediate, z->act);
}

void vision_scratch_layout(vision_scratch *t, space *sp, const shape *z)
{
    const vision_dims *v = &z->d->vision;
    int64_t s = z->cap.patches;
    t->wide = space_take(sp, s * v->intermediate, z->act);
    t->narrow = space_take(sp, s * v->hidden, z->act);
    t->dqkv = space_take(sp, s * 3 * v->hidden, z->act);
    t->work = space_take(sp, s * v->heads, z->acc);
}

/* Rotates q and k of qkv [S, 3D] in place; inverse: rotates them back. */
static status rotate_qk(const pass_context *r, void *qkv, bool inverse)
{
    const vision_dims *v = &r->d->vision;
    for (int part = 0; part < 2; part++)
        TRY(op_rope_apply(r->s, &(rope_apply_args){.rows = r->n.patches,
                                                   .heads = v->heads,
                                                   .head_dim = dims_vision_head_dim(r->d),
                                                   .x_stride = 3 * v->hidden,
                                                   .cos = r->vision_cos,
                                                   .sin = r->vision_sin,
                                                   .x = at(qkv, part * v->hidden, r->act),
                                                   .inverse = inverse}));
    return ST_OK;
}

/* qkv = projection of a, with q and k rotated */
static status project_patches(const pass_context *r, const vision_block *w, const vision_saved *k)
{
    TRY(linear_fwd(r, &w->qkv, r->n.patches, k->a, k->qkv, 0));
    return rotate_qk(r, k->qkv, false);
}

/* The arguments that attention's forward and backward have in common. */
static attention_fwd_args attention_of(const pass_context *r, const vision_saved *k)
{
    const vision_dims *v = &r->d->vision;
    int64_t d = v->hidden, head_dim = dims_vision_head_dim(r->d);
    return (attention_fwd_args){.tokens = r->n.patches,
                                .heads = v->heads,
                                .kv_heads = v->heads,
                                .head_dim = head_dim,
                                .segments = r->n.frames,
                                .longest = r->n.frame,
                                .scale = 1 / sqrt((double)head_dim),
                                .cu = r->b->cu_frames,
                                .q = k->qkv,
                                .k = at(k->qkv, d, r->act),
                                .v = at(k->qkv, 2 * d, r->act),
                                .q_stride = 3 * d,
                                .k_stride = 3 * d,
                                .v_stride = 3 * d,
                                .o_stride = d,
                                .o = k->o,
                                .lse = k->lse};
}

static status attend_patches(const pass_context *r, const vision_saved *k)
{
    const attention_fwd_args a = attention_of(r, k);
    return op_attention_fwd(r->s, &a);
}

status vision_block_fwd(const pass_context *r, const vision_block *w, const void *x,
                        const vision_saved *k, unsigned what, void *y)
{
    const vision_dims *v = &r->d->vision;
    int64_t s = r->n.patches, d = v->hidden;
    TRY(layernorm_fwd(r, &w->norm1, s, d, x, k->a, k->mean1, k->rstd1));
    if (what & RECOMPUTE_QKV)
        TRY(project_patches(r, w, k));
    if (what & RECOMPUTE_ATTENTION)
        TRY(attend_patches(r, k));
    if (what & RECOMPUTE_PROJ)
        TRY(linear_fwd_onto(r, &w->proj, s, k->o, x, k->x1));
    TRY(layernorm_fwd(r, &w->norm2, s, d, k->x1, k->m, k->mean2, k->rstd2));
    if (what & RECOMPUTE_FC1)
        TRY(linear_fwd(r, &w->fc1, s, k->m, k->f, 0));
    TRY(op_gelu_fwd(
        r->s, &(gelu_fwd_args){.kind = GELU_TANH, .n = s * v->intermediate, .x = k->f, .y = k->g}));
    return y ? linear_fwd_onto(r, &w->fc2, s, k->g, k->x1, y) : ST_OK;
}

static status attention_bwd(const pass_context *r, const vision_saved *k, const vision_scratch *t)
{
    const int64_t d = r->d->vision.hidden;
    const attention_fwd_args f = attention_of(r, k);
    attention_bwd_args a = attention_bwd_of(&f);
    a.do_ = t->narrow;
    a.dq = t->dqkv;
    a.dk = at(t->dqkv, d, r->act);
    a.dv = at(t->dqkv, 2 * d, r->act);
    a.work = t->work;
    return op_attention_bwd(r->s, &a);
}

status vision_block_bwd(const pass_context *r, const vision_block *w, const void *x,
                        const vision_saved *k, const vision_scratch *t, void *dy)
{
    const vision_dims *v = &r->d->vision;
    int64_t s = r->n.patches, d = v->hidden;
    TRY(linear_bwd(r, &w->fc2, s, k->g, dy, 0, t->wide, false)); /* dg [S, F] */
    TRY(op_gelu_bwd(r->s, &(gelu_bwd_args){.kind = GELU_TANH,
                                           .n = s * v->intermediate,
                                           .x = k->f,
                                           .dy = t->wide,
                                           .dx = t->wide}));            /* df [S, F] */
    TRY(linear_bwd(r, &w->fc1, s, k->m, t->wide, 0, t->narrow, false)); /* dm [S, D] */
    TRY(layernorm_bwd(r, &w->norm2, s, d, k->x1, k->mean2, k->rstd2, t->narrow, dy, true));
    TRY(linear_bwd(r, &w->proj, s, k->o, dy, 0, t->narrow, false)); /* do [S, D] */
    TRY(attention_bwd(r, k, t));                                    /* dqkv [S, 3D] */
    TRY(rotate_qk(r, t->dqkv, true));
    TRY(linear_bwd(r, &w->qkv, s, k->a, t->dqkv, 0, t->narrow, false)); /* da [S, D] */
    return layernorm_bwd(r, &w->norm1, s, d, x, k->mean1, k->rstd1, t->narrow, dy, true);
}
