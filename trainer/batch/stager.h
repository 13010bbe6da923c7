/* SPDX-License-Identifier: Apache-2.0 */
/* stager.h: turns decoded rows into one micro-batch in device memory (model/layers/device_batch.h
 * says what its arrays hold).
 *
 * A stager owns the host and device buffers of one micro-batch. Arrays are padded to the capacities
 * of the smallest shape bucket that holds the batch or, if none does, to those of the buffers.
 * The addresses are always the same, so that captured graphs can use them. Ranks that share a row
 * all stage the same rows, and each keeps its part (row_share.h). */
#ifndef TESSERA_TRAINER_BATCH_STAGER_H
#define TESSERA_TRAINER_BATCH_STAGER_H

#include "proto/row/batch.h"
#include "trainer/batch/batch_caps.h"
#include "trainer/device/backend.h"
#include "trainer/model/layers/device_batch.h"
#include "trainer/model/dims/dims.h"

enum { STAGERS_MAX = 68 }; /* one for each stage of a pipeline, and some to stage ahead */
typedef struct stager stager;
/* Allocates the buffers for batches within cap. d is borrowed and must outlive the stager. */
WARN_UNUSED status stager_new(stream *queue, const model_dims *dims, const batch_caps *cap,
                              stager **out);
/* Frees *gp and sets it to NULL; NULL in it is accepted. */
void stager_free(stager **gp, stream *queue);
/* Sets how much a target counts, WEIGHTING_* of conf.h, before it is multiplied by its loss_weight.
 * A new stager has WEIGHTING_TOKEN, by which every target counts 1. Parts of a split sample count
 * as their own documents. */
void stager_weigh(stager *staging, int weighting);
/* Sets the shape buckets, list [count] from the smallest on, borrowed. A batch gets the capacities
 * of the first one that holds it. A new stager has none. */
void stager_bucket(stager *staging, const batch_caps *list, int count);
/* Sets the number of this buffer among those in use (below STAGERS_MAX), which enters
 * device_batch.variant, and the coefficient of the auxiliary loss. Both are 0 in a new stager. */
void stager_mark(stager *staging, int32_t buffer, double aux_coefficient);
/* Overrides the backend's fixed_shapes, so that tests can try the padding on any backend. */
void stager_fix_shapes(stager *staging, bool fixed);
/* As stager_new, for a rank that shares rows with others. cap holds whole rows. */
WARN_UNUSED status stager_new_shared(stream *queue, const model_dims *dims, const batch_caps *cap,
                                     const row_share *share, stager **out);
/* Device bytes of such a stager. */
int64_t stager_bytes(const batch_caps *cap, const row_share *share, const backend_vtable *backend);
/* What selects the captured graph of a micro-batch, besides the buffer that holds it. Each part may
 * be more than its rows need, so ranks that need different ones can all use the largest. */
typedef struct batch_shape {
    int bucket;    /* number of the shape bucket; that of the buffers' capacities comes last */
    bool prefixes; /* a document may have a prefix */
    bool wide;     /* patches are those of videos */
    bool shared;   /* a merged row may be shown by two tokens */
} batch_shape;

/* What these rows need at least. */
batch_shape stager_shape(const stager *staging, const row *rows, int64_t n_rows);
/* Builds a micro-batch of these rows and queues its copy to the device on `queue`. The rows are no
 * longer needed when it returns. *out belongs to the stager and is valid until its next stage_rows;
 * on an asynchronous backend, the caller must not let that call overtake work that still reads this
 * batch. ST_BAD_INPUT, with the sample id, for a row that does not fit the capacities or the model:
 * a token id outside the vocabulary, visual rows that disagree with the image and video pads, a
 * label on the first token of a document. */
WARN_UNUSED status stage_rows(stager *staging, stream *queue, const row *rows, int64_t n_rows,
                              device_batch **out);
/* The same, in the shape `least` or, part by part, what the rows need beyond it. */
WARN_UNUSED status stage_rows_in(stager *staging, stream *queue, const row *rows, int64_t n_rows,
                                 const batch_shape *least, device_batch **out);

#endif
