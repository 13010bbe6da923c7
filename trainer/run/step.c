/* step.c: an optimiser step, from its rows to its report. Its functions, in
 * order:
 *
 *   step_queue    clear         sums and gradients become zero; the learning rate is sent
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
    bool half_queued;     /* a step failed while it was queued, and its first part is under way */
    step_totals *totals;  /* device memory; NULL for one rank */
    step_slot slot[SLOTS_MAX];
    device_batch *batch[LAYOUT_STAGES]; /* the micro-batches under way, by the model's flights */
    int64_t unsaid_wait_ns; /* waiting time of told steps that other ranks have not heard of yet */
    status_note no_rows;    /* why this rank has no more rows; ST_OK: it has some */
    bool is_void;           /* the step told last was void */
    char where[1024];       /* what step_report.where points to */
};

static size_t expert_count_bytes(const session *run)
{
    const text_dims *text = &run->dims.text;
    return model_expert_count(run->model) ? (size_t)(text->layers * text->experts) * sizeof(int32_t)
                                          : 0;
}

status step_open(session *run)
{
    const backend_vtable *backend = run->device->backend;
    const size_t counts = expert_count_bytes(run);
    run->steps = calloc(1, sizeof *run->steps);
    if (!run->steps)
        return FAIL(ST_NO_MEMORY, "no memory for the steps under way");
    run->steps->count = backend->ahead + 1 < SLOTS_MAX ? backend->ahead + 1 : SLOTS_MAX;
    if (step_shared(run))
        TRY(backend->alloc(run->device, sizeof(step_totals), (void **)&run->steps->totals));
    for (int64_t i = 0; i < run->steps->count; i++) {
        step_slot *slot = &run->steps->slot[i];
        TRY(backend->alloc_host(run->device, sizeof *slot->facts, (void **)&slot->facts));
        if (counts)
            TRY(backend->alloc_host(run->device, counts, (void **)&slot->expert_count));
        TRY(backend->event_new(run->device, &slot->wanted));
        TRY(backend->event_new(run->device, &slot->ready));
        TRY(backend->event_new(run->device, &slot->done));
    }
    return ST_OK;
}

/* Waits for what steps have queued, since the device may still use the buffers that are released
 * next; of a step that failed while it was queued, also for the collectives on the side. */
static status finish_work(session *run)
{
    if (run->steps->half_queued)
        TRY(fsdp_units_end(run->params->fsdp_units, run->stream));
    if (!run->steps->half_queued && step_under_way(run) == 0)
        return ST_OK;
    return run->device->backend->wait(run->stream);
}

void step_close(session *run)
{
    if (!run->steps)
        return;
    const backend_vtable *backend = run->device->backend;
    if (finish_work(run) != ST_OK)
        log_error("the steps under way failed: %s", status_text());
    for (int64_t i = 0; i < run->steps->count; i++) {
        step_slot *slot = &run->steps->slot[i];
        free(slot->samples.id);
        free(slot->cursor);
        if (slot->facts)
            backend->release_host(run->device, slot->facts);
        if (slot->expert_count)
            backend->release_host(run->device, slot->expert_count);
        event **const events[] = {&slot->wanted, &slot->ready, &slot->done};
        for (size_t j = 0; j < sizeof events / sizeof *events; j++)
            if (*events[j])
                backend->event_free(events[j]);
    }
    if (run->steps->totals)
        backend->release(run->device, run->steps->totals);
    free(run->steps);
    run->steps = NULL;
}

int64_t step_under_way(const session *run)
{
    return run->steps->queued - run->steps->told;
}

bool step_is_void(const session *run)
{
    return run->steps && run->steps->is_void;
}

/* Appends the sample ids of a row to those of the step. A prefix is no sample. */
static status note_samples(sample_list *samples, const row *work)
{
    if (samples->count + work->n_docs > samples->capacity) {
        int64_t capacity = 2 * (samples->count + work->n_docs);
        uint64_t *id = realloc(samples->id, (size_t)capacity * sizeof *id);
        if (!id)
            return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " sample ids", capacity);
        samples->id = id;
        samples->capacity = capacity;
    }
    for (int64_t doc = 0; doc < work->n_docs; doc++)
        if (!row_is_prefix(work, doc))
            samples->id[samples->count++] = work->doc_sample_id[doc];
    return ST_OK;
}

/* The predicted time of a row, by the measure with which the daemon and the reader of a recording
 * distribute rows. */
static int64_t predicted_cost(const row *work)
{
    return assign_cost(&(row_measure){.tokens = work->n_tokens,
                                      .patches = work->n_patches + work->n_video_patches,
                                      .squares = row_squares(work)});
}

/* The documents of a row that have targets. */
static int64_t count_pairs(const row *work)
{
    int64_t count = 0;
    for (int64_t doc = 0; doc < work->n_docs; doc++) {
        int64_t token = work->cu_seqlens[doc];
        while (token < work->cu_seqlens[doc + 1] && work->labels[token] == NO_LABEL)
            token++;
        count += token < work->cu_seqlens[doc + 1];
    }
    return count;
}

/* Counts what the rows hold: real documents and grids, without padding. */
static status account(session *run, const received *rows, int64_t n_rows, step_slot *slot)
{
    step_report *report = &slot->report;
    for (int64_t i = 0; i < n_rows; i++) {
        const row *work = &rows[i].row;
        const int64_t samples = slot->samples.count;
        TRY(note_samples(&slot->samples, work));
        flops sum;
        dims_flops(&run->dims, work->n_tokens, (row_squares(work) + work->n_tokens) / 2,
                   work->grid_thw, work->n_items, &sum);
        flops_add(&report->flops, &sum);
        report->documents += slot->samples.count - samples;
        report->pairs += count_pairs(work);
        report->cost += predicted_cost(work);
        report->tokens += work->n_tokens;
        report->patches += work->n_patches + work->n_video_patches;
        report->images += work->n_items;
        report->rows_digest = hash_chain(report->rows_digest, rows[i].head.digest);
    }
    report->rows += n_rows;
    report->row_capacity += run->conf->training_local_batch_size * run->seq_len;
    return ST_OK;
}

static status keep_cursor(step_slot *slot, const char *cursor)
{
    size_t bytes = strlen(cursor) + 1;
    if (bytes > slot->cursor_bytes) {
        char *at = realloc(slot->cursor, 2 * bytes);
        if (!at)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor of %zu bytes", bytes);
        slot->cursor = at;
        slot->cursor_bytes = 2 * bytes;
    }
    memcpy(slot->cursor, cursor, bytes);
    return ST_OK;
}

/* Enters the bytes of a row that another rank received and passed on to this one. They arrived
 * while earlier steps computed, and the ledger counts them with the step that uses the row. */
static void count_shared(const session *run, const received *got)
{
    const comm peers = comm_alone("rows");
    if (!got->shared_bytes)
        return;
    comm_ledger *ledger = mesh_comm(&run->mesh, MESH_WORLD)->ledger;
    comm_ledger_enter(ledger, &peers, COMM_BROADCAST, (comm_at){"share rows", -1},
                      got->shared_bytes);
    comm_ledger_leave(ledger);
}

static status next_row(session *run, received *out, int64_t *inout_waited_ns)
{
    rank_link *link = run->world ? run->world->rank_link : NULL;
    rank_link_waits(link, "rows"); /* tells the other ranks not to take this one for hung */
    status st = receiver_next(run->train, out, inout_waited_ns);
    rank_link_waits(link, NULL);
    return st;
}

/* Takes the rows of a micro-batch into run->got. */
static status take_rows(session *run, bool first, step_report *report, int64_t *out_n)
{
    for (*out_n = 0; *out_n < run->conf->training_local_batch_size; ++*out_n) {
        status st = next_row(run, &run->got[*out_n], &report->wait_ns);
        if (st == ST_END && !(first && *out_n == 0))
            return FAIL(ST_PROTOCOL,
                        "the stream ended in the middle of step %" PRId64
                        "; prepd should have completed the step with empty rows",
                        report->step);
        TRY(st);
        run->rows[*out_n] = run->got[*out_n].row;
        count_shared(run, &run->got[*out_n]);
    }
    return ST_OK;
}

/* Runs one pass over a micro-batch, or replays its graph if steps are captured. */
static status run_pass(session *run, const model_pass *step)
{
    loss_sums sums = {run->sums.loss, run->sums.weight, run->sums.aux};
    graph_replay_key key = {
        .piece = REPLAY_STEP, .pass = REPLAY_FORWARD, .variant = step->batch->variant};
    bool done;
    TRY(graph_replay_begin(run->stream, &key, &done));
    if (done)
        return ST_OK;
    return graph_replay_end(run->stream, model_run(run->model, run->stream, step, &sums));
}

/* Notes why this rank has no rows; from now on its steps are void. Returns ST_OK if the step
 * continues with an empty row. */
static status go_without_rows(session *run, status st)
{
    if (st == ST_END || st == ST_BAD_DEVICE)
        return st;
    run->steps->no_rows = *status_last();
    run->steps->no_rows.code = st;
    return ST_OK;
}

static status stage_nothing(session *run, const batch_shape *least, device_batch **out)
{
    int32_t border[] = {0};
    const row empty = {.cu_seqlens = border};
    return upload_ring_stage(run->upload_ring, &empty, 1, least, out);
}

/* Agrees with the other ranks on the shape of the micro-batch in which this rank has these rows.
 * Then all replay the same graph, as NCCL demands of captured calls. It is done for every
 * micro-batch, also by a rank that has no rows. */
static status agree_on_shape(session *run, int64_t n_rows, batch_shape *out)
{
    *out = n_rows > 0 ? upload_ring_shape(run->upload_ring, run->rows, n_rows) : (batch_shape){0};
    if (!run->same_shapes)
        return ST_OK;
    uint8_t need[LINK_NEEDS] = {(uint8_t)out->bucket, out->prefixes, out->wide, out->shared};
    TRY(rank_link_agree(run->world->rank_link, need));
    *out = (batch_shape){need[0], need[1], need[2], need[3]};
    return ST_OK;
}

/* Puts the rows of the next micro-batch on their way to the device, or an empty row if there are no
 * more. */
static status stage_next(session *run, bool first, step_slot *slot, int64_t *out_n,
                         device_batch **out)
{
    batch_shape least;
    *out_n = 0;
    if (run->steps->no_rows.code == ST_OK) {
        status st = take_rows(run, first, &slot->report, out_n);
        run->stream->part = PART_TEXT;
        TRY(st == ST_OK ? ST_OK : go_without_rows(run, st));
    }
    const bool has_rows = run->steps->no_rows.code == ST_OK;
    TRY(agree_on_shape(run, has_rows ? *out_n : 0, &least));
    if (!has_rows)
        return stage_nothing(run, &least, out);
    status st = upload_ring_stage(run->upload_ring, run->rows, *out_n, &least, out);
    if (st == ST_OK)
        return account(run, run->got, *out_n, slot);
    TRY(go_without_rows(run, st));
    return stage_nothing(run, &least, out);
}

/* Waits for the rows of the next micro-batch, stages them, and adds them to the step's counts. */
static status take_batch(session *run, bool first, step_slot *slot, device_batch **out)
{
    int64_t count;
    status st = stage_next(run, first, slot, &count, out);
    if (st != ST_OK)
        goto done;
    if (first) {
        slot->first_wait_ns = slot->report.wait_ns;
        TRY_OR(done, run->device->backend->event_record(run->stream, slot->ready));
    }
    slot->report.targets += (*out)->targets;
    slot->report.own_tokens += batch_sizes(*out).tokens;
    slot->report.own_features += (*out)->feature_rows;
    slot->report.own_context_balance =
        fmax(slot->report.own_context_balance, (*out)->context_uneven);
    slot->report.own_vision_balance = fmax(slot->report.own_vision_balance, (*out)->vision_uneven);
    if (run->world) /* if this rank is lost from here on, the others can say with which samples */
        rank_link_at_step(run->world->rank_link, slot->report.step, slot->samples.id,
                          slot->samples.count);
done:
    for (int64_t i = 0; i < count; i++)
        receiver_give_back(run->train, &run->got[i]);
    return st;
}

/* Marks a void step: the weight of this rank becomes minus infinity, a value to which no rows can
 * add up. So the sum over all ranks is minus infinity too, every rank sees that the step is void,
 * and all of them skip the update. */
static status send_void(session *run, step_slot *slot)
{
    if (run->steps->no_rows.code == ST_OK)
        return ST_OK;
    slot->facts->void_weight = -INFINITY;
    return run->device->backend->to_device(run->stream, run->sums.weight, &slot->facts->void_weight,
                                           sizeof slot->facts->void_weight);
}

/* Runs one pass of the step: takes rows if it is a forward pass, exchanges activations and
 * gradients with the pipeline stages before and after this one, and queues the work. */
static status take_pass(session *run, const stage_pass *part, step_slot *slot)
{
    struct step_slots *all = run->steps;
    const int flight = (int)(part->micro_batch % model_flights(run->model));
    if (part->kind != PASS_BACKWARD)
        TRY(take_batch(run, part->micro_batch == 0, slot, &all->batch[flight]));
    if (run->params->in_backward)
        TRY(send_void(run, slot)); /* before the pass changes a value */
    const model_pass next = {part->kind, flight, all->batch[flight]};
    TRY(model_hand_over(run->model, run->stream, &next));
    TRY(run_pass(run, &next));
    return part->kind == PASS_FORWARD ? ST_OK : upload_ring_used(run->upload_ring);
}

/* Runs all passes of the step, in the order of this pipeline stage; the gradients of all
 * micro-batches add up. */
static status take_passes(session *run, step_slot *slot)
{
    const int stage = run->mesh.place.pipeline, stages = (int)run->mesh.layout.pipeline;
    const int64_t count = stage_passes(stage, stages, run->accumulation);
    for (int64_t i = 0; i < count; i++) {
        const stage_pass part = stage_pass_at(stage, stages, run->accumulation, i);
        TRY(take_pass(run, &part, slot));
    }
    return model_hand_over(run->model, run->stream, &(model_pass){PASS_NONE});
}

static status clear(session *run)
{
    const backend_vtable *backend = run->device->backend;
    run->stream->part = PART_OPTIMIZER;
    TRY(backend->zero(run->stream, run->sums.loss, sizeof(double)));
    TRY(backend->zero(run->stream, run->sums.weight, sizeof(double)));
    TRY(backend->zero(run->stream, run->sums.aux, st_dtype_size(backend->acc)));
    if (model_exchange(run->model))
        TRY(exchange_clear_moved(run->stream, model_exchange(run->model)));
    return params_zero_grad(run->params, run->stream);
}

/* Sums loss, counts and gradients over the ranks, then updates the values, unless the backward pass
 * has done so. */
static status update_all(session *run)
{
    if (step_shared(run))
        TRY(step_totals_sum(run, run->steps->totals));
    if (run->params->in_backward)
        return ST_OK;
    TRY(params_sum_replicas(run->params, run->stream));
    return optimizer_update(run->optimizer, run->stream, run->sums.weight);
}

static status update_params(session *run)
{
    graph_replay_key key = {.piece = REPLAY_STEP, .pass = REPLAY_UPDATE};
    bool done;
    TRY(graph_replay_begin(run->stream, &key, &done));
    if (done)
        return ST_OK;
    return graph_replay_end(run->stream, update_all(run));
}

static status fetch_facts(session *run, step_slot *slot)
{
    const backend_vtable *backend = run->device->backend;
    step_facts *facts = slot->facts;
    TRY(backend->to_host(run->stream, &facts->loss, run->sums.loss, sizeof facts->loss));
    TRY(backend->to_host(run->stream, &facts->weight, run->sums.weight, sizeof facts->weight));
    TRY(backend->to_host(run->stream, facts->aux, run->sums.aux, st_dtype_size(backend->acc)));
    TRY(optimizer_fetch(run->optimizer, run->stream, &facts->update));
    if (step_shared(run))
        TRY(backend->to_host(run->stream, &facts->totals, run->steps->totals,
                             sizeof facts->totals));
    if (model_exchange(run->model))
        TRY(exchange_fetch_moved(run->stream, model_exchange(run->model), facts->moved));
    if (slot->expert_count)
        TRY(backend->to_host(run->stream, slot->expert_count, model_expert_count(run->model),
                             expert_count_bytes(run)));
    return backend->event_record(run->stream, slot->done);
}

static status send_counts(session *run, step_slot *slot)
{
    if (!step_shared(run))
        return ST_OK;
    slot->report.stop = stop_heard();
    step_totals_of(run, &slot->report, run->steps->unsaid_wait_ns, &slot->facts->ours);
    run->steps->unsaid_wait_ns = 0;
    TRY(run->device->backend->to_host(run->stream, &slot->facts->own_loss, run->sums.loss,
                                      sizeof slot->facts->own_loss));
    return run->device->backend->to_device(run->stream, run->steps->totals, &slot->facts->ours,
                                           sizeof slot->facts->ours);
}

status step_queue(session *run, int64_t step)
{
    struct step_slots *all = run->steps;
    if (step_under_way(run) == all->count)
        return FAIL(ST_INTERNAL, "step %" PRId64 " is queued before an earlier one was told", step);
    step_slot *slot = &all->slot[all->queued % all->count];
    step_report *report = &slot->report;
    memset(report, 0, sizeof *report);
    report->step = step;
    slot->samples.count = 0;
    slot->first_wait_ns = 0;
    all->half_queued = true;
    TRY(clear(run));
    TRY(run->device->backend->event_record(run->stream, slot->wanted));
    report->lr = schedule_lr(&run->schedule, step);
    TRY(optimizer_send(run->optimizer, run->stream, step, report->lr));
    TRY(take_passes(run, slot));

    report->flops.training = groups_training_flops(&report->flops, &run->share);
    report->sample = slot->samples.id;
    report->n_samples = slot->samples.count;
    report->samples_digest =
        hash_bytes(slot->samples.id, (size_t)slot->samples.count * sizeof *slot->samples.id);
    TRY(keep_cursor(slot, receiver_cursor(run->train)));
    report->cursor = slot->cursor;
    report->expert_count = slot->expert_count;

    run->stream->part = PART_OPTIMIZER;
    TRY(send_void(run, slot));
    TRY(send_counts(run, slot));
    TRY(update_params(run));
    TRY(fetch_facts(run, slot));
    comm_ledger_close_step(run->mesh.group[MESH_WORLD].ledger);
    all->half_queued = false;
    all->queued++;
    return ST_OK;
}

/* Says why a step is void, as far as this rank knows. */
static status tell_void(session *run, const step_report *report)
{
    run->steps->is_void = true;
    if (run->steps->no_rows.code != ST_OK) {
        status_set(&run->steps->no_rows);
        return run->steps->no_rows.code;
    }
    if (report->stop)
        return FAIL(ST_STOPPED, "another rank was stopped while it waited for rows");
    return FAIL(ST_UNAVAILABLE, "another rank has no more rows; its log says why");
}

/* Notes which units a step updated before it met a gradient that is not finite. */
static void note_partial(session *run, const optimizer_report *updated, step_report *report)
{
    report->stopped_at = updated->stopped_at;
    const int first = optimizer_first_unit(run->optimizer);
    if (updated->stopped_at >= 0 && updated->stopped_at < first)
        unit_range(&run->dims, first, updated->stopped_at + 1, report->updated);
}

/* After a step with targets whose gradient is not finite: finds where it came from. All ranks
 * decide alike whether to search, since they have the same sums. */
static status find_where(session *run, const step_facts *facts, step_report *report)
{
    struct step_slots *all = run->steps;
    if (!report->skipped || !(report->weight > 0.0))
        return ST_OK;
    report->where = all->where;
    return nonfinite_find(run, report, step_shared(run) ? facts->own_loss : facts->loss,
                          step_under_way(run) == 0 ? all->batch : NULL, all->where,
                          sizeof all->where);
}

status step_told(session *run, step_report *out)
{
    struct step_slots *all = run->steps;
    step_slot *slot = &all->slot[all->told % all->count];
    step_report *report = &slot->report;
    TRY(run->device->backend->event_wait(run->device, slot->done));
    TRY(run->device->backend->event_ns(slot->wanted, slot->ready, &report->input_ns));
    /* The host may have waited longer than the device stood idle, if the device was still busy with
     * the step before. Only the idle part counts. */
    if (slot->first_wait_ns > report->input_ns)
        report->wait_ns -= slot->first_wait_ns - report->input_ns;
    run->steps->unsaid_wait_ns += report->wait_ns;
    all->told++;
    const step_facts *facts = slot->facts;
    optimizer_report updated = optimizer_report_of(&facts->update);
    report->loss = facts->weight > 0.0 ? facts->loss / facts->weight : 0.0;
    report->weight = facts->weight;
    report->aux =
        run->device->backend->acc == DT_F64 ? facts->aux[0] : (double)*(const float *)facts->aux;
    report->grad_norm = updated.grad_norm;
    memcpy(report->group_norm, updated.group_norm, sizeof report->group_norm);
    report->skipped = updated.skipped;
    note_partial(run, &updated, report);
    if (step_shared(run))
        step_totals_into(run, &facts->totals, report);
    if (model_exchange(run->model))
        exchange_told_moved(model_exchange(run->model), facts->moved,
                            run->dims.text.hidden *
                                (int64_t)st_dtype_size(run->device->backend->act));
    if (report->stop)
        stop_agree();
    TRY(find_where(run, facts, report));
    *out = *report;
    return isinf(facts->weight) ? tell_void(run, report) : ST_OK;
}

status step_run(session *run, int64_t step, step_report *out)
{
    TRY(step_queue(run, step));
    return step_told(run, out);
}

received_work step_received_work(const session *run, const step_report *step)
{
    return (received_work){.micro_steps = run->accumulation,
                           .tokens = step->own_tokens,
                           .feature_rows = step->own_features,
                           .recomputed = run->recomputed.text,
                           .act = st_dtype_size(run->device->backend->act),
                           .acc = st_dtype_size(run->device->backend->acc),
                           .aux = run->conf->loss_router_aux_coef};
}
