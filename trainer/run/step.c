/* SPDX-License-Identifier: Apache-2.0 */
/* step.c: an optimiser step, from its rows to its report. Its functions, in
 * order:
 *
 *   step_queue    clear         sums and gradients become zero; the learning rate is sent
 *                 take_passes   for each micro-batch: take its rows and stage them on the device
 *                               (step_rows.c), forward, backward; a pipeline orders these itself
 *                 send_counts   this rank's counts go to the device, to be summed with the loss
 *                 update_params sums over ranks, gradient norm, AdamW
 *                 fetch_facts   results are copied to pinned host memory, then an event is recorded
 *   step_wait     waits for that event, reads the results, and fills the report
 *
 * Every step under way has a slot with its own memory, so that the next one may be queued before
 * this one is reported. */
#include "trainer/run/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/exchange/exchange.h"
#include "trainer/run/step_parts.h"
#include "trainer/run/stop.h"

enum { SLOTS_MAX = 4 };

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

/* A step from the time it is queued until it is reported, and the memory that its report points to. */
typedef struct step_slot {
    step_report report;
    step_rows rows;
    step_facts *facts;
    int32_t *expert_count; /* [L, E], pinned; NULL without experts */
    double *unit_share;    /* [units], pinned; NULL without optimizer.in_backward */
    event *wanted, *done;  /* the device could have begun; it has reached the step's end */
} step_slot;

struct step_slots {
    int64_t count;            /* 1 + ahead */
    int64_t queued, finished; /* how many steps since the session was opened */
    bool half_queued;    /* a step failed while it was queued, and its first part is under way */
    step_totals *totals; /* device memory; NULL for one rank */
    step_slot slot[SLOTS_MAX];
    device_batch *batch[LAYOUT_STAGES]; /* the micro-batches under way, by the model's flights */
    int64_t unshared_wait_ns;           /* wait time of finished steps that is not summed yet */
    status_note no_rows;                /* why this rank has no more rows; ST_OK: it has some */
    bool is_void;                       /* the last finished step was void */
    char where[1024];                   /* what step_report.where points to */
};

static size_t expert_count_bytes(const session *run)
{
    const text_dims *text = &run->dims.text;
    return model_expert_count(run->model) ? (size_t)(text->layers * text->experts) * sizeof(int32_t)
                                          : 0;
}

static size_t unit_share_bytes(const session *run)
{
    return run->params->in_backward ? (size_t)unit_count(&run->dims) * sizeof(double) : 0;
}

status step_open(session *run)
{
    const backend_vtable *backend = run->device->backend;
    const size_t counts = expert_count_bytes(run), shares = unit_share_bytes(run);
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
        if (shares)
            TRY(backend->alloc_host(run->device, shares, (void **)&slot->unit_share));
        TRY(step_rows_open(run, &slot->report, &run->steps->no_rows, &slot->rows));
        TRY(backend->event_new(run->device, &slot->wanted));
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
        step_rows_close(run, &slot->rows);
        if (slot->facts)
            backend->release_host(run->device, slot->facts);
        if (slot->expert_count)
            backend->release_host(run->device, slot->expert_count);
        if (slot->unit_share)
            backend->release_host(run->device, slot->unit_share);
        event **const events[] = {&slot->wanted, &slot->done};
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
    return run->steps->queued - run->steps->finished;
}

bool step_is_void(const session *run)
{
    return run->steps && run->steps->is_void;
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
        TRY(step_rows_take(run, part->micro_batch == 0, &slot->rows, &all->batch[flight]));
    if (run->params->in_backward)
        TRY(send_void(run, slot)); /* before the pass changes a value */
    const model_pass next = {part->kind, flight, all->batch[flight]};
    TRY(model_exchange_stage(run->model, run->stream, &next));
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
    return model_exchange_stage(run->model, run->stream, &(model_pass){PASS_NONE});
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
    if (slot->unit_share)
        TRY(optimizer_fetch_shares(run->optimizer, run->stream, slot->unit_share));
    return backend->event_record(run->stream, slot->done);
}

static status send_counts(session *run, step_slot *slot)
{
    if (!step_shared(run))
        return ST_OK;
    slot->report.stop = stop_signalled();
    step_totals_of(run, &slot->report, run->steps->unshared_wait_ns, &slot->facts->ours);
    run->steps->unshared_wait_ns = 0;
    TRY(run->device->backend->to_host(run->stream, &slot->facts->own_loss, run->sums.loss,
                                      sizeof slot->facts->own_loss));
    return run->device->backend->to_device(run->stream, run->steps->totals, &slot->facts->ours,
                                           sizeof slot->facts->ours);
}

status step_queue(session *run, int64_t step)
{
    struct step_slots *all = run->steps;
    if (step_under_way(run) == all->count)
        return FAIL(ST_INTERNAL, "step %" PRId64 " is queued before an earlier one was waited for",
                    step);
    step_slot *slot = &all->slot[all->queued % all->count];
    step_report *report = &slot->report;
    memset(report, 0, sizeof *report);
    report->step = step;
    step_rows_begin(&slot->rows);
    all->half_queued = true;
    TRY(clear(run));
    TRY(run->device->backend->event_record(run->stream, slot->wanted));
    report->lr = schedule_lr(&run->schedule, step);
    TRY(optimizer_send(run->optimizer, run->stream, step, report->lr));
    TRY(take_passes(run, slot));

    report->flops.training = groups_training_flops(&report->flops, &run->share);
    TRY(step_rows_end(run, &slot->rows));
    report->expert_count = slot->expert_count;
    report->unit_share = slot->unit_share;

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

/* Returns why a step is void, as far as this rank knows. */
static status void_status(session *run, const step_report *report)
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

status step_wait(session *run, step_report *out)
{
    struct step_slots *all = run->steps;
    step_slot *slot = &all->slot[all->finished % all->count];
    step_report *report = &slot->report;
    TRY(run->device->backend->event_wait(run->device, slot->done));
    TRY(run->device->backend->event_ns(slot->wanted, slot->rows.arrived, &report->input_ns));
    /* The host may have waited longer than the device stood idle, if the device was still busy with
     * the step before. Only the idle part counts. */
    if (slot->rows.first_wait_ns > report->input_ns)
        report->wait_ns -= slot->rows.first_wait_ns - report->input_ns;
    run->steps->unshared_wait_ns += report->wait_ns;
    all->finished++;
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
        exchange_enter_moved(model_exchange(run->model), facts->moved,
                             run->dims.text.hidden *
                                 (int64_t)st_dtype_size(run->device->backend->act));
    if (report->stop)
        stop_agree();
    TRY(find_where(run, facts, report));
    *out = *report;
    return isinf(facts->weight) ? void_status(run, report) : ST_OK;
}

status step_run(session *run, int64_t step, step_report *out)
{
    TRY(step_queue(run, step));
    return step_wait(run, out);
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
