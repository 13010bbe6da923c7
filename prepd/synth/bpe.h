/* bpe.h: trains a small byte-level BPE and writes it as a Hugging Face tokenizer.json (spec 8.3),
 * with Qwen's added tokens after the vocabulary, so that a run needs no downloaded tokenizer.
 *
 * The corpus is ASCII; its pieces are those of the pre-tokeniser expression for ASCII text. */
#ifndef TESSERA_PREPD_SYNTH_BPE_H
#define TESSERA_PREPD_SYNTH_BPE_H

#include <stdint.h>

#include "common/json/json.h"
#include "common/base/status.h"

enum { BPE_BYTES = 256, BPE_MAX_MERGES = 768, BPE_TOKEN_BYTES = 64 };

typedef struct bpe {
    int n_tokens; /* 256 byte symbols, then one per merge */
    int n_merges;
    int left[BPE_MAX_MERGES], right[BPE_MAX_MERGES];
    uint8_t bytes[BPE_BYTES + BPE_MAX_MERGES][BPE_TOKEN_BYTES]; /* of each token */
    int size[BPE_BYTES + BPE_MAX_MERGES];
} bpe;

typedef struct bpe_text {
    const char *text; /* borrowed */
    int64_t count;    /* how often it counts */
} bpe_text;

/* Merges the commonest pair (ties: lowest ids) until max_merges or none occurs twice. */
WARN_UNUSED status bpe_train(const bpe_text *texts, int n_texts, int max_merges, bpe *out);

/* Id of one of Qwen's added tokens under this vocabulary, -1 if there is none of that content. */
int bpe_added_id(const bpe *b, const char *content);
int bpe_size(const bpe *b); /* vocabulary and added tokens */

/* The whole tokenizer.json, appended to w. */
void bpe_write(const bpe *b, json_writer *w);
/* tokenizer_config.json. */
void bpe_write_config(const bpe *b, json_writer *w);

#endif
