/* outputs.c: lists the outputs of a model's units, as outputs.h describes it. */
#include "trainer/model/outputs.h"

#include "trainer/model/model_parts.h"

/* False if a later block has overwritten x[at]: in a frozen tower two buffers take turns. */
static bool is_kept(const vision *tower, int64_t depth, int64_t at)
{
    for (int64_t i = at + 1; i <= depth; i++)
        if (tower->x[i] == tower->x[at])
            return false;
    return true;
}

/* Lists the tower's outputs; a deepstack merger follows its block. */
static int list_vision(const model *net, const vision *tower, int64_t patches, model_output *out)
{
    const vision_dims *dims = &net->dims.vision;
    const int64_t merged = patches / (dims->merge * dims->merge) * net->dims.text.hidden;
    int count = 0;
    for (int64_t i = 0; i <= dims->depth; i++) {
        if (is_kept(tower, dims->depth, i))
            out[count++] =
                (model_output){.unit = i == 0 ? unit_patch() : unit_block(&net->dims, i - 1),
                               .x = tower->x[i],
                               .count = patches * dims->hidden};
        for (int j = 0; j < dims->n_deepstack; j++)
            if (i > 0 && dims->deepstack[j] == i - 1)
                out[count++] = (model_output){.unit = unit_merger(&net->dims, 1 + j),
                                              .x = tower->feature[1 + j],
                                              .count = merged};
    }
    out[count++] =
        (model_output){.unit = unit_merger(&net->dims, 0), .x = tower->feature[0], .count = merged};
    return count;
}

int model_outputs(const model *net, int of, const device_batch *batch, model_output *out)
{
    const flight *sent = &net->flight[of];
    const batch_caps sizes = batch_sizes(batch);
    const int64_t first = net->part.first, width = sizes.tokens * net->dims.text.hidden;
    int count = 0;
    if (net->has_vision && sizes.patches > 0)
        count = list_vision(net, &sent->vision, sizes.patches, out);
    for (int64_t i = first; i <= net->part.end; i++)
        out[count++] = (model_output){.unit = i == 0 ? unit_embedding(&net->dims)
                                                     : unit_layer(&net->dims, i - 1),
                                      .arrived = i == first && !net->part.opens,
                                      .x = sent->decoder.x[i],
                                      .count = width};
    return count;
}
