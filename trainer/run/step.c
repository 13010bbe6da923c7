/* step.c: an optimiser step, from its rows to its report. Its functions, in
 * order:
 *
 *   step_queue    clear         sums and gradients become zero
 *                 take_passes   for each micro-batch: wait for its rows, stage them on the device,
 *                               forward, backward (a pipeline orders these passes itself)
 *                 send_counts   this rank's counts go to the device, to be summed with the loss
 *                 update_params sums over ranks, gradient norm, AdamW
 *                 fetch_facts   results are copied to pinned host memory, then an event is recorded
 *   step_told     waits for that event, reads the results, and fills the report
 *
 * Every step under way has a slot with memory of its own, so that the next one may be queued before
 * this one is told. */
#include "trainer/run/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "proto/assign.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/exchange.h"
#include "trainer/run/nonfinite.h"
#include "trainer/run/step_totals.h"
#include "trainer/run/stop.h"

enum { SLOTS_MAX = 4 };

/* The sample ids of a step, in stream order. */
typedef struct sample_list {
    uint64_t *id; /* heap */
    int64_t count, capacity;
} sample_list;

/* What the host and the device exchange about a step, in pinned host memory. */
typedef struct step_facts {
    double loss, weight;
    double aux[1]; /* one element of the accumulation type */
    optimizer_facts update;
    step_totals ours, totals;      /* with several ranks: sent to the device, and read back */
    double own_loss;               /* of this rank's rows alone */
    int64_t moved[EXCHANGE_MOVED]; /* rows sent to and received from shared experts */
    double void_weight;            /* sent in place of the weight when the step is void */
} step_facts;

/* A step from the time it is queued until it is told, and the memory that its report points to. */
typedef struct step_slot {
    step_report report;
    sample_list samples;
    char *cursor; /* heap */
    size_t cursor_bytes;
    step_facts *facts;
    int32_t *expert_count; /* [L, E], pinned; NULL without experts */
    event *wanted, *ready; /* the device could have begun; its first micro-batch had arrived */
    int64_t first_wait_ns; /* how long the host waited for that micro-batch */
    event *done;
} step_slot;

struct step_slots {
    int64_t count;        /* 1 + ahead */
    int64_t queued, told; /* how many steps since the session was opened */
    step_totals *totals;  /* device memory; NULL for one rank */
    step_slot slot[SLOTS_MAX];
    device_batch *batch[LAYOUT_STAGES]; /* the micro-batches under way, by the model's flights */
    int64_t unsaid_wait_ns; /* waiting time of told steps that other ranks have not heard of yet */
    status_note no_rows;    /* why this rank has no more rows; ST_OK: it has some */
    bool is_void;           /* the step told last was void */
    char where[1024];       /* what step_report.where points to */
};

static size_t expert_count_bytes(const session *s)
{
    const text_dims *t = &s->dims.text;
    return model_expert_count(s->model) ? (size_t)(t->layers * t->experts) * sizeof(int32_t) : 0;
}

status step_open(session *s)
{
    const backend_vtable *v = s->device->backend;
    const size_t counts = expert_count_bytes(s);
    s->steps = calloc(1, sizeof *s->steps);
    if (!s->steps)
        return FAIL(ST_NO_MEMORY, "no memory for the steps under way");
    s->steps->count = v->ahead + 1 < SLOTS_MAX ? v->ahead + 1 : SLOTS_MAX;
    if (step_shared(s))
        TRY(v->alloc(s->device, sizeof(step_totals), (void **)&s->steps->totals));
    for (int64_t i = 0; i < s->steps->count; i++) {
        step_slot *t = &s->steps->slot[i];
        TRY(v->alloc_host(s->device, sizeof *t->facts, (void **)&t->facts));
        if (counts)
            TRY(v->alloc_host(s->device, counts, (void **)&t->expert_count));
        TRY(v->event_new(s->device, &t->wanted));
        TRY(v->event_new(s->device, &t->ready));
        TRY(v->event_new(s->device, &t->done));
    }
    return ST_OK;
}

void step_close(session *s)
{
    if (!s->steps)
        return;
    const backend_vtable *v = s->device->backend;
    /* The device may still use the buffers that are released below. */
    if (step_under_way(s) > 0 && v->wait(s->stream) != ST_OK)
        log_error("the steps under way failed: %s", status_text());
    for (int64_t i = 0; i < s->steps->count; i++) {
        step_slot *t = &s->steps->slot[i];
        free(t->samples.id);
        free(t->cursor);
        if (t->facts)
            v->release_host(s->device, t->facts);
        if (t->expert_count)
            v->release_host(s->device, t->expert_count);
        event **const events[] = {&t->wanted, &t->ready, &t->done};
        for (size_t e = 0; e < sizeof events / sizeof *events; e++)
            if (*events[e])
                v->event_free(events[e]);
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

bool step_is_void(const session *s)
{
    return s->steps && s->steps->is_void;
}

/* Appends the sample ids of a row to those of the step. A prefix is no sample. */
static status note_samples(sample_list *l, const row *w)
{
    if (l->count + w->n_docs > l->capacity) {
        int64_t capacity = 2 * (l->count + w->n_docs);
        uint64_t *id = realloc(l->id, (size_t)capacity * sizeof *id);
        if (!id)
            return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " sample ids", capacity);
        l->id = id;
        l->capacity = capacity;
    }
    for (int64_t d = 0; d < w->n_docs; d++)
        if (!row_is_prefix(w, d))
            l->id[l->count++] = w->doc_sample_id[d];
    return ST_OK;
}

/* The predicted time of a row, by the measure with which the daemon and the reader of a recording
 * distribute rows. */
static int64_t predicted_cost(const row *w)
{
    return assign_cost(&(row_measure){.tokens = w->n_tokens,
                                      .patches = w->n_patches + w->n_video_patches,
                                      .squares = row_squares(w)});
}

/* Counts what the rows hold: real documents and grids, without padding. */
static status account(session *s, const received *rows, int64_t n_rows, step_slot *t)
{
    step_report *r = &t->report;
    for (int64_t i = 0; i < n_rows; i++) {
        const row *w = &rows[i].row;
        const int64_t samples = t->samples.count;
        TRY(note_samples(&t->samples, w));
        flops f;
        dims_flops(&s->dims, w->n_tokens, (row_squares(w) + w->n_tokens) / 2, w->grid_thw,
                   w->n_items, &f);
        flops_add(&r->flops, &f);
        r->documents += t->samples.count - samples;
        r->cost += predicted_cost(w);
        r->tokens += w->n_tokens;
        r->patches += w->n_patches + w->n_video_patches;
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

/* Enters the bytes of a row that another rank received and passed on to this one. They arrived
 * while earlier steps computed, and the ledger counts them with the step that uses the row. */
static void count_shared(const session *s, const received *got)
{
    const comm peers = comm_alone("rows");
    if (!got->shared_bytes)
        return;
    comm_ledger *l = mesh_comm(&s->mesh, MESH_WORLD)->ledger;
    comm_ledger_enter(l, &peers, COMM_BROADCAST, (comm_at){"share rows", -1}, got->shared_bytes);
    comm_ledger_leave(l);
}

static status next_row(session *s, received *out, int64_t *inout_waited_ns)
{
    rank_link *c = s->world ? s->world->rank_link : NULL;
    rank_link_waits(c, "rows"); /* tells the other ranks not to take this one for hung */
    status st = receiver_next(s->train, out, inout_waited_ns);
    rank_link_waits(c, NULL);
    return st;
}

/* Takes the rows of a micro-batch into s->got. */
static status take_rows(session *s, bool first, step_report *r, int64_t *out_n)
{
    for (*out_n = 0; *out_n < s->conf->training_local_batch_size; ++*out_n) {
        status st = next_row(s, &s->got[*out_n], &r->wait_ns);
        if (st == ST_END && !(first && *out_n == 0))
            return FAIL(ST_PROTOCOL,
                        "the stream ended in the middle of step %" PRId64
                        "; prepd should have completed the step with empty rows",
                        r->step);
        TRY(st);
        s->rows[*out_n] = s->got[*out_n].row;
        count_shared(s, &s->got[*out_n]);
    }
    return ST_OK;
}

/* Runs one pass over a micro-batch, or replays its graph if steps are captured. */
static status run_pass(session *s, const model_pass *p)
{
    loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
    graph_replay_key key = {
        .piece = REPLAY_STEP, .pass = REPLAY_FORWARD, .variant = p->batch->variant};
    bool done;
    TRY(graph_replay_begin(s->stream, &key, &done));
    if (done)
        return ST_OK;
    return graph_replay_end(s->stream, model_run(s->model, s->stream, p, &sums));
}

/* Notes why this rank has no rows; from now on its steps are void. Returns ST_OK if the step
 * continues with an empty row. */
static status go_without_rows(session *s, status st)
{
    if (st == ST_END || st == ST_BAD_DEVICE)
        return st;
    s->steps->no_rows = *status_last();
    s->steps->no_rows.code = st;
    return ST_OK;
}

static status stage_nothing(session *s, device_batch **out)
{
    int32_t border[] = {0};
    const row empty = {.cu_seqlens = border};
    return upload_ring_stage(s->upload_ring, &empty, 1, out);
}

/* Puts the rows of the next micro-batch on their way to the device, or an empty row if there are no
 * more. */
static status stage_next(session *s, bool first, step_slot *t, int64_t *out_n, device_batch **out)
{
    *out_n = 0;
    if (s->steps->no_rows.code != ST_OK)
        return stage_nothing(s, out);
    status st = take_rows(s, first, &t->report, out_n);
    s->stream->part = PART_TEXT;
    if (st == ST_OK)
        st = upload_ring_stage(s->upload_ring, s->rows, *out_n, out);
    if (st == ST_OK)
        return account(s, s->got, *out_n, t);
    TRY(go_without_rows(s, st));
    return stage_nothing(s, out);
}

/* Waits for the rows of the next micro-batch, stages them, and adds them to the step's counts. */
static status take_batch(session *s, bool first, step_slot *t, device_batch **out)
{
    int64_t n;
    status st = stage_next(s, first, t, &n, out);
    if (st != ST_OK)
        goto done;
    if (first) {
        t->first_wait_ns = t->report.wait_ns;
        TRY_OR(done, s->device->backend->event_record(s->stream, t->ready));
    }
    t->report.targets += (*out)->targets;
    t->report.own_tokens += batch_sizes(*out).tokens;
    t->report.own_features += (*out)->feature_rows;
    t->report.own_context_balance = fmax(t->report.own_context_balance, (*out)->context_uneven);
    t->report.own_vision_balance = fmax(t->report.own_vision_balance, (*out)->vision_uneven);
    if (s->world) /* if this rank is lost from here on, the others can say with which samples */
        rank_link_at_step(s->world->rank_link, t->report.step, t->samples.id, t->samples.count);
done:
    for (int64_t i = 0; i < n; i++)
        receiver_give_back(s->train, &s->got[i]);
    return st;
}

/* Runs one pass of the step: takes rows if it is a forward pass, exchanges activations and
 * gradients with the pipeline stages before and after this one, and queues the work. */
static status take_pass(session *s, const stage_pass *p, step_slot *t)
{
    struct step_slots *all = s->steps;
    const int flight = (int)(p->micro_batch % model_flights(s->model));
    if (p->kind != PASS_BACKWARD)
        TRY(take_batch(s, p->micro_batch == 0, t, &all->batch[flight]));
    const model_pass next = {p->kind, flight, all->batch[flight]};
    TRY(model_hand_over(s->model, s->stream, &next));
    TRY(run_pass(s, &next));
    return p->kind == PASS_FORWARD ? ST_OK : upload_ring_used(s->upload_ring);
}

/* Runs all passes of the step, in the order of this pipeline stage; the gradients of all
 * micro-batches add up. */
static status take_passes(session *s, step_slot *t)
{
    const int stage = s->mesh.place.pipeline, stages = (int)s->mesh.layout.pipeline;
    const int64_t n = stage_passes(stage, stages, s->accumulation);
    for (int64_t i = 0; i < n; i++) {
        const stage_pass p = stage_pass_at(stage, stages, s->accumulation, i);
        TRY(take_pass(s, &p, t));
    }
    return model_hand_over(s->model, s->stream, &(model_pass){PASS_NONE});
}

static status clear(session *s)
{
    const backend_vtable *v = s->device->backend;
    s->stream->part = PART_OPTIMIZER;
    TRY(v->zero(s->stream, s->sums.loss, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.weight, sizeof(double)));
    TRY(v->zero(s->stream, s->sums.aux, st_dtype_size(v->acc)));
    if (model_exchange(s->model))
        TRY(exchange_clear_moved(s->stream, model_exchange(s->model)));
    return params_zero_grad(s->params, s->stream);
}

/* Sums loss, counts and gradients over the ranks, then updates the values. */
static status update_all(session *s)
{
    if (step_shared(s))
        TRY(step_totals_sum(s, s->steps->totals));
    TRY(params_sum_replicas(s->params, s->stream));
    return optimizer_update(s->optimizer, s->stream, s->sums.weight);
}

static status update_params(session *s)
{
    graph_replay_key key = {.piece = REPLAY_STEP, .pass = REPLAY_UPDATE};
    bool done;
    TRY(graph_replay_begin(s->stream, &key, &done));
    if (done)
        return ST_OK;
    return graph_replay_end(s->stream, update_all(s));
}

static status fetch_facts(session *s, step_slot *t)
{
    const backend_vtable *v = s->device->backend;
    step_facts *f = t->facts;
    TRY(v->to_host(s->stream, &f->loss, s->sums.loss, sizeof f->loss));
    TRY(v->to_host(s->stream, &f->weight, s->sums.weight, sizeof f->weight));
    TRY(v->to_host(s->stream, f->aux, s->sums.aux, st_dtype_size(v->acc)));
    TRY(optimizer_fetch(s->optimizer, s->stream, &f->update));
    if (step_shared(s))
        TRY(v->to_host(s->stream, &f->totals, s->steps->totals, sizeof f->totals));
    if (model_exchange(s->model))
        TRY(exchange_fetch_moved(s->stream, model_exchange(s->model), f->moved));
    if (t->expert_count)
        TRY(v->to_host(s->stream, t->expert_count, model_expert_count(s->model),
                       expert_count_bytes(s)));
    return v->event_record(s->stream, t->done);
}

/* Marks a void step: the weight of this rank becomes minus infinity, a value to which no rows can
 * add up. So the sum over all ranks is minus infinity too, every rank sees that the step is void,
 * and all of them skip the update. */
static status send_void(session *s, step_slot *t)
{
    if (s->steps->no_rows.code == ST_OK)
        return ST_OK;
    t->facts->void_weight = -INFINITY;
    return s->device->backend->to_device(s->stream, s->sums.weight, &t->facts->void_weight,
                                         sizeof t->facts->void_weight);
}

static status send_counts(session *s, step_slot *t)
{
    if (!step_shared(s))
        return ST_OK;
    t->report.stop = stop_heard();
    step_totals_of(s, &t->report, s->steps->unsaid_wait_ns, &t->facts->ours);
    s->steps->unsaid_wait_ns = 0;
    TRY(s->device->backend->to_host(s->stream, &t->facts->own_loss, s->sums.loss,
                                    sizeof t->facts->own_loss));
    return s->device->backend->to_device(s->stream, s->steps->totals, &t->facts->ours,
                                         sizeof t->facts->ours);
}

status step_queue(session *s, int64_t step)
{
    struct step_slots *all = s->steps;
    if (step_under_way(s) == all->count)
        return FAIL(ST_INTERNAL, "step %" PRId64 " is queued before an earlier one was told", step);
    step_slot *t = &all->slot[all->queued % all->count];
    step_report *r = &t->report;
    memset(r, 0, sizeof *r);
    r->step = step;
    t->samples.count = 0;
    t->first_wait_ns = 0;
    TRY(clear(s));
    TRY(s->device->backend->event_record(s->stream, t->wanted));
    TRY(take_passes(s, t));

    r->flops.training = groups_training_flops(&r->flops, &s->share);
    r->sample = t->samples.id;
    r->n_samples = t->samples.count;
    r->samples_digest = hash_bytes(t->samples.id, (size_t)t->samples.count * sizeof *t->samples.id);
    TRY(keep_cursor(t, receiver_cursor(s->train)));
    r->cursor = t->cursor;
    r->expert_count = t->expert_count;

    r->lr = schedule_lr(&s->schedule, step);
    s->stream->part = PART_OPTIMIZER;
    TRY(optimizer_send(s->optimizer, s->stream, step, r->lr));
    TRY(send_void(s, t));
    TRY(send_counts(s, t));
    TRY(update_params(s));
    TRY(fetch_facts(s, t));
    comm_ledger_close_step(s->mesh.group[MESH_WORLD].ledger);
    all->queued++;
    return ST_OK;
}

/* Says why a step is void, as far as this rank knows. */
static status tell_void(session *s, const step_report *r)
{
    s->steps->is_void = true;
    if (s->steps->no_rows.code != ST_OK) {
        status_set(&s->steps->no_rows);
        return s->steps->no_rows.code;
    }
    if (r->stop)
        return FAIL(ST_STOPPED, "another rank was stopped while it waited for rows");
    return FAIL(ST_UNAVAILABLE, "another rank has no more rows; its log says why");
}

/* After a step with targets whose gradient is not finite: finds where it came from. All ranks
 * decide alike whether to search, since they have the same sums. */
static status find_where(session *s, const step_facts *f, step_report *r)
{
    struct step_slots *all = s->steps;
    if (!r->skipped || !(r->weight > 0.0))
        return ST_OK;
    r->where = all->where;
    return nonfinite_find(s, r, step_shared(s) ? f->own_loss : f->loss,
                          step_under_way(s) == 0 ? all->batch : NULL, all->where,
                          sizeof all->where);
}

status step_told(session *s, step_report *out)
{
    struct step_slots *all = s->steps;
    step_slot *t = &all->slot[all->told % all->count];
    step_report *r = &t->report;
    TRY(s->device->backend->event_wait(s->device, t->done));
    TRY(s->device->backend->event_ns(t->wanted, t->ready, &r->input_ns));
    /* The host may have waited longer than the device stood idle, if the device was still busy with
     * the step before. Only the idle part counts. */
    if (t->first_wait_ns > r->input_ns)
        r->wait_ns -= t->first_wait_ns - r->input_ns;
    s->steps->unsaid_wait_ns += r->wait_ns;
    all->told++;
    const step_facts *f = t->facts;
    optimizer_report updated = optimizer_report_of(&f->update);
    r->loss = f->weight > 0.0 ? f->loss / f->weight : 0.0;
    r->weight = f->weight;
    r->aux = s->device->backend->acc == DT_F64 ? f->aux[0] : (double)*(const float *)f->aux;
    r->grad_norm = updated.grad_norm;
    memcpy(r->group_norm, updated.group_norm, sizeof r->group_norm);
    r->skipped = updated.skipped;
    if (step_shared(s))
        step_totals_into(s, &f->totals, r);
    if (model_exchange(s->model))
        exchange_told_moved(model_exchange(s->model), f->moved,
                            s->dims.text.hidden * (int64_t)st_dtype_size(s->device->backend->act));
    if (r->stop)
        stop_agree();
    TRY(find_where(s, f, r));
    *out = *r;
    return isinf(f->weight) ? tell_void(s, r) : ST_OK;
}

status step_run(session *s, int64_t step, step_report *out)
{
    TRY(step_queue(s, step));
    return step_told(s, out);
}

received_work step_received_work(const session *s, const step_report *step)
{
    return (received_work){.micro_steps = s->accumulation,
                           .tokens = step->own_tokens,
                           .feature_rows = step->own_features,
                           .recomputed = s->recomputed.text,
                           .act = st_dtype_size(s->device->backend->act),
                           .acc = st_dtype_size(s->device->backend->acc),
                           .aux = s->conf->loss_router_aux_coef};
}
