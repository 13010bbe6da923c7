/* bpe.h: trains a small byte-level BPE (byte pair encoding) and writes it as a tokenizer.json of
 * Hugging Face, with Qwen's added tokens after the vocabulary. So a run needs no downloaded
 * tokenizer.
 *
 * The texts are ASCII. They are cut into pieces by the same expression as Qwen's tokenizer uses,
 * and no token ever crosses a piece. */
#ifndef TESSERA_PREPD_SYNTH_BPE_H
#define TESSERA_PREPD_SYNTH_BPE_H

#include <stdint.h>

#include "common/json/json.h"
#include "common/base/status.h"

enum { BPE_BYTES = 256, BPE_MAX_MERGES = 768, BPE_TOKEN_BYTES = 64 };

typedef struct bpe {
    int n_tokens; /* 256 for the single bytes, then one for each merge */
    int n_merges;
    int left[BPE_MAX_MERGES], right[BPE_MAX_MERGES]; /* [n_merges] the two tokens that are merged */
    uint8_t bytes[BPE_BYTES + BPE_MAX_MERGES]
                 [BPE_TOKEN_BYTES];       /* [n_tokens] what each stands for */
    int size[BPE_BYTES + BPE_MAX_MERGES]; /* [n_tokens] how many bytes */
} bpe;

typedef struct bpe_text {
    const char *text; /* borrowed */
    int64_t count;    /* how often it counts */
} bpe_text;

/* Merges the commonest pair of neighbouring tokens, and of equally common ones that with the lowest
 * ids, until there are max_merges or no pair occurs twice. */
WARN_UNUSED status bpe_train(const bpe_text *texts, int n_texts, int max_merges, bpe *out);

/* The id of one of Qwen's added tokens after this vocabulary; -1 if none has this content. */
int bpe_added_id(const bpe *vocabulary, const char *content);
int bpe_size(const bpe *vocabulary); /* how many tokens there are with the added ones */

/* Appends a whole tokenizer.json to the writer. */
void bpe_write(const bpe *vocabulary, json_writer *writer);
/* Appends a whole tokenizer_config.json. */
void bpe_write_config(const bpe *vocabulary, json_writer *writer);

#endif
