/* SPDX-License-Identifier: Apache-2.0 */
/* prompt.h: finds what the model is to say in a packed row, its replies, and takes samples out of a
 * row, as separate rows. A reply is a run of targets in a document: an answer to a question, one
 * turn of a conversation, or all of a plain text.
 *
 * The sample of a document is the document itself or, for a branch (proto/row/batch.h), the tokens of
 * its prefix and then its own. */
#ifndef TESSERA_TRAINER_GENERATE_PROMPT_H
#define TESSERA_TRAINER_GENERATE_PROMPT_H

#include "proto/row/batch.h"
#include "trainer/batch/stager.h"

typedef struct reply {
    int64_t doc;
    int64_t begin, end; /* its tokens in the row: the first target, and after the last */
} reply;

/* Writes the replies of a row in the order of their tokens, unless out is NULL, and returns how
 * many there are: at most the row's targets. device_batch.host_target_reply counts them in the same
 * way.
 */
int64_t replies_of_row(const row *packed, reply *out);

/* How many tokens the sample of document `doc` has. */
static inline int64_t sample_tokens(const row *packed, int64_t doc)
{
    return row_tokens_before(packed, doc) + packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc];
}

/* The place in the row of token `index` of that sample. */
static inline int64_t sample_token(const row *packed, int64_t doc, int64_t index)
{
    const int64_t before = row_tokens_before(packed, doc);
    return index < before ? packed->cu_seqlens[packed->doc_prefix[doc]] + index
                          : packed->cu_seqlens[doc] + index - before;
}

/* The inverse: the index in the sample of the document's own token at place `token` of the row. */
static inline int64_t sample_index(const row *packed, int64_t doc, int64_t token)
{
    return row_tokens_before(packed, doc) + token - packed->cu_seqlens[doc];
}

/* The items (pictures) [first, last) of consecutive tokens, and the merged row at which the first
 * of them begins. */
typedef struct prompt_span {
    int64_t first, last, first_row;
} prompt_span;
/* Finds the items of the sample of document `doc`: what its prefix shows, then what the document
 * shows itself; {0, 0, 0} for none. */
enum { PROMPT_SPANS = 2 };
void prompt_items(const row *row, int64_t doc, prompt_span out[PROMPT_SPANS]);

/* The sample cut before a reply, without labels, as one document: the prompt of a question, with
 * what was said before it and the pictures shown so far. Its arrays are in the arena. BAD_INPUT for
 * rows with video. */
WARN_UNUSED status prompt_of_reply(const row *packed, const reply *reply, arena *arena, row *out);
/* The same for several replies in documents with the same prefix: a prefix, and a branch for each
 * reply, in their order. For one reply it is prompt_of_reply. */
WARN_UNUSED status prompt_of_branches(const row *packed, const reply *replies, int64_t count,
                                      arena *arena, row *out);
/* The sizes of what prompt_of_branches makes: tokens, docs, items, frames and patches. */
batch_caps prompt_sizes(const row *packed, const reply *replies, int64_t count);
/* The whole sample of a document that is no prefix, with its labels and weights, as one document.
 * Its arrays are in the arena. BAD_INPUT as above. */
WARN_UNUSED status prompt_whole_sample(const row *packed, int64_t doc, arena *arena, row *out);

#endif
