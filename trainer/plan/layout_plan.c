/* layout_plan.c: sketches one rank of each pipeline stage, plans it, and keeps the largest plan. */
#include "trainer/plan/layout_plan.h"

#include "trainer/model/params/params.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/plan/stage_plan.h"

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
