/* answers.h: held-out questions answered in the model's own words, by greedy generation: judged by
 * VQAv2's official accuracy where a row brings its annotators' answers (the first eval.generate of
 * them), and printed (the first `show`, at most two of a row); all of them go onto eval.page. */
#ifndef TESSERA_TRAINER_EVAL_ANSWERS_H
#define TESSERA_TRAINER_EVAL_ANSWERS_H

#include "trainer/eval/page.h"
#include "trainer/eval/vqa_tally.h"
#include "trainer/run/session.h"

typedef struct answers {
    session *session;
    int64_t show;     /* questions still to be printed */
    int64_t judged;   /* questions chosen for the tally */
    vqa_tally *tally; /* added to */
    page *page;       /* NULL: none */
    /* what went wrong with an answer on this rank alone, after which none is told: for
     * rows_agreed.h */
    status_note trouble;
} answers;

/* A row's questions. counted [D]: documents with targets. Nothing where the row's or device's kind
 * cannot be generated from (generate_can), or without a generator or tokenizer. */
WARN_UNUSED status answers_row(answers *a, const row *r, const bool *counted);

#endif
