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

static status buffer_new(upload_ring *ring, const model_dims *dims, const upload_ring_options *o,
                         int i)
{
    const backend_vtable *v = ring->compute->dev->backend;
    buffer *b = &ring->list[i];
    row_share share = o->share.context > 0 ? o->share : row_share_alone();
    TRY(stager_new_shared(ring->compute, dims, &o->cap, &share, &b->stager));
    stager_mark(b->stager, i, o->aux_coefficient);
    stager_weigh(b->stager, o->weighting);
    stager_bucket(b->stager, o->buckets, o->n_buckets);
    TRY(v->event_new(ring->compute->dev, &b->arrived));
    return v->event_new(ring->compute->dev, &b->used);
}

int upload_ring_count(const backend_vtable *backend, int in_use)
{
    const int wanted = backend->ahead + (in_use > 1 ? in_use : 1);
    return wanted < STAGERS_MAX ? wanted : STAGERS_MAX;
}

status upload_ring_new(stream *compute, const model_dims *dims, const upload_ring_options *o,
                       upload_ring **out)
{
    const backend_vtable *v = compute->dev->backend;
    upload_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return FAIL(ST_NO_MEMORY, "no memory for batches under way");
    ring->compute = ring->copies = compute;
    ring->count = upload_ring_count(v, o->in_use);
    status st = v->ahead > 0 ? v->stream_new(compute->dev, &ring->copies) : ST_OK;
    for (int i = 0; i < ring->count && st == ST_OK; i++)
        st = buffer_new(ring, dims, o, i);
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
    const backend_vtable *v = ring->compute->dev->backend;
    for (int i = 0; i < ring->count; i++) {
        buffer *b = &ring->list[i];
        stager_free(&b->stager, ring->compute);
        if (b->arrived)
            v->event_free(&b->arrived);
        if (b->used)
            v->event_free(&b->used);
    }
    if (ring->copies && ring->copies != ring->compute)
        v->stream_free(&ring->copies);
    free(ring);
    *held = NULL;
}

status upload_ring_stage(upload_ring *ring, const row *rows, int64_t n_rows, device_batch **out)
{
    device *dev = ring->compute->dev;
    const backend_vtable *v = dev->backend;
    buffer *b = &ring->list[ring->at];
    if (b->taken) {
        TRY(v->event_wait(dev, b->arrived)); /* until its pinned memory has been read */
        TRY(v->event_follow(ring->copies, b->used));
    }
    TRY(stage_rows(b->stager, ring->copies, rows, n_rows, out));
    ring->at = (ring->at + 1) % ring->count;
    TRY(v->event_record(ring->copies, b->arrived));
    return v->event_follow(ring->compute, b->arrived);
}

status upload_ring_used(upload_ring *ring)
{
    buffer *b = &ring->list[ring->oldest];
    TRY(ring->compute->dev->backend->event_record(ring->compute, b->used));
    b->taken = true;
    ring->oldest = (ring->oldest + 1) % ring->count;
    return ST_OK;
}

stager *upload_ring_stager(upload_ring *ring)
{
    return ring->list[0].stager;
}

int64_t upload_ring_buffers(const upload_ring *ring)
{
    return ring->count;
}
