/* tokenizer_bpe.h: the merge table and the merging of one piece.
 *
 * Lowest rank first, leftmost first among equals, until no neighbouring pair is in the table
 * (Sennrich et al. 2016, arXiv:1508.07909). A heap of candidate pairs keeps a piece of n bytes at n
 * log n. Short pieces are remembered in a direct-mapped cache of fixed size. */
#ifndef TESSERA_COMMON_TOKENIZER_BPE_H
#define TESSERA_COMMON_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct bpe_merge {
    int32_t left, right; /* left -1: empty slot */
    int32_t rank;        /* smaller merges first */
    int32_t id;          /* what the pair becomes */
} bpe_merge;

typedef struct bpe_merges {
    bpe_merge *slots; /* [mask + 1], open addressing */
    size_t mask;
} bpe_merges;

WARN_UNUSED status bpe_merges_init(bpe_merges *m, size_t n_merges);
void bpe_merges_done(bpe_merges *m);
/* A repeated pair takes the later rank, as in the reference. At most n_merges calls. */
void bpe_merges_put(bpe_merges *m, bpe_merge merge);
/* NULL if the pair does not merge. */
const bpe_merge *bpe_merges_find(const bpe_merges *m, int32_t left, int32_t right);

typedef struct bpe_token {
    int32_t id;
    int32_t start; /* first byte in the piece */
} bpe_token;

typedef struct bpe_scratch bpe_scratch;

WARN_UNUSED status bpe_scratch_new(bpe_scratch **out);
void bpe_scratch_free(bpe_scratch **s);

/* byte_id [256]: the token of each single byte. *out [*out_n] is valid until the next call with s.
 */
WARN_UNUSED status bpe_encode(const bpe_merges *m, const int32_t *byte_id, bpe_scratch *s,
                              const uint8_t *piece, size_t size, const bpe_token **out,
                              size_t *out_n);

#endif
