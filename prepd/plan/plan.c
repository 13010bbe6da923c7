/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c: the life of a plan (begun, prepared in slices, freed) and the documents of a row.
 *
 * plan_prepare does the next piece of work until the row that is asked for has a known place: first
 * the stages of planner.h, then one window after the other. plan_row finds the row's window by
 * bisection, plans that window again (or takes it from the cache) and measures its documents, since
 * only the number of rows of each window is kept. */
#include "prepd/plan/plan.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "prepd/plan/order.h"
#include "prepd/plan/planner.h"

/* Adds up what each row of a window holds, for the shape buckets and the report. */
static status note_rows(plan *planned, const window_plan *window)
{
    for (int64_t k = 0; k < window->n_rows; k++) {
        row_stat stat = {0};
        for (int64_t at = window->first[k]; at < window->first[k + 1]; at++) {
            plan_add_unit(planned, &planned->units[window->items[at]], &stat);
        }
        TRY(array_room((void **)&planned->rows, planned->n_rows, &planned->row_capacity,
                       sizeof *planned->rows));
        planned->rows[planned->n_rows++] = stat;
    }
    return ST_OK;
}

/* Plans the first window that is not known yet. The last window of epoch 0 completes the shape
 * buckets. */
static status know_window(plan *planned, row_range *range)
{
    const window_plan *window;
    const uint64_t next = row_range_known(planned, range);
    TRY(plan_window(planned, next, &window));
    if (next < planned->n_windows)
        TRY(note_rows(planned, window));
    TRY(row_range_add(planned, range, window->n_rows));
    return next + 1 == planned->n_windows ? plan_make_buckets(planned) : ST_OK;
}

/* Computes how many windows an epoch has and which is the stream's last, now that all units are
 * known. */
static status begin_windows(plan *planned)
{
    const double epochs = planned->conf->training_epochs;
    if (planned->kind == PLAN_SAMPLES) {
        planned->whole.end_row = planned->whole.full_rows =
            (uint64_t)planned->data->adapter->samples(planned->data);
        return ST_OK;
    }
    if (planned->data->adapter->samples(planned->data) == 0)
        return FAIL(ST_BAD_INPUT,
                    "the data set holds no sample; data.path, data.split and data.limit "
                    "say which samples are taken");
    if (planned->n_usable == 0)
        return FAIL(ST_BAD_INPUT, "no sample can be used; what is wrong with the first: %s",
                    plan_cause(planned, 0));
    planned->n_windows = order_windows(planned->epoch_units, planned->window);
    if (epochs > 0) {
        planned->whole_epochs = (uint64_t)epochs;
        planned->last_window =
            (planned->whole_epochs + (epochs > (double)planned->whole_epochs)) * planned->n_windows;
    }
    return ST_OK;
}

/* Whether epoch 0 is planned. It comes before any other range, since its shape buckets and its
 * number of rows are the first things a consumer is told. */
static bool has_epoch(const plan *planned)
{
    return row_range_known(planned, &planned->whole) >= planned->n_windows;
}

static bool is_ready(const plan *planned, const row_range *range, uint64_t row)
{
    if (planned->stage != STAGE_WINDOWS || planned->kind == PLAN_SAMPLES)
        return planned->stage == STAGE_WINDOWS;
    if (!has_epoch(planned))
        return false;
    if (row_range_known(planned, range) == planned->last_window)
        return true;
    return row == PLAN_ALL ? plan_endless(planned) : row_range_rows(planned, range) > row;
}

status plan_prepare(plan *planned, row_range *range, uint64_t row, int64_t *inout_pieces,
                    bool *out_ready)
{
    if (!range)
        range = &planned->whole;
    for (; !is_ready(planned, range, row) && *inout_pieces > 0; --*inout_pieces) {
        if (planned->stage == STAGE_WINDOWS) {
            TRY(know_window(planned, has_epoch(planned) ? range : &planned->whole));
            continue;
        }
        TRY(plan_make_units(planned));
        if (planned->stage == STAGE_WINDOWS)
            TRY(begin_windows(planned));
    }
    *out_ready = is_ready(planned, range, row);
    return ST_OK;
}

status plan_begin(const conf *options, const dataset *data, const data_index *index, plan_kind kind,
                  plan **out)
{
    status st;
    if (index_samples(index) != data->adapter->samples(data) ||
        index_images(index) != data->adapter->images(data))
        return FAIL(ST_BAD_INPUT,
                    "the index has %" PRId64 " samples and %" PRId64
                    " images, but the data set has %" PRId64 " and %" PRId64,
                    index_samples(index), index_images(index), data->adapter->samples(data),
                    data->adapter->images(data));
    plan *planned = (plan *)calloc(1, sizeof *planned);
    if (!planned)
        return FAIL(ST_NO_MEMORY, "no memory for a plan");
    planned->conf = options;
    planned->data = data;
    planned->index = index;
    planned->kind = kind;
    planned->seed = (uint64_t)options->training_seed;
    if (options->data_generation > 0)
        planned->seed =
            rng_u64(rng_key_make(planned->seed, "generation"), (uint64_t)options->data_generation);
    planned->window = (uint64_t)options->data_window;
    planned->token_budget = options->training_seq_len;
    planned->patch_budget = plan_patches_of(options);
    planned->last_window = UINT64_MAX;
    planned->walkers = 1;
    arena_init(&planned->scratch, 0);
    TRY_OR(failed, row_range_init(&planned->whole, 0, 0));
    TRY_OR(failed, fit_limits_load(options, &planned->limits));
    TRY_OR(failed, clip_limits_load(options, &planned->clips));
    *out = planned;
    return ST_OK;
failed:
    plan_free(&planned);
    return st;
}

status plan_new(const conf *options, const dataset *data, const data_index *index, plan_kind kind,
                plan **out)
{
    plan *planned;
    bool ready;
    TRY(plan_begin(options, data, index, kind, &planned));
    int64_t pieces = INT64_MAX;
    status st = plan_prepare(planned, NULL, PLAN_ALL, &pieces, &ready);
    if (st != ST_OK)
        plan_free(&planned);
    else
        *out = planned;
    return st;
}

void plan_free(plan **planned)
{
    if (!planned || !*planned)
        return;
    plan *epoch = *planned;
    free(epoch->units);
    free(epoch->docs);
    for (int k = 0; k < epoch->n_lanes; k++)
        mixture_lane_done(&epoch->lanes[k]);
    free(epoch->lanes);
    free(epoch->rows);
    id_map_done(&epoch->cause_of);
    text_pool_done(&epoch->causes);
    row_range_done(&epoch->whole);
    while (epoch->others) {
        row_range *range = epoch->others;
        epoch->others = range->next;
        row_range_done(range);
        free(range);
    }
    plan_stop_joining(epoch);
    for (int64_t k = 0; k < epoch->n_cached; k++) {
        free(epoch->cache[k].first);
        free(epoch->cache[k].items);
    }
    free(epoch->cache);
    arena_done(&epoch->scratch);
    free(epoch);
    *planned = NULL;
}

/* How many of the document's patches are from clips, whose patches span two frames. */
static int64_t clip_patches(const planned_doc *doc)
{
    int64_t count = 0;
    for (int32_t k = 0; k < doc->n_images; k++)
        count += doc->grids[k].pairs > 0 ? fit_patches(doc->grids[k]) : 0;
    return count;
}

/* Turns a measured sample into the prefix that it begins with, or into its branch after the prefix.
 * tokens: those of the prefix. */
static void cut_doc(planned_doc *doc, int32_t tokens, bool is_prefix)
{
    if (is_prefix) {
        doc->tokens = tokens;
        doc->targets = 0;
        return;
    }
    doc->from = doc->before = tokens;
    doc->images = NULL;
    doc->grids = NULL;
    doc->n_images = doc->patches = doc->frames = doc->frame = 0;
}

/* Adds a document to the row. The sample is measured again for its grids, which the plan does not
 * keep; it cannot fail for a cause, since samples with a cause are not in the plan. */
static status add_doc(plan *planned, unit_doc from, bool shared, int32_t prefix, arena *memory,
                      planned_row *placed)
{
    bool is_cause;
    planned_doc *doc = &placed->docs[placed->n_docs];
    TRY(plan_measure(planned, from.sample, memory, doc, &is_cause));
    doc->part = from.part;
    doc->from = from.part < 0 ? 0 : (int32_t)(from.part * planned->token_budget);
    doc->tokens = from.tokens;
    if (prefix > 0)
        cut_doc(doc, prefix, from.part < 0);
    doc->shared = shared && doc->n_images > 0;
    placed->tokens += doc->tokens;
    placed->patches += doc->shared ? 0 : doc->patches;
    placed->pairs_patches += doc->shared ? 0 : clip_patches(doc);
    placed->n_docs++;
    return ST_OK;
}

/* The row of PLAN_SAMPLES: one sample, with all its parts where its text is split. Empty for a
 * refused sample. */
static status sample_row(plan *planned, uint64_t number, arena *memory, planned_row *placed)
{
    planned_doc whole;
    bool is_cause;
    if (plan_cause(planned, (int64_t)number))
        return ST_OK;
    TRY(plan_measure(planned, (int64_t)number, memory, &whole, &is_cause));
    const int64_t parts = (whole.whole - 1) / planned->token_budget + 1;
    TRY(arena_calloc(memory, (size_t)parts, sizeof *placed->docs, (void **)&placed->docs));
    for (int64_t k = 0; k < parts; k++) {
        const int64_t left = whole.whole - k * planned->token_budget;
        const int64_t some = left < planned->token_budget ? left : planned->token_budget;
        TRY(add_doc(planned, (unit_doc){(int64_t)number, (int32_t)k, (int32_t)some}, false, 0,
                    memory, placed));
    }
    return ST_OK;
}

status plan_row(plan *planned, row_range *range, uint64_t number, arena *memory, planned_row *out)
{
    planned_row placed = {.number = number};
    const window_plan *window;
    uint64_t first;
    bool ready;
    if (!range)
        range = &planned->whole;
    int64_t pieces = INT64_MAX;
    TRY(plan_prepare(planned, range, number, &pieces, &ready));
    if (number >= range->end_row)
        return FAIL(ST_END, "the stream has %" PRIu64 " rows", range->end_row);
    if (planned->kind == PLAN_SAMPLES) {
        TRY(sample_row(planned, number, memory, &placed));
        *out = placed;
        return ST_OK;
    }
    if (number < range->first_row[0])
        return FAIL(ST_INTERNAL,
                    "row %" PRIu64 " is asked of a range that begins with row %" PRIu64, number,
                    range->first_row[0]);
    if (number >= range->full_rows) { /* an empty row, which completes the last step */
        uint64_t last = row_range_window(planned, range, range->full_rows - 1, &first);
        placed.epoch = last / planned->n_windows;
        placed.window = last % planned->n_windows;
        *out = placed;
        return ST_OK;
    }
    uint64_t global = row_range_window(planned, range, number, &first);
    TRY(plan_window(planned, global, &window));
    placed.epoch = global / planned->n_windows;
    placed.window = global % planned->n_windows;
    int64_t k = (int64_t)(number - first);
    int64_t count = 0;
    for (int64_t at = window->first[k]; at < window->first[k + 1]; at++)
        count += planned->units[window->items[at]].n_docs;
    TRY(arena_calloc(memory, (size_t)count, sizeof *placed.docs, (void **)&placed.docs));
    for (int64_t at = window->first[k]; at < window->first[k + 1]; at++) {
        const plan_unit *one = &planned->units[window->items[at]];
        const int32_t prefix = plan_unit_prefix(planned, one);
        const int64_t own = placed.n_docs;
        for (int32_t j = 0; j < one->n_docs; j++)
            TRY(add_doc(planned, planned->docs[one->first + j], j > 0, prefix, memory, &placed));
        if (prefix > 0)
            placed.docs[own].prefix = one->n_docs - 1;
    }
    *out = placed;
    return ST_OK;
}

uint64_t plan_epoch_of(const plan *planned, const row_range *range, uint64_t row,
                       uint64_t *out_first)
{
    uint64_t first;
    if (!range)
        range = &planned->whole;
    *out_first = 0;
    if (planned->kind == PLAN_SAMPLES)
        return 0;
    const uint64_t last = range->full_rows - 1; /* empty rows belong to the last epoch */
    const uint64_t epoch =
        row_range_window(planned, range, row < last ? row : last, &first) / planned->n_windows;
    *out_first = range->first_row[(epoch - range->epoch) * planned->n_windows];
    return epoch;
}
