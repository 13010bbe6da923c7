/* upload_ring.c: stagers in turn, ordered by events between the copy stream and the compute stream.
 */
#include "trainer/batch/upload_ring.h"

#include <stdlib.h>

typedef struct buffer {
    stager *stager;
    event *arrived, *used; /* recorded after its copy, and after the work on it */
    bool taken;            /* both have been recorded */
} buffer;

struct upload_ring {
    stream *compute, *copies; /* the same stream on a backend that stages nothing ahead */
    int n, at, oldest;        /* number of buffers; the next one; the oldest one in use */
    buffer list[STAGERS_MAX];
};

static status buffer_new(upload_ring *l, const model_dims *d, const upload_ring_options *o, int i)
{
    const backend_vtable *v = l->compute->dev->v;
    buffer *b = &l->list[i];
    row_share share = o->share.context > 0 ? o->share : row_share_alone();
    TRY(stager_new_shared(l->compute, d, &o->cap, &share, &b->stager));
    stager_mark(b->stager, i, o->aux_coefficient);
    stager_weigh(b->stager, o->weighting);
    stager_bucket(b->stager, o->buckets, o->n_buckets);
    TRY(v->event_new(l->compute->dev, &b->arrived));
    return v->event_new(l->compute->dev, &b->used);
}

int upload_ring_count(const backend_vtable *backend, int in_use)
{
    const int wanted = backend->ahead + (in_use > 1 ? in_use : 1);
    return wanted < STAGERS_MAX ? wanted : STAGERS_MAX;
}

status upload_ring_new(stream *compute, const model_dims *d, const upload_ring_options *o,
                       upload_ring **out)
{
    const backend_vtable *v = compute->dev->v;
    upload_ring *l = calloc(1, sizeof *l);
    if (!l)
        return FAIL(ST_NO_MEMORY, "no memory for batches under way");
    l->compute = l->copies = compute;
    l->n = upload_ring_count(v, o->in_use);
    status st = v->ahead > 0 ? v->stream_new(compute->dev, &l->copies) : ST_OK;
    for (int i = 0; i < l->n && st == ST_OK; i++)
        st = buffer_new(l, d, o, i);
    if (st != ST_OK)
        upload_ring_free(&l);
    else
        *out = l;
    return st;
}

void upload_ring_free(upload_ring **held)
{
    upload_ring *l = *held;
    if (!l)
        return;
    const backend_vtable *v = l->compute->dev->v;
    for (int i = 0; i < l->n; i++) {
        buffer *b = &l->list[i];
        stager_free(&b->stager, l->compute);
        if (b->arrived)
            v->event_free(&b->arrived);
        if (b->used)
            v->event_free(&b->used);
    }
    if (l->copies && l->copies != l->compute)
        v->stream_free(&l->copies);
    free(l);
    *held = NULL;
}

status upload_ring_stage(upload_ring *l, const row *rows, int64_t n_rows, device_batch **out)
{
    device *dev = l->compute->dev;
    const backend_vtable *v = dev->v;
    buffer *b = &l->list[l->at];
    if (b->taken) {
        TRY(v->event_wait(dev, b->arrived)); /* until its pinned memory has been read */
        TRY(v->event_follow(l->copies, b->used));
    }
    TRY(stage_rows(b->stager, l->copies, rows, n_rows, out));
    l->at = (l->at + 1) % l->n;
    TRY(v->event_record(l->copies, b->arrived));
    return v->event_follow(l->compute, b->arrived);
}

status upload_ring_used(upload_ring *l)
{
    buffer *b = &l->list[l->oldest];
    TRY(l->compute->dev->v->event_record(l->compute, b->used));
    b->taken = true;
    l->oldest = (l->oldest + 1) % l->n;
    return ST_OK;
}

stager *upload_ring_stager(upload_ring *l)
{
    return l->list[0].stager;
}

int64_t upload_ring_buffers(const upload_ring *l)
{
    return l->n;
}
