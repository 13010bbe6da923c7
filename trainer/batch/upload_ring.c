/* upload_ring.c: see upload_ring.h. */
#include "trainer/batch/upload_ring.h"

#include <stdlib.h>

typedef struct buffer {
    stager *stager;
    event *arrived, *used; /* behind its copy; behind the work on it */
    bool taken;            /* both were recorded */
} buffer;

struct lane {
    stream *compute, *copies; /* the same one where there is one buffer */
    int n, at, oldest;        /* buffers; the next one; the first one in use */
    buffer list[STAGERS_MAX];
};

static status buffer_new(lane *l, const model_dims *d, const lane_options *o, int i)
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

int lane_count(const backend_vtable *backend, int in_use)
{
    const int wanted = backend->ahead + (in_use > 1 ? in_use : 1);
    return wanted < STAGERS_MAX ? wanted : STAGERS_MAX;
}

status lane_new(stream *compute, const model_dims *d, const lane_options *o, lane **out)
{
    const backend_vtable *v = compute->dev->v;
    lane *l = calloc(1, sizeof *l);
    if (!l)
        return FAIL(ST_NO_MEMORY, "no memory for batches under way");
    l->compute = l->copies = compute;
    l->n = lane_count(v, o->in_use);
    status st = v->ahead > 0 ? v->stream_new(compute->dev, &l->copies) : ST_OK;
    for (int i = 0; i < l->n && st == ST_OK; i++)
        st = buffer_new(l, d, o, i);
    if (st != ST_OK)
        lane_free(&l);
    else
        *out = l;
    return st;
}

void lane_free(lane **held)
{
    lane *l = *held;
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

status lane_stage(lane *l, const row *rows, int64_t n_rows, device_batch **out)
{
    device *dev = l->compute->dev;
    const backend_vtable *v = dev->v;
    buffer *b = &l->list[l->at];
    if (b->taken) {
        TRY(v->event_wait(dev, b->arrived)); /* the pinned side is read no more */
        TRY(v->event_follow(l->copies, b->used));
    }
    TRY(stage_rows(b->stager, l->copies, rows, n_rows, out));
    l->at = (l->at + 1) % l->n;
    TRY(v->event_record(l->copies, b->arrived));
    return v->event_follow(l->compute, b->arrived);
}

status lane_used(lane *l)
{
    buffer *b = &l->list[l->oldest];
    TRY(l->compute->dev->v->event_record(l->compute, b->used));
    b->taken = true;
    l->oldest = (l->oldest + 1) % l->n;
    return ST_OK;
}

stager *lane_stager(lane *l)
{
    return l->list[0].stager;
}

int64_t lane_buffers(const lane *l)
{
    return l->n;
}
