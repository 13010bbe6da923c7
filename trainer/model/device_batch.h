/* device_batch.h: a micro-batch in device memory, as the model reads it. What fills it is
 * trainer/batch.
 *
 * Rows lie end to end: documents never span rows, so R rows are one long row of R * seq tokens.
 * Host counts stand beside the arrays: what a backend cannot read from the device without waiting.
 * Everything that depends on the data is in device memory at fixed addresses.
 *
 * Sizes: ops run on batch_sizes(): the counts, or the capacities where a backend captures its steps
 * (backend_vtable.fixed_shapes). Arrays are padded to the capacities in both cases, so that the
 * padding disturbs nothing.
 *
 * Ranks that share a row each keep their part of it: T tokens of their own, the queries of their
 * context rank (T x tensor), and borders of all keys (T x ranks). A pipeline stage after the first
 * (row_share.blind) has no arrays of patches and frames, and counts none. */
#ifndef TESSERA_TRAINER_MODEL_DEVICE_BATCH_H
#define TESSERA_TRAINER_MODEL_DEVICE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

/* The ranks that share a row, and this one's place among them. */
typedef struct row_share {
    int64_t context, tensor;
    int64_t context_rank, tensor_rank;
    bool blind; /* a later pipeline stage's: no vision tower, so no pixels are staged */
} row_share;

static inline row_share row_share_alone(void)
{
    return (row_share){.context = 1, .tensor = 1};
}

static inline int64_t row_share_ranks(const row_share *v)
{
    return v->context * v->tensor;
}

static inline int64_t row_share_rank(const row_share *v)
{
    return v->context_rank * v->tensor + v->tensor_rank;
}

/* Tokens of a rank where n are shared out: the same for all, the last ones padded. */
static inline int64_t row_share_tokens(const row_share *v, int64_t n)
{
    return (n + row_share_ranks(v) - 1) / row_share_ranks(v);
}

/* Capacities, or counts. */
typedef struct batch_caps {
    int64_t tokens, docs, patches, items, frames, targets;
    int64_t longest, frame; /* most tokens of a document, patches of a frame; 0: no bound */
} batch_caps;

typedef struct device_batch {
    batch_caps cap;    /* of its bucket */
    bool fixed_shapes; /* ops run on cap, not on the counts */
    /* counts of this micro-batch, on the host */
    int64_t tokens, docs, patches, items, frames, targets, longest, frame;
    double weight;        /* sum of target weights */
    int32_t variant;      /* what of it is not in device memory, as a number: capacities, addresses,
                           * wide, distinct */
    row_share share;      /* of one rank alone: all of it is its own */
    int64_t feature_rows; /* merged rows of a rank in the gathered features; 0: the
                           * row has no images */
    double context_uneven, vision_uneven; /* most work of a rank over the mean */
    /* on the device; T = batch_sizes().tokens */
    int32_t *input_ids; /* [cap.tokens]; pads are 0 */
    int32_t *positions; /* [3, T x tensor] */
    int32_t *cu_docs;   /* [cap.docs + 1] of T x tensor; repeats the last border beyond docs */
    /* where context ranks share the row, else NULL; packed: the order of the whole row */
    int32_t *cu_keys;    /* [cap.docs + 1] borders of documents in packed order */
    int32_t *query_key;  /* [T x tensor] packed place of a query; 0 of padding */
    int32_t *key_row;    /* [T x ranks] by packed place: row among all ranks' keys, -1 = padding */
    int32_t *key_back;   /* [T x ranks] the inverse */
    int32_t *n_tokens;   /* [1]: tokens, for ops that skip the padding */
    int32_t *text_index; /* [cap.tokens]: id for text tokens, -1 for visual and padding */
    int32_t *visual_index;  /* [cap.tokens]: merged visual row, -1 = text or padding */
    bool visual_distinct;   /* no merged row stands at two tokens */
    int32_t *target_token;  /* [cap.targets]: token whose logits predict it (label index - 1) */
    int32_t *target_label;  /* [cap.targets]; -1 beyond */
    void *target_weight;    /* [cap.targets] acc */
    uint8_t *pixels;        /* [cap.patches, 768] stills, when wide is false */
    uint8_t *pixels_wide;   /* [cap.patches, 1536], when the batch has video */
    bool wide;              /* which of the two */
    void *aux_scale;        /* [2] acc: the auxiliary loss's coefficient * weight; tokens */
    int32_t *patch_row_col; /* [cap.patches, 2] full-resolution patch coordinates */
    int32_t *pos_index;     /* [cap.patches, 4] rows of the position table */
    void *pos_weight;       /* [cap.patches, 4] acc; 0 in the padding */
    int32_t *cu_frames;     /* [cap.frames + 1] vision segments, one per frame */
    /* on the host, for eval and messages */
    int32_t *host_target_doc; /* [cap.targets]: document of each target */
    /* [tokens of the whole rows] where ranks share them: place among the tokens of all, rank by
     * rank, T each; NULL: its own number */
    const int32_t *host_place;
    uint64_t *host_sample; /* [cap.docs] */
} device_batch;

/* Sizes that ops run on. patches is a multiple of 4. */
static inline batch_caps batch_sizes(const device_batch *b)
{
    batch_caps counts = {b->tokens, b->docs,    b->patches, b->items,
                         b->frames, b->targets, b->longest, b->frame};
    return b->fixed_shapes ? b->cap : counts;
}

/* What is staged of rows within cap: no patches and frames of a rank that sees none. */
static inline batch_caps batch_caps_seen(const batch_caps *cap, const row_share *share)
{
    batch_caps c = *cap;
    if (share->blind)
        c.patches = c.frames = 0;
    return c;
}

/* What a rank works on of batches within cap. */
static inline batch_caps batch_caps_shared(const batch_caps *cap, const row_share *share)
{
    batch_caps c = batch_caps_seen(cap, share);
    c.tokens = row_share_tokens(share, cap->tokens);
    c.targets = cap->targets < c.tokens || row_share_ranks(share) == 1 ? cap->targets : c.tokens;
    return c;
}

#endif
