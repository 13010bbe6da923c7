/* vqa_score.h: the official VQAv2 accuracy: an answer is normalised and held against ten
 * annotators.
 *
 * Where the annotators differ, all answers are normalised: punctuation goes (or becomes a space),
 * words are lower case, number words up to ten become digits, articles go, contractions get their
 * apostrophe. Where all ten agree nothing is changed. An answer is worth min(1, m / 3) with m
 * annotators of the same words, averaged over leaving each of the ten out in turn.
 * Source: Antol et al. 2015, arXiv:1505.00468, and the rules at visualqa.org/evaluation. */
#ifndef TESSERA_TRAINER_EVAL_VQA_SCORE_H
#define TESSERA_TRAINER_EVAL_VQA_SCORE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

enum { VQA_ANSWER_MAX = 1024 }; /* bytes of an answer that are looked at, with the end */

/* The normalised answer. */
void vqa_normalise(const char *answer, char out[VQA_ANSWER_MAX]);

/* 0 to 1. references [n] annotators' answers, as written. n 0: 0. */
double vqa_accuracy(const char *answer, const char *const *references, size_t n);

#endif
