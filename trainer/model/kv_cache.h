/* kv_cache.h: keys and values of the tokens that have passed, for generation.
 *
 * L layers, C key-value heads, d head_dim. A document owns neighbouring rows: those of its prompt,
 * then room to grow. Two kinds of passes fill it:
 *   prefill  whole prompts; attention as always, keys and values are kept beside
 *   step     one token of each document; its attention is over what is kept, itself included
 * Which rows a batch fills and sees stands in device memory at fixed addresses.
 *
 * Of several ranks: L layers of this stage, C heads of this tensor rank; every context rank keeps
 * all tokens of the row (A of them), and answers for its own queries (Tc). */
#ifndef TESSERA_TRAINER_MODEL_KV_CACHE_H
#define TESSERA_TRAINER_MODEL_KV_CACHE_H

#include "trainer/model/pass_context.h"

typedef struct kv_cache {
    int64_t rows;            /* tokens it has room for */
    int64_t width;           /* C d */
    int64_t layers, before;  /* L, and the model's before the first of them */
    int64_t tokens;          /* most of a batch: capacity of row */
    int64_t queries;         /* most of a step: capacity of first and length */
    void *k, *v;             /* [L, rows, C d] act, normalised and rotated */
    int32_t *row;            /* [tokens] where a batch's tokens go, in packed order; -1: nowhere */
    int32_t *first, *length; /* [queries] the rows of each one's document; length 0: none */
    bool step;
    void *block; /* all of it */
} kv_cache;

/* Of a rank of m. */
int64_t kv_cache_bytes(const model_dims *d, const mesh *m, int64_t rows, const backend_vtable *v);
WARN_UNUSED status kv_cache_new(device *dev, const model_dims *d, const mesh *m, int64_t rows,
                                int64_t tokens, int64_t queries, kv_cache *out);
void kv_cache_free(kv_cache *c, device *dev); /* accepts one of zeros */
/* Empties it: rows are summed into. */
WARN_UNUSED status kv_cache_clear(const kv_cache *c, stream *s);

/* Keeps this layer's keys and values [A, C d] of the batch, in packed order. */
WARN_UNUSED status kv_cache_keep(const pass_context *r, int64_t layer, const void *k,
                                 const void *v);
/* o [Tc, Q d] of queries q [Tc, Q d], each the last token of its document. */
WARN_UNUSED status kv_cache_attend(const pass_context *r, int64_t layer, const void *q, void *o);

#endif
