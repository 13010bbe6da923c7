/* SPDX-License-Identifier: Apache-2.0 */
/* dims.h: the dimensions of a model, read from config.json or a preset, and its FLOPs.
 *
 * equations.md has the rules ("Configuration"), including the keys that may be missing; every other
 * missing key is an error that names it. Letters in this folder: H hidden, L layers, E experts,
 * K chosen, I expert width, V vocabulary; in vision D hidden, F MLP width. */
#ifndef TESSERA_TRAINER_MODEL_DIMS_H
#define TESSERA_TRAINER_MODEL_DIMS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/json/json.h"

enum { MAX_DEEPSTACK = 8, MAX_DENSE_LAYERS = 256, MAX_ENDS = 16 };

typedef struct text_dims {
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate;
    int64_t experts, top_k, expert_width; /* E, K, I; experts 0: every layer is dense */
    bool norm_topk_prob, tied;
    int64_t sparse_step;
    int64_t dense_layers[MAX_DENSE_LAYERS]; /* mlp_only_layers */
    int n_dense_layers;
    double rms_eps, rope_theta, initializer_range, router_aux_coef;
    bool output_router_logits;
    int64_t mrope_section[3]; /* all 0: plain RoPE, in text-only models */
    int64_t max_positions;    /* max_position_embeddings; printed, not enforced */
    bool has_pad;             /* there is a pad_token_id; its embedding gets no gradient */
    int64_t pad_token;
} text_dims;

typedef struct vision_dims {
    int64_t depth, hidden, heads, intermediate, positions; /* positions: N^2 rows of the table */
    int64_t merge, patch_bytes; /* 2 patches are merged per axis; a patch has 1536 input columns */
    int64_t deepstack[MAX_DEEPSTACK];
    int n_deepstack;
    double initializer_range;
} vision_dims; /* depth 0: no vision tower, a text-only model */

typedef struct model_dims {
    char name[64]; /* name of the preset or the folder */
    char model_type[64], architecture[64];
    text_dims text;
    vision_dims vision;
    int32_t image_token, video_token, vision_start, vision_end; /* -1 without a vision tower */
    int32_t bos_token;
    /* Where generation ends: the tokens of config.json, then further ones of
     * generation_config.json. */
    int32_t end_token[MAX_ENDS];
    int n_ends, n_config_ends;
} model_dims;

/* True if generation ends at this token. */
bool dims_is_end(const model_dims *dims, int32_t id);
/* True if decoder layer `layer` (from 0) has experts, false if it has a dense MLP. */
bool dims_layer_is_moe(const model_dims *dims, int64_t layer);
static inline int64_t dims_vision_head_dim(const model_dims *dims)
{
    return dims->vision.hidden / dims->vision.heads;
}

/* The prefix of the names of the text part's tensors. */
static inline const char *dims_text_prefix(const model_dims *dims)
{
    return dims->vision.depth == 0 ? "model." : "model.language_model.";
}

/* Loads the dimensions that model.path names: those of a folder with config.json, or of a preset.
 * A folder's weights are consulted on whether the head is tied (hf_folder.h), and its
 * generation_config.json, if there is one, on further end tokens. ST_NO_INPUT: neither;
 * ST_BAD_INPUT: a file is refused, with the key. */
WARN_UNUSED status dims_load(const char *path_or_preset, model_dims *out);
/* The same for a parsed config.json, without a look at weights; source names it in messages. */
WARN_UNUSED status dims_from_json(const json_value *config, const char *source, model_dims *out);
/* ST_NO_INPUT, with a list of the presets, for a name that is none. */
WARN_UNUSED status dims_preset(const char *name, model_dims *out);
void dims_list_presets(FILE *to);
/* Checks the rules between dimensions that ops and model rely on. dims_from_json calls it. */
WARN_UNUSED status dims_check(const model_dims *dims, const char *source);
/* Writes a config.json that both generations of transformers read; text-only models have the flat
 * form. The caller frees *out. */
WARN_UNUSED status dims_config_json(const model_dims *dims, char **out);

/* FLOPs of one batch by component (equations.md, "FLOPs"), with nothing frozen. The components are
 * those of the forward pass. */
typedef struct flops {
    int64_t text_linear, text_attention, head;
    int64_t text_router, text_experts; /* included in text_linear */
    int64_t patch_embed, vision_blocks, vision_attention, mergers;
    int64_t forward, training; /* sums */
} flops;
void flops_add(flops *sum, const flops *work);
/* tokens: of all documents. targets: where the head is computed (hf_folder.h). pairs: of a token and one
 * that it sees, itself included, over all documents. grids [n_grids, 3]: frame pairs, then patches
 * per axis. */
void dims_flops(const model_dims *dims, int64_t tokens, int64_t targets, int64_t pairs,
                const int32_t *grids, int64_t n_grids, flops *out);
/* The pairs of a document of so many tokens. */
static inline int64_t document_pairs(int64_t tokens)
{
    return tokens * (tokens + 1) / 2;
}
/* torchtitan's count of training FLOPs per token of a row of seq_len tokens. */
double dims_flops_torchtitan(const model_dims *dims, int64_t seq_len);

#endif
