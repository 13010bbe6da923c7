/* SPDX-License-Identifier: Apache-2.0 */
/* flops.c: counts the useful floating-point operations of a batch (equations.md, "FLOPs"). A
 * multiply-add counts as two. Only matrix products and attention count: causal attention inside
 * documents, vision attention inside frame pairs, the head at targets. */

#include <math.h>

#include "trainer/model/dims/dims.h"

enum { MACS = 2, TRAINING_PASSES = 3 /* forward, dX, dW */ };

/* Multiply-adds per token in the matrices of the decoder, without the head. */
static int64_t text_linear_macs(const model_dims *dims)
{
    const text_dims *text = &dims->text;
    int64_t per_token = 0;
    for (int64_t layer = 0; layer < text->layers; layer++) {
        per_token += text->hidden * text->head_dim * (2 * text->heads + 2 * text->kv_heads);
        if (dims_layer_is_moe(dims, layer))
            per_token +=
                text->hidden * text->experts + 3 * text->top_k * text->hidden * text->expert_width;
        else
            per_token += 3 * text->hidden * text->intermediate;
    }
    return per_token;
}

void dims_flops(const model_dims *dims, int64_t tokens, int64_t targets, int64_t pairs,
                const int32_t *grids, int64_t n_grids, flops *out)
{
    const text_dims *text = &dims->text;
    const vision_dims *tower = &dims->vision;
    int64_t patches = 0, frame_pairs = 0;
    for (int64_t i = 0; i < n_grids && tower->depth > 0; i++) {
        int64_t frame = (int64_t)grids[3 * i + 1] * grids[3 * i + 2];
        patches += grids[3 * i] * frame;
        frame_pairs += grids[3 * i] * frame * frame;
    }
    flops sum = {0};
    sum.text_linear = MACS * tokens * text_linear_macs(dims);
    int64_t moe = 0;
    for (int64_t layer = 0; layer < text->layers; layer++)
        moe += dims_layer_is_moe(dims, layer);
    sum.text_router = MACS * tokens * moe * text->hidden * text->experts;
    sum.text_experts = MACS * tokens * moe * 3 * text->top_k * text->hidden * text->expert_width;
    sum.text_attention = text->layers * MACS * 2 * text->heads * text->head_dim * pairs;
    sum.head = MACS * targets * text->hidden * text->vocab;
    if (tower->depth > 0) {
        int64_t merged = tower->merge * tower->merge, wide = merged * tower->hidden;
        sum.patch_embed = MACS * patches * tower->patch_bytes * tower->hidden;
        sum.vision_blocks =
            MACS * patches * tower->depth *
            (4 * tower->hidden * tower->hidden + 2 * tower->hidden * tower->intermediate);
        sum.vision_attention = tower->depth * MACS * 2 * tower->hidden * frame_pairs;
        sum.mergers = MACS * (patches / merged) * (1 + tower->n_deepstack) *
                      (wide * wide + wide * text->hidden);
    }
    sum.forward = sum.text_linear + sum.text_attention + sum.head + sum.patch_embed +
                  sum.vision_blocks + sum.vision_attention + sum.mergers;
    sum.training = TRAINING_PASSES * sum.forward - sum.patch_embed; /* pixels have no gradient */
    *out = sum;
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

void flops_add(flops *sum, const flops *work)
{
    sum->text_linear += work->text_linear;
    sum->text_router += work->text_router;
    sum->text_experts += work->text_experts;
    sum->text_attention += work->text_attention;
    sum->head += work->head;
    sum->patch_embed += work->patch_embed;
    sum->vision_blocks += work->vision_blocks;
    sum->vision_attention += work->vision_attention;
    sum->mergers += work->mergers;
    sum->forward += work->forward;
    sum->training += work->training;
}
