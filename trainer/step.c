#include "trainer/step.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#include "trainer/device/replay.h"
#include "trainer/step_totals.h"
#include "trainer/stop.h"

enum {
    LENGTHS = 256, /* handed to dims_flops in runs of this many documents */
    SLOTS_MAX = 4
};

/* Samples of a step, in stream order. */
typedef struct sample_list {
    uint64_t *id; /* heap */
    int64_t n, capacity;
} sample_list;

/* What comes over behind a step. Pinned. */
typedef struct step_facts {
    double loss, weight;
    double aux[1]; /* as acc */
    optimizer_facts update;
    step_totals ours, totals; /* of several ranks: going over, coming back */
} step_facts;

/* A step from its queueing until it is told, and what the report points at after that. */
typedef struct step_slot {
    step_report report;
    sample_list samples;
    char *cursor; /* heap */
    size_t cursor_bytes;
    step_facts *facts;
    event *done;
} step_slot;

struct step_slots {
    int64_t n;            /* 1 + ahead */
    int64_t queued, told; /* steps, in all */
    step_totals *totals;  /* device; NULL of one rank */
    step_slot slot[SLOTS_MAX];
};

status step_open(session *s)
{
    const backend_vtable *v = s->device->v;
    s->steps = calloc(1, sizeof *s->steps);
    if (!s->steps)
        return FAIL(ST_NO_MEMORY, "no memory for steps under way");
    s->steps->n = v->ahead + 1 < SLOTS_MAX ? v->ahead + 1 : SLOTS_MAX;
    if (step_shared(s))
        TRY(v->alloc(s->device, sizeof(step_totals), (void **)&s->steps->totals));
    for (int64_t i = 0; i < s->steps->n; i++) {
        step_slot *t = &s->steps->slot[i];
        TRY(v->alloc_host(s->device, sizeof *t->facts, (void **)&t->facts));
        TRY(v->event_new(s->device, &t->done));
    }
    return ST_OK;
}

void step_close(session *s)
{
    if (!s->steps)
        return;
    const backend_vtable *v = s->device->v;
    if (step_under_way(s) > 0 && v->wait(s->stream) != ST_OK) /* buffers go next */
        log_error("steps under way: %s", status_text());
    for (int64_t i = 0; i < s->steps->n; i++) {
        step_slot *t = &s->steps->slot[i];
        free(t->samples.id);
        free(t->cursor);
        if (t->facts)
            v->release_host(s->device, t->facts);
        if (t->done)
            v->event_free(&t->done);
    }
    if (s->steps->totals)
        v->release(s->device, s->steps->totals);
    free(s->steps);
    s->steps = NULL;
}

int64_t step_under_way(const session *s)
{
    return s->steps->queued - s->steps->told;
}

/* The ids of a row's samples join those of the step. */
static status note_samples(sample_list *l, const row *w)
{
    if (l->n + w->n_docs > l->capacity) {
        int64_t capacity = 2 * (l->n + w->n_docs);
        uint64_t *id = realloc(l->id, (size_t)capacity * sizeof *id);
        if (!id)
            return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " sample ids", capacity);
        l->id = id;
        l->capacity = capacity;
    }
    if (w->n_docs)
        memcpy(l->id + l->n, w->doc_sample_id, (size_t)w->n_docs * sizeof *l->id);
    l->n += w->n_docs;
    return ST_OK;
}

/* Counts what the rows really hold: documents and grids, no padding. */
static status account(session *s, const received *rows, int64_t n_rows, step_slot *t)
{
    step_report *r = &t->report;
    for (int64_t i = 0; i < n_rows; i++) {
        const row *w = &rows[i].row;
        int64_t length[LENGTHS];
        for (int64_t d = 0; d < w->n_docs;) {
            int64_t n = 0;
            for (; d < w->n_docs && n < LENGTHS; d++, n++)
                length[n] = w->cu_seqlens[d + 1] - w->cu_seqlens[d];
            flops f;
            dims_flops(&s->dims, length, n, NULL, 0, &f);
            flops_add(&r->flops, &f);
        }
        TRY(note_samples(&t->samples, w));
        flops f;
        dims_flops(&s->dims, NULL, 0, w->grid_thw, w->n_items, &f);
        flops_add(&r->flops, &f);
        r->tokens += w->n_tokens;
        r->patches += w->n_patches + w->n_video_patches;
        r->documents += w->n_docs;
        r->images += w->n_items;
        r->rows_digest = hash_chain(r->rows_digest, rows[i].head.digest);
    }
    r->rows += n_rows;
    r->row_capacity += s->conf->training_local_batch_size * s->seq_len;
    return ST_OK;
}

static status keep_cursor(step_slot *t, const char *cursor)
{
    size_t bytes = strlen(cursor) + 1;
    if (bytes > t->cursor_bytes) {
        char *p = realloc(t->cursor, 2 * bytes);
        if (!p)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor of %zu bytes", bytes);
        t->cursor = p;
        t->cursor_bytes = 2 * bytes;
    }
    memcpy(t->cursor, cursor, bytes);
    return ST_OK;
}

/* The rows of a micro-batch, into s->got. */
static status take_rows(session *s, bool first, step_report *r, int64_t *out_n)
{
    for (*out_n = 0; *out_n < s->conf->training_local_batch_size; ++*out_n) {
        status st = receiver_next(s->train, &s->got[*out_n], &r->wait_ns);
        if (st == ST_END && !(first && *out_n == 0))
            return FAIL(ST_PROTOCOL, "the stream ended inside step %" PRId64, r->step);
        TRY(st);
        s->rows[*out_n] = s->got[*out_n].row;
    }
    return ST_OK;
}

/* Forward and backward of one micro-batch; captured where steps are. */
static status add_gradients(session *s, const device_batch *b)
{
    loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
    replay_key key = {.piece = REPLAY_STEP, .pass = REPLAY_FORWARD, .variant = b->variant};
    bool done;
    TRY(replay_begin(s->stream, &key, &done));
    if (done)
        return ST_OK;
    return replay_end(s->stream, model_forward_backward(s->model, s->stream, b, &sums));
}

/* One micro-batch: wait for its rows, send them, add their gradients. */
static status micro_step(session *s, bool first, step_slot *t)
{
    int64_t n = 0;
    device_batch *batch;
    status st = take_rows(s, first, &t->report, &n);
    if (st != ST_OK)
        goto done;
    s->stream->part = PART_TEXT;
    TRY_OR(done, lane_stage(s->lane, s->rows, n, &batch));
    TRY_OR(done, account(s, s->got, n, t));
    t->report.targets += batch->targets;
    if (s->world) /* should a rank be lost from here on, it is known with which samples */
        control_at_step(s->world->control, t->report.step, t->samples.id, t->samples.n);
    TRY_OR(done, add_gradients(s, batch));
    TRY_OR(done, lane_used(s->lane));
done:
    for (int64_t i = 0; i < n; i++)
        receiver_give_back(s->train, &s->got[i]);
    return st;
}

static status clear(session *s)
{
    const backend_vtable *v = s->device->v;
    s->stream->part = PART_OPTIMIZER;
    TRY(v->zero(s->stream, s->sums.loss, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.weight, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.aux, st_dtype_size(v->acc)));
    return params_zero_grad(s->params, s->stream);
}

/* Sums over ranks, then the update. */
static status update_all(session *s)
{
    if (step_shared(s))
        TRY(step_totals_sum(s, s->steps->totals));
    TRY(params_sum_replicas(s->params, s->stream));
    return optimizer_update(s->optimizer, s->stream, s->sums.weight);
}

static status update(session *s)
{
    replay_key key = {.piece = REPLAY_STEP, .pass = REPLAY_UPDATE};
    bool done;
    TRY(replay_begin(s->stream, &key, &done));
    if (done)
        return ST_OK;
    return replay_end(s->stream, update_all(s));
}

static status fetch(session *s, step_slot *t)
{
    const backend_vtable *v = s->device->v;
    step_facts *f = t->facts;
    TRY(v->to_host(s->stream, &f->loss, s->sums.loss, sizeof f->loss));
    TRY(v->to_host(s->stream, &f->weight, s->sums.weight, sizeof f->weight));
    TRY(v->to_host(s->stream, f->aux, s->sums.aux, st_dtype_size(v->acc)));
    TRY(optimizer_fetch(s->optimizer, s->stream, &f->update));
    if (step_shared(s))
        TRY(v->to_host(s->stream, &f->totals, s->steps->totals, sizeof f->totals));
    return v->event_record(s->stream, t->done);
}

static status send_counts(session *s, step_slot *t)
{
    if (!step_shared(s))
        return ST_OK;
    t->report.stop = stop_heard();
    step_totals_of(s, &t->report, &t->facts->ours);
    return s->device->v->to_device(s->stream, s->steps->totals, &t->facts->ours,
                                   sizeof t->facts->ours);
}

status step_queue(session *s, int64_t step)
{
    struct step_slots *all = s->steps;
    if (step_under_way(s) == all->n)
        return FAIL(ST_INTERNAL, "step %" PRId64 " is queued before an earlier one was told", step);
    step_slot *t = &all->slot[all->queued % all->n];
    step_report *r = &t->report;
    memset(r, 0, sizeof *r);
    r->step = step;
    t->samples.n = 0;
    TRY(clear(s));
    for (int64_t m = 0; m < s->accumulation; m++)
        TRY(micro_step(s, m == 0, t));

    r->flops.training = groups_training_flops(&r->flops, &s->share);
    r->sample = t->samples.id;
    r->n_samples = t->samples.n;
    r->samples_digest = hash_bytes(t->samples.id, (size_t)t->samples.n * sizeof *t->samples.id);
    TRY(keep_cursor(t, receiver_cursor(s->train)));
    r->cursor = t->cursor;

    r->lr = schedule_lr(&s->schedule, step);
    s->stream->part = PART_OPTIMIZER;
    TRY(optimizer_send(s->optimizer, s->stream, step, r->lr));
    TRY(send_counts(s, t));
    TRY(update(s));
    TRY(fetch(s, t));
    comm_ledger_close_step(s->mesh.group[MESH_WORLD].ledger);
    all->queued++;
    return ST_OK;
}

status step_told(session *s, step_report *out)
{
    struct step_slots *all = s->steps;
    step_slot *t = &all->slot[all->told % all->n];
    step_report *r = &t->report;
    TRY(s->device->v->event_wait(s->device, t->done));
    all->told++;
    const step_facts *f = t->facts;
    optimizer_report updated = optimizer_report_of(&f->update);
    r->loss = f->weight > 0.0 ? f->loss / f->weight : 0.0;
    r->weight = f->weight;
    r->aux = s->device->v->acc == DT_F64 ? f->aux[0] : (double)*(const float *)f->aux;
    r->grad_norm = updated.grad_norm;
    memcpy(r->group_norm, updated.group_norm, sizeof r->group_norm);
    r->skipped = updated.skipped;
    if (step_shared(s))
        step_totals_into(&f->totals, r);
    *out = *r;
    return ST_OK;
}

status step_run(session *s, int64_t step, step_report *out)
{
    TRY(step_queue(s, step));
    return step_told(s, out);
}
