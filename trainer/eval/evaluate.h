/* evaluate.h: held-out loss and accuracy over the eval stream.
 *
 * A document is right when every target token is the argmax under teacher forcing: greedy
 * generation gives the reference answer and its end token exactly then, since each generated prefix
 * equals the reference until the first miss. Swapped: the same with every image exchanged for the
 * last different one of equal grid; documents that have no partner are left out of that count.
 *
 * Of several data-parallel ranks each judges every so manieth row; sums are over all of them, and
 * all get the same figures, those of one rank. Rows come to each from the daemon; all go on with a
 * row, or end, together (rows_agreed.h).
 *
 * The first eval.generate questions that come with their annotators' answers are also answered in
 * the model's own words, by greedy generation, and judged by VQAv2's official accuracy. */
#ifndef TESSERA_TRAINER_EVAL_EVALUATE_H
#define TESSERA_TRAINER_EVAL_EVALUATE_H

#include "trainer/eval/vqa_tally.h"
#include "trainer/run/session.h"

typedef struct evaluation {
    double loss; /* mean over targets */
    int64_t documents, right;
    int64_t swapped_documents, swapped_right;
    vqa_tally vqa; /* generated answers by VQAv2's official accuracy, where rows bring references */
    double seconds;
} evaluation;

static inline double evaluation_percent(int64_t right, int64_t of)
{
    return of ? 100.0 * (double)right / (double)of : 0.0;
}

/* One pass over the eval stream; swapped runs every row a second time with other images. show > 0
 * prints that many questions with the model's generated answers. ST_STOPPED at the next row after a
 * signal. */
WARN_UNUSED status evaluate_model(session *s, bool swapped, int64_t show, evaluation *out);

#endif
