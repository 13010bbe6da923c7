/* SPDX-License-Identifier: Apache-2.0 */
/* slow_plan.c: epochs, windows and rows (prepd/plan/README.md). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tests/sim/plan/slow_parts.h"

static const uint64_t ENDLESS = UINT64_MAX;

/* One source: units[first] to units[first + count - 1], of which an epoch takes `share`. */
typedef struct lane {
    uint64_t first, count, share;
    bool pieces; /* its file can be read only from certain points on */
} lane;

static const slow_sample *sample_of(const slow_plan *plan, uint64_t unit)
{
    return &plan->data->samples[plan->units.all[unit].docs[0].sample];
}

static lane lane_of(const slow_plan *plan, int source)
{
    const uint64_t count = (uint64_t)plan->units.count;
    double weights = 0;
    lane out = {0};
    while (out.first < count && sample_of(plan, out.first)->source < source)
        out.first++;
    while (out.first + out.count < count &&
           sample_of(plan, out.first + out.count)->source == source)
        out.count++;
    for (int i = 0; i < plan->data->n_sources; i++)
        weights += plan->data->weights[i];
    out.share = out.count;
    if (weights > 0) {
        const double share = plan->data->weights[source] / weights * (double)count;
        out.share = share < 1 ? 1 : (uint64_t)(share + 0.5);
    }
    out.pieces = out.count > 0 && sample_of(plan, out.first)->piece >= 0;
    return out;
}

static uint64_t permute(const slow_plan *plan, const char *purpose, uint64_t count, uint64_t place)
{
    return plan->options->data_shuffle ? slow_permute(plan->seed, purpose, count, place) : place;
}

/* The units of a source in the order of a pass over it, if its pieces are permuted and each is read
 * from its first unit on. */
static void order_pieces(const slow_plan *plan, const lane *of, int source, uint64_t pass,
                         uint64_t *out)
{
    uint64_t *begins = slow_memory((int64_t)of->count, sizeof *begins), n_pieces = 0, at = 0;
    char purpose[64];
    snprintf(purpose, sizeof purpose, "chunks/%d/%" PRIu64, source, pass);
    for (uint64_t i = 0; i < of->count; i++)
        if (i == 0 ||
            sample_of(plan, of->first + i)->piece != sample_of(plan, of->first + i - 1)->piece)
            begins[n_pieces++] = i;
    begins[n_pieces] = of->count;
    for (uint64_t k = 0; k < n_pieces; k++) {
        const uint64_t piece = permute(plan, purpose, n_pieces, k);
        for (uint64_t i = begins[piece]; i < begins[piece + 1]; i++)
            out[at++] = of->first + i;
    }
    free(begins);
}

/* Writes the units at positions [from, to) of a source, which is read again and again, each time in
 * another order. */
static void lane_units(const slow_plan *plan, const lane *of, int source, uint64_t from,
                       uint64_t to, uint64_t *out)
{
    uint64_t *order = slow_memory((int64_t)of->count, sizeof *order), known = UINT64_MAX;
    char purpose[64];
    for (uint64_t position = from; position < to; position++) {
        const uint64_t pass = position / of->count, place = position % of->count;
        if (of->pieces && pass != known)
            order_pieces(plan, of, source, pass, order);
        known = pass;
        if (source > 0)
            snprintf(purpose, sizeof purpose, "order/%d/%" PRIu64, source, pass);
        else
            snprintf(purpose, sizeof purpose, "order/%" PRIu64, pass);
        *out++ = of->pieces ? order[place] : of->first + permute(plan, purpose, of->count, place);
    }
    free(order);
}

/* The units of a window, in the order in which they are packed: so many of each source, and
 * permuted where neighbours would else come from one source or piece. Returns how many. */
static int64_t window_units(const slow_plan *plan, uint64_t epoch, uint64_t window,
                            uint64_t n_windows, uint64_t most, const slow_unit **out)
{
    uint64_t *unit = slow_memory((int64_t)most, sizeof *unit), count = 0;
    char purpose[64];
    bool mixed = plan->data->n_sources > 1;
    for (int source = 0; source < plan->data->n_sources; source++) {
        const lane of = lane_of(plan, source);
        const uint64_t from = of.share * window / n_windows,
                       to = of.share * (window + 1) / n_windows, before = epoch * of.share;
        mixed |= of.pieces;
        lane_units(plan, &of, source, before + from, before + to, unit + count);
        count += to - from;
    }
    snprintf(purpose, sizeof purpose, "window/%" PRIu64 "/%" PRIu64, epoch, window);
    for (uint64_t i = 0; i < count; i++)
        out[mixed ? permute(plan, purpose, count, i) : i] = &plan->units.all[unit[i]];
    free(unit);
    return (int64_t)count;
}

static void pack_window(const slow_plan *plan, slow_items *inout)
{
    const bool alike = conf_shares_images(plan->options);
    inout->rows = inout->count;
    for (int64_t i = 0; i < inout->count; i++)
        inout->row[i] = i;
    if (!plan->options->data_pack)
        return;
    slow_pack(inout, alike ? plan->budget - plan->budget / 500 : plan->budget, plan->patch_budget);
    slow_level(inout, plan->budget, plan->patch_budget);
    if (alike)
        slow_balance(inout, plan->budget, plan->patch_budget);
}

static void add_doc(const slow_plan *plan, const slow_unit *unit, int64_t nth, slow_row *row)
{
    const slow_part *part = &unit->docs[nth];
    const slow_measure *own = &plan->measure[part->sample];
    const slow_sample *facts = &plan->data->samples[part->sample];
    slow_doc doc = {.sample = part->sample,
                    .part = part->part,
                    .tokens = part->tokens,
                    .whole = own->tokens,
                    .from = part->part * plan->budget};
    if (unit->prefix > 0 && part->part < 0) {
        doc.from = 0;
        doc.prefix = unit->n_docs - 1;
    } else if (unit->prefix > 0) {
        doc.from = doc.before = unit->prefix;
    }
    if (doc.before == 0) {
        doc.shows = facts->shows;
        doc.n_shown = facts->n_shown;
        doc.grids = own->grids;
        doc.patches = own->patches;
        doc.shared = nth > 0 && doc.n_shown > 0;
    }
    row->tokens += doc.tokens;
    row->patches += doc.shared ? 0 : doc.patches;
    row->docs[row->n_docs++] = doc;
}

static slow_row *add_row(slow_plan *plan, uint64_t epoch, uint64_t window, int64_t most_docs)
{
    slow_row *row = slow_memory(1, sizeof *row);
    row->epoch = epoch;
    row->window = window;
    row->docs = slow_memory(most_docs, sizeof *row->docs);
    if ((plan->n_rows & (plan->n_rows - 1)) == 0)
        plan->rows = realloc(plan->rows, (2 * plan->n_rows + 1) * sizeof(slow_row *));
    if (!plan->rows)
        abort();
    plan->rows[plan->n_rows++] = row;
    return row;
}

/* Adds the row of the stream whose place packing called `number`. */
static void lay_row(slow_plan *plan, const slow_items *items, int64_t number, uint64_t epoch,
                    uint64_t window)
{
    int64_t docs = 0, squares = 0;
    for (int64_t i = 0; i < items->count; i++)
        docs += items->row[i] == number ? items->unit[i]->n_docs : 0;
    slow_row *row = add_row(plan, epoch, window, docs);
    for (int64_t i = 0; i < items->count; i++) {
        if (items->row[i] != number)
            continue;
        for (int64_t k = 0; k < items->unit[i]->n_docs; k++)
            add_doc(plan, items->unit[i], k, row);
        squares += slow_unit_squares(items->unit[i]);
    }
    row->cost = slow_cost(row->tokens, row->patches, squares);
}

static void plan_window(slow_plan *plan, uint64_t epoch, uint64_t window, uint64_t n_windows,
                        uint64_t most)
{
    char purpose[64];
    const slow_unit **unit = slow_memory((int64_t)most, sizeof(slow_unit *));
    slow_items items = {.unit = unit, .row = slow_memory((int64_t)most, sizeof *items.row)};
    items.count = window_units(plan, epoch, window, n_windows, most, unit);
    pack_window(plan, &items);
    /* Row k of those that are packed is put to a place of the window. */
    int64_t *at = slow_memory(items.rows, sizeof *at);
    snprintf(purpose, sizeof purpose, "rows/%" PRIu64 "/%" PRIu64, epoch, window);
    for (int64_t k = 0; k < items.rows; k++)
        at[permute(plan, purpose, (uint64_t)items.rows, (uint64_t)k)] = k;
    for (int64_t place = 0; place < items.rows; place++)
        lay_row(plan, &items, at[place], epoch, window);
    free(at);
    free(unit);
    free(items.row);
}

static void plan_epoch(slow_plan *plan)
{
    uint64_t count = 0;
    for (int source = 0; source < plan->data->n_sources; source++)
        count += lane_of(plan, source).share;
    const uint64_t window = (uint64_t)plan->options->data_window,
                   n_windows = (count + window - 1) / window;
    for (uint64_t k = 0; k < n_windows; k++)
        plan_window(plan, plan->n_epochs, k, n_windows, count);
    plan->n_epochs++;
}

/* Plans all epochs of a stream that has an end; of the last one, a share of its rows. The last step
 * is made whole with empty rows. */
static void plan_to_end(slow_plan *plan)
{
    const double epochs = plan->options->training_epochs;
    uint64_t before = 0;
    while ((double)plan->n_epochs < epochs) {
        before = plan->n_rows;
        plan_epoch(plan);
    }
    const double left = (double)plan->n_epochs - epochs;
    uint64_t full = plan->n_rows;
    if (left > 0)
        full = before + (uint64_t)ceil((1 - left) * (double)(full - before) - 1e-9);
    for (; plan->n_rows > full; plan->n_rows--) {
        free(plan->rows[plan->n_rows - 1]->docs);
        free(plan->rows[plan->n_rows - 1]);
    }
    const slow_row *last = plan->rows[full - 1];
    while (plan->n_rows % (uint64_t)plan->options->training_global_batch_size)
        add_row(plan, last->epoch, last->window, 0);
    plan->end = plan->n_rows;
}

/* SLOW_SAMPLES: a row for each sample, empty for a refused one. */
static void plan_samples(slow_plan *plan)
{
    int64_t next = 0;
    for (int64_t i = 0; i < plan->data->n_samples; i++) {
        int64_t n_units = 0, squares = 0;
        while (next + n_units < plan->units.count &&
               plan->units.all[next + n_units].docs[0].sample == i)
            n_units++;
        slow_row *row = add_row(plan, 0, 0, n_units);
        for (int64_t k = next; k < next + n_units; k++) {
            add_doc(plan, &plan->units.all[k], 0, row);
            squares += slow_unit_squares(&plan->units.all[k]);
        }
        row->cost = slow_cost(row->tokens, row->patches, squares);
        next += n_units;
    }
    plan->end = plan->n_rows;
}

slow_plan *slow_plan_new(const slow_data *data, const conf *options, slow_kind kind)
{
    slow_plan *plan = slow_memory(1, sizeof *plan);
    plan->data = data;
    plan->options = options;
    plan->kind = kind;
    plan->end = ENDLESS;
    plan->seed = (uint64_t)options->training_seed;
    if (options->data_generation > 0)
        plan->seed = slow_draw(plan->seed, "generation", (uint64_t)options->data_generation);
    plan->budget = options->training_seq_len;
    plan->patch_budget = options->data_patch_budget ? options->data_patch_budget : 4 * plan->budget;
    slow_plan_units(plan);
    if (kind == SLOW_SAMPLES) {
        plan_samples(plan);
        return plan;
    }
    for (int source = 0; source < data->n_sources; source++)
        if (lane_of(plan, source).count == 0) {
            slow_plan_free(&plan);
            return NULL;
        }
    if (options->training_epochs > 0)
        plan_to_end(plan);
    return plan;
}

void slow_plan_free(slow_plan **held)
{
    slow_plan *plan = *held;
    *held = NULL;
    if (!plan)
        return;
    for (uint64_t i = 0; i < plan->n_rows; i++) {
        free(plan->rows[i]->docs);
        free(plan->rows[i]);
    }
    for (int64_t i = 0; i < plan->data->n_samples; i++)
        free(plan->measure[i].grids);
    slow_units_free(&plan->units);
    free(plan->measure);
    free(plan->rows);
    free(plan);
}

const slow_row *slow_plan_row(slow_plan *plan, uint64_t number)
{
    while (plan->end == ENDLESS && number >= plan->n_rows)
        plan_epoch(plan);
    return number < plan->n_rows ? plan->rows[number] : NULL;
}

uint64_t slow_plan_rows(const slow_plan *plan)
{
    return plan->end;
}

bool slow_plan_refuses(const slow_plan *plan, int64_t sample)
{
    return !plan->measure[sample].usable;
}
