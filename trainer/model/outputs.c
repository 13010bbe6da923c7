/* outputs.c: lists the outputs of a model's units, as outputs.h describes it. */
#include "trainer/model/outputs.h"

#include "trainer/model/model_parts.h"

/* False if a later block has overwritten x[at]: in a frozen tower two buffers take turns. */
static bool is_kept(const vision *tower, int64_t depth, int64_t at)
{
    for (int64_t b = at + 1; b <= depth; b++)
        if (tower->x[b] == tower->x[at])
            return false;
    return true;
}

/* Lists the tower's outputs; a deepstack merger follows its block. */
static int list_vision(const model *m, const vision *tower, int64_t patches, model_output *out)
{
    const vision_dims *dims = &m->dims.vision;
    const int64_t merged = patches / (dims->merge * dims->merge) * m->dims.text.hidden;
    int n = 0;
    for (int64_t b = 0; b <= dims->depth; b++) {
        if (is_kept(tower, dims->depth, b))
            out[n++] = (model_output){.unit = b == 0 ? unit_patch() : unit_block(&m->dims, b - 1),
                                      .x = tower->x[b],
                                      .count = patches * dims->hidden};
        for (int j = 0; j < dims->n_deepstack; j++)
            if (b > 0 && dims->deepstack[j] == b - 1)
                out[n++] = (model_output){.unit = unit_merger(&m->dims, 1 + j),
                                          .x = tower->feature[1 + j],
                                          .count = merged};
    }
    out[n++] =
        (model_output){.unit = unit_merger(&m->dims, 0), .x = tower->feature[0], .count = merged};
    return n;
}

int model_outputs(const model *m, int of, const device_batch *batch, model_output *out)
{
    const flight *f = &m->flight[of];
    const batch_caps sizes = batch_sizes(batch);
    const int64_t first = m->part.first, width = sizes.tokens * m->dims.text.hidden;
    int n = 0;
    if (m->has_vision && sizes.patches > 0)
        n = list_vision(m, &f->vision, sizes.patches, out);
    for (int64_t l = first; l <= m->part.end; l++)
        out[n++] =
            (model_output){.unit = l == 0 ? unit_embedding(&m->dims) : unit_layer(&m->dims, l - 1),
                           .arrived = l == first && !m->part.opens,
                           .x = f->decoder.x[l],
                           .count = width};
    return n;
}
