/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.c: the text model of decoder.h.
 *
 *   x0 = Embed[ids], with visual rows in place of image and video pads
 *   x(l+1) = layer_l(x(l));  for l < n_deepstack: x(l+1) += deepstack feature l at visual tokens
 *   layer: x1 = x + attention(x);  y = x1 + experts(x1), or + the dense MLP of x1
 *
 * Each layer is one FSDP unit, and each half of it is a piece that may be captured as a graph. */
#include "trainer/model/text/decoder.h"

#include <stdlib.h>

#include "trainer/model/layers/layers.h"
#include "trainer/model/vision/vision.h"
#include "trainer/ops/table.h"

static int64_t moe_layers(const model_dims *dims)
{
    int64_t count = 0;
    for (int64_t layer = 0; layer < dims->text.layers; layer++)
        count += dims_layer_is_moe(dims, layer);
    return count;
}

status decoder_init(decoder *stack, const model_dims *dims, const layout *degrees,
                    const stage_part *part, int64_t tokens)
{
    size_t layers = (size_t)dims->text.layers;
    *stack = (decoder){.part = *part,
                       .layer = calloc(layers, sizeof *stack->layer),
                       .x = calloc(layers + 1, sizeof *stack->x),
                       .saved = calloc(layers, sizeof *stack->saved)};
    if (!stack->layer || !stack->x || !stack->saved) {
        decoder_done(stack);
        return FAIL(ST_NO_MEMORY, "no memory for %zu decoder layers", layers);
    }
    for (size_t i = 0; i < layers; i++)
        stack->layer[i].is_moe = dims_layer_is_moe(dims, (int64_t)i);
    if (!exchange_is_needed(degrees) || moe_layers(dims) == 0)
        return ST_OK;
    status st = exchange_open(&stack->moe_scratch.exchange, &dims->text, degrees,
                              tokens * degrees->expert_tensor * dims->text.top_k);
    if (st != ST_OK)
        decoder_done(stack);
    return st;
}

void decoder_done(decoder *stack)
{
    free(stack->layer);
    free(stack->x);
    free(stack->saved);
    exchange_close(&stack->moe_scratch.exchange);
    *stack = (decoder){0};
}

void decoder_bind(decoder *stack, params *registry, const model_dims *dims)
{
    stack->features_wanted =
        params_trains(registry, GROUP_VISION) || params_trains(registry, GROUP_MERGER);
    stack->embed = params_get(registry, "%sembed_tokens.weight", registry->text_prefix);
    for (int layer = 0; layer < dims->text.layers; layer++) {
        attention_block_bind(&stack->layer[layer].attention, registry, layer);
        if (stack->layer[layer].is_moe)
            moe_bind(&stack->layer[layer].moe, registry, layer);
        else
            mlp_bind(&stack->layer[layer].mlp, registry, layer);
    }
    stack->lowest = 0;
    while (stack->lowest < dims->text.layers &&
           !stack->layer[stack->lowest].attention.norm->reached)
        stack->lowest++;
}

/* Takes the arrays of these kinds from sp; members of other kinds keep their values. */
static void saved_layout(decoder_saved *saved, space *sp, const shape *sizes, bool is_moe,
                         unsigned kinds)
{
    attention_saved_layout(&saved->attention, sp, sizes, kinds);
    if (kinds & RECOMPUTE_PROJ)
        saved->x1 = space_take(sp, sizes->cap.tokens * sizes->dims->text.hidden, sizes->act);
    if (is_moe)
        moe_saved_layout(&saved->moe, sp, sizes, kinds);
    else
        mlp_saved_layout(&saved->mlp, sp, sizes, kinds);
}

int64_t decoder_kinds_bytes(const decoder *stack, const shape *sizes, int64_t layer, unsigned kinds)
{
    decoder_saved saved;
    space sp = {0};
    saved_layout(&saved, &sp, sizes, stack->layer[layer].is_moe, kinds);
    return (int64_t)sp.used;
}

static unsigned recompute_plan_of(const decoder *stack, int64_t layer)
{
    return recompute_of(&stack->recomputed, layer);
}

void decoder_layout(decoder *stack, space *sp, const shape *sizes, decoder_modes mode)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t tokens = sizes->cap.tokens, width = tokens * dims->hidden;
    stack->recomputed = mode.training ? mode.recomputed : (recompute){.what = RECOMPUTE_ALL};
    stack->cos = space_take(sp, sizes->context_tokens * dims->head_dim / 2, sizes->acc);
    stack->sin = space_take(sp, sizes->context_tokens * dims->head_dim / 2, sizes->acc);
    for (int64_t layer = stack->part.first; layer <= stack->part.end;
         layer++) /* without training two buffers take turns */
        stack->x[layer] = mode.training || layer < stack->part.first + 2
                              ? space_take(sp, width, sizes->act)
                              : stack->x[layer - 2];
    for (int64_t layer = stack->part.first; layer < stack->part.end; layer++)
        saved_layout(&stack->saved[layer], sp, sizes, stack->layer[layer].is_moe,
                     RECOMPUTE_ALL & ~recompute_plan_of(stack, layer));
    stack->aux = (moe_aux){.n_layers = moe_layers(sizes->dims)};
    stack->aux.on = mode.aux && stack->aux.n_layers > 0;
    if (stack->aux.n_layers > 0) {
        stack->count = space_take(sp, dims->layers * dims->experts, sizeof(int32_t));
        moe_aux_layout(&stack->aux, sp, dims->experts, sizes->acc);
    }
    if (mode.training) /* per flight: one may be on its way to a stage while the next one arrives */
        stack->dx = space_take(sp, width, sizes->act);
    if (mode.training && dims->has_pad && stack->part.opens)
        stack->pad_row = space_take(sp, dims->hidden, sizes->acc);
}

void decoder_layout_scratch(decoder *stack, space *sp, const shape *sizes, decoder_modes mode)
{
    int64_t n_moe = stack->aux.n_layers, layers = sizes->dims->text.layers;
    size_t first = space_mark(sp), top = first; /* layers use the same memory in turn */
    for (int64_t layer = stack->part.first; layer < stack->part.end; layer++) {
        saved_layout(&stack->saved[layer], sp, sizes, stack->layer[layer].is_moe,
                     recompute_plan_of(stack, layer));
        space_turn(sp, first, &top);
    }
    space_rewind(sp, top);
    stack->add = space_take(sp, sizes->cap.tokens * sizes->dims->text.hidden, sizes->act);
    lora_scratch_layout(&stack->lora, sp, sizes, mode.lora,
                        exchange_is_needed(sizes->ranks)
                            ? exchange_rows(sizes)
                            : sizes->cap.tokens * sizes->dims->text.top_k);
    int64_t peers = sizes->ranks->context * sizes->ranks->tensor, merge = sizes->dims->vision.merge;
    stack->features = NULL;
    if (peers > 1 && sizes->cap.patches > 0 && stack->part.opens)
        stack->features = space_take(
            sp, peers * (sizes->cap.patches / (merge * merge)) * sizes->dims->text.hidden,
            sizes->act);
    size_t mark = space_mark(sp); /* the two halves of a layer use the same memory in turn */
    attention_scratch_layout(&stack->attention_scratch, sp, sizes, mode.training);
    space_rewind(sp, mark);
    if (n_moe > 0)
        moe_scratch_layout(&stack->moe_scratch, sp, sizes, mode.training);
    space_rewind(sp, mark);
    if (n_moe < layers)
        mlp_scratch_layout(&stack->mlp_scratch, sp, sizes, mode.training);
}

static int32_t *count_of(const decoder *stack, const pass_context *ctx, int64_t layer)
{
    return stack->count + layer * ctx->dims->text.experts;
}

static void use_tables(const decoder *stack, pass_context *ctx)
{
    ctx->text_cos = stack->cos;
    ctx->text_sin = stack->sin;
    ctx->lora = &stack->lora;
}

static status make_tables(decoder *stack, pass_context *ctx)
{
    const text_dims *dims = &ctx->dims->text;
    rope_text_args angles = {.tokens = ctx->context_tokens,
                             .head_dim = dims->head_dim,
                             .theta = dims->rope_theta,
                             .positions = ctx->batch->positions,
                             .cos = stack->cos,
                             .sin = stack->sin};
    for (int axis = 0; axis < 3; axis++)
        angles.section[axis] = dims->mrope_section[axis];
    use_tables(stack, ctx);
    return op_rope_text(ctx->stream, &angles);
}

static status embed_tokens(decoder *stack, pass_context *ctx, void *const *feature)
{
    const text_dims *dims = &ctx->dims->text;
    TRY(fsdp_units_enter(ctx->fsdp_units, ctx->stream, unit_embedding(ctx->dims), UNIT_FORWARD));
    TRY(op_rows_gather(ctx->stream, &(rows_gather_args){.n = ctx->sizes.tokens,
                                                        .width = dims->hidden,
                                                        .index = ctx->batch->text_index,
                                                        .x = stack->embed->act,
                                                        .y = stack->x[0]}));
    TRY(fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit_embedding(ctx->dims), UNIT_FORWARD));
    const void *rows;
    if (ctx->batch->feature_rows == 0)
        return ST_OK;
    TRY(features_gather(ctx, (comm_at){"gather visual rows", -1}, feature[0], stack->features,
                        &rows));
    return merge_insert(ctx, rows, stack->x[0]);
}

static status add_deepstack(const decoder *stack, const pass_context *ctx, int64_t layer,
                            const void *feature)
{
    const void *rows;
    TRY(features_gather(ctx, (comm_at){"gather deepstack features", layer}, feature,
                        stack->features, &rows));
    return merge_add(ctx, rows, stack->x[layer + 1], stack->add);
}

/* Computes dfeature [M, H] from dx, for the pictures that this rank encoded. */
static status collect_features(const decoder *stack, const pass_context *ctx, int64_t layer,
                               void *dfeature)
{
    void *all = stack->features ? stack->features : dfeature;
    TRY(merge_collect(ctx, stack->dx, all));
    return features_reduce(ctx, (comm_at){"reduce feature gradients", layer}, all, dfeature);
}

static status attention_fwd(const decoder *stack, const pass_context *ctx, int64_t layer, int pass,
                            unsigned what)
{
    const decoder_saved *saved = &stack->saved[layer];
    bool done;
    TRY(run_piece(ctx, REPLAY_ATTENTION, pass, layer, &done));
    if (done)
        return ST_OK;
    return graph_replay_end(ctx->stream,
                            attention_block_fwd(ctx, &stack->layer[layer].attention,
                                                stack->x[layer], &saved->attention,
                                                &stack->attention_scratch, what, saved->x1));
}

static status attention_bwd(const decoder *stack, const pass_context *ctx, int64_t layer)
{
    bool done;
    TRY(run_piece(ctx, REPLAY_ATTENTION, REPLAY_BACKWARD, layer, &done));
    return done ? ST_OK
                : graph_replay_end(ctx->stream, attention_block_bwd(
                                                    ctx, &stack->layer[layer].attention,
                                                    stack->x[layer], &stack->saved[layer].attention,
                                                    &stack->attention_scratch, stack->dx));
}

static status layer_fwd(const decoder *stack, const pass_context *ctx, int64_t layer, void *y)
{
    const decoder_layer *parts = &stack->layer[layer];
    const decoder_saved *saved = &stack->saved[layer];
    TRY(attention_fwd(stack, ctx, layer, REPLAY_FORWARD, RECOMPUTE_ALL));
    if (!parts->is_moe)
        return mlp_fwd(ctx, &parts->mlp, saved->x1, &saved->mlp, &stack->mlp_scratch, RECOMPUTE_ALL,
                       y);
    ctx->stream->part = PART_MOE;
    TRY(moe_fwd(ctx, &parts->moe, saved->x1, &saved->moe, &stack->moe_scratch,
                count_of(stack, ctx, layer), ctx->cache ? NULL : &stack->aux,
                recompute_plan_of(stack, layer) & RECOMPUTE_FC1, y));
    ctx->stream->part = PART_TEXT;
    return ST_OK;
}

/* Computes again what backward needs and was not kept. *out_fresh is the `fresh` of moe_bwd. */
static status layer_recomputed(const decoder *stack, const pass_context *ctx, int64_t layer,
                               bool *out_fresh)
{
    const decoder_layer *parts = &stack->layer[layer];
    const decoder_saved *saved = &stack->saved[layer];
    const unsigned what = recompute_plan_of(stack, layer);
    *out_fresh = false;
    if (!what)
        return ST_OK;
    TRY(attention_fwd(stack, ctx, layer, REPLAY_AGAIN, what));
    if (!parts->is_moe)
        return mlp_fwd(ctx, &parts->mlp, saved->x1, &saved->mlp, &stack->mlp_scratch, what, NULL);
    ctx->stream->part = PART_MOE;
    TRY(moe_recomputed(ctx, &parts->moe, saved->x1, &saved->moe, &stack->moe_scratch,
                       count_of(stack, ctx, layer), what, out_fresh));
    ctx->stream->part = PART_TEXT;
    return ST_OK;
}

status decoder_fwd(decoder *stack, pass_context *ctx, void *const *feature)
{
    const bool aux = stack->aux.on && !ctx->cache; /* no loss in generation */
    if (aux && stack->part.opens)
        TRY(moe_aux_clear(ctx, &stack->aux));
    TRY(make_tables(stack, ctx));
    if (stack->part.opens)
        TRY(embed_tokens(stack, ctx, feature));
    for (int64_t layer = stack->part.first; layer < stack->part.end; layer++) {
        TRY(fsdp_units_enter(ctx->fsdp_units, ctx->stream, unit_layer(ctx->dims, layer),
                             UNIT_FORWARD));
        TRY(layer_fwd(stack, ctx, layer, stack->x[layer + 1]));
        TRY(fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit_layer(ctx->dims, layer),
                             UNIT_FORWARD));
        if (layer < ctx->dims->vision.n_deepstack && ctx->batch->feature_rows > 0)
            TRY(add_deepstack(stack, ctx, layer, feature[1 + layer]));
    }
    return aux && stack->part.closes ? moe_aux_sum(ctx, &stack->aux) : ST_OK;
}

static status layer_bwd(const decoder *stack, const pass_context *ctx, int64_t layer)
{
    const decoder_layer *parts = &stack->layer[layer];
    const decoder_saved *saved = &stack->saved[layer];
    bool fresh;
    TRY(layer_recomputed(stack, ctx, layer, &fresh));
    ctx->stream->part = parts->is_moe ? PART_MOE : PART_TEXT;
    if (parts->is_moe)
        TRY(moe_bwd(ctx, &parts->moe, saved->x1, &saved->moe, &stack->moe_scratch,
                    count_of(stack, ctx, layer), &stack->aux, fresh, stack->dx));
    else
        TRY(mlp_bwd(ctx, &parts->mlp, saved->x1, &saved->mlp, &stack->mlp_scratch, stack->dx));
    ctx->stream->part = PART_TEXT;
    return attention_bwd(stack, ctx, layer);
}

/* A pad token's embedding gets no gradient (torch's padding_idx). Its row is saved before the
 * scatter and restored after it, so that what a tied head has added to it stays. */
static status add_embedding_gradient(const decoder *stack, const pass_context *ctx)
{
    const text_dims *dims = &ctx->dims->text;
    const backend_vtable *backend = ctx->stream->dev->backend;
    const size_t bytes = (size_t)dims->hidden * ctx->acc;
    char *of_pad = (char *)stack->embed->grad + (size_t)dims->pad_token * bytes;
    if (dims->has_pad)
        TRY(backend->copy(ctx->stream, stack->pad_row, of_pad, bytes));
    TRY(op_rows_scatter(ctx->stream, &(rows_scatter_args){.n = ctx->sizes.tokens,
                                                          .width = dims->hidden,
                                                          .y_rows = dims->vocab,
                                                          .index = ctx->batch->text_index,
                                                          .x = stack->dx,
                                                          .y = stack->embed->grad,
                                                          .y_acc = true}));
    return dims->has_pad ? backend->copy(ctx->stream, of_pad, stack->pad_row, bytes) : ST_OK;
}

status decoder_bwd(decoder *stack, pass_context *ctx, void *const *dfeature)
{
    bool features = stack->features_wanted && ctx->batch->feature_rows > 0 && stack->part.opens;
    use_tables(stack, ctx);
    if (stack->aux.on && !stack->part.closes) /* the last stage has the value from its forward */
        TRY(moe_aux_value(ctx, &stack->aux));
    for (int64_t layer = stack->part.end - 1; layer >= stack->lowest && layer >= stack->part.first;
         layer--) {
        if (features && layer < ctx->dims->vision.n_deepstack)
            TRY(collect_features(stack, ctx, layer, dfeature[1 + layer]));
        TRY(fsdp_units_enter(ctx->fsdp_units, ctx->stream, unit_layer(ctx->dims, layer),
                             UNIT_BACKWARD));
        TRY(layer_bwd(stack, ctx, layer));
        TRY(fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit_layer(ctx->dims, layer),
                             UNIT_BACKWARD));
    }
    if (features)
        TRY(collect_features(stack, ctx, -1, dfeature[0]));
    if (!stack->embed->grad) /* frozen, or on another stage */
        return ST_OK;
    TRY(fsdp_units_enter(ctx->fsdp_units, ctx->stream, unit_embedding(ctx->dims), UNIT_GRADIENT));
    TRY(add_embedding_gradient(stack, ctx));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit_embedding(ctx->dims), UNIT_GRADIENT);
}
