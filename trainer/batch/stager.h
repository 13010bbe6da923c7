/* stager.h: decoded rows -> one micro-batch in device memory, padded to a shape bucket.
 *
 * Arrays are padded to the capacities of the smallest bucket that holds the batch, or, where none
 * does, of the buffers themselves; addresses are the same for all. What lies in the arrays, and on
 * which sizes ops run, is model/device_batch.h's; ranks that share a row stage the same rows, and
 * each keeps its part (row_share.h). */
#ifndef TESSERA_TRAINER_BATCH_STAGER_H
#define TESSERA_TRAINER_BATCH_STAGER_H

#include "proto/batch.h"
#include "trainer/device/backend.h"
#include "trainer/model/device_batch.h"
#include "trainer/model/dims.h"

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
/* The rows' arrays are copied before it returns; *out belongs to the stager and is valid until its
 * next stage_rows, which on an asynchronous backend the caller orders behind the batch's work.
 * Fails by sample id where a row does not fit the caps or the model (ids >= vocab, pads and visual
 * rows disagree, a label on a document's first token). */
WARN_UNUSED status stage_rows(stager *g, stream *s, const row *rows, int64_t n_rows,
                              device_batch **out);

#endif
