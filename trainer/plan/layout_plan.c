/* layout_plan.c: sketches one rank of each pipeline stage, plans it, and keeps the largest plan. */
#include "trainer/plan/layout_plan.h"

#include "trainer/model/params_sketch.h"
#include "trainer/model/unit_order.h"
#include "trainer/plan/stage_plan.h"

/* Plans one rank. own: the registry, cut to what the rank has. */
static status plan_of(const plan_input *in, params *own, int64_t rows, const recomputes *recomputed,
                      memory_plan *out)
{
    const memory_shapes unknown = {0};
    const bool as_configured = rows == in->conf->training_local_batch_size;
    memory_options o = memory_options_of(in->conf, in->layout, in->device, !in->evaluates, rows);
    memory_rank r;
    o.recomputed = *recomputed;
    if (in->seq_len) {
        o.seq_len = in->seq_len;
        o.patch_budget = in->patch_budget;
    }
    TRY(memory_rank_of(own, in->dims, in->device, !in->evaluates, &r));
    return memory_plan_make(&o, &r, as_configured ? &in->shapes : &unknown, in->device, out);
}

status layout_plan_stage(const plan_input *in, int64_t rows, const recomputes *recomputed,
                         int stage, memory_plan *out)
{
    const layout *l = in->layout;
    params *own;
    const int rank = stage * (int)(l->world / l->pipeline);
    TRY(params_sketch_new(in->params, in->dims, l, rank,
                          in->conf->parallelism_fsdp_reshard_after_forward != RESHARD_NEVER, &own));
    status st = plan_of(in, own, rows, recomputed, out);
    params_sketch_free(&own);
    return st;
}

/* True if an earlier stage certainly takes as much memory as this one, so that this one need not be
 * planned. That is so between the first and the last stage, in a model whose layers all have
 * experts, if an earlier stage has at least as many layers: it then has at least as many
 * micro-batches under way. */
static bool is_outdone(const layout *l, const model_dims *d, int stage)
{
    const stage_part part = stage_part_of(d, l, stage);
    bool found = false;
    for (int64_t i = 0; i < part.end; i++)
        if (!dims_layer_is_moe(d, i))
            return false;
    for (int other = 1; other < stage && !part.closes; other++) {
        const stage_part before = stage_part_of(d, l, other);
        found |= before.end - before.first >= part.end - part.first;
    }
    return found;
}

status layout_plan_make(const plan_input *in, int64_t rows, const recomputes *recomputed,
                        memory_plan *out)
{
    layout cut = *in->layout;
    plan_input staged = *in;
    memory_plan most = {0}, m;
    staged.layout = &cut;
    TRY(stage_plan(in->conf, in->dims, in->params, &cut));
    for (int stage = 0; stage < cut.pipeline; stage++) {
        if (is_outdone(&cut, in->dims, stage))
            continue;
        TRY(layout_plan_stage(&staged, rows, recomputed, stage, &m));
        if (m.total > most.total)
            most = m;
    }
    *out = most;
    return ST_OK;
}

bool layout_fits(const plan_input *in, const memory_plan *m)
{
    return (double)m->total <= in->conf->memory_limit * in->device->usable;
}
