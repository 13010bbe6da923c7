/* SPDX-License-Identifier: Apache-2.0 */
/* upload_ring.c: stagers in turn, with events that order copy stream and compute stream. */
#include "trainer/batch/upload_ring.h"

#include <stdlib.h>

typedef struct buffer {
    stager *stager;
    event *arrived, *used; /* recorded after its copy, and after the work on it */
    bool taken;            /* both have been recorded */
} buffer;

struct upload_ring {
    stream *compute, *copies; /* the same stream on a backend that stages nothing ahead */
    int count, at, oldest;    /* number of buffers; the next one; the oldest one in use */
    buffer list[STAGERS_MAX];
};

static status buffer_new(upload_ring *ring, const model_dims *dims,
                         const upload_ring_options *options, int index)
{
    const backend_vtable *backend = ring->compute->dev->backend;
    buffer *space = &ring->list[index];
    row_share share = options->share.context > 0 ? options->share : row_share_alone();
    TRY(stager_new_shared(ring->compute, dims, &options->cap, &share, &space->stager));
    stager_mark(space->stager, index, options->aux_coefficient);
    stager_weigh(space->stager, options->weighting);
    stager_bucket(space->stager, options->buckets, options->n_buckets);
    TRY(backend->event_new(ring->compute->dev, &space->arrived));
    return backend->event_new(ring->compute->dev, &space->used);
}

int upload_ring_count(const backend_vtable *backend, int in_use)
{
    const int wanted = backend->ahead + (in_use > 1 ? in_use : 1);
    return wanted < STAGERS_MAX ? wanted : STAGERS_MAX;
}

status upload_ring_new(stream *compute, const model_dims *dims, const upload_ring_options *options,
                       upload_ring **out)
{
    const backend_vtable *backend = compute->dev->backend;
    upload_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return FAIL(ST_NO_MEMORY, "no memory for batches under way");
    ring->compute = ring->copies = compute;
    ring->count = upload_ring_count(backend, options->in_use);
    status st = backend->ahead > 0 ? backend->stream_new(compute->dev, &ring->copies) : ST_OK;
    for (int i = 0; i < ring->count && st == ST_OK; i++)
        st = buffer_new(ring, dims, options, i);
    if (st != ST_OK)
        upload_ring_free(&ring);
    else
        *out = ring;
    return st;
}

void upload_ring_free(upload_ring **held)
{
    upload_ring *ring = *held;
    if (!ring)
        return;
    const backend_vtable *backend = ring->compute->dev->backend;
    for (int i = 0; i < ring->count; i++) {
        buffer *space = &ring->list[i];
        stager_free(&space->stager, ring->compute);
        if (space->arrived)
            backend->event_free(&space->arrived);
        if (space->used)
            backend->event_free(&space->used);
    }
    if (ring->copies && ring->copies != ring->compute)
        backend->stream_free(&ring->copies);
    free(ring);
    *held = NULL;
}

batch_shape upload_ring_shape(const upload_ring *ring, const row *rows, int64_t n_rows)
{
    return stager_shape(ring->list[ring->at].stager, rows, n_rows);
}

status upload_ring_stage(upload_ring *ring, const row *rows, int64_t n_rows,
                         const batch_shape *shape, device_batch **out)
{
    device *dev = ring->compute->dev;
    const backend_vtable *backend = dev->backend;
    buffer *space = &ring->list[ring->at];
    if (space->taken) {
        TRY(backend->event_wait(dev, space->arrived)); /* until its pinned memory has been read */
        TRY(backend->event_follow(ring->copies, space->used));
    }
    TRY(stage_rows_in(space->stager, ring->copies, rows, n_rows, shape, out));
    ring->at = (ring->at + 1) % ring->count;
    TRY(backend->event_record(ring->copies, space->arrived));
    return backend->event_follow(ring->compute, space->arrived);
}

status upload_ring_used(upload_ring *ring)
{
    buffer *space = &ring->list[ring->oldest];
    TRY(ring->compute->dev->backend->event_record(ring->compute, space->used));
    space->taken = true;
    ring->oldest = (ring->oldest + 1) % ring->count;
    return ST_OK;
}

stager *upload_ring_stager(upload_ring *ring)
{
    return ring->list[0].stager;
}
