/* SPDX-License-Identifier: Apache-2.0 */
/* kv_cache.h: keys and values of earlier tokens, kept for generation.
 *
 * L layers, C key-value heads, d head_dim. A document owns consecutive rows of the cache: first
 * those of its prompt, then room for the tokens that it will get. Branches of a prefix own the rows
 * of their own tokens and read those of the prefix, which are there once. Two kinds of passes fill
 * the cache:
 *   prefill  whole prompts: attention runs as in training, and keys and values are kept
 *   step     one token of each document: it attends to the kept rows of its document, and of its
 *            document's prefix, and to itself
 *
 * The lists that say which rows a batch fills and sees are in device memory at fixed addresses.
 *
 * With several ranks, L counts the layers of this pipeline stage and C the heads of this tensor
 * rank. Every context rank keeps the keys and values of all A tokens of the row and computes the
 * attention of its own Tc queries. */
#ifndef TESSERA_TRAINER_MODEL_TEXT_KV_CACHE_H
#define TESSERA_TRAINER_MODEL_TEXT_KV_CACHE_H

#include "trainer/model/layers/pass_context.h"

typedef struct kv_cache {
    int64_t rows;            /* tokens that it has room for */
    int64_t width;           /* C d */
    int64_t layers, before;  /* L, and how many layers of the model come before them */
    int64_t tokens;          /* most tokens of a batch: capacity of `row` */
    int64_t queries;         /* most queries of a step: capacity of the four lists below */
    void *k, *v;             /* [L, rows, C d] act; keys normalised and rotated */
    int32_t *row;            /* [tokens] the row of each token, in packed order; -1: not kept */
    int32_t *first, *length; /* [queries] rows of each query's document; length 0: none */
    int32_t *prefix_first, *prefix_length; /* [queries] the same for its document's prefix */
    bool step;                             /* the next pass is a step, not a prefill */
    bool has_prefixes; /* the lists of prefixes are set; else no document has one */
    void *block;       /* the allocation that holds all arrays */
} kv_cache;

/* Bytes of keys and values for this many rows on the rank of mesh `ranks`. */
int64_t kv_cache_bytes(const model_dims *dims, const mesh *ranks, int64_t rows,
                       const backend_vtable *backend);
/* Allocates an empty cache on the device. Errors: those of the device's alloc. */
WARN_UNUSED status kv_cache_new(device *dev, const model_dims *dims, const mesh *ranks,
                                int64_t rows, int64_t tokens, int64_t queries, kv_cache *out);
void kv_cache_free(kv_cache *cache, device *dev); /* accepts a cache of zeros */
/* Empties the cache: sets all rows to 0, which they must be before they are filled, since filling
 * adds to them. */
WARN_UNUSED status kv_cache_clear(const kv_cache *cache, stream *queue);

/* Adds this layer's keys and values [A, C d] of the batch, in packed order, to its rows. */
WARN_UNUSED status kv_cache_keep(const pass_context *ctx, int64_t layer, const void *k,
                                 const void *v);
/* o [Tc, Q d] = attention of the queries q [Tc, Q d], each the last token of its document, over
 * the rows that the four lists name. */
WARN_UNUSED status kv_cache_attend(const pass_context *ctx, int64_t layer, const void *q, void *o);

#endif
