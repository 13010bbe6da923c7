/* stager.h: decoded rows -> one micro-batch in device memory, padded to a shape bucket.
 *
 * Rows of a micro-batch are laid end to end: documents never span rows, so R rows are one long row
 * of R * seq tokens. Host counts are kept beside: what a backend can not read from the device
 * without waiting. Everything data-dependent is in device memory at fixed addresses.
 *
 * Sizes: ops run on batch_sizes(): the counts, or the capacities where a backend captures its steps
 * (backend_vtable.fixed_shapes). Arrays are padded to the capacities in both cases, so that the
 * padding disturbs nothing. The capacities are those of the smallest bucket that holds the batch,
 * or, where none does, of the buffers themselves; addresses are the same for all.
 *
 * Ranks that share a row stage the same rows, and each keeps its part (row_share.h): T tokens of
 * its own, the queries of its context rank (T x tensor), and borders of all keys (T x ranks). A
 * pipeline stage behind the first (row_share.blind) has no arrays of patches and frames, and counts
 * none. */
#ifndef TESSERA_BATCH_STAGE_H
#define TESSERA_BATCH_STAGE_H

#include "proto/batch.h"
#include "trainer/batch/row_share.h"
#include "trainer/device/backend.h"
#include "trainer/model/dims.h"

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

/* Smallest caps that hold these rows, rounded up: tokens to a multiple of token_step, patches to
 * patch_step (>= 4, a multiple of 4). Leaves longest and frame alone. */
void batch_caps_for(const row *rows, int64_t n_rows, int64_t token_step, int64_t patch_step,
                    batch_caps *inout_caps /* grows only */);

enum { STAGERS_MAX = 68 };    /* a batch for each stage of a pipeline, and some ahead */
typedef struct stager stager; /* host and device buffers of one batch */
/* d is borrowed and must outlive the stager. */
WARN_UNUSED status stager_new(stream *s, const model_dims *d, const batch_caps *cap, stager **out);
void stager_free(stager **g, stream *s);
/* WEIGHTING_* of conf.h: what a target counts, times its loss_weight; WEIGHTING_TOKEN (1) until
 * said otherwise. The parts of a split sample are documents of their own. */
void stager_weigh(stager *g, int weighting);
/* Buckets from the smallest on, [n] borrowed: a batch gets the capacities of the first that holds
 * it. None of a new stager. */
void stager_bucket(stager *g, const batch_caps *list, int n);
/* Number of this buffer among its kind (below STAGERS_MAX), for device_batch.variant, and the
 * coefficient of the auxiliary loss (0 of a new stager). */
void stager_mark(stager *g, int32_t buffer, double aux_coefficient);
/* Overrides the backend's fixed_shapes, for tests of the padding on a backend that needs none. */
void stager_fix_shapes(stager *g, bool fixed);
/* As stager_new, for one of the ranks that share rows; cap is of the whole rows. */
WARN_UNUSED status stager_new_shared(stream *s, const model_dims *d, const batch_caps *cap,
                                     const row_share *share, stager **out);
/* Device bytes of one such stager. */
int64_t stager_bytes(const batch_caps *cap, const row_share *share, const backend_vtable *backend);
/* What a rank works on of batches within cap. */
batch_caps batch_caps_shared(const batch_caps *cap, const row_share *share);
/* The rows' arrays are copied before it returns; *out belongs to the stager and is valid until its
 * next stage_rows, which on an asynchronous backend the caller orders behind the batch's work.
 * Fails by sample id where a row does not fit the caps or the model (ids >= vocab, pads and visual
 * rows disagree, a label on a document's first token). */
WARN_UNUSED status stage_rows(stager *g, stream *s, const row *rows, int64_t n_rows,
                              device_batch **out);

#endif
