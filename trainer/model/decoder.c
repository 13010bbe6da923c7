/* decoder.c: the text model of decoder.h.
 *
 *   x0 = Embed[ids], with visual rows in place of image and video pads
 *   x(l+1) = layer_l(x(l));  for l < n_deepstack: x(l+1) += deepstack feature l at visual tokens
 *   layer: x1 = x + attention(x);  y = x1 + experts(x1), or + the dense MLP of x1
 *
 * Each layer is one FSDP unit, and each half of it is a piece that may be captured as a graph. */
#include "trainer/model/decoder.h"

#include <stdlib.h>

#include "trainer/model/merge.h"
#include "trainer/model/sequence.h"
#include "trainer/ops/table.h"

static int64_t moe_layers(const model_dims *d)
{
    int64_t n = 0;
    for (int64_t l = 0; l < d->text.layers; l++)
        n += dims_layer_is_moe(d, l);
    return n;
}

status decoder_init(decoder *t, const model_dims *d, const layout *l, const stage_part *part,
                    int64_t tokens)
{
    size_t layers = (size_t)d->text.layers;
    *t = (decoder){.part = *part,
                   .layer = calloc(layers, sizeof *t->layer),
                   .x = calloc(layers + 1, sizeof *t->x),
                   .saved = calloc(layers, sizeof *t->saved)};
    if (!t->layer || !t->x || !t->saved) {
        decoder_done(t);
        return FAIL(ST_NO_MEMORY, "no memory for %zu decoder layers", layers);
    }
    for (size_t i = 0; i < layers; i++)
        t->layer[i].is_moe = dims_layer_is_moe(d, (int64_t)i);
    if (!moe_is_shared(l) || moe_layers(d) == 0)
        return ST_OK;
    status st = exchange_open(&t->moe_scratch.exchange, &d->text, l,
                              tokens * l->expert_tensor * d->text.top_k);
    if (st != ST_OK)
        decoder_done(t);
    return st;
}

void decoder_done(decoder *t)
{
    free(t->layer);
    free(t->x);
    free(t->saved);
    exchange_close(&t->moe_scratch.exchange);
    *t = (decoder){0};
}

void decoder_bind(decoder *t, params *p, const model_dims *d)
{
    t->features_wanted = params_trains(p, GROUP_VISION) || params_trains(p, GROUP_MERGER);
    t->embed = params_get(p, "%sembed_tokens.weight", p->text_prefix);
    for (int l = 0; l < d->text.layers; l++) {
        attention_block_bind(&t->layer[l].attention, p, l);
        if (t->layer[l].is_moe)
            moe_bind(&t->layer[l].moe, p, l);
        else
            mlp_bind(&t->layer[l].mlp, p, l);
    }
    t->lowest = 0;
    while (t->lowest < d->text.layers && !t->layer[t->lowest].attention.norm->reached)
        t->lowest++;
}

/* Takes the arrays of these kinds from sp; members of other kinds keep their values. */
static void saved_layout(decoder_saved *k, space *sp, const shape *z, bool is_moe, unsigned kinds)
{
    attention_saved_layout(&k->attention, sp, z, kinds);
    if (kinds & RECOMPUTE_PROJ)
        k->x1 = space_take(sp, z->cap.tokens * z->d->text.hidden, z->act);
    if (is_moe)
        moe_saved_layout(&k->moe, sp, z, kinds);
    else
        mlp_saved_layout(&k->mlp, sp, z, kinds);
}

int64_t decoder_kinds_bytes(const decoder *t, const shape *z, int64_t layer, unsigned kinds)
{
    decoder_saved k;
    space sp = {0};
    saved_layout(&k, &sp, z, t->layer[layer].is_moe, kinds);
    return (int64_t)sp.used;
}

static unsigned recompute_plan_of(const decoder *t, int64_t layer)
{
    return recompute_of(&t->recomputed, layer);
}

void decoder_layout(decoder *t, space *sp, const shape *z, decoder_modes mode)
{
    const text_dims *d = &z->d->text;
    int64_t tokens = z->cap.tokens, width = tokens * d->hidden;
    t->recomputed = mode.training ? mode.recomputed : (recompute){.what = RECOMPUTE_ALL};
    t->cos = space_take(sp, z->context_tokens * d->head_dim / 2, z->acc);
    t->sin = space_take(sp, z->context_tokens * d->head_dim / 2, z->acc);
    for (int64_t l = t->part.first; l <= t->part.end;
         l++) /* without training two buffers take turns */
        t->x[l] =
            mode.training || l < t->part.first + 2 ? space_take(sp, width, z->act) : t->x[l - 2];
    for (int64_t l = t->part.first; l < t->part.end; l++)
        saved_layout(&t->saved[l], sp, z, t->layer[l].is_moe,
                     RECOMPUTE_ALL & ~recompute_plan_of(t, l));
    t->aux = (moe_aux){.n_layers = moe_layers(z->d)};
    t->aux.on = mode.aux && t->aux.n_layers > 0;
    if (t->aux.n_layers > 0) {
        t->count = space_take(sp, d->layers * d->experts, sizeof(int32_t));
        moe_aux_layout(&t->aux, sp, d->experts, z->acc);
    }
    if (mode.training) /* per flight: one may be on its way to a stage while the next one arrives */
        t->dx = space_take(sp, width, z->act);
    if (mode.training && d->has_pad && t->part.opens)
        t->pad_row = space_take(sp, d->hidden, z->acc);
}

void decoder_layout_scratch(decoder *t, space *sp, const shape *z, decoder_modes mode)
{
    int64_t n_moe = t->aux.n_layers, layers = z->d->text.layers;
    size_t first = space_mark(sp), top = first; /* layers use the same memory in turn */
    for (int64_t l = t->part.first; l < t->part.end; l++) {
        saved_layout(&t->saved[l], sp, z, t->layer[l].is_moe, recompute_plan_of(t, l));
        space_turn(sp, first, &top);
    }
    space_rewind(sp, top);
    t->add = space_take(sp, z->cap.tokens * z->d->text.hidden, z->act);
    lora_scratch_layout(&t->lora, sp, z, mode.lora_rank, mode.lora_experts);
    int64_t peers = z->ranks->context * z->ranks->tensor, merge = z->d->vision.merge;
    t->features = NULL;
    if (peers > 1 && z->cap.patches > 0 && t->part.opens)
        t->features =
            space_take(sp, peers * (z->cap.patches / (merge * merge)) * z->d->text.hidden, z->act);
    size_t mark = space_mark(sp); /* the two halves of a layer use the same memory in turn */
    attention_scratch_layout(&t->attention_scratch, sp, z, mode.training);
    space_rewind(sp, mark);
    if (n_moe > 0)
        moe_scratch_layout(&t->moe_scratch, sp, z, mode.training);
    space_rewind(sp, mark);
    if (n_moe < layers)
        mlp_scratch_layout(&t->mlp_scratch, sp, z, mode.training);
}

static int32_t *count_of(const decoder *t, const pass_context *r, int64_t layer)
{
    return t->count + layer * r->d->text.experts;
}

static void use_tables(const decoder *t, pass_context *r)
{
    r->text_cos = t->cos;
    r->text_sin = t->sin;
    r->lora = &t->lora;
}

static status make_tables(decoder *t, pass_context *r)
{
    const text_dims *d = &r->d->text;
    rope_text_args angles = {.tokens = r->context_tokens,
                             .head_dim = d->head_dim,
                             .theta = d->rope_theta,
                             .positions = r->b->positions,
                             .cos = t->cos,
                             .sin = t->sin};
    for (int axis = 0; axis < 3; axis++)
        angles.section[axis] = d->mrope_section[axis];
    use_tables(t, r);
    return op_rope_text(r->s, &angles);
}

static status embed_tokens(decoder *t, pass_context *r, void *const *feature)
{
    const text_dims *d = &r->d->text;
    TRY(fsdp_units_enter(r->fsdp_units, r->s, unit_embedding(r->d), UNIT_FORWARD));
    TRY(op_rows_gather(r->s, &(rows_gather_args){.n = r->n.tokens,
                                                 .width = d->hidden,
                                                 .index = r->b->text_index,
                                                 .x = t->embed->act,
                                                 .y = t->x[0]}));
    TRY(fsdp_units_leave(r->fsdp_units, r->s, unit_embedding(r->d), UNIT_FORWARD));
    const void *rows;
    if (r->b->feature_rows == 0)
        return ST_OK;
    TRY(features_gather(r, (comm_at){"gather visual rows", -1}, feature[0], t->features, &rows));
    return merge_insert(r, rows, t->x[0]);
}

static status add_deepstack(const decoder *t, const pass_context *r, int64_t l, const void *feature)
{
    const void *rows;
    TRY(features_gather(r, (comm_at){"gather deepstack features", l}, feature, t->features, &rows));
    return merge_add(r, rows, t->x[l + 1], t->add);
}

/* Computes dfeature [M, H] from dx, for the pictures that this rank encoded. */
static status collect_features(const decoder *t, const pass_context *r, int64_t l, void *dfeature)
{
    void *all = t->features ? t->features : dfeature;
    TRY(merge_collect(r, t->dx, all));
    return features_reduce(r, (comm_at){"reduce feature gradients", l}, all, dfeature);
}

static status attention_fwd(const decoder *t, const pass_context *r, int64_t l, int pass,
                            unsigned what)
{
    const decoder_saved *k = &t->saved[l];
    bool done;
    TRY(run_piece(r, REPLAY_ATTENTION, pass, l, &done));
    if (done)
        return ST_OK;
    return graph_replay_end(r->s,
                            attention_block_fwd(r, &t->layer[l].attention, t->x[l], &k->attention,
                                                &t->attention_scratch, what, k->x1));
}

static status attention_bwd(const decoder *t, const pass_context *r, int64_t l)
{
    bool done;
    TRY(run_piece(r, REPLAY_ATTENTION, REPLAY_BACKWARD, l, &done));
    return done ? ST_OK
                : graph_replay_end(r->s, attention_block_bwd(r, &t->layer[l].attention, t->x[l],
                                                             &t->saved[l].attention,
                                                             &t->attention_scratch, t->dx));
}

static status layer_fwd(const decoder *t, const pass_context *r, int64_t l, void *y)
{
    const decoder_layer *w = &t->layer[l];
    const decoder_saved *k = &t->saved[l];
    TRY(attention_fwd(t, r, l, REPLAY_FORWARD, RECOMPUTE_ALL));
    if (!w->is_moe)
        return mlp_fwd(r, &w->mlp, k->x1, &k->mlp, &t->mlp_scratch, RECOMPUTE_ALL, y);
    r->s->part = PART_MOE;
    TRY(moe_fwd(r, &w->moe, k->x1, &k->moe, &t->moe_scratch, count_of(t, r, l),
                r->cache ? NULL : &t->aux, recompute_plan_of(t, l) & RECOMPUTE_FC1, y));
    r->s->part = PART_TEXT;
    return ST_OK;
}

/* Computes again what backward needs and was not kept. *out_fresh is the `fresh` of moe_bwd. */
static status layer_recomputed(const decoder *t, const pass_context *r, int64_t l, bool *out_fresh)
{
    const decoder_layer *w = &t->layer[l];
    const decoder_saved *k = &t->saved[l];
    const unsigned what = recompute_plan_of(t, l);
    *out_fresh = false;
    if (!what)
        return ST_OK;
    TRY(attention_fwd(t, r, l, REPLAY_AGAIN, what));
    if (!w->is_moe)
        return mlp_fwd(r, &w->mlp, k->x1, &k->mlp, &t->mlp_scratch, what, NULL);
    r->s->part = PART_MOE;
    TRY(moe_recomputed(r, &w->moe, k->x1, &k->moe, &t->moe_scratch, count_of(t, r, l), what,
                       out_fresh));
    r->s->part = PART_TEXT;
    return ST_OK;
}

status decoder_fwd(decoder *t, pass_context *r, void *const *feature)
{
    const bool aux = t->aux.on && !r->cache; /* generation has no loss */
    if (aux && t->part.opens)
        TRY(moe_aux_clear(r, &t->aux));
    TRY(make_tables(t, r));
    if (t->part.opens)
        TRY(embed_tokens(t, r, feature));
    for (int64_t l = t->part.first; l < t->part.end; l++) {
        TRY(fsdp_units_enter(r->fsdp_units, r->s, unit_layer(r->d, l), UNIT_FORWARD));
        TRY(layer_fwd(t, r, l, t->x[l + 1]));
        TRY(fsdp_units_leave(r->fsdp_units, r->s, unit_layer(r->d, l), UNIT_FORWARD));
        if (l < r->d->vision.n_deepstack && r->b->feature_rows > 0)
            TRY(add_deepstack(t, r, l, feature[1 + l]));
    }
    return aux && t->part.closes ? moe_aux_sum(r, &t->aux) : ST_OK;
}

static status layer_bwd(const decoder *t, const pass_context *r, int64_t l)
{
    const decoder_layer *w = &t->layer[l];
    const decoder_saved *k = &t->saved[l];
    bool fresh;
    TRY(layer_recomputed(t, r, l, &fresh));
    r->s->part = w->is_moe ? PART_MOE : PART_TEXT;
    if (w->is_moe)
        TRY(moe_bwd(r, &w->moe, k->x1, &k->moe, &t->moe_scratch, count_of(t, r, l), &t->aux, fresh,
                    t->dx));
    else
        TRY(mlp_bwd(r, &w->mlp, k->x1, &k->mlp, &t->mlp_scratch, t->dx));
    r->s->part = PART_TEXT;
    return attention_bwd(t, r, l);
}

/* A pad token's embedding gets no gradient (torch's padding_idx). Its row is saved before the
 * scatter and restored after it, so that what a tied head has added to it stays. */
static status add_embedding_gradient(const decoder *t, const pass_context *r)
{
    const text_dims *d = &r->d->text;
    const backend_vtable *v = r->s->dev->v;
    const size_t bytes = (size_t)d->hidden * r->acc;
    char *of_pad = (char *)t->embed->grad + (size_t)d->pad_token * bytes;
    if (d->has_pad)
        TRY(v->copy(r->s, t->pad_row, of_pad, bytes));
    TRY(op_rows_scatter(r->s, &(rows_scatter_args){.n = r->n.tokens,
                                                   .width = d->hidden,
                                                   .y_rows = d->vocab,
                                                   .index = r->b->text_index,
                                                   .x = t->dx,
                                                   .y = t->embed->grad,
                                                   .y_acc = true}));
    return d->has_pad ? v->copy(r->s, of_pad, t->pad_row, bytes) : ST_OK;
}

status decoder_bwd(decoder *t, pass_context *r, void *const *dfeature)
{
    bool features = t->features_wanted && r->b->feature_rows > 0 && t->part.opens;
    use_tables(t, r);
    if (t->aux.on && !t->part.closes) /* the last stage has the value from its forward */
        TRY(moe_aux_value(r, &t->aux));
    for (int64_t l = t->part.end - 1; l >= t->lowest && l >= t->part.first; l--) {
        if (features && l < r->d->vision.n_deepstack)
            TRY(collect_features(t, r, l, dfeature[1 + l]));
        TRY(fsdp_units_enter(r->fsdp_units, r->s, unit_layer(r->d, l), UNIT_BACKWARD));
        TRY(layer_bwd(t, r, l));
        TRY(fsdp_units_leave(r->fsdp_units, r->s, unit_layer(r->d, l), UNIT_BACKWARD));
    }
    if (features)
        TRY(collect_features(t, r, -1, dfeature[0]));
    if (!t->embed->grad) /* frozen, or on another stage */
        return ST_OK;
    TRY(fsdp_units_enter(r->fsdp_units, r->s, unit_embedding(r->d), UNIT_GRADIENT));
    TRY(add_embedding_gradient(t, r));
    return fsdp_units_leave(r->fsdp_units, r->s, unit_embedding(r->d), UNIT_GRADIENT);
}
