/* SPDX-License-Identifier: Apache-2.0 */
/* device_batch.h: a micro-batch in device memory, as the model reads it. trainer/batch fills it.
 *
 * The rows of a micro-batch lie end to end. Documents never span rows, so R rows are treated as one
 * row of R * seq_len tokens. What depends on the data is in device memory at fixed addresses;
 * counts that a backend could read from the device only by waiting are also here, on the host.
 *
 * Ops run on the sizes that batch_sizes() returns: the counts of the batch, or its capacities if
 * a backend captures its steps (backend_vtable.fixed_shapes). In both cases arrays are padded to
 * the capacities with values that change no result.
 *
 * Ranks that share a row each hold their part of it: T tokens of their own, the T x tensor queries
 * of their context rank, and the borders of all T x ranks keys. A pipeline stage after the first
 * (row_share.blind) has no arrays of patches and frames, and its counts of them are 0. */
#ifndef TESSERA_TRAINER_MODEL_LAYERS_DEVICE_BATCH_H
#define TESSERA_TRAINER_MODEL_LAYERS_DEVICE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

/* How many ranks share a row, and the place of this one among them. */
typedef struct row_share {
    int64_t context, tensor;
    int64_t context_rank, tensor_rank;
    bool blind; /* a pipeline stage after the first: no vision tower, so no pixels are staged */
} row_share;

/* A rank that shares its rows with no other. */
static inline row_share row_share_alone(void)
{
    return (row_share){.context = 1, .tensor = 1};
}

/* The ranks that share a row. */
static inline int64_t row_share_ranks(const row_share *share)
{
    return share->context * share->tensor;
}

/* The number of this rank among them. */
static inline int64_t row_share_rank(const row_share *share)
{
    return share->context_rank * share->tensor + share->tensor_rank;
}

/* Tokens of each rank where `tokens` are divided: the same number for all, the last ranks being
 * padded. */
static inline int64_t row_share_tokens(const row_share *share, int64_t tokens)
{
    return (tokens + row_share_ranks(share) - 1) / row_share_ranks(share);
}

/* Sizes of a batch: capacities, or counts. Items are pictures and clips; a frame is a picture or a
 * frame pair of a clip. */
typedef struct batch_caps {
    int64_t tokens, docs, patches, items, frames, targets;
    /* Most tokens of a document, a branch's with its prefix; most patches of a frame.
     * 0: no bound */
    int64_t longest, frame;
} batch_caps;

typedef struct device_batch {
    batch_caps cap;    /* capacities, those of its shape bucket */
    bool fixed_shapes; /* ops run on cap, not on the counts */
    /* counts of this micro-batch, on the host */
    int64_t tokens, docs, patches, items, frames, targets, longest, frame;
    double weight;        /* sum of target weights */
    int32_t variant;      /* a number for everything that a captured graph has built in: capacities,
                           * addresses, wide, visual_distinct, has_prefixes */
    row_share share;      /* how the rows are divided; row_share_alone: not at all */
    int64_t feature_rows; /* merged rows that each rank has in the gathered features; 0: the row has
                           * no pictures */
    double context_uneven, vision_uneven; /* the most work of a rank over the mean of all */
    /* on the device; T = batch_sizes().tokens */
    int32_t *input_ids; /* [cap.tokens]; 0 in the padding */
    int32_t *positions; /* [3, T x tensor]: time, height, width */
    int32_t *cu_docs; /* [cap.docs + 1] borders of documents in T x tensor; the last one repeats */
    /* [cap.docs] the document whose tokens come before this one's (proto/row/batch.h), or -1; used if
     * has_prefixes is true */
    int32_t *doc_prefix;
    int32_t *token_samples; /* [cap.tokens] how many samples have a token: for a prefix, its
                             * branches; 0 in the padding; used if has_prefixes is true */
    bool has_prefixes;
    /* The next four exist if context ranks share the row, else they are NULL. The packed place
     * of a token is its number in the whole row. */
    int32_t *cu_keys;   /* [cap.docs + 1] borders of documents by packed place */
    int32_t *query_key; /* [T x tensor] packed place of each query; 0 in the padding */
    int32_t
        *key_row; /* [T x ranks] by packed place: row among the keys of all ranks; -1: padding */
    int32_t *key_back;     /* [T x ranks] the inverse of key_row */
    int32_t *n_tokens;     /* [1] tokens, for ops that skip the padding */
    int32_t *text_index;   /* [cap.tokens] id of a text token; -1: visual token or padding */
    int32_t *visual_index; /* [cap.tokens] merged row of a visual token; -1: text or padding */
    bool visual_distinct;  /* no merged row is shown by two tokens */
    int32_t
        *target_token; /* [cap.targets] token whose logits predict the target: label index - 1 */
    int32_t *target_label; /* [cap.targets] id to be predicted; -1 in the padding */
    void *target_weight;   /* [cap.targets] acc */
    uint8_t *pixels;       /* [cap.patches, 768] patches of still pictures; used if wide is false */
    uint8_t *pixels_wide;  /* [cap.patches, 1536] patches of frame pairs; used if wide is true */
    bool wide;             /* the batch has video */
    void *aux_scale;       /* [2] acc: auxiliary loss coefficient * weight; sum of token_samples */
    int32_t *patch_row_col; /* [cap.patches, 2] row and column of each patch in its picture */
    int32_t *pos_index;     /* [cap.patches, 4] rows of the position table */
    void *pos_weight;       /* [cap.patches, 4] acc, their weights; 0 in the padding */
    int32_t *cu_frames;     /* [cap.frames + 1] borders of frames in patches */
    /* on the host, for evaluation and messages */
    /* [cap.targets] the reply of each target: replies are runs of targets within a document,
     * counted through the whole rows (generate/prompt.h) */
    int32_t *host_target_reply;
    /* [tokens of the whole rows] place of each token among those of all ranks, which have T each in
     * their order; NULL if rows are not shared: the place is the token's number */
    const int32_t *host_place;
    uint64_t *host_sample; /* [cap.docs] sample id of each document */
} device_batch;

/* The sizes that ops run on. patches is a multiple of 4. */
static inline batch_caps batch_sizes(const device_batch *batch)
{
    batch_caps counts = {batch->tokens, batch->docs,    batch->patches, batch->items,
                         batch->frames, batch->targets, batch->longest, batch->frame};
    return batch->fixed_shapes ? batch->cap : counts;
}

/* The capacities that are staged for rows within cap: a blind rank has no patches and frames. */
static inline batch_caps batch_caps_seen(const batch_caps *cap, const row_share *share)
{
    batch_caps caps = *cap;
    if (share->blind)
        caps.patches = caps.frames = 0;
    return caps;
}

/* The capacities of one rank's part of rows within cap. */
static inline batch_caps batch_caps_shared(const batch_caps *cap, const row_share *share)
{
    batch_caps caps = batch_caps_seen(cap, share);
    caps.tokens = row_share_tokens(share, cap->tokens);
    caps.targets =
        cap->targets < caps.tokens || row_share_ranks(share) == 1 ? cap->targets : caps.tokens;
    return caps;
}

#endif
