/* SPDX-License-Identifier: Apache-2.0 */
/* layout_plan.c: predicts the time of each layer, of the vision tower before the layers and the
 * head after them, and balances the stages by these times; then sketches one rank of each stage,
 * plans it, and keeps the largest plan. */
#include "trainer/plan/layout_plan.h"

#include <stdlib.h>

#include "trainer/model/params/params.h"
#include "trainer/model/layers/recompute.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/optim/groups.h"
#include "trainer/parallel/pipeline_stages.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/row_work.h"

/* Predicted seconds of a row in each part of the model, forward and backward. */
typedef struct row_time {
    double *layer;        /* [layers], heap */
    double before, after; /* the vision tower, before the layers; the head, after them */
} row_time;

/* Forward FLOPs of the decoder layers [0, count): out[0] dense products, out[1] experts, out[2]
 * attention. */
static void layers_flops(const row_kind *row, const model_dims *dims, int64_t count, double out[3])
{
    model_dims cut = *dims;
    flops work;
    cut.text.layers = count;
    cut.vision.depth = 0;
    row_kind_flops(row, &cut, &work);
    out[0] = (double)(work.text_linear - work.text_experts);
    out[1] = (double)work.text_experts;
    out[2] = (double)work.text_attention;
}

/* The lowest layer that a gradient passes through. */
static int64_t lowest_layer(const training_share *share, int64_t layers)
{
    return (int64_t)((1.0 - share->text_dgrad) * (double)layers + 0.5);
}

/* Seconds of a FLOP of attention's forward pass with what goes back; recomputed: the share that the
 * forward pass is made again of. At both settings of
 * training.deterministic stages are balanced alike, so that it does not move layers between ranks.
 */
static double attention_pass(const rates *speeds, rate_key forward, rate_key backward, double back,
                             double recomputed)
{
    return (1 + recomputed) / speeds->of[forward] +
           COST_ATTENTION_BACKWARD * back / speeds->of[backward];
}

/* How many times the experts' forward products the backward pass makes again. */
static double experts_again(const text_dims *text, const layout *degrees, unsigned what)
{
    const int64_t forward = 3 * text->top_k * text->hidden * text->expert_width;
    return forward ? (double)expert_work_again(text, degrees, what) / (double)forward : 0;
}

static void time_layers(const conf *options, const model_dims *dims, const layout *degrees,
                        const training_share *share, const rates *speeds, row_time *out)
{
    const row_kind row = row_kind_of(options, dims);
    const bool all_again = options->activation_checkpoint_mode == AC_FULL;
    const double recomputed = all_again ? 1 : 0;
    const double experts = experts_again(&dims->text, degrees, all_again ? RECOMPUTE_ALL : 0);
    const double bytes = (double)row.seq_len * cost_layer_bytes(&dims->text) / 3;
    double before[3] = {0}, upto[3];
    for (int64_t layer = 0; layer < dims->text.layers; layer++) {
        const double back = layer >= lowest_layer(share, dims->text.layers) ? 1 : 0;
        layers_flops(&row, dims, layer + 1, upto);
        out->layer[layer] =
            (upto[0] - before[0]) * (1 + back * (1 + recomputed) + share->wgrad[GROUP_TEXT]) /
                speeds->of[RATE_DENSE] +
            (upto[1] - before[1]) * (1 + back * (1 + experts) + share->wgrad[GROUP_EXPERTS]) /
                speeds->of[RATE_EXPERTS] +
            (upto[2] - before[2]) * attention_pass(speeds, RATE_ATTENTION, RATE_ATTENTION_ANY_ORDER,
                                                   back, back * recomputed) +
            bytes * (1 + back * (2 + recomputed)) / speeds->of[RATE_COPY];
        for (int i = 0; i < 3; i++)
            before[i] = upto[i];
    }
}

/* Predicts the vision tower and the head. The embedding is only a copy and takes no time worth
 * counting. */
static void time_ends(const conf *options, const model_dims *dims, const training_share *share,
                      const rates *speeds, row_time *out)
{
    const row_kind row = row_kind_of(options, dims);
    const double back = share->vision_dgrad,
                 recomputed = options->activation_checkpoint_mode == AC_FULL ? back : 0;
    const double patches =
        row_kind_images(&row) * (double)(row.grid[0] * row.grid[1] * row.grid[2]);
    flops work;
    row_kind_flops(&row, dims, &work);
    out->after = (double)work.head * (2 + share->head_wgrad) / speeds->of[RATE_DENSE];
    out->before =
        ((double)work.patch_embed * (1 + share->patch_wgrad) +
         (double)work.vision_blocks * (1 + back + recomputed + share->wgrad[GROUP_VISION]) +
         (double)work.mergers * (1 + share->merger_dgrad + share->wgrad[GROUP_MERGER])) /
            speeds->of[RATE_DENSE] +
        (double)work.vision_attention * attention_pass(speeds, RATE_VISION_ATTENTION,
                                                       RATE_VISION_ATTENTION_ANY_ORDER, back,
                                                       recomputed) +
        patches * (double)dims->vision.depth * cost_block_bytes(&dims->vision) / 3 *
            (1 + 2 * back + recomputed) / speeds->of[RATE_COPY];
}

static status time_row(const conf *options, const model_dims *dims, const params *registry,
                       const layout *degrees, row_time *out)
{
    const rates speeds = rates_h200();
    training_share share;
    *out = (row_time){.layer = calloc((size_t)dims->text.layers, sizeof *out->layer)};
    if (!out->layer)
        return FAIL(ST_NO_MEMORY, "no memory to plan %lld layers", (long long)dims->text.layers);
    groups_share(registry, dims, &share);
    time_layers(options, dims, degrees, &share, &speeds, out);
    time_ends(options, dims, &share, &speeds, out);
    return ST_OK;
}

status stage_plan(const conf *options, const model_dims *dims, const params *registry,
                  layout *inout)
{
    const layout_limits limits = params_limits(dims);
    row_time took;
    if (inout->pipeline == 1)
        return ST_OK;
    TRY(layout_check(inout, &limits));
    if (options->parallelism_pipeline_parallel_split_points[0])
        return stages_read(options->parallelism_pipeline_parallel_split_points, dims->text.layers,
                           limits.first_layers, inout);
    TRY(time_row(options, dims, registry, inout, &took));
    const stage_costs costs = {took.layer, dims->text.layers, took.before, took.after,
                               limits.first_layers};
    stages_balance(&costs, inout);
    free(took.layer);
    return ST_OK;
}

status stage_plan_uneven(const conf *options, const model_dims *dims, const params *registry,
                         const layout *degrees, double *out)
{
    row_time took;
    double slowest = 0, all = 0;
    TRY(time_row(options, dims, registry, degrees, &took));
    for (int stage = 0; stage < degrees->pipeline; stage++) {
        const stage_part part = stage_part_of(dims, degrees, stage);
        double sum = (part.opens ? took.before : 0) + (part.closes ? took.after : 0);
        for (int64_t i = part.first; i < part.end; i++)
            sum += took.layer[i];
        slowest = sum > slowest ? sum : slowest;
        all += sum;
    }
    free(took.layer);
    *out = all > 0 ? slowest * (double)degrees->pipeline / all : 1;
    return ST_OK;
}

/* Plans one rank. own: the registry, cut to what the rank has. */
static status plan_of(const plan_input *in, params *own, int64_t rows, const recomputes *recomputed,
                      memory_plan *out)
{
    const memory_shapes unknown = {0};
    const bool as_configured = rows == in->conf->training_local_batch_size;
    memory_options options =
        memory_options_of(in->conf, in->layout, in->device, !in->evaluates, rows);
    memory_rank own_rank;
    options.recomputed = *recomputed;
    if (in->seq_len) {
        options.seq_len = in->seq_len;
        options.patch_budget = in->patch_budget;
    }
    TRY(memory_rank_of(own, in->dims, in->device, !in->evaluates, &own_rank));
    return memory_plan_make(&options, &own_rank, as_configured ? &in->shapes : &unknown, in->device,
                            out);
}

status layout_plan_stage(const plan_input *in, int64_t rows, const recomputes *recomputed,
                         int stage, memory_plan *out)
{
    const layout *degrees = in->layout;
    params *own;
    const int rank = stage * (int)(degrees->world / degrees->pipeline);
    TRY(params_sketch_new(in->params, in->dims, degrees, rank,
                          in->conf->parallelism_fsdp_reshard_after_forward != RESHARD_NEVER, &own));
    status st = plan_of(in, own, rows, recomputed, out);
    params_sketch_free(&own);
    return st;
}

/* True if an earlier stage certainly takes as much memory as this one, so that this one need not be
 * planned. That is so between the first and the last stage, in a model whose layers all have
 * experts, if an earlier stage has at least as many layers: it then has at least as many
 * micro-batches under way. */
static bool is_outdone(const layout *degrees, const model_dims *dims, int stage)
{
    const stage_part part = stage_part_of(dims, degrees, stage);
    bool found = false;
    for (int64_t i = 0; i < part.end; i++)
        if (!dims_layer_is_moe(dims, i))
            return false;
    for (int other = 1; other < stage && !part.closes; other++) {
        const stage_part before = stage_part_of(dims, degrees, other);
        found |= before.end - before.first >= part.end - part.first;
    }
    return found;
}

status layout_plan_make(const plan_input *in, int64_t rows, const recomputes *recomputed,
                        memory_plan *out)
{
    layout cut = *in->layout;
    plan_input staged = *in;
    memory_plan most = {0}, plan;
    staged.layout = &cut;
    TRY(stage_plan(in->conf, in->dims, in->params, &cut));
    for (int stage = 0; stage < cut.pipeline; stage++) {
        if (is_outdone(&cut, in->dims, stage))
            continue;
        TRY(layout_plan_stage(&staged, rows, recomputed, stage, &plan));
        if (plan.total > most.total)
            most = plan;
    }
    *out = most;
    return ST_OK;
}

bool layout_fits(const plan_input *in, const memory_plan *plan)
{
    return (double)plan->total <= in->conf->memory_limit * in->device->usable;
}
