/* upload_ring.h: micro-batches on their way to the device: while one is computed, the next is built
 * in pinned memory and goes over beside it.
 *
 * As many staging buffers as a backend has steps under way, used in turn, and one more for every
 * further batch that is used at a time (pipeline stages). With one of them (CPU) everything is in
 * the compute stream's own order. */
#ifndef TESSERA_TRAINER_BATCH_UPLOAD_RING_H
#define TESSERA_TRAINER_BATCH_UPLOAD_RING_H

#include "trainer/batch/stager.h"

typedef struct lane lane;

typedef struct lane_options {
    batch_caps cap;            /* of the buffers */
    const batch_caps *buckets; /* [n_buckets] borrowed, each within cap; see stager_bucket */
    int n_buckets;
    row_share share;        /* of rows; all 0: nobody else has a part */
    int in_use;             /* batches that are used at a time; 0 or 1: one */
    double aux_coefficient; /* of the load-balancing loss */
    int weighting;          /* WEIGHTING_* */
} lane_options;

/* compute: where the batches are used; borrowed, as d. */
WARN_UNUSED status lane_new(stream *compute, const model_dims *d, const lane_options *o,
                            lane **out);
void lane_free(lane **l);

/* Buffers of a lane on this backend; in_use as in the options. */
int lane_count(const backend_vtable *backend, int in_use);

/* The next batch, copied over; what is queued on the compute stream from here on finds it there.
 * Waits for its buffer's last copy, which on a device with several ended a batch ago. */
WARN_UNUSED status lane_stage(lane *l, const row *rows, int64_t n_rows, device_batch **out);
/* Behind the last use of the batch that lane_stage gave; of several, the first of them. */
WARN_UNUSED status lane_used(lane *l);

/* A buffer for work outside steps (evaluation), ordered behind the steps' use of it. */
stager *lane_stager(lane *l);
int64_t lane_buffers(const lane *l);

#endif
