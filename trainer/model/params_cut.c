/* params_cut.c: which part of every parameter a rank computes with (parallel/layouts.md). */
#include "trainer/model/params.h"
#include "trainer/model/quantised.h"
#include "trainer/model/unit_order.h"

layout_limits params_limits(const model_dims *dims)
{
    const text_dims *text = &dims->text;
    layout_limits all = {.heads = text->heads,
                         .kv_heads = text->kv_heads,
                         .layers = text->layers,
                         .tied = text->tied,
                         .first_layers = dims->vision.depth > 0 ? dims->vision.n_deepstack : 0};
    for (int64_t layer = 0; layer < text->layers; layer++) {
        if (!dims_layer_is_moe(dims, layer)) {
            all.intermediate = text->intermediate;
            continue;
        }
        all.experts = text->experts;
        all.expert_width = text->expert_width;
    }
    return all;
}

mesh_group params_owners(const param *weight)
{
    if (weight->cut == CUT_EXPERT)
        return weight->cut_axis < 0 ? MESH_EXPERT_WHOLE : MESH_EXPERT_SHARD;
    return weight->cut == CUT_TENSOR ? MESH_DENSE : MESH_WHOLE;
}

static void cut_row(param *row, const layout *degrees, mesh_place at)
{
    enum { EXPERT_AXIS = 0, WIDTH = SLICE_AXES - 1, PARTS = SLICE_AXES - 2 };
    if (row->cut == CUT_TENSOR) {
        slice_cut(&row->held, row->cut_axis, at.tensor, degrees->tensor);
        row->local[row->cut_axis] /= degrees->tensor;
    } else if (row->cut == CUT_EXPERT) {
        slice_cut(&row->held, EXPERT_AXIS, at.expert, degrees->expert);
        row->local[EXPERT_AXIS] /= degrees->expert;
        if (degrees->expert_tensor > 1 && row->cut_axis >= 0) {
            /* the slice sees experts as [E, in, parts, out / parts] */
            slice_cut(&row->held, row->cut_axis < PARTS ? row->cut_axis : WIDTH, at.tensor,
                      degrees->expert_tensor);
            row->local[row->cut_axis] /= degrees->expert_tensor;
        }
    }
    row->n_local = slice_count(&row->held);
}

status params_cut(params *registry, const model_dims *dims, const layout *degrees, mesh_place at)
{
    layout_limits limits = params_limits(dims);
    TRY(layout_check(degrees, &limits));
    if (registry->lora_dora && degrees->world > 1)
        return FAIL(ST_CONFIG,
                    "lora.dora: the length of a row needs the whole row on a rank, and there are "
                    "%lld ranks; train on one, or set lora.dora to false",
                    (long long)degrees->world);
    const stage_part part = stage_part_of(dims, degrees, at.pipeline);
    for (int64_t i = 0; i < registry->count; i++) {
        param *row = &registry->list[i];
        cut_row(row, degrees, at);
        TRY(quantised_check_cut(row, degrees));
        row->elsewhere =
            row->unit < stage_first_unit(dims, &part) || row->unit >= stage_end_unit(dims, &part);
    }
    return ST_OK;
}
