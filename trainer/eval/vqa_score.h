/* SPDX-License-Identifier: Apache-2.0 */
/* vqa_score.h: the official VQAv2 accuracy, which compares an answer with those of ten annotators.
 *
 * If the annotators differ, all answers are normalised: punctuation is removed or becomes a space,
 * words become lower case, number words up to ten become digits, articles are removed, and
 * contractions get their apostrophe. If all ten agree, the answers are compared as they are, except
 * white space at their ends. Letters, digits and white space are those of Unicode as Python 3 has
 * them. tests/golden/vqa.json has what the official code makes of some answers. An
 * answer that m annotators gave is worth min(1, m / 3), averaged over leaving out each of the ten
 * in turn.
 *
 * Source: Antol et al. 2015, arXiv:1505.00468, and the rules at visualqa.org/evaluation. */
#ifndef TESSERA_TRAINER_EVAL_VQA_SCORE_H
#define TESSERA_TRAINER_EVAL_VQA_SCORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/span.h"
#include "common/base/status.h"
#include "common/json/json.h"

/* *out = the answer in the form in which it is compared, normalised or with its ends trimmed, ended
 * by a NUL. The caller frees it. */
WARN_UNUSED status vqa_compared_form(span answer, bool normalise, char **out, size_t *out_size);

/* *out = the accuracy of an answer, 0 to 1. references [count]: the annotators' answers, as they
 * wrote them. With count = 0 it is 0. */
WARN_UNUSED status vqa_accuracy(span answer, const span *references, size_t count, double *out);

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
