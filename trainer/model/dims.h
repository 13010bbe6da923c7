/* dims.h: the dimensions of a model, from config.json or a preset, and what follows from them:
 * parameter counts, FLOPs. Spec sections 1, 2.1 and 10.
 *
 * H hidden, L layers, E experts, K chosen, I expert width, V vocabulary; vision: D hidden,
 * F MLP width. Missing keys are errors by name, except those with a default in spec 1.4. */
#ifndef TESSERA_TRAINER_MODEL_DIMS_H
#define TESSERA_TRAINER_MODEL_DIMS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/json/json.h"
#include "common/base/status.h"

enum { MAX_DEEPSTACK = 8, MAX_DENSE_LAYERS = 256 };

typedef struct text_dims {
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate;
    int64_t experts, top_k, expert_width; /* experts 0: every layer is dense */
    bool norm_topk_prob, tied;
    int64_t sparse_step;
    int64_t dense_layers[MAX_DENSE_LAYERS]; /* mlp_only_layers */
    int n_dense_layers;
    double rms_eps, rope_theta, initializer_range, router_aux_coef;
    bool output_router_logits;
    int64_t mrope_section[3]; /* all 0: plain RoPE (text-only models) */
    int64_t max_positions;    /* max_position_embeddings; told, not enforced */
    bool has_pad;             /* pad_token_id: the embedding of pad_token gets no gradient */
    int64_t pad_token;
} text_dims;

typedef struct vision_dims {
    int64_t depth, hidden, heads, intermediate, positions; /* positions = N^2 */
    int64_t merge, patch_bytes;                            /* 2; 1536 input columns */
    int64_t deepstack[MAX_DEEPSTACK];
    int n_deepstack;
    double initializer_range;
} vision_dims; /* depth 0: no vision tower (text-only model) */

typedef struct model_dims {
    char name[64]; /* preset or folder name */
    char model_type[64], architecture[64];
    text_dims text;
    vision_dims vision;
    int32_t image_token, video_token, vision_start, vision_end; /* -1 without a vision tower */
    int32_t bos_token, eos_token;
} model_dims;

bool dims_layer_is_moe(const model_dims *d, int64_t layer);
static inline int64_t dims_vision_head_dim(const model_dims *d)
{
    return d->vision.hidden / d->vision.heads;
}

/* What the names of the text part's tensors begin with. */
static inline const char *dims_text_prefix(const model_dims *d)
{
    return d->vision.depth == 0 ? "model." : "model.language_model.";
}

/* model.path: a folder with config.json, or a preset's name. Whether the head is tied follows from
 * the folder's weights too (head.h). */
WARN_UNUSED status dims_load(const char *path_or_preset, model_dims *out);
WARN_UNUSED status dims_from_json(const json_value *config, const char *source, model_dims *out);
WARN_UNUSED status dims_preset(const char *name, model_dims *out);
void dims_list_presets(FILE *to);
/* Rules between dimensions that ops and model rely on; called by the three above. */
WARN_UNUSED status dims_check(const model_dims *d, const char *source);
/* config.json as spec 1.6 (text-only models: the flat form); heap. */
WARN_UNUSED status dims_config_json(const model_dims *d, char **out);

/* Training FLOPs of one batch, per component (spec 10): head at every position, nothing frozen. */
typedef struct flops {
    int64_t text_linear, text_attention, head;                     /* forward */
    int64_t text_router, text_experts;                             /* parts of text_linear */
    int64_t patch_embed, vision_blocks, vision_attention, mergers; /* forward */
    int64_t forward, training;
} flops;
void flops_add(flops *sum, const flops *f);
/* documents [n_docs] lengths; grids [n_grids, 3]. */
void dims_flops(const model_dims *d, const int64_t *documents, int64_t n_docs, const int32_t *grids,
                int64_t n_grids, flops *out);
/* torchtitan's per-token count at this sequence length (spec 10.5). */
double dims_flops_torchtitan(const model_dims *d, int64_t seq_len);

#endif
