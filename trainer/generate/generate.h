/* generate.h: greedy continuation of documents of a row, in the model's own words.
 *
 * Several documents at once. Keys and values of what has passed are kept (model/kv_cache.h), so
 * that a word costs one token of each document and not the document again.
 *
 * Of several ranks all call with the same rows, and all get the same words: those that share a row
 * share the tokens of its prompts and of every step, stages hand them on, and what is chosen is
 * told to all by one rank, so that none goes on where another ends. */
#ifndef TESSERA_TRAINER_GENERATE_H
#define TESSERA_TRAINER_GENERATE_H

#include "common/conf/conf.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/batch/stager.h"
#include "trainer/model/qwen3vl.h"

enum { GENERATE_MAX = 16 /* words of an answer */ };

/* Whether a run answers held-out questions in its own words. */
static inline bool generate_wanted(const conf *c, bool training)
{
    bool evaluates = !training || (c->eval_enable && !c->feed_replay[0]);
    return evaluates && (c->eval_generate || c->eval_show);
}

/* Device bytes of a generator for documents of up to `longest` tokens, on a rank of m (NULL: of
 * one). */
int64_t generate_bytes(const model_dims *d, const mesh *m, int64_t longest,
                       const backend_vtable *v);
typedef struct generator generator;

/* What words are generated with. All of it is borrowed until generate_free. */
typedef struct generator_options {
    stream *stream;
    const model_dims *dims;
    const mesh *mesh;
    model *model;
    stager *prompts;
    batch_caps cap;  /* of the model and of prompts */
    int64_t longest; /* tokens of a document */
} generator_options;

WARN_UNUSED status generate_new(const generator_options *o, generator **out);
void generate_free(generator **g);

/* Whether answers to this row can be generated here: logits of f32, f64 or bf16, no video. */
bool generate_can(const generator *g, const row *r);

/* Continues each of these documents of r, cut before its first target, until eos or max_new words.
 * Ids are appended to out [n], which are empty. Every rank calls it. */
WARN_UNUSED status generate_answers(generator *g, const row *r, const int64_t *docs, int64_t n,
                                    int64_t max_new, token_list *out);

#endif
