/* hf_check.h: does a folder hold what a model needs? Names, shapes, dtypes, and which layout its
 * experts have (spec 2.3, 2.4). */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_CHECK_H
#define TESSERA_TRAINER_CHECKPOINT_HF_CHECK_H

#include "trainer/model/hf_folder.h"
#include "trainer/model/params.h"

const char *hf_layout_name(expert_layout l);

enum { HF_MISSING, HF_EXTRA, HF_MISSHAPEN, HF_PROBLEM_KINDS };

typedef struct hf_problem {
    int kind;
    char text[256]; /* "NAME", or "NAME [2, 3] F32, wanted [3, 2]" */
} hf_problem;

typedef struct hf_report {
    expert_layout layout;
    hf_problem *problems; /* heap */
    int64_t n_problems, capacity;
    int64_t count[HF_PROBLEM_KINDS];
} hf_report;

/* The layout is decided once for the checkpoint, by both expert tensors of every layer: where one
 * of them is square (hidden size = expert width or twice that), the other is not and tells. A tied
 * model may carry lm_head.weight, the embedding once more (model/head.h). */
WARN_UNUSED status hf_check(const hf_folder *f, const params *p, hf_report *out);
void hf_report_done(hf_report *r);
/* BAD_INPUT that names the first problems of each kind, or OK. source: the folder. */
WARN_UNUSED status hf_report_status(const hf_report *r, const char *source);

/* "[2, 3]"; returns out. */
enum { HF_SHAPE_TEXT = 96 };
const char *hf_shape_text(int n_dims, const int64_t *shape, char out[HF_SHAPE_TEXT]);

#endif
