/* vqa_tally.h: VQAv2 accuracy over questions, in all and by question type and answer type. */
#ifndef TESSERA_TRAINER_EVAL_VQA_TALLY_H
#define TESSERA_TRAINER_EVAL_VQA_TALLY_H

#include <stdint.h>
#include <stdio.h>

#include "common/json/json.h"

enum {
    VQA_TYPES_MAX = 128,
    VQA_TYPE_TEXT = 64 /* VQAv2 has 65 question types and 3 answer types */
};

typedef struct vqa_share {
    char type[VQA_TYPE_TEXT];
    double sum; /* of accuracies */
    int64_t n;
} vqa_share;

typedef struct vqa_tally {
    vqa_share all;
    vqa_share question[VQA_TYPES_MAX], answer[VQA_TYPES_MAX];
    int n_question, n_answer;
} vqa_tally;

/* reference: {"question_type":T,"answer_type":T,"answers":[..]}. ST_PROTOCOL where it is not. The
 * answer's accuracy goes to *out where that is not NULL. */
WARN_UNUSED status vqa_tally_add(vqa_tally *t, const json_value *reference, const char *answer,
                                 double *out);
/* In percent; 0 of none. */
double vqa_share_percent(const vqa_share *s);
void vqa_tally_print(const vqa_tally *t, FILE *to);

#endif
