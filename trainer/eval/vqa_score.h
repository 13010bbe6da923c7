/* vqa_score.h: the official VQAv2 accuracy, which compares an answer with those of ten annotators.
 *
 * If the annotators differ, all answers are normalised: punctuation is removed or becomes a space,
 * words become lower case, number words up to ten become digits, articles are removed, and
 * contractions get their apostrophe. If all ten agree, the answers are compared as they are. An
 * answer that m annotators gave is worth min(1, m / 3), averaged over leaving out each of the ten
 * in turn.
 *
 * Source: Antol et al. 2015, arXiv:1505.00468, and the rules at visualqa.org/evaluation. */
#ifndef TESSERA_TRAINER_EVAL_VQA_SCORE_H
#define TESSERA_TRAINER_EVAL_VQA_SCORE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

enum { VQA_ANSWER_MAX = 1024 }; /* bytes of an answer that are read, the final 0 included */

/* out = the normalised answer. */
void vqa_normalise(const char *answer, char out[VQA_ANSWER_MAX]);

/* The accuracy of an answer, 0 to 1. references [count]: the annotators' answers, as they wrote
 * them. With count = 0 it is 0. */
double vqa_accuracy(const char *answer, const char *const *references, size_t count);

#endif
