/* vision.c: the vision tower of vision.h.
 *
 *   X0 = P Wt + b               P = (u8 - 127.5) / 127.5, [S, 1536] -> [S, D]
 *   X0 += weighted table rows   aligned-corner bilinear interpolation; batch/stager_visual.c makes
 *                               the rows and weights
 *   X(i+1) = block_i(X(i));     after block deepstack[j]: feature(1 + j) = merger_(1 + j)(X(i+1))
 *   feature(0) = merger_0(X(B))
 *
 * The patch embedding, each block and each merger is an FSDP unit and a piece that may be captured.
 */
#include "trainer/model/vision.h"

#include <stdlib.h>

#include "trainer/ops/table.h"

static const double rope_theta =
    10000; /* a constant of transformers' code; no key of config.json */

status vision_init(vision *v, const model_dims *d)
{
    size_t depth = (size_t)d->vision.depth;
    *v = (vision){.block = calloc(depth, sizeof *v->block),
                  .x = calloc(depth + 1, sizeof *v->x),
                  .saved = calloc(depth, sizeof *v->saved)};
    if (!v->block || !v->x || !v->saved) {
        vision_done(v);
        return FAIL(ST_NO_MEMORY, "no memory for %zu vision blocks", depth);
    }
    return ST_OK;
}

void vision_done(vision *v)
{
    free(v->block);
    free(v->x);
    free(v->saved);
    *v = (vision){0};
}

void vision_bind(vision *v, params *p, const model_dims *d)
{
    v->patch = linear_bind(p, "model.visual.patch_embed.proj", true);
    v->pos = params_get(p, "model.visual.pos_embed.weight");
    for (int b = 0; b < d->vision.depth; b++)
        vision_block_bind(&v->block[b], p, b);
    for (int j = 0; j <= d->vision.n_deepstack; j++)
        merger_bind(&v->merger[j], p, j - 1);
    v->embed_trained = !v->patch.w->frozen || !v->patch.b->frozen || !v->pos->frozen;
    v->lowest = 0;
    while (v->lowest < d->vision.depth && !v->block[v->lowest].norm1.w->reached)
        v->lowest++;
}

/* 1 + j if deepstack feature j is made of this block's output, else 0. */
static int feature_behind(const model_dims *d, int64_t block)
{
    for (int j = 0; j < d->vision.n_deepstack; j++) {
        if (d->vision.deepstack[j] == block)
            return 1 + j;
    }
    return 0;
}

/* True if a merger reads x[b]. */
static bool merger_reads(const model_dims *d, int64_t b)
{
    return b == d->vision.depth || (b > 0 && feature_behind(d, b - 1) > 0);
}

void vision_layout(vision *v, space *sp, const shape *z, vision_modes mode)
{
    const vision_dims *d = &z->d->vision;
    int64_t s = z->cap.patches, merged = s / (d->merge * d->merge);
    int64_t half = dims_vision_head_dim(z->d) / 2;
    const recompute all = {.what = RECOMPUTE_ALL};
    v->recomputed = mode.training && !mode.frozen ? mode.recomputed : all;
    v->merger_recomputed = !mode.training              ? all
                           : mode.recomputed.every > 1 ? (recompute){0}
                                                       : mode.recomputed;
    v->cos = space_take(sp, s * half, z->acc);
    v->sin = space_take(sp, s * half, z->acc);
    void *turn[2]; /* inputs that backward does not read use two buffers in turn */
    bool taken[2] = {false, false};
    for (int64_t b = 0; b <= d->depth; b++) {
        bool own = mode.training && (!mode.frozen || merger_reads(z->d, b));
        if (!own && !taken[b % 2])
            turn[b % 2] = space_take(sp, s * d->hidden, z->act);
        taken[b % 2] |= !own;
        v->x[b] = own ? space_take(sp, s * d->hidden, z->act) : turn[b % 2];
    }
    for (int64_t b = 0; b < d->depth; b++)
        vision_saved_layout(&v->saved[b], sp, z, RECOMPUTE_ALL & ~recompute_of(&v->recomputed, b));
    for (int j = 0; j <= d->n_deepstack; j++) {
        merger_saved_layout(&v->merger_saved[j], sp, z, RECOMPUTE_ALL & ~v->merger_recomputed.what);
        v->feature[j] = space_take(sp, merged * z->d->text.hidden, z->act);
        if (mode.training)
            v->dfeature[j] = space_take(sp, merged * z->d->text.hidden, z->act);
    }
}

void vision_layout_scratch(vision *v, space *sp, const shape *z, vision_modes mode)
{
    const vision_dims *d = &z->d->vision;
    v->patches = space_take(sp, z->cap.patches * d->patch_bytes, z->act);
    size_t mark = space_mark(sp), top = mark; /* blocks and mergers use the same memory in turn */
    for (int64_t b = 0; b < d->depth; b++) {
        vision_saved_layout(&v->saved[b], sp, z, recompute_of(&v->recomputed, b));
        space_turn(sp, mark, &top);
    }
    for (int j = 0; j <= d->n_deepstack; j++) {
        merger_saved_layout(&v->merger_saved[j], sp, z, v->merger_recomputed.what);
        space_turn(sp, mark, &top);
    }
    space_rewind(sp, top);
    if (!mode.training)
        return;
    if (!mode.frozen) {
        v->dx = space_take(sp, z->cap.patches * d->hidden, z->act);
        vision_scratch_layout(&v->block_scratch, sp, z);
    }
    merger_scratch_layout(&v->merger_scratch, sp, z);
}

static status patch_input(const vision *v, const pass_context *r)
{
    const device_batch *b = r->b;
    return op_patch_input(r->s, &(patch_input_args){.patches = r->n.patches,
                                                    .video = b->wide,
                                                    .pixels = b->wide ? b->pixels_wide : b->pixels,
                                                    .out = v->patches});
}

static status embed_patches(const vision *v, const pass_context *r)
{
    const vision_dims *d = &r->d->vision;
    TRY(op_rope_vision(r->s, &(rope_vision_args){.patches = r->n.patches,
                                                 .head_dim = dims_vision_head_dim(r->d),
                                                 .theta = rope_theta,
                                                 .row_col = r->b->patch_row_col,
                                                 .cos = v->cos,
                                                 .sin = v->sin}));
    TRY(patch_input(v, r));
    TRY(linear_fwd(r, &v->patch, r->n.patches, v->patches, v->x[0], 0));
    return op_rows_weighted(r->s, &(rows_weighted_args){.n = r->n.patches,
                                                        .width = d->hidden,
                                                        .table_rows = d->positions,
                                                        .index = r->b->pos_index,
                                                        .weight = r->b->pos_weight,
                                                        .table = v->pos->act,
                                                        .y = v->x[0]});
}

static void use_tables(const vision *v, pass_context *r)
{
    r->vision_cos = v->cos;
    r->vision_sin = v->sin;
}

/* Enters a unit. If *out_open is true the caller queues the unit's work and passes its status to
 * graph_replay_end. It is false where the work has been queued as a captured graph, and on a rank
 * without pictures, which enters and leaves units as the other ranks do and computes nothing. */
static status enter_unit(const pass_context *r, int unit, unit_use use, int pass, bool *out_open)
{
    bool done = true;
    TRY(fsdp_units_enter(r->fsdp_units, r->s, unit, use));
    if (r->n.patches > 0)
        TRY(run_piece(r, REPLAY_VISION, pass, unit, &done));
    *out_open = !done;
    return ST_OK;
}

static status embed_fwd(const vision *v, const pass_context *r)
{
    bool open;
    TRY(enter_unit(r, unit_patch(), UNIT_FORWARD, REPLAY_FORWARD, &open));
    if (open)
        TRY(graph_replay_end(r->s, embed_patches(v, r)));
    return fsdp_units_leave(r->fsdp_units, r->s, unit_patch(), UNIT_FORWARD);
}

static status block_fwd(const vision *v, const pass_context *r, int64_t b)
{
    const int unit = unit_block(r->d, b);
    bool open;
    TRY(enter_unit(r, unit, UNIT_FORWARD, REPLAY_FORWARD, &open));
    if (open)
        TRY(graph_replay_end(r->s, vision_block_fwd(r, &v->block[b], v->x[b], &v->saved[b],
                                                    RECOMPUTE_ALL, v->x[b + 1])));
    return fsdp_units_leave(r->fsdp_units, r->s, unit, UNIT_FORWARD);
}

static status feature_fwd(const vision *v, const pass_context *r, int j, const void *x)
{
    const int unit = unit_merger(r->d, j);
    bool open;
    TRY(enter_unit(r, unit, UNIT_FORWARD, REPLAY_FORWARD, &open));
    if (open)
        TRY(graph_replay_end(r->s, merger_fwd(r, &v->merger[j], x, &v->merger_saved[j],
                                              RECOMPUTE_ALL, v->feature[j])));
    return fsdp_units_leave(r->fsdp_units, r->s, unit, UNIT_FORWARD);
}

status vision_fwd(vision *v, pass_context *r)
{
    const int64_t depth = r->d->vision.depth;
    use_tables(v, r);
    TRY(embed_fwd(v, r));
    for (int64_t b = 0; b < depth; b++) {
        int j = feature_behind(r->d, b);
        TRY(block_fwd(v, r, b));
        if (j > 0)
            TRY(feature_fwd(v, r, j, v->x[b + 1]));
    }
    return feature_fwd(v, r, 0, v->x[depth]);
}

/* Backward of merger j. The final merger (j = 0) writes v->dx, the others add to it. reached:
 * backward goes on below x, so that its gradient is wanted. */
static status merger_back(const vision *v, const pass_context *r, int j, const void *x,
                          bool reached)
{
    const unsigned what = v->merger_recomputed.what;
    if (what)
        TRY(merger_fwd(r, &v->merger[j], x, &v->merger_saved[j], what, NULL));
    return merger_bwd(r, &v->merger[j], x, &v->merger_saved[j], &v->merger_scratch, v->dfeature[j],
                      reached ? v->dx : NULL, j > 0);
}

static status feature_bwd(const vision *v, const pass_context *r, int j, const void *x,
                          bool reached)
{
    const int unit = unit_merger(r->d, j);
    bool open;
    TRY(enter_unit(r, unit, UNIT_BACKWARD, REPLAY_BACKWARD, &open));
    if (open)
        TRY(graph_replay_end(r->s, merger_back(v, r, j, x, reached)));
    return fsdp_units_leave(r->fsdp_units, r->s, unit, UNIT_BACKWARD);
}

static status block_back(const vision *v, const pass_context *r, int64_t b)
{
    const unsigned what = recompute_of(&v->recomputed, b);
    if (what)
        TRY(vision_block_fwd(r, &v->block[b], v->x[b], &v->saved[b], what, NULL));
    return vision_block_bwd(r, &v->block[b], v->x[b], &v->saved[b], &v->block_scratch, v->dx);
}

static status block_bwd(const vision *v, const pass_context *r, int64_t b)
{
    const int unit = unit_block(r->d, b);
    bool open;
    TRY(enter_unit(r, unit, UNIT_BACKWARD, REPLAY_BACKWARD, &open));
    if (open)
        TRY(graph_replay_end(r->s, block_back(v, r, b)));
    return fsdp_units_leave(r->fsdp_units, r->s, unit, UNIT_BACKWARD);
}

static status embed_back(const vision *v, const pass_context *r)
{
    const vision_dims *d = &r->d->vision;
    if (v->pos->grad)
        TRY(op_rows_weighted_bwd(r->s, &(rows_weighted_bwd_args){.n = r->n.patches,
                                                                 .width = d->hidden,
                                                                 .table_rows = d->positions,
                                                                 .index = r->b->pos_index,
                                                                 .weight = r->b->pos_weight,
                                                                 .dy = v->dx,
                                                                 .dtable = v->pos->grad}));
    if (!v->patch.w->grad && !v->patch.b->grad)
        return ST_OK;
    TRY(patch_input(v, r));
    return linear_bwd(r, &v->patch, r->n.patches, v->patches, v->dx, 0, NULL, false);
}

static status embed_bwd(const vision *v, const pass_context *r)
{
    bool open;
    TRY(enter_unit(r, unit_patch(), UNIT_GRADIENT, REPLAY_BACKWARD, &open));
    if (open)
        TRY(graph_replay_end(r->s, embed_back(v, r)));
    return fsdp_units_leave(r->fsdp_units, r->s, unit_patch(), UNIT_GRADIENT);
}

status vision_bwd(vision *v, pass_context *r)
{
    const int64_t depth = r->d->vision.depth;
    use_tables(v, r);
    TRY(feature_bwd(v, r, 0, v->x[depth], v->lowest < depth));
    for (int64_t b = depth - 1; b >= 0; b--) {
        int j = feature_behind(r->d, b);
        if (j > 0)
            TRY(feature_bwd(v, r, j, v->x[b + 1], v->lowest <= b));
        if (b >= v->lowest)
            TRY(block_bwd(v, r, b));
    }
    return v->embed_trained ? embed_bwd(v, r) : ST_OK;
}
