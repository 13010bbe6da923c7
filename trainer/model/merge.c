/* merge.c: the mergers, and rows into and out of the token stream, as merge.h describes them.
 *
 *   final:      z = reshape(LN_D(x), [M, W])      deepstack:  z = LN_W(reshape(x, [M, W]))
 *   y = gelu_erf(z F1t + c1) F2t + c2
 *
 * In merge order four consecutive patches make one row, so the reshape moves nothing. */
#include "trainer/model/merge.h"

#include "trainer/ops/table.h"

static int64_t factor(const model_dims *d) /* patches per merged row */
{
    return d->vision.merge * d->vision.merge;
}

void merger_bind(merger *w, params *p, int j)
{
    char stem[64], name[96];
    if (j < 0)
        snprintf(stem, sizeof stem, "model.visual.merger");
    else
        snprintf(stem, sizeof stem, "model.visual.deepstack_merger_list.%d", j);
    w->wide_norm = j >= 0;
    snprintf(name, sizeof name, "%s.norm", stem);
    w->norm = layernorm_bind(p, name);
    snprintf(name, sizeof name, "%s.linear_fc1", stem);
    w->fc1 = linear_bind(p, name, true);
    snprintf(name, sizeof name, "%s.linear_fc2", stem);
    w->fc2 = linear_bind(p, name, true);
}

void merger_saved_layout(merger_saved *k, space *sp, const shape *z, unsigned kinds)
{
    int64_t s = z->cap.patches, d = z->d->vision.hidden;
    if (kinds & RECOMPUTE_CHEAP) {
        k->mean = space_take(sp, s, z->acc);
        k->rstd = space_take(sp, s, z->acc);
        k->z = space_take(sp, s * d, z->act);
        k->g = space_take(sp, s * d, z->act);
    }
    if (kinds & RECOMPUTE_FC1)
        k->f = space_take(sp, s * d, z->act);
}

void merger_scratch_layout(merger_scratch *t, space *sp, const shape *z)
{
    int64_t s = z->cap.patches, d = z->d->vision.hidden;
    t->dg = space_take(sp, s * d, z->act);
    t->dz = space_take(sp, s * d, z->act);
}

static int64_t norm_rows(const pass_context *r, const merger *w)
{
    return w->wide_norm ? r->n.patches / factor(r->d) : r->n.patches;
}

static int64_t norm_width(const pass_context *r, const merger *w)
{
    return r->d->vision.hidden * (w->wide_norm ? factor(r->d) : 1);
}

status merger_fwd(const pass_context *r, const merger *w, const void *x, const merger_saved *k,
                  unsigned what, void *y)
{
    int64_t m = r->n.patches / factor(r->d), n = r->n.patches * r->d->vision.hidden;
    TRY(layernorm_fwd(r, &w->norm, norm_rows(r, w), norm_width(r, w), x, k->z, k->mean, k->rstd));
    if (what & RECOMPUTE_FC1)
        TRY(linear_fwd(r, &w->fc1, m, k->z, k->f, 0));
    TRY(op_gelu_fwd(r->s, &(gelu_fwd_args){.kind = GELU_ERF, .n = n, .x = k->f, .y = k->g}));
    return y ? linear_fwd(r, &w->fc2, m, k->g, y, 0) : ST_OK;
}

status merger_bwd(const pass_context *r, const merger *w, const void *x, const merger_saved *k,
                  const merger_scratch *t, const void *dy, void *dx, bool dx_add)
{
    int64_t m = r->n.patches / factor(r->d), n = r->n.patches * r->d->vision.hidden;
    TRY(linear_bwd(r, &w->fc2, m, k->g, dy, 0, t->dg, false)); /* dg [M, W] */
    TRY(op_gelu_bwd(
        r->s, &(gelu_bwd_args){.kind = GELU_ERF, .n = n, .x = k->f, .dy = t->dg, .dx = t->dg}));
    TRY(linear_bwd(r, &w->fc1, m, k->z, t->dg, 0, t->dz, false)); /* dz [M, W] */
    return layernorm_bwd(r, &w->norm, norm_rows(r, w), norm_width(r, w), x, k->mean, k->rstd, t->dz,
                         dx ? dx : t->dz, dx && dx_add);
}

status merge_insert(const pass_context *r, const void *y, void *h)
{
    return op_rows_gather(r->s, &(rows_gather_args){.n = r->n.tokens,
                                                    .width = r->d->text.hidden,
                                                    .index = r->b->visual_index,
                                                    .x = y,
                                                    .y = h,
                                                    .keep = true});
}

status merge_add(const pass_context *r, const void *y, void *h, void *scratch)
{
    TRY(op_rows_gather(r->s, &(rows_gather_args){.n = r->n.tokens,
                                                 .width = r->d->text.hidden,
                                                 .index = r->b->visual_index,
                                                 .x = y,
                                                 .y = scratch}));
    return add_to(r, r->n.tokens * r->d->text.hidden, scratch, h);
}

status merge_collect(const pass_context *r, const void *dh, void *dy)
{
    const layout *l = &r->mesh->layout;
    int64_t m = r->b->feature_rows * l->context * l->tensor, h = r->d->text.hidden;
    TRY(r->s->dev->v->zero(r->s, dy, (size_t)(m * h) * r->act));
    return op_rows_scatter(r->s, &(rows_scatter_args){.n = r->n.tokens,
                                                      .width = h,
                                                      .y_rows = m,
                                                      .index = r->b->visual_index,
                                                      .x = dh,
                                                      .y = dy,
                                                      .distinct = r->b->visual_distinct});
}
