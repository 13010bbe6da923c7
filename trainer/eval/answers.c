/* answers.c: chooses questions of a row, generates answers, then judges and prints them. */
#include "trainer/eval/answers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/base/visible.h"
#include "trainer/eval/question.h"
#include "trainer/generate/generate.h"

enum { SHOWN_OF_A_ROW = 2 }; /* so that printed questions are about several pictures */

/* The documents of a row that are answered. */
typedef struct chosen {
    int64_t n;
    int64_t *doc;      /* [D] numbers of the chosen documents; D documents are in the row */
    bool *judged;      /* [D] it will be judged by the annotators' answers */
    bool *shown;       /* [D] it will be printed */
    token_list *words; /* [D] the generated answers */
} chosen;

static void chosen_done(chosen *picked)
{
    for (int64_t i = 0; i < picked->n && picked->words; i++)
        token_list_done(&picked->words[i]);
    free(picked->doc);
    free(picked->judged);
    free(picked->shown);
    free(picked->words);
}

/* Chooses the documents of a row and counts them. All ranks must choose the same ones, since they
 * generate together; so counting comes before anything that can fail on one rank alone. */
static status choose_documents(answers *state, const row *r, const json_value *references,
                               const bool *counted, chosen *out)
{
    const int64_t most = state->session->conf->eval_generate;
    int64_t shown = 0;
    size_t docs = (size_t)r->n_docs;
    *out = (chosen){.doc = calloc(docs, sizeof *out->doc),
                    .judged = calloc(docs, sizeof(bool)),
                    .shown = calloc(docs, sizeof(bool)),
                    .words = calloc(docs, sizeof *out->words)};
    if (!out->doc || !out->judged || !out->shown || !out->words)
        return FAIL(ST_NO_MEMORY, "answers: out of memory");
    for (int64_t d = 0; d < r->n_docs; d++) {
        bool known = references && json_typeof(json_item(references, (size_t)d)) == JSON_OBJECT;
        bool judge = known && (most < 0 || state->judged < most);
        bool show = counted[d] && shown < state->show && d < SHOWN_OF_A_ROW;
        if (!judge && !show)
            continue;
        state->judged += judge;
        shown += show;
        out->doc[out->n] = d;
        out->judged[out->n] = judge;
        out->shown[out->n++] = show;
    }
    state->show -= shown;
    return ST_OK;
}

/* The question and the reference answer of document doc; the caller frees both. */
static status texts_of(const session *s, const row *r, int64_t doc, char **out_asked,
                       char **out_wanted)
{
    const int64_t end = r->cu_seqlens[doc + 1];
    int64_t cut = r->cu_seqlens[doc];
    size_t size;
    while (cut < end && r->labels[cut] == NO_LABEL)
        cut++;
    int64_t reference_end = cut;
    while (reference_end < end && r->labels[reference_end] != NO_LABEL)
        reference_end++;
    TRY(question_of_document(r, doc, s->tokenizer, out_asked));
    return tokenizer_decode(s->tokenizer, r->input_ids + cut, (size_t)(reference_end - cut), true,
                            out_wanted, &size);
}

/* Judges and prints an answer, and puts it on the page, as chosen. */
static status tell_answer(answers *state, const row *r, const json_value *references,
                          const chosen *picked, int64_t i)
{
    const session *s = state->session;
    const token_list *ids = &picked->words[i];
    const int64_t doc = picked->doc[i];
    char *words = NULL, *asked = NULL, *wanted = NULL;
    size_t size;
    status st = ST_OK;
    double score = -1;
    TRY_OR(done, tokenizer_decode(s->tokenizer, ids->id, ids->n, true, &words, &size));
    TRY_OR(done, texts_of(s, r, doc, &asked, &wanted));
    if (picked->judged[i])
        TRY_OR(done,
               vqa_tally_add(state->tally, json_item(references, (size_t)doc), words, &score));
    if (picked->shown[i])
        printf("  sample %-8" PRIu64 " %-48s answer: %-10s model: %s\n", r->doc_sample_id[doc],
               escape_text(asked).text, escape_text(wanted).text, escape_text(words).text);
    if (state->page)
        TRY_OR(done, page_add(state->page, r, doc, &(page_entry){asked, wanted, words, score}));
done:
    free(words);
    free(asked);
    free(wanted);
    return st;
}

status answers_row(answers *state, const row *r, const bool *counted)
{
    session *s = state->session;
    json_value *references = NULL;
    chosen picked = {0};
    status st = ST_OK;
    if (!s->generator || !s->tokenizer || !generate_can(s->generator, r))
        return ST_OK;
    if (r->references[0])
        TRY(json_parse(r->references, strlen(r->references), "references", &references));
    TRY_OR(done, choose_documents(state, r, references, counted, &picked));
    TRY_OR(done,
           generate_answers(s->generator, r, picked.doc, picked.n, GENERATE_MAX, picked.words));
    for (int64_t i = 0; i < picked.n && state->trouble.code == ST_OK; i++)
        if (tell_answer(state, r, references, &picked, i) != ST_OK)
            state->trouble = *status_last();
done:
    json_free(&references);
    chosen_done(&picked);
    return st;
}
