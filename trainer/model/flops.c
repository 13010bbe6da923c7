/* flops.c: counts the useful floating-point operations of a batch (equations.md, "FLOPs"). A
 * multiply-add counts as two. Only matrix products and attention count: causal attention inside
 * documents, vision attention inside frame pairs. */
#include <math.h>

#include "trainer/model/dims.h"

enum { MACS = 2, TRAINING_PASSES = 3 /* forward, dX, dW */ };

/* Multiply-adds per token in the matrices of the decoder, without the head. */
static int64_t text_linear_macs(const model_dims *d)
{
    const text_dims *t = &d->text;
    int64_t per_token = 0;
    for (int64_t l = 0; l < t->layers; l++) {
        per_token += t->hidden * t->head_dim * (2 * t->heads + 2 * t->kv_heads);
        if (dims_layer_is_moe(d, l))
            per_token += t->hidden * t->experts + 3 * t->top_k * t->hidden * t->expert_width;
        else
            per_token += 3 * t->hidden * t->intermediate;
    }
    return per_token;
}

void dims_flops(const model_dims *d, const int64_t *documents, int64_t n_docs, const int32_t *grids,
                int64_t n_grids, flops *out)
{
    const text_dims *t = &d->text;
    const vision_dims *v = &d->vision;
    int64_t tokens = 0, pairs = 0; /* pairs of a query and a key that it sees, itself included */
    for (int64_t i = 0; i < n_docs; i++) {
        tokens += documents[i];
        pairs += documents[i] * (documents[i] + 1) / 2;
    }
    int64_t patches = 0, frame_pairs = 0;
    for (int64_t i = 0; i < n_grids && v->depth > 0; i++) {
        int64_t frame = (int64_t)grids[3 * i + 1] * grids[3 * i + 2];
        patches += grids[3 * i] * frame;
        frame_pairs += grids[3 * i] * frame * frame;
    }
    flops f = {0};
    f.text_linear = MACS * tokens * text_linear_macs(d);
    int64_t moe = 0;
    for (int64_t l = 0; l < t->layers; l++)
        moe += dims_layer_is_moe(d, l);
    f.text_router = MACS * tokens * moe * t->hidden * t->experts;
    f.text_experts = MACS * tokens * moe * 3 * t->top_k * t->hidden * t->expert_width;
    f.text_attention = t->layers * MACS * 2 * t->heads * t->head_dim * pairs;
    f.head = MACS * tokens * t->hidden * t->vocab;
    if (v->depth > 0) {
        int64_t merged = v->merge * v->merge, wide = merged * v->hidden;
        f.patch_embed = MACS * patches * v->patch_bytes * v->hidden;
        f.vision_blocks = MACS * patches * v->depth *
                          (4 * v->hidden * v->hidden + 2 * v->hidden * v->intermediate);
        f.vision_attention = v->depth * MACS * 2 * v->hidden * frame_pairs;
        f.mergers =
            MACS * (patches / merged) * (1 + v->n_deepstack) * (wide * wide + wide * t->hidden);
    }
    f.forward = f.text_linear + f.text_attention + f.head + f.patch_embed + f.vision_blocks +
                f.vision_attention + f.mergers;
    f.training = TRAINING_PASSES * f.forward - f.patch_embed; /* pixels have no gradient */
    *out = f;
}

double dims_flops_torchtitan(const model_dims *d, int64_t seq_len)
{
    const text_dims *t = &d->text;
    /* torchtitan counts the active parameters of the text, with norms and head and without the
     * embedding (get_moe_model_nparams_and_flops in torchtitan/models/utils.py). */
    double active = (double)text_linear_macs(d) + (double)t->hidden * (double)t->vocab;
    active += (double)(t->layers * (2 * t->hidden + 2 * t->head_dim) + t->hidden);
    return 6 * active + 12.0 * (double)(t->layers * t->heads * t->head_dim) * (double)seq_len;
}

void flops_add(flops *sum, const flops *f)
{
    sum->text_linear += f->text_linear;
    sum->text_router += f->text_router;
    sum->text_experts += f->text_experts;
    sum->text_attention += f->text_attention;
    sum->head += f->head;
    sum->patch_embed += f->patch_embed;
    sum->vision_blocks += f->vision_blocks;
    sum->vision_attention += f->vision_attention;
    sum->mergers += f->mergers;
    sum->forward += f->forward;
    sum->training += f->training;
}
