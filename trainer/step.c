#include "trainer/step.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* lengths are handed to dims_flops in runs of this many documents */
enum { LENGTHS = 256 };

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
static status account(session *s, const received *rows, int64_t n_rows, step_report *r)
{
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
        TRY(note_samples(&s->samples, w));
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
    r->row_capacity += s->cap.tokens;
    return ST_OK;
}

/* One micro-batch: wait for its rows, stage them, add their gradients. */
static status micro_step(session *s, bool first, step_report *r)
{
    int64_t n_rows = s->conf->training_local_batch_size, n = 0;
    received *got = s->got;
    status st = ST_OK;
    for (; n < n_rows; n++) {
        st = receiver_next(s->train, &got[n], &r->wait_ns);
        if (st == ST_END && !(first && n == 0))
            st = FAIL(ST_PROTOCOL, "the stream ended inside step %" PRId64, r->step);
        if (st != ST_OK)
            goto done;
        s->rows[n] = got[n].row;
    }
    device_batch *batch;
    s->stream->part = PART_TEXT;
    TRY_OR(done, stage_rows(s->stager, s->stream, s->rows, n_rows, &batch));
    TRY_OR(done, account(s, got, n_rows, r));
    r->targets += batch->targets;
    loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
    TRY_OR(done, model_forward_backward(s->model, s->stream, batch, &sums));
done:
    for (int64_t i = 0; i < n; i++)
        receiver_give_back(s->train, &got[i]);
    return st;
}

status step_run(session *s, int64_t step, step_report *out)
{
    const backend_vtable *v = s->device->v;
    memset(out, 0, sizeof *out);
    out->step = step;
    s->samples.n = 0;
    s->stream->part = PART_OPTIMIZER;
    TRY(v->zero(s->stream, s->sums.loss, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.weight, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.aux, st_dtype_size(v->acc)));
    TRY(params_zero_grad(s->params, s->stream));

    for (int64_t m = 0; m < s->accumulation; m++)
        TRY(micro_step(s, m == 0, out));

    out->flops.training = groups_training_flops(&out->flops, &s->share);
    out->sample = s->samples.id;
    out->n_samples = s->samples.n;
    out->samples_digest = hash_bytes(s->samples.id, (size_t)s->samples.n * sizeof *s->samples.id);

    out->lr = schedule_lr(&s->schedule, step);
    s->stream->part = PART_OPTIMIZER;
    TRY(optimizer_step(s->optimizer, s->stream, step, out->lr, s->sums.weight));

    double loss = 0.0, weight = 0.0, aux_wide = 0.0;
    float aux_narrow = 0.0f;
    bool wide = v->acc == DT_F64;
    TRY(v->to_host(s->stream, &loss, s->sums.loss, sizeof loss));
    TRY(v->to_host(s->stream, &weight, s->sums.weight, sizeof weight));
    if (wide)
        TRY(v->to_host(s->stream, &aux_wide, s->sums.aux, sizeof aux_wide));
    else
        TRY(v->to_host(s->stream, &aux_narrow, s->sums.aux, sizeof aux_narrow));
    optimizer_report updated;
    TRY(optimizer_read(s->optimizer, s->stream, &updated)); /* waits */
    out->loss = weight > 0.0 ? loss / weight : 0.0;
    out->weight = weight;
    out->aux = wide ? aux_wide : (double)aux_narrow;
    out->grad_norm = updated.grad_norm;
    memcpy(out->group_norm, updated.group_norm, sizeof out->group_norm);
    out->skipped = updated.skipped;
    return ST_OK;
}
