/* flops.c: counts the useful floating-point operations of a batch (equations.md, "FLOPs"). A
 * multiply-add counts as two. Only matrix products and attention count: causal attention inside
 * documents, vision attention inside frame pairs. */
#include <math.h>

#include "trainer/model/dims.h"

enum { MACS = 2, TRAINING_PASSES = 3 /* forward, dX, dW */ };

/* Multiply-adds per token in the matrices of the decoder, without the head. */
static int64_t text_linear_macs(const model_dims *dims)
{
    const text_dims *text = &dims->text;
    int64_t per_token = 0;
    for (int64_t l = 0; l < text->layers; l++) {
        per_token += text->hidden * text->head_dim * (2 * text->heads + 2 * text->kv_heads);
        if (dims_layer_is_moe(dims, l))
            per_token +=
                text->hidden * text->experts + 3 * text->top_k * text->hidden * text->expert_width;
        else
            per_token += 3 * text->hidden * text->intermediate;
    }
    return per_token;
}

void dims_flops(const model_dims *dims, int64_t tokens, int64_t pairs, const int32_t *grids,
                int64_t n_grids, flops *out)
{
    const text_dims *text = &dims->text;
    const vision_dims *tower = &dims->vision;
    int64_t patches = 0, frame_pairs = 0;
    for (int64_t i = 0; i < n_grids && tower->depth > 0; i++) {
        int64_t frame = (int64_t)grids[3 * i + 1] * grids[3 * i + 2];
        patches += grids[3 * i] * frame;
        frame_pairs += grids[3 * i] * frame * frame;
    }
    flops f = {0};
    f.text_linear = MACS * tokens * text_linear_macs(dims);
    int64_t moe = 0;
    for (int64_t l = 0; l < text->layers; l++)
        moe += dims_layer_is_moe(dims, l);
    f.text_router = MACS * tokens * moe * text->hidden * text->experts;
    f.text_experts = MACS * tokens * moe * 3 * text->top_k * text->hidden * text->expert_width;
    f.text_attention = text->layers * MACS * 2 * text->heads * text->head_dim * pairs;
    f.head = MACS * tokens * text->hidden * text->vocab;
    if (tower->depth > 0) {
        int64_t merged = tower->merge * tower->merge, wide = merged * tower->hidden;
        f.patch_embed = MACS * patches * tower->patch_bytes * tower->hidden;
        f.vision_blocks =
            MACS * patches * tower->depth *
            (4 * tower->hidden * tower->hidden + 2 * tower->hidden * tower->intermediate);
        f.vision_attention = tower->depth * MACS * 2 * tower->hidden * frame_pairs;
        f.mergers = MACS * (patches / merged) * (1 + tower->n_deepstack) *
                    (wide * wide + wide * text->hidden);
    }
    f.forward = f.text_linear + f.text_attention + f.head + f.patch_embed + f.vision_blocks +
                f.vision_attention + f.mergers;
    f.training = TRAINING_PASSES * f.forward - f.patch_embed; /* pixels have no gradient */
    *out = f;
}

double dims_flops_torchtitan(const model_dims *dims, int64_t seq_len)
{
    const text_dims *text = &dims->text;
    /* torchtitan counts the active parameters of the text, with norms and head and without the
     * embedding (get_moe_model_nparams_and_flops in torchtitan/models/utils.py). */
    double active = (double)text_linear_macs(dims) + (double)text->hidden * (double)text->vocab;
    active += (double)(text->layers * (2 * text->hidden + 2 * text->head_dim) + text->hidden);
    return 6 * active +
           12.0 * (double)(text->layers * text->heads * text->head_dim) * (double)seq_len;
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
