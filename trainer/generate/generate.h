/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h: gives replies (prompt.h) to documents of a row in the model's own words, by greedy
 * decoding.
 *
 * Several documents are continued at once. Keys and values of the tokens that have passed are kept
 * (model/text/kv_cache.h), so that each further word costs one token of each document and not the
 * document again.
 *
 * Every rank must call these functions with the same rows, and all get the same words. Ranks that
 * share a row share the tokens of its prompts and of every step; pipeline stages hand them on; and
 * one rank tells all others which words were chosen, so that no rank goes on where another ends. */
#ifndef TESSERA_TRAINER_GENERATE_H
#define TESSERA_TRAINER_GENERATE_H

#include "common/conf/conf.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/batch/stager.h"
#include "trainer/generate/prompt.h"
#include "trainer/model/qwen3vl.h"

enum { GENERATE_MAX = 16 /* the most words of an answer */ };

/* Whether a run with these options answers held-out questions in its own words. */
static inline bool generate_wanted(const conf *options, bool training)
{
    bool evaluates = !training || (options->eval_enable && !options->feed_replay[0]);
    return evaluates && (options->eval_generate || options->eval_show);
}

/* Device bytes that a generator takes for documents of up to `longest` tokens, on a rank of `mesh`
 * (NULL: a single rank). */
int64_t generate_bytes(const model_dims *dims, const mesh *mesh, int64_t longest,
                       const backend_vtable *backend);
typedef struct generator generator;

/* What a generator needs. It borrows everything until generate_free. */
typedef struct generator_options {
    stream *stream;
    const model_dims *dims;
    const mesh *mesh;
    model *model;
    stager *prompts;
    batch_caps cap;  /* the capacities of the model and of `prompts` */
    int64_t longest; /* the most tokens of a document */
} generator_options;

WARN_UNUSED status generate_new(const generator_options *options, generator **out);
void generate_free(generator **generator);

/* Whether answers to this row can be generated here: the logits must be f32, f64 or bf16, and the
 * row must have no video. */
bool generate_can(const generator *generator, const row *row);

/* Gives each of the `count` replies in the model's own words: continues its document, cut before
 * the reply, up to an end token (dims_is_end) or max_new words (at most GENERATE_MAX). What was
 * said before it in the document is the reference. The ids are appended to out[i], which must be
 * empty; the caller frees them. Every rank must call it. BAD_DEVICE if generate_can is false. */
WARN_UNUSED status generate_answers(generator *generator, const row *row, const reply *replies,
                                    int64_t count, int64_t max_new, token_list *out);

#endif
