/* SPDX-License-Identifier: Apache-2.0 */
/* upload_ring.h: stages micro-batches ahead of their use. While the device computes one, the next
 * is built in pinned memory and copied to the device on a separate stream.
 *
 * A ring has stagers (stager.h) that are used in turn: as many as the backend stages ahead, and one
 * for every batch that is in use at a time, which with a pipeline are several. On a backend that
 * stages nothing ahead (the CPU) copies go through the compute stream itself. */
#ifndef TESSERA_TRAINER_BATCH_UPLOAD_RING_H
#define TESSERA_TRAINER_BATCH_UPLOAD_RING_H

#include "trainer/batch/stager.h"

typedef struct upload_ring upload_ring;

typedef struct upload_ring_options {
    batch_caps cap;            /* capacities of the buffers */
    const batch_caps *buckets; /* [n_buckets] borrowed, each within cap (stager_bucket) */
    int n_buckets;
    row_share share;        /* how rows are divided; all 0: this rank has whole rows */
    int in_use;             /* how many batches are used at a time; 0 means 1 */
    double aux_coefficient; /* of the load-balancing loss (stager_mark) */
    int weighting;          /* WEIGHTING_* (stager_weigh) */
} upload_ring_options;

/* Allocates the ring. compute is the stream on which batches are used; it and d are borrowed. */
WARN_UNUSED status upload_ring_new(stream *compute, const model_dims *dims,
                                   const upload_ring_options *options, upload_ring **out);
/* Frees *l and sets it to NULL; NULL in it is accepted. */
void upload_ring_free(upload_ring **held);

/* How many stagers such a ring has on this backend. in_use: as in the options. */
int upload_ring_count(const backend_vtable *backend, int in_use);

/* What these rows need at least (stager_shape). */
batch_shape upload_ring_shape(const upload_ring *ring, const row *rows, int64_t n_rows);
/* Stages the next batch, in the shape or, part by part, what the rows need beyond it. Work queued
 * on the compute stream after this call finds it on the device. The call waits until the previous
 * copy from the same buffer has ended; with several buffers that copy was queued a batch or more
 * ago. Errors are those of stage_rows. */
WARN_UNUSED status upload_ring_stage(upload_ring *ring, const row *rows, int64_t n_rows,
                                     const batch_shape *shape, device_batch **out);
/* To be called when the last use of a batch has been queued. It releases the oldest of the batches
 * that upload_ring_stage has returned and that are still in use. */
WARN_UNUSED status upload_ring_used(upload_ring *ring);

/* One of the ring's stagers, for work on the compute stream outside steps (evaluation). */
stager *upload_ring_stager(upload_ring *ring);

#endif
