/* SPDX-License-Identifier: Apache-2.0 */
/* hf_check.h: compares a Hugging Face folder with a model: names, shapes and dtypes of its tensors,
 * and in which of three layouts it stores experts.
 *
 *   fused, [E, in, out]   as the published checkpoints and transformers 4.57 have them
 *   fused, [E, out, in]   as transformers 5 has them (here "exchanged")
 *   separate              one matrix [out, in] for each expert, with gate and up apart
 *
 * (transformers, models/qwen3_vl_moe/modeling_qwen3_vl_moe.py, Qwen3VLMoeTextExperts.) */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_CHECK_H
#define TESSERA_TRAINER_CHECKPOINT_HF_CHECK_H

#include "trainer/model/dims/hf_folder.h"
#include "trainer/model/params/params.h"

const char *hf_layout_name(expert_layout which); /* its name, for messages */

/* HF_MISSHAPEN: the tensor has another shape, or a dtype that cannot be read. */
enum { HF_MISSING, HF_EXTRA, HF_MISSHAPEN, HF_PROBLEM_KINDS };

typedef struct hf_problem {
    int kind;
    char text[256]; /* "NAME", or "NAME [2, 3], wanted [3, 2]" */
} hf_problem;

typedef struct hf_report {
    expert_layout layout;
    hf_problem *problems; /* heap */
    int64_t n_problems, capacity;
    int64_t count[HF_PROBLEM_KINDS]; /* problems of each kind */
} hf_report;

/* Compares the folder with the registry. The layout of the experts is decided once for the whole
 * folder by both expert tensors of every layer: where one of them is square (hidden size equal to
 * the experts' width, or to twice that), the other is not and decides. A model whose head is tied
 * to the embedding may still have lm_head.weight, the embedding once more (model/dims/hf_folder.h). Free *out
 * with hf_report_done. */
WARN_UNUSED status hf_check(const hf_folder *folder, const params *registry, hf_report *out);
void hf_report_done(hf_report *report);
/* ST_OK if there are no problems, else ST_BAD_INPUT, which names the first ones of each kind.
 * source: the folder's path. */
WARN_UNUSED status hf_report_status(const hf_report *report, const char *source);

/* Writes a shape as "[2, 3]" and returns out. */
enum { HF_SHAPE_TEXT = 96 };
const char *hf_shape_text(int n_dims, const int64_t *shape, char out[HF_SHAPE_TEXT]);

#endif
