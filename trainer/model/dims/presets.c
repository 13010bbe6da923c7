/* SPDX-License-Identifier: Apache-2.0 */
/* presets.c: the dimensions of the published models (equations.md, "Configuration") and of two
 * small ones for tests: `debug`, which has every mechanism and no two dimensions equal by accident,
 * and `tile`, whose shapes are large enough for the tiles of fast kernels. */

#include <string.h>

#include "trainer/model/dims/dims.h"

/* clang-format off */
#define QWEN_TOKENS                                                                                \
    .image_token = 151655, .video_token = 151656, .vision_start = 151652, .vision_end = 151653,    \
    .bos_token = 151643, .end_token = {151645}, .n_ends = 1, .n_config_ends = 1
#define NO_VISION_TOKENS                                                                           \
    .image_token = -1, .video_token = -1, .vision_start = -1, .vision_end = -1,                    \
    .bos_token = 151643, .end_token = {151645}, .n_ends = 1, .n_config_ends = 1
#define MOE_VL  .model_type = "qwen3_vl_moe", .architecture = "Qwen3VLMoeForConditionalGeneration"
#define DENSE_VL .model_type = "qwen3_vl", .architecture = "Qwen3VLForConditionalGeneration"

#define TEXT_COMMON                                                                                \
    .vocab = 151936, .head_dim = 128, .norm_topk_prob = true, .sparse_step = 1, .rms_eps = 1e-6,   \
    .initializer_range = 0.02, .router_aux_coef = 0.001
#define TEXT_VL TEXT_COMMON, .rope_theta = 5e6, .mrope_section = {24, 20, 20}, .max_positions = 262144

#define VISION_COMMON .positions = 2304, .merge = 2, .patch_bytes = 1536, .initializer_range = 0.02
#define VISION_LARGE                                                                               \
    {VISION_COMMON, .depth = 27, .hidden = 1152, .heads = 16, .intermediate = 4304,                \
     .deepstack = {8, 16, 24}, .n_deepstack = 3}
#define VISION_SMALL                                                                               \
    {VISION_COMMON, .depth = 24, .hidden = 1024, .heads = 16, .intermediate = 4096,                \
     .deepstack = {5, 11, 17}, .n_deepstack = 3}

static const model_dims presets[] = {
    {.name = "qwen3-vl-30b-a3b", MOE_VL, QWEN_TOKENS, .vision = VISION_LARGE,
     .text = {TEXT_VL, .hidden = 2048, .layers = 48, .heads = 32, .kv_heads = 4,
              .intermediate = 6144, .experts = 128, .top_k = 8, .expert_width = 768}},
    {.name = "qwen3-vl-235b-a22b", MOE_VL, QWEN_TOKENS, .vision = VISION_LARGE,
     .text = {TEXT_VL, .hidden = 4096, .layers = 94, .heads = 64, .kv_heads = 4,
              .intermediate = 12288, .experts = 128, .top_k = 8, .expert_width = 1536}},
    {.name = "qwen3-vl-2b", DENSE_VL, QWEN_TOKENS, .vision = VISION_SMALL,
     .text = {TEXT_VL, .hidden = 2048, .layers = 28, .heads = 16, .kv_heads = 8,
              .intermediate = 6144, .tied = true}},
    {.name = "qwen3-vl-4b", DENSE_VL, QWEN_TOKENS, .vision = VISION_SMALL,
     .text = {TEXT_VL, .hidden = 2560, .layers = 36, .heads = 32, .kv_heads = 8,
              .intermediate = 9728, .tied = true}},
    {.name = "qwen3-vl-8b", DENSE_VL, QWEN_TOKENS, .vision = VISION_LARGE,
     .text = {TEXT_VL, .hidden = 4096, .layers = 36, .heads = 32, .kv_heads = 8,
              .intermediate = 12288}},
    {.name = "qwen3-vl-32b", DENSE_VL, QWEN_TOKENS, .vision = VISION_LARGE,
     .text = {TEXT_VL, .hidden = 5120, .layers = 64, .heads = 64, .kv_heads = 8,
              .intermediate = 25600}},
    {.name = "qwen3-30b-a3b", .model_type = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM",
     NO_VISION_TOKENS,
     .text = {TEXT_COMMON, .rope_theta = 1e6, .max_positions = 40960, .hidden = 2048, .layers = 48,
              .heads = 32, .kv_heads = 4, .intermediate = 6144, .experts = 128, .top_k = 8,
              .expert_width = 768}},
    {.name = "debug", MOE_VL,
     .image_token = 2003, .video_token = 2004, .vision_start = 2000, .vision_end = 2001,
     .bos_token = 1, .end_token = {2}, .n_ends = 1, .n_config_ends = 1,
     .text = {.vocab = 2048, .hidden = 128, .layers = 4, .heads = 8, .kv_heads = 2, .head_dim = 32,
              .intermediate = 256, .experts = 16, .top_k = 4, .expert_width = 48,
              .norm_topk_prob = true, .sparse_step = 1, .rms_eps = 1e-6, .rope_theta = 5e6,
              .initializer_range = 0.02, .router_aux_coef = 0.001, .mrope_section = {8, 4, 4},
              .max_positions = 4096},
     .vision = {.depth = 6, .hidden = 64, .heads = 4, .intermediate = 160, .positions = 64,
                .merge = 2, .patch_bytes = 1536, .deepstack = {1, 3, 4}, .n_deepstack = 3,
                .initializer_range = 0.02}},
    {.name = "tile", MOE_VL,
     .image_token = 4003, .video_token = 4004, .vision_start = 4000, .vision_end = 4001,
     .bos_token = 1, .end_token = {2}, .n_ends = 1, .n_config_ends = 1,
     .text = {.vocab = 4096, .hidden = 512, .layers = 2, .heads = 8, .kv_heads = 2, .head_dim = 128,
              .intermediate = 1024, .experts = 16, .top_k = 4, .expert_width = 256,
              .norm_topk_prob = true, .sparse_step = 1, .rms_eps = 1e-6, .rope_theta = 5e6,
              .initializer_range = 0.02, .router_aux_coef = 0.001, .mrope_section = {24, 20, 20},
              .max_positions = 4096},
     .vision = {.depth = 4, .hidden = 288, .heads = 4, .intermediate = 576, .positions = 256,
                .merge = 2, .patch_bytes = 1536, .deepstack = {1, 2}, .n_deepstack = 2,
                .initializer_range = 0.02}},
};
/* clang-format on */

enum { N_PRESETS = sizeof presets / sizeof presets[0] };

status dims_preset(const char *name, model_dims *out)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = presets[i];
            return ST_OK;
        }
    }
    char known[512] = "";
    for (int i = 0; i < N_PRESETS; i++) {
        if (i > 0)
            strcat(known, ", ");
        strcat(known, presets[i].name);
    }
    return FAIL(ST_NO_INPUT,
                "\"%s\" is neither a folder with config.json nor a preset; presets: %s", name,
                known);
}

void dims_list_presets(FILE *to)
{
    for (int i = 0; i < N_PRESETS; i++)
        fprintf(to, "%s\n", presets[i].name);
}
