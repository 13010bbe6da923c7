/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.h: held-out loss and accuracy, over the stream of held-out rows.
 *
 * Accuracy counts answers: the runs of target tokens of a document (generate/prompt.h), of which a
 * conversation has several. An answer is right if every target token is the likeliest one when the
 * model sees the reference up to it. Then, and only then, greedy generation gives exactly the
 * reference answer and its end token, since a generated prefix equals the reference until the first
 * miss.
 *
 * The swapped accuracy is the same with every picture swapped for another one of the same grid
 * (image_swap.h), which shows how much the text alone reveals. Answers in documents that have no
 * partner, or show no picture, are left out of it; for comparison, the accuracy of the remaining
 * ones is also taken with their own pictures.
 *
 * With n data-parallel ranks, each receives all rows and evaluates every n-th one. Figures are
 * summed over the ranks, so that all of them get what one rank would compute alone. The ranks go on
 * to the next row, or end, together.
 *
 * Up to eval.generate of the questions that come with their annotators' answers are also answered
 * by generation, and scored against these answers (answers.h). */
#ifndef TESSERA_TRAINER_EVAL_EVALUATE_H
#define TESSERA_TRAINER_EVAL_EVALUATE_H

#include "trainer/eval/vqa_score.h"
#include "trainer/run/session.h"

typedef struct evaluation {
    double loss;                        /* mean over targets */
    int64_t answers, right;             /* all answers, and how many of them are right */
    int64_t documents, documents_right; /* those with answers; all answers of it are right */
    /* Answers whose pictures were swapped: all; right then; right with their own pictures. */
    int64_t swapped, swapped_right, own_right;
    double chance_percent; /* image_swap.h; NAN: not known */
    vqa_tally vqa;         /* accuracy of generated answers, where rows bring the annotators' */
    double seconds;
} evaluation;

/* 0 of none is 0 %. */
static inline double evaluation_percent(int64_t right, int64_t of)
{
    return of ? 100.0 * (double)right / (double)of : 0.0;
}

/* Evaluates the session's model on all held-out rows. step: of its values; below 0: they are those
 * of model.path. swapped: every row runs a second time with other pictures. show: how many
 * questions to print with the model's own answers. All ranks call it. ST_STOPPED at the first row
 * after a signal. */
WARN_UNUSED status evaluate_model(session *run, int64_t step, bool swapped, int64_t show,
                                  evaluation *out);

#endif
