/* upload_ring.h: micro-batches on their way to the device: while one is computed, the next is built
 * in pinned memory and goes over beside it.
 *
 * As many staging buffers as a backend has steps under way, used in turn, and one more for every
 * further batch that is used at a time (pipeline stages). With one of them (CPU) everything is in
 * the compute stream's own order. */
#ifndef TESSERA_TRAINER_BATCH_UPLOAD_RING_H
#define TESSERA_TRAINER_BATCH_UPLOAD_RING_H

#include "trainer/batch/stager.h"

typedef struct upload_ring upload_ring;

typedef struct upload_ring_options {
    batch_caps cap;            /* of the buffers */
    const batch_caps *buckets; /* [n_buckets] borrowed, each within cap; see stager_bucket */
    int n_buckets;
    row_share share;        /* of rows; all 0: nobody else has a part */
    int in_use;             /* batches that are used at a time; 0 or 1: one */
    double aux_coefficient; /* of the load-balancing loss */
    int weighting;          /* WEIGHTING_* */
} upload_ring_options;

/* compute: where the batches are used; borrowed, as d. */
WARN_UNUSED status upload_ring_new(stream *compute, const model_dims *d,
                                   const upload_ring_options *o, upload_ring **out);
void upload_ring_free(upload_ring **l);

/* Buffers of a ring on this backend; in_use as in the options. */
int upload_ring_count(const backend_vtable *backend, int in_use);

/* The next batch, copied over; what is queued on the compute stream from here on finds it there.
 * Waits for its buffer's last copy, which on a device with several ended a batch ago. */
WARN_UNUSED status upload_ring_stage(upload_ring *l, const row *rows, int64_t n_rows,
                                     device_batch **out);
/* Behind the last use of the batch that upload_ring_stage gave; of several, the first of them. */
WARN_UNUSED status upload_ring_used(upload_ring *l);

/* A buffer for work outside steps (evaluation), ordered behind the steps' use of it. */
stager *upload_ring_stager(upload_ring *l);
int64_t upload_ring_buffers(const upload_ring *l);

#endif
