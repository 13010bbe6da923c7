/* SPDX-License-Identifier: Apache-2.0 */
/* step_rows.c: the rows of a step (step_parts.h) in this order: counts and ids of rows that have
 * come; waiting for rows; shapes and staging; the calls of step.c; counts summed over ranks. */

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/row/assign.h"
#include "trainer/run/step_parts.h"

/* Appends the sample ids of a row to those of the step. A prefix is no sample. */
static status note_samples(step_rows *rows, const row *work)
{
    if (rows->n_samples + work->n_docs > rows->sample_capacity) {
        int64_t capacity = 2 * (rows->n_samples + work->n_docs);
        uint64_t *id = realloc(rows->sample, (size_t)capacity * sizeof *id);
        if (!id)
            return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " sample ids", capacity);
        rows->sample = id;
        rows->sample_capacity = capacity;
    }
    for (int64_t doc = 0; doc < work->n_docs; doc++)
        if (!row_is_prefix(work, doc))
            rows->sample[rows->n_samples++] = work->doc_sample_id[doc];
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
static status count_rows(const session *run, const received *got, int64_t n_rows, step_rows *rows)
{
    step_report *report = rows->report;
    for (int64_t i = 0; i < n_rows; i++) {
        const row *work = &got[i].row;
        const int64_t samples = rows->n_samples;
        TRY(note_samples(rows, work));
        flops sum;
        dims_flops(&run->dims, work->n_tokens, row_count_targets(work, 0, work->n_docs),
                   (row_squares(work) + work->n_tokens) / 2, work->grid_thw, work->n_items, &sum);
        flops_add(&report->flops, &sum);
        report->documents += rows->n_samples - samples;
        report->pairs += count_pairs(work);
        report->cost += predicted_cost(work);
        report->tokens += work->n_tokens;
        report->patches += work->n_patches + work->n_video_patches;
        report->images += work->n_items;
        report->rows_digest = hash_chain(report->rows_digest, got[i].head.digest);
    }
    report->rows += n_rows;
    report->row_capacity += run->conf->training_local_batch_size * run->seq_len;
    return ST_OK;
}

static status keep_cursor(step_rows *rows, const char *cursor)
{
    size_t bytes = strlen(cursor) + 1;
    if (bytes > rows->cursor_bytes) {
        char *at = realloc(rows->cursor, 2 * bytes);
        if (!at)
            return FAIL(ST_NO_MEMORY, "no memory for a cursor of %zu bytes", bytes);
        rows->cursor = at;
        rows->cursor_bytes = 2 * bytes;
    }
    memcpy(rows->cursor, cursor, bytes);
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

/* Notes why this rank has no rows; from now on its steps are void. Returns ST_OK if the step
 * continues with an empty row. */
static status go_without_rows(step_rows *rows, status st)
{
    if (st == ST_END || st == ST_BAD_DEVICE)
        return st;
    *rows->no_rows = *status_last();
    rows->no_rows->code = st;
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
static status stage_next(session *run, bool first, step_rows *rows, int64_t *out_n,
                         device_batch **out)
{
    batch_shape least;
    *out_n = 0;
    if (rows->no_rows->code == ST_OK) {
        status st = take_rows(run, first, rows->report, out_n);
        run->stream->part = PART_TEXT;
        TRY(st == ST_OK ? ST_OK : go_without_rows(rows, st));
    }
    const bool has_rows = rows->no_rows->code == ST_OK;
    TRY(agree_on_shape(run, has_rows ? *out_n : 0, &least));
    if (!has_rows)
        return stage_nothing(run, &least, out);
    status st = upload_ring_stage(run->upload_ring, run->rows, *out_n, &least, out);
    if (st == ST_OK)
        return count_rows(run, run->got, *out_n, rows);
    TRY(go_without_rows(rows, st));
    return stage_nothing(run, &least, out);
}

status step_rows_open(const session *run, step_report *report, status_note *no_rows, step_rows *out)
{
    out->report = report;
    out->no_rows = no_rows;
    return run->device->backend->event_new(run->device, &out->arrived);
}

void step_rows_close(const session *run, step_rows *rows)
{
    free(rows->sample);
    free(rows->cursor);
    if (rows->arrived)
        run->device->backend->event_free(&rows->arrived);
}

void step_rows_begin(step_rows *rows)
{
    rows->n_samples = 0;
    rows->first_wait_ns = 0;
}

status step_rows_take(session *run, bool first, step_rows *rows, device_batch **out)
{
    step_report *report = rows->report;
    int64_t count;
    status st = stage_next(run, first, rows, &count, out);
    if (st != ST_OK)
        goto done;
    if (first) {
        rows->first_wait_ns = report->wait_ns;
        TRY_OR(done, run->device->backend->event_record(run->stream, rows->arrived));
    }
    report->targets += (*out)->targets;
    report->own_tokens += batch_sizes(*out).tokens;
    report->own_features += (*out)->feature_rows;
    report->own_context_balance = fmax(report->own_context_balance, (*out)->context_uneven);
    report->own_vision_balance = fmax(report->own_vision_balance, (*out)->vision_uneven);
    if (run->world) /* if this rank is lost from here on, the others can say with which samples */
        rank_link_at_step(run->world->rank_link, report->step, rows->sample, rows->n_samples);
done:
    for (int64_t i = 0; i < count; i++)
        receiver_give_back(run->train, &run->got[i]);
    return st;
}

status step_rows_end(const session *run, step_rows *rows)
{
    step_report *report = rows->report;
    report->sample = rows->sample;
    report->n_samples = rows->n_samples;
    report->samples_digest =
        hash_bytes(rows->sample, (size_t)rows->n_samples * sizeof *rows->sample);
    TRY(keep_cursor(rows, receiver_cursor(run->train)));
    report->cursor = rows->cursor;
    report->bad_samples = receiver_bad_samples(run->train)->n;
    return ST_OK;
}

/* ---- counts of all ranks: an array that one all-reduce can sum ---- */

static const size_t FLOPS = sizeof(flops) / sizeof(int64_t);

/* Addresses of the numbers that ranks add up, in the order of step_totals.count. Its last entry,
 * how many ranks were asked to stop, is not among them. */
static void list(step_report *report, int64_t *out[STEP_TOTALS - 1])
{
    int64_t *const own[] = {&report->tokens,    &report->row_capacity, &report->patches,
                            &report->documents, &report->images,       &report->targets,
                            &report->rows,      &report->cost,         &report->pairs};
    enum { OWN = sizeof own / sizeof *own };
    _Static_assert(OWN + 1 == STEP_COUNTS,
                   "STEP_COUNTS (plan/received.h) is one more than the numbers above");
    for (size_t i = 0; i < OWN; i++)
        out[i] = own[i];
    for (size_t i = 0; i < FLOPS; i++)
        out[OWN + i] = (int64_t *)&report->flops + i;
}

void step_totals_of(const session *run, const step_report *report, int64_t waited_ns,
                    step_totals *out)
{
    const mesh_place *at = &run->mesh.place;
    const bool first = (at->context == 0 && at->tensor == 0);
    step_report copy = *report;
    int64_t *number[STEP_TOTALS - 1];
    list(&copy, number);
    /* All stages of a pipeline have the same rows, so the first one counts them. Of the ranks that
     * share rows, the first counts everything but the targets, of which each rank counts its
     * part. */
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        out->count[i] =
            at->pipeline == 0 && (first || number[i] == &copy.targets) ? (double)*number[i] : 0;
    out->count[STEP_TOTALS - 1] = report->stop;
    out->dearest = (double)report->cost;
    out->waited = (double)waited_ns;
}

void step_totals_into(const session *run, const step_totals *totals, step_report *inout)
{
    int64_t *number[STEP_TOTALS - 1];
    list(inout, number);
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        *number[i] = llround(totals->count[i]);
    inout->stop = totals->count[STEP_TOTALS - 1] > 0;
    const layout *degrees = &run->mesh.layout;
    const double consumers = (double)layout_consumers(degrees);
    inout->balance = inout->cost > 0 ? totals->dearest * consumers / (double)inout->cost : 1;
    inout->wait_ns = llround(totals->waited);
}

status step_totals_sum(const session *run, step_totals *counts)
{
    const comm *all = mesh_comm(&run->mesh, MESH_WORLD);
    const comm_at at = {"sum loss and counts", -1};
    TRY(comm_all_reduce(all, run->stream, at, run->sums.loss, 1, DT_F64, COMM_SUM));
    TRY(comm_all_reduce(all, run->stream, at, run->sums.weight, 1, DT_F64, COMM_SUM));
    TRY(comm_all_reduce(all, run->stream, at, counts->count, STEP_TOTALS, DT_F64, COMM_SUM));
    return comm_all_reduce(all, run->stream, at, &counts->dearest, 2, DT_F64, COMM_MAX);
}
