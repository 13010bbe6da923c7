/* tokenizer_bpe.h: the table of merges, and the merging of one piece of text.
 *
 * A piece begins as one token for each byte. The neighbouring pair with the lowest rank in the
 * table is merged, the leftmost of equals first, until no neighbouring pair is in the table
 * (Sennrich et al. 2016, arXiv:1508.07909). A heap of candidate pairs makes this O(n log n) for n
 * bytes. The results of short pieces are kept in a direct-mapped cache of fixed size. */
#ifndef TESSERA_COMMON_TOKENIZER_BPE_H
#define TESSERA_COMMON_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct bpe_merge {
    int32_t left, right; /* ids of the pair; left -1: an empty slot */
    int32_t rank;        /* the smaller rank merges first */
    int32_t id;          /* of the token that the pair becomes */
} bpe_merge;

typedef struct bpe_merges {
    bpe_merge *slots; /* [mask + 1], open addressing */
    size_t mask;
} bpe_merges;

/* Makes an empty table with room for n_merges merges. */
WARN_UNUSED status bpe_merges_init(bpe_merges *merges, size_t n_merges);
void bpe_merges_done(bpe_merges *merges);
/* Adds a merge; call it at most n_merges times. A pair that is added again takes the later rank, as
 * in the tokenizers library. */
void bpe_merges_put(bpe_merges *merges, bpe_merge merge);
/* The merge of a pair; NULL if it has none. */
const bpe_merge *bpe_merges_find(const bpe_merges *merges, int32_t left, int32_t right);

typedef struct bpe_token {
    int32_t id;
    int32_t start; /* index of its first byte in the piece */
} bpe_token;

typedef struct bpe_scratch bpe_scratch;

WARN_UNUSED status bpe_scratch_new(bpe_scratch **out);
void bpe_scratch_free(bpe_scratch **scratch);

/* Merges a piece of `size` bytes. byte_id [256]: the token of each single byte. *out [*out_n] is
 * valid until the next call with this scratch. ST_BAD_INPUT for a piece of more than 512 MiB. */
WARN_UNUSED status bpe_encode(const bpe_merges *merges, const int32_t *byte_id,
                              bpe_scratch *scratch, const uint8_t *piece, size_t size,
                              const bpe_token **out, size_t *out_n);

#endif
