/* SPDX-License-Identifier: Apache-2.0 */
/* vision.c: the vision tower of vision.h.
 *
 *   X0 = P Wt + b               P = (u8 - 127.5) / 127.5, [S, 1536] -> [S, D]
 *   X0 += weighted table rows   aligned-corner bilinear interpolation; batch/stager_visual.c makes
 *                               the rows and weights
 *   X(i+1) = block_i(X(i));     after block deepstack[j]: feature(1 + j) = merger_(1 + j)(X(i+1))
 *   feature(0) = merger_0(X(B))
 *
 * The patch embedding, each block and each merger is an FSDP unit and may be a captured graph. */
#include "trainer/model/vision/vision.h"

#include <stdlib.h>

#include "trainer/ops/table.h"

static const double rope_theta =
    10000; /* a constant of transformers' code; no key of config.json */

status vision_init(vision *tower, const model_dims *dims)
{
    size_t depth = (size_t)dims->vision.depth;
    *tower = (vision){.block = calloc(depth, sizeof *tower->block),
                      .x = calloc(depth + 1, sizeof *tower->x),
                      .saved = calloc(depth, sizeof *tower->saved)};
    if (!tower->block || !tower->x || !tower->saved) {
        vision_done(tower);
        return FAIL(ST_NO_MEMORY, "no memory for %zu vision blocks", depth);
    }
    return ST_OK;
}

void vision_done(vision *tower)
{
    free(tower->block);
    free(tower->x);
    free(tower->saved);
    *tower = (vision){0};
}

void vision_bind(vision *tower, params *registry, const model_dims *dims)
{
    tower->patch = linear_bind(registry, "model.visual.patch_embed.proj", true);
    tower->pos = params_get(registry, "model.visual.pos_embed.weight");
    for (int block = 0; block < dims->vision.depth; block++)
        vision_block_bind(&tower->block[block], registry, block);
    for (int j = 0; j <= dims->vision.n_deepstack; j++)
        merger_bind(&tower->merger[j], registry, j - 1);
    tower->embed_trained =
        !tower->patch.w->frozen || !tower->patch.b->frozen || !tower->pos->frozen;
    tower->lowest = 0;
    while (tower->lowest < dims->vision.depth && !tower->block[tower->lowest].norm1.w->reached)
        tower->lowest++;
}

/* 1 + j if deepstack feature j is made from this block's output, else 0. */
static int feature_behind(const model_dims *dims, int64_t block)
{
    for (int j = 0; j < dims->vision.n_deepstack; j++) {
        if (dims->vision.deepstack[j] == block)
            return 1 + j;
    }
    return 0;
}

/* True if a merger reads x[block]. */
static bool merger_reads(const model_dims *dims, int64_t block)
{
    return block == dims->vision.depth || (block > 0 && feature_behind(dims, block - 1) > 0);
}

void vision_layout(vision *tower, space *sp, const shape *sizes, vision_modes mode)
{
    const vision_dims *dims = &sizes->dims->vision;
    int64_t patches = sizes->cap.patches, merged = patches / (dims->merge * dims->merge);
    int64_t half = dims_vision_head_dim(sizes->dims) / 2;
    const recompute all = {.what = RECOMPUTE_ALL};
    tower->recomputed = mode.training && !mode.frozen ? mode.recomputed : all;
    tower->merger_recomputed = !mode.training              ? all
                               : mode.recomputed.every > 1 ? (recompute){0}
                                                           : mode.recomputed;
    tower->cos = space_take(sp, patches * half, sizes->acc);
    tower->sin = space_take(sp, patches * half, sizes->acc);
    void *turn[2]; /* inputs that backward does not read use two buffers in turn */
    bool taken[2] = {false, false};
    for (int64_t block = 0; block <= dims->depth; block++) {
        bool own = mode.training && (!mode.frozen || merger_reads(sizes->dims, block));
        if (!own && !taken[block % 2])
            turn[block % 2] = space_take(sp, patches * dims->hidden, sizes->act);
        taken[block % 2] |= !own;
        tower->x[block] =
            own ? space_take(sp, patches * dims->hidden, sizes->act) : turn[block % 2];
    }
    for (int64_t block = 0; block < dims->depth; block++)
        vision_saved_layout(&tower->saved[block], sp, sizes,
                            RECOMPUTE_ALL & ~recompute_of(&tower->recomputed, block));
    for (int j = 0; j <= dims->n_deepstack; j++) {
        merger_saved_layout(&tower->merger_saved[j], sp, sizes,
                            RECOMPUTE_ALL & ~tower->merger_recomputed.what);
        tower->feature[j] = space_take(sp, merged * sizes->dims->text.hidden, sizes->act);
        if (mode.training)
            tower->dfeature[j] = space_take(sp, merged * sizes->dims->text.hidden, sizes->act);
    }
}

void vision_layout_scratch(vision *tower, space *sp, const shape *sizes, vision_modes mode)
{
    const vision_dims *dims = &sizes->dims->vision;
    tower->patches = space_take(sp, sizes->cap.patches * dims->patch_bytes, sizes->act);
    size_t mark = space_mark(sp), top = mark; /* blocks and mergers use the same memory in turn */
    for (int64_t block = 0; block < dims->depth; block++) {
        vision_saved_layout(&tower->saved[block], sp, sizes,
                            recompute_of(&tower->recomputed, block));
        space_turn(sp, mark, &top);
    }
    for (int j = 0; j <= dims->n_deepstack; j++) {
        merger_saved_layout(&tower->merger_saved[j], sp, sizes, tower->merger_recomputed.what);
        space_turn(sp, mark, &top);
    }
    space_rewind(sp, top);
    if (!mode.training)
        return;
    if (!mode.frozen) {
        tower->dx = space_take(sp, sizes->cap.patches * dims->hidden, sizes->act);
        vision_scratch_layout(&tower->block_scratch, sp, sizes);
    }
    merger_scratch_layout(&tower->merger_scratch, sp, sizes);
}

static status patch_input(const vision *tower, const pass_context *ctx)
{
    const device_batch *batch = ctx->batch;
    return op_patch_input(
        ctx->stream, &(patch_input_args){.patches = ctx->sizes.patches,
                                         .video = batch->wide,
                                         .pixels = batch->wide ? batch->pixels_wide : batch->pixels,
                                         .out = tower->patches});
}

static status embed_patches(const vision *tower, const pass_context *ctx)
{
    const vision_dims *dims = &ctx->dims->vision;
    TRY(op_rope_vision(ctx->stream, &(rope_vision_args){.patches = ctx->sizes.patches,
                                                        .head_dim = dims_vision_head_dim(ctx->dims),
                                                        .theta = rope_theta,
                                                        .row_col = ctx->batch->patch_row_col,
                                                        .cos = tower->cos,
                                                        .sin = tower->sin}));
    TRY(patch_input(tower, ctx));
    TRY(linear_fwd(ctx, &tower->patch, ctx->sizes.patches, tower->patches, tower->x[0], 0));
    return op_rows_weighted(ctx->stream, &(rows_weighted_args){.n = ctx->sizes.patches,
                                                               .width = dims->hidden,
                                                               .table_rows = dims->positions,
                                                               .index = ctx->batch->pos_index,
                                                               .weight = ctx->batch->pos_weight,
                                                               .table = tower->pos->act,
                                                               .y = tower->x[0]});
}

static void use_tables(const vision *tower, pass_context *ctx)
{
    ctx->vision_cos = tower->cos;
    ctx->vision_sin = tower->sin;
}

/* Enters a unit. If *out_open is true the caller queues the unit's work and passes its status to
 * graph_replay_end. It is false if the work has been queued as a captured graph, and on a rank
 * without pictures, which enters and leaves units as the other ranks do and computes nothing. */
static status enter_unit(const pass_context *ctx, int unit, unit_use use, int pass, bool *out_open)
{
    bool done = true;
    TRY(fsdp_units_enter(ctx->fsdp_units, ctx->stream, unit, use));
    if (ctx->sizes.patches > 0)
        TRY(run_piece(ctx, REPLAY_VISION, pass, unit, &done));
    *out_open = !done;
    return ST_OK;
}

static status embed_fwd(const vision *tower, const pass_context *ctx)
{
    bool open;
    TRY(enter_unit(ctx, unit_patch(), UNIT_FORWARD, REPLAY_FORWARD, &open));
    if (open)
        TRY(graph_replay_end(ctx->stream, embed_patches(tower, ctx)));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit_patch(), UNIT_FORWARD);
}

static status block_fwd(const vision *tower, const pass_context *ctx, int64_t block)
{
    const int unit = unit_block(ctx->dims, block);
    bool open;
    TRY(enter_unit(ctx, unit, UNIT_FORWARD, REPLAY_FORWARD, &open));
    if (open)
        TRY(graph_replay_end(ctx->stream, vision_block_fwd(ctx, &tower->block[block],
                                                           tower->x[block], &tower->saved[block],
                                                           RECOMPUTE_ALL, tower->x[block + 1])));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit, UNIT_FORWARD);
}

static status feature_fwd(const vision *tower, const pass_context *ctx, int index, const void *x)
{
    const int unit = unit_merger(ctx->dims, index);
    bool open;
    TRY(enter_unit(ctx, unit, UNIT_FORWARD, REPLAY_FORWARD, &open));
    if (open)
        TRY(graph_replay_end(ctx->stream,
                             merger_fwd(ctx, &tower->merger[index], x, &tower->merger_saved[index],
                                        RECOMPUTE_ALL, tower->feature[index])));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit, UNIT_FORWARD);
}

status vision_fwd(vision *tower, pass_context *ctx)
{
    const int64_t depth = ctx->dims->vision.depth;
    use_tables(tower, ctx);
    TRY(embed_fwd(tower, ctx));
    for (int64_t block = 0; block < depth; block++) {
        int j = feature_behind(ctx->dims, block);
        TRY(block_fwd(tower, ctx, block));
        if (j > 0)
            TRY(feature_fwd(tower, ctx, j, tower->x[block + 1]));
    }
    return feature_fwd(tower, ctx, 0, tower->x[depth]);
}

/* Backward of merger `index`. The final merger (index = 0) writes tower->dx, the others add to it.
 * reached: the backward pass continues below x, so its gradient is wanted. */
static status merger_back(const vision *tower, const pass_context *ctx, int index, const void *x,
                          bool reached)
{
    const unsigned what = tower->merger_recomputed.what;
    if (what)
        TRY(merger_fwd(ctx, &tower->merger[index], x, &tower->merger_saved[index], what, NULL));
    return merger_bwd(ctx, &tower->merger[index], x, &tower->merger_saved[index],
                      &tower->merger_scratch, tower->dfeature[index], reached ? tower->dx : NULL,
                      index > 0);
}

static status feature_bwd(const vision *tower, const pass_context *ctx, int index, const void *x,
                          bool reached)
{
    const int unit = unit_merger(ctx->dims, index);
    bool open;
    TRY(enter_unit(ctx, unit, UNIT_BACKWARD, REPLAY_BACKWARD, &open));
    if (open)
        TRY(graph_replay_end(ctx->stream, merger_back(tower, ctx, index, x, reached)));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit, UNIT_BACKWARD);
}

static status block_back(const vision *tower, const pass_context *ctx, int64_t block)
{
    const unsigned what = recompute_of(&tower->recomputed, block);
    if (what)
        TRY(vision_block_fwd(ctx, &tower->block[block], tower->x[block], &tower->saved[block], what,
                             NULL));
    return vision_block_bwd(ctx, &tower->block[block], tower->x[block], &tower->saved[block],
                            &tower->block_scratch, tower->dx);
}

static status block_bwd(const vision *tower, const pass_context *ctx, int64_t block)
{
    const int unit = unit_block(ctx->dims, block);
    bool open;
    TRY(enter_unit(ctx, unit, UNIT_BACKWARD, REPLAY_BACKWARD, &open));
    if (open)
        TRY(graph_replay_end(ctx->stream, block_back(tower, ctx, block)));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit, UNIT_BACKWARD);
}

static status embed_back(const vision *tower, const pass_context *ctx)
{
    const vision_dims *dims = &ctx->dims->vision;
    if (tower->pos->grad)
        TRY(op_rows_weighted_bwd(ctx->stream,
                                 &(rows_weighted_bwd_args){.n = ctx->sizes.patches,
                                                           .width = dims->hidden,
                                                           .table_rows = dims->positions,
                                                           .index = ctx->batch->pos_index,
                                                           .weight = ctx->batch->pos_weight,
                                                           .dy = tower->dx,
                                                           .dtable = tower->pos->grad}));
    if (!tower->patch.w->grad && !tower->patch.b->grad)
        return ST_OK;
    TRY(patch_input(tower, ctx));
    return linear_bwd(ctx, &tower->patch, ctx->sizes.patches, tower->patches, tower->dx, 0, NULL,
                      false);
}

static status embed_bwd(const vision *tower, const pass_context *ctx)
{
    bool open;
    TRY(enter_unit(ctx, unit_patch(), UNIT_GRADIENT, REPLAY_BACKWARD, &open));
    if (open)
        TRY(graph_replay_end(ctx->stream, embed_back(tower, ctx)));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit_patch(), UNIT_GRADIENT);
}

status vision_bwd(vision *tower, pass_context *ctx)
{
    const int64_t depth = ctx->dims->vision.depth;
    use_tables(tower, ctx);
    TRY(feature_bwd(tower, ctx, 0, tower->x[depth], tower->lowest < depth));
    for (int64_t block = depth - 1; block >= 0; block--) {
        int j = feature_behind(ctx->dims, block);
        if (j > 0)
            TRY(feature_bwd(tower, ctx, j, tower->x[block + 1], tower->lowest <= block));
        if (block >= tower->lowest)
            TRY(block_bwd(tower, ctx, block));
    }
    return tower->embed_trained ? embed_bwd(tower, ctx) : ST_OK;
}
