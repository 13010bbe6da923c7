/* vqa_tally.h: adds up the VQAv2 accuracy (vqa_score.h) of many questions, over all of them and by
 * question type and answer type. */
#ifndef TESSERA_TRAINER_EVAL_VQA_TALLY_H
#define TESSERA_TRAINER_EVAL_VQA_TALLY_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/span.h"
#include "common/json/json.h"

enum {
    VQA_TYPES_MAX = 128,
    VQA_TYPE_TEXT = 64 /* VQAv2 has 65 question types and 3 answer types */
};

typedef struct vqa_share {
    char type[VQA_TYPE_TEXT];
    double sum;    /* of the accuracies */
    int64_t count; /* of the questions */
} vqa_share;

typedef struct vqa_tally {
    vqa_share all;
    vqa_share question[VQA_TYPES_MAX], answer[VQA_TYPES_MAX];
    int n_question, n_answer;
} vqa_tally;

/* Adds the answer to a question. reference: {"question_type":T,"answer_type":T,"answers":[..]}; its
 * form is checked before anything is added. *out, unless out is NULL, is the answer's accuracy. */
WARN_UNUSED status vqa_tally_add(vqa_tally *tally, const json_value *reference, span answer,
                                 double *out);
/* The mean accuracy in percent; 0 if there are no questions. */
double vqa_share_percent(const vqa_share *share);
/* Prints a line per answer type and question type. */
void vqa_tally_print(const vqa_tally *tally, FILE *to);

#endif
