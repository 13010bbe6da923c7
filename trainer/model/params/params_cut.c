/* SPDX-License-Identifier: Apache-2.0 */
/* params_cut.c: which part of every parameter a rank computes with (parallel/layouts.md), and a
 * copy of the registry for a rank that need not exist. */

#include <stdlib.h>
#include <string.h>

#include "trainer/model/params/params.h"
#include "trainer/model/params/quantised.h"
#include "trainer/model/params/unit_order.h"

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

typedef struct sketch {
    params params; /* first, so that the caller's pointer is also that of the sketch */
    mesh mesh;
} sketch;

/* params_size needs the dtypes of a backend; the spans do not depend on them. */
static const backend_vtable any = {.act = DT_BF16, .acc = DT_F32};

status params_sketch_new(const params *registry, const model_dims *dims, const layout *degrees,
                         int rank, bool reshard, params **out)
{
    sketch *outline = calloc(1, sizeof *outline);
    param *list = malloc((size_t)(registry->count > 0 ? registry->count : 1) * sizeof *list);
    params_sizes size;
    status st = ST_OK;
    if (!outline || !list) {
        free(outline);
        free(list);
        return FAIL(ST_NO_MEMORY, "no memory for the parameters of a layout");
    }
    memcpy(list, registry->list, (size_t)registry->count * sizeof *list);
    outline->params = *registry;
    outline->params.list = list;
    outline->params.spans = NULL;
    layout stage = *degrees; /* one pipeline stage; its ranks have consecutive numbers */
    stage.pipeline = 1;
    stage.world = degrees->world / degrees->pipeline;
    mesh_sketch(&stage, rank % (int)stage.world, &outline->mesh);
    outline->mesh.layout = *degrees;
    outline->mesh.rank = rank;
    outline->mesh.place.pipeline = rank / (int)stage.world;
    params *own = &outline->params;
    if (degrees->world > 1) {
        st = params_cut(own, dims, degrees, outline->mesh.place);
        params_share(own, &outline->mesh, reshard);
    }
    if (st == ST_OK)
        st = params_size(own, &any, true, &size);
    if (st != ST_OK)
        params_sketch_free(&own);
    else
        *out = own;
    return st;
}

void params_sketch_free(params **registry)
{
    if (!*registry)
        return;
    free((*registry)->spans);
    free((*registry)->list);
    free(*registry);
    *registry = NULL;
}
