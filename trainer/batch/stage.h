/* stage.h: decoded rows -> one micro-batch in device memory, padded to a shape bucket.
 *
 * Rows of a micro-batch are laid end to end: documents never span rows, so R rows are one long row
 * of R * seq tokens. Host counts are kept beside: what a backend can not read from the device
 * without waiting. Everything data-dependent is in device memory at fixed addresses. */
#ifndef TESSERA_BATCH_STAGE_H
#define TESSERA_BATCH_STAGE_H

#include "proto/batch.h"
#include "trainer/device/backend.h"
#include "trainer/model/dims.h"

/* Capacities. */
typedef struct batch_caps {
    int64_t tokens, docs, patches, items, frames, targets;
} batch_caps;

typedef struct device_batch {
    batch_caps cap;
    /* counts of this micro-batch, on the host */
    int64_t tokens, docs, patches, items, frames, targets;
    double weight; /* sum of target weights */
    /* on the device */
    int32_t *input_ids;     /* [cap.tokens]; pads are 0 */
    int32_t *positions;     /* [3, cap.tokens] */
    int32_t *cu_docs;       /* [cap.docs + 1]; repeats the last border beyond docs */
    int32_t *n_tokens;      /* [1]: tokens, for ops that skip the padding */
    int32_t *text_index;    /* [cap.tokens]: id for text tokens, -1 for visual and padding */
    int32_t *visual_index;  /* [cap.tokens]: merged visual row, -1 = text or padding */
    int32_t *visual_token;  /* [cap.patches/4]: token of each merged row, -1 beyond */
    int32_t *target_token;  /* [cap.targets]: token whose logits predict it (label index - 1) */
    int32_t *target_label;  /* [cap.targets]; -1 beyond */
    void *target_weight;    /* [cap.targets] acc */
    uint8_t *pixels;        /* [cap.patches, 768] stills, or NULL use pixels_wide */
    uint8_t *pixels_wide;   /* [cap.patches, 1536], when the batch has video; else NULL */
    bool wide;              /* which of the two */
    int32_t *patch_row_col; /* [cap.patches, 2] full-resolution patch coordinates */
    int32_t *pos_index;     /* [cap.patches, 4] rows of the position table */
    void *pos_weight;       /* [cap.patches, 4] acc */
    int32_t *cu_frames;     /* [cap.frames + 1] vision segments, one per frame */
    /* on the host, for eval and messages */
    int32_t *host_target_doc; /* [cap.targets]: document of each target */
    uint64_t *host_sample;    /* [cap.docs] */
} device_batch;

/* Smallest caps that hold these rows, rounded up: tokens to a multiple of token_step, patches to
 * patch_step (>= 4, a multiple of 4). */
void batch_caps_for(const row *rows, int64_t n_rows, int64_t token_step, int64_t patch_step,
                    batch_caps *inout_caps /* grows only */);

typedef struct stager stager; /* host buffers of one batch */
WARN_UNUSED status stager_new(stream *s, const model_dims *d, const batch_caps *cap, stager **out);
void stager_free(stager **g, stream *s);
/* Fails by sample id where a row does not fit the caps or the model (ids >= vocab, pads and visual
 * rows disagree). */
WARN_UNUSED status stage_rows(stager *g, stream *s, const row *rows, int64_t n_rows,
                              device_batch **out);

#endif
