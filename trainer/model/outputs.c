/* outputs.c: lists the outputs of a model's units, as outputs.h describes it. */
#include "trainer/model/outputs.h"

#include "trainer/model/model_parts.h"

/* False if a later block has overwritten x[at]: in a frozen tower two buffers take turns. */
static bool is_kept(const vision *v, int64_t depth, int64_t at)
{
    for (int64_t b = at + 1; b <= depth; b++)
        if (v->x[b] == v->x[at])
            return false;
    return true;
}

/* Lists the tower's outputs; a deepstack merger follows its block. */
static int list_vision(const model *m, const vision *v, int64_t patches, model_output *out)
{
    const vision_dims *d = &m->d.vision;
    const int64_t merged = patches / (d->merge * d->merge) * m->d.text.hidden;
    int n = 0;
    for (int64_t b = 0; b <= d->depth; b++) {
        if (is_kept(v, d->depth, b))
            out[n++] = (model_output){.unit = b == 0 ? unit_patch() : unit_block(&m->d, b - 1),
                                      .x = v->x[b],
                                      .n = patches * d->hidden};
        for (int j = 0; j < d->n_deepstack; j++)
            if (b > 0 && d->deepstack[j] == b - 1)
                out[n++] = (model_output){
                    .unit = unit_merger(&m->d, 1 + j), .x = v->feature[1 + j], .n = merged};
    }
    out[n++] = (model_output){.unit = unit_merger(&m->d, 0), .x = v->feature[0], .n = merged};
    return n;
}

int model_outputs(const model *m, int of, const device_batch *b, model_output *out)
{
    const flight *f = &m->flight[of];
    const batch_caps sizes = batch_sizes(b);
    const int64_t first = m->part.first, width = sizes.tokens * m->d.text.hidden;
    int n = 0;
    if (m->has_vision && sizes.patches > 0)
        n = list_vision(m, &f->vision, sizes.patches, out);
    for (int64_t l = first; l <= m->part.end; l++)
        out[n++] = (model_output){.unit = l == 0 ? unit_embedding(&m->d) : unit_layer(&m->d, l - 1),
                                  .arrived = l == first && !m->part.opens,
                                  .x = f->decoder.x[l],
                                  .n = width};
    return n;
}
