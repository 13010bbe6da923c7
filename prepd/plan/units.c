/* SPDX-License-Identifier: Apache-2.0 */
/* units.c: from samples to units, which are what the stream permutes and packs.
 *
 * Every sample is measured once and becomes one unit; a text longer than a row becomes several.
 * With data.group shared_image, units of the same picture are then joined into one; with
 * shared_prefix, those that begin alike (prefix_units.c). Last, the units of each source are put
 * into a lane. Measuring and joining are done in pieces of SOME, since the dispatcher answers its
 * peers between two pieces. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/plan/planner.h"
#include "proto/row/assign.h"

/* What a unit holds, and what it costs. */

int32_t plan_unit_prefix(const plan *planned, const plan_unit *unit)
{
    const unit_doc *first = &planned->docs[unit->first];
    return first->part < 0 ? first->tokens : 0;
}

/* units.c: the squares of a unit, counted as for a row (row_measure), and its predicted
 * cost (assign_cost). */
static int64_t plan_unit_squares(const plan *planned, const plan_unit *unit)
{
    const int64_t prefix = plan_unit_prefix(planned, unit);
    int64_t squares = 0;
    for (int32_t j = 0; j < unit->n_docs; j++) {
        const unit_doc *doc = &planned->docs[unit->first + j];
        const int64_t tokens = doc->tokens, before = doc->part < 0 ? 0 : prefix;
        squares += tokens * tokens + 2 * tokens * before;
    }
    return squares;
}

int64_t plan_unit_cost(const plan *planned, const plan_unit *unit)
{
    return assign_cost(
        &(row_measure){unit->tokens, unit->patches, plan_unit_squares(planned, unit)});
}

void plan_add_unit(const plan *planned, const plan_unit *unit, row_stat *stat)
{
    const int64_t prefix = plan_unit_prefix(planned, unit);
    stat->tokens += unit->tokens;
    stat->patches += unit->patches;
    stat->targets += unit->targets;
    stat->images += unit->images;
    stat->frames += unit->frames;
    stat->frame = unit->frame > stat->frame ? unit->frame : stat->frame;
    /* The pads of a prefix are there once; those of a shared picture in every document. */
    stat->visual += unit->patches / 4 * (prefix > 0 ? 1 : unit->n_docs);
    stat->documents += unit->n_docs;
    stat->prefixes += prefix > 0;
    stat->squares += plan_unit_squares(planned, unit);
    for (int32_t j = 0; j < unit->n_docs; j++) {
        const unit_doc *doc = &planned->docs[unit->first + j];
        const int64_t whole = doc->tokens + (doc->part < 0 ? 0 : prefix);
        stat->longest = whole > stat->longest ? whole : stat->longest;
    }
}

/* Makes several units of one that takes more than half a row.
 *
 * A picture with very many questions would fill a row alone. Such a row has far fewer patches than
 * others, and a unit that nearly fills a row leaves nothing to even that out (balance.c). So its
 * documents become units of nearly the same length, each with the pictures: a picture more to
 * encode costs less than waiting for the dearer rows in all the steps that such a row is in. */

/* Into how many units this one is split. One with a prefix was laid in its parts at once, each with
 * the prefix (prefix_units.c). */
static int64_t parts_of(const plan *planned, const plan_unit *unit)
{
    const int64_t most = planned->token_budget / UNITS_OF_A_ROW;
    if (unit->n_docs < 2 || unit->tokens <= most || plan_unit_prefix(planned, unit) > 0)
        return 1;
    const int64_t parts = (unit->tokens - 1) / most + 1;
    return parts < unit->n_docs ? parts : unit->n_docs;
}

static void move_doc(const plan *planned, plan_unit *unit, int64_t doc)
{
    index_sample record;
    const unit_doc *added = &planned->docs[doc];
    index_sample_get(planned->index, added->sample, &record);
    unit->n_docs++;
    unit->tokens += added->tokens;
    unit->targets += record.targets < added->tokens ? record.targets : added->tokens;
}

/* Writes the units that `whole` becomes and returns how many. A document belongs to the one in
 * which its middle lies. */
static int64_t split_unit(const plan *planned, const plan_unit *whole, int64_t parts,
                          plan_unit *out)
{
    int64_t count = 0, before = 0, last = -1;
    for (int64_t doc = whole->first; doc < whole->first + whole->n_docs; doc++) {
        const int64_t tokens = planned->docs[doc].tokens;
        const int64_t nth = (2 * before + tokens) * parts / (2 * whole->tokens);
        if (nth != last) {
            out[count] = *whole;
            out[count].first = doc;
            out[count].n_docs = out[count].tokens = out[count].targets = 0;
            count++;
        }
        move_doc(planned, &out[count - 1], doc);
        before += tokens;
        last = nth;
    }
    return count;
}

/* Splits every unit of several documents that takes more than half a row into nearly equal ones,
 * each with the pictures (units.c). */
static status plan_split_units(plan *planned)
{
    int64_t room = 0, count = 0;
    for (int64_t k = 0; k < planned->n_units; k++)
        room += parts_of(planned, &planned->units[k]);
    if (room == planned->n_units)
        return ST_OK;
    plan_unit *units = (plan_unit *)malloc((size_t)room * sizeof *units);
    if (!units)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " units", room);
    for (int64_t k = 0; k < planned->n_units; k++) {
        const plan_unit *one = &planned->units[k];
        const int64_t parts = parts_of(planned, one);
        if (parts > 1)
            count += split_unit(planned, one, parts, &units[count]);
        else
            units[count++] = *one;
    }
    free(planned->units);
    planned->units = units;
    planned->n_units = count;
    return ST_OK;
}

enum { SOME = 4096 }; /* samples or units of one piece, which takes milliseconds */

static status add_doc(plan *planned, int64_t index, int32_t nth, int32_t tokens)
{
    TRY(array_room((void **)&planned->docs, planned->n_docs, &planned->doc_capacity,
                   sizeof *planned->docs));
    planned->docs[planned->n_docs++] = (unit_doc){.sample = index, .part = nth, .tokens = tokens};
    if (tokens > planned->longest)
        planned->longest = tokens;
    if (!planned->shortest || tokens < planned->shortest)
        planned->shortest = tokens;
    return ST_OK;
}

/* A picture is square if no side is more than a quarter longer than the other; 4:3 is not. */
enum { SQUARE_NUM = 5, SQUARE_DEN = 4 };

/* The resolution class of a document, by its first picture. */
static int32_t class_of(const planned_doc *doc)
{
    if (doc->n_images == 0)
        return PLAN_CLASSES - 1;
    const fit_grid grid = doc->grids[0];
    int32_t octave = 0;
    for (int64_t patches = fit_patches(grid); patches > 1 && octave < PLAN_CLASS_AREAS - 1;
         patches /= 2)
        octave++;
    const int32_t aspect = grid.columns * SQUARE_DEN > grid.rows * SQUARE_NUM   ? 0
                           : grid.rows * SQUARE_DEN > grid.columns * SQUARE_NUM ? 2
                                                                                : 1;
    return octave * PLAN_CLASS_ASPECTS + aspect;
}

/* Makes a unit of the document that was added last. Of a part of a sample the number of targets is
 * not known; the smaller of the sample's targets and the part's tokens is a bound. */
static status add_unit(plan *planned, int32_t tokens, const planned_doc *doc)
{
    TRY(array_room((void **)&planned->units, planned->n_units, &planned->unit_capacity,
                   sizeof *planned->units));
    planned->units[planned->n_units++] = (plan_unit){
        .first = planned->n_docs - 1,
        .n_docs = 1,
        .tokens = tokens,
        .patches = doc->patches,
        .targets = doc->targets < tokens ? doc->targets : tokens,
        .images = doc->n_images,
        .frames = doc->frames,
        .frame = doc->frame,
        .class = class_of(doc),
    };
    return ST_OK;
}

/* One unit for a sample; for a text longer than a row, one for each whole row of it and one for the
 * rest. */
static status add_sample(plan *planned, const planned_doc *doc)
{
    int32_t left = doc->tokens;
    for (int32_t nth = 0; left > 0; nth++) {
        const int32_t some = left < planned->token_budget ? left : (int32_t)planned->token_budget;
        TRY(add_doc(planned, doc->sample, nth, some));
        TRY(add_unit(planned, some, doc));
        left -= some;
    }
    return ST_OK;
}

/* Measures the samples up to `to` and keeps the causes of those that cannot be in the stream. */
static status measure_some(plan *planned, int64_t to)
{
    for (int64_t i = planned->at; i < to; i++) {
        planned_doc doc;
        bool is_cause, is_new;
        const arena_mark mark = arena_save(&planned->scratch);
        status st = plan_measure(planned, i, &planned->scratch, &doc, &is_cause);
        const bool usable = st == ST_OK;
        if (usable)
            st = add_sample(planned, &doc);
        arena_release(&planned->scratch, mark); /* with the grids that `doc` borrows */
        planned->n_usable += usable;
        if (usable && st == ST_OK)
            continue;
        if (usable || !is_cause)
            return st;
        int64_t at, ignored;
        TRY(text_pool_format(&planned->causes, &at, "%s", status_last()->message));
        TRY(id_map_put(&planned->cause_of, i, at, &ignored, &is_new));
    }
    return ST_OK;
}

/* --- data.group shared_image --- */

struct grouping {
    int64_t *open;     /* [images] the group that takes its next sample; -1 if there is none */
    int64_t *group_of; /* [units] */
    plan_unit *groups; /* [count]; until lay_out, `first` is one of the group's samples */
    int64_t count;
};

/* Puts unit `number` into the open group of its first image if it shows the same images and still
 * fits a row; otherwise it opens its own group. */
static status find_group(plan *planned, grouping *groups, int64_t number)
{
    const plan_unit *one = &planned->units[number];
    const int64_t mine = planned->docs[one->first].sample;
    planned_doc doc;
    bool is_cause, same = false;
    int64_t *open = NULL;
    if (one->images > 0) {
        const arena_mark mark = arena_save(&planned->scratch);
        const status st = plan_measure(planned, mine, &planned->scratch, &doc, &is_cause);
        if (st == ST_OK)
            open = &groups->open[doc.images[0]];
        arena_release(&planned->scratch, mark);
        TRY(st);
    }
    if (open && *open >= 0 && groups->groups[*open].tokens + one->tokens <= planned->token_budget)
        TRY(plan_same_images(planned, groups->groups[*open].first, mine, &same));
    if (same) {
        groups->groups[*open].tokens += one->tokens;
        groups->groups[*open].targets += one->targets;
        groups->groups[*open].n_docs++;
        groups->group_of[number] = *open;
        return ST_OK;
    }
    groups->groups[groups->count] = *one;
    groups->groups[groups->count].first = mine;
    groups->group_of[number] = groups->count++;
    if (open)
        *open = groups->group_of[number];
    return ST_OK;
}

/* Lays the documents of each group side by side, in the order they had, and makes the groups the
 * plan's units. */
static status lay_out(plan *planned, grouping *groups)
{
    unit_doc *docs = (unit_doc *)malloc(((size_t)planned->n_docs + 1) * sizeof *docs);
    int64_t next = 0;
    if (!docs)
        return FAIL(ST_NO_MEMORY, "no memory to join %" PRId64 " samples", planned->n_docs);
    for (int64_t k = 0; k < groups->count; k++) {
        groups->groups[k].first = next;
        next += groups->groups[k].n_docs;
        groups->groups[k].n_docs = 0;
    }
    for (int64_t unit = 0; unit < planned->n_units; unit++) {
        plan_unit *to = &groups->groups[groups->group_of[unit]];
        docs[to->first + to->n_docs++] = planned->docs[planned->units[unit].first];
    }
    free(planned->docs);
    free(planned->units);
    planned->docs = docs;
    planned->units = groups->groups;
    planned->n_units = groups->count;
    groups->groups = NULL;
    return ST_OK;
}

/* Starts to join the questions of one picture into one unit, as many as a row holds. Their
 * documents then stand in one row and share the picture's visual tokens. */
static status begin_joining(plan *planned)
{
    const int64_t n_images = planned->data->adapter->images(planned->data);
    grouping *groups = planned->joining = (grouping *)calloc(1, sizeof *groups);
    if (groups) {
        groups->open = (int64_t *)malloc(((size_t)n_images + 1) * sizeof *groups->open);
        groups->group_of =
            (int64_t *)malloc(((size_t)planned->n_units + 1) * sizeof *groups->group_of);
        groups->groups =
            (plan_unit *)malloc(((size_t)planned->n_units + 1) * sizeof *groups->groups);
    }
    if (!groups || !groups->open || !groups->group_of || !groups->groups)
        return FAIL(ST_NO_MEMORY, "no memory to join %" PRId64 " samples", planned->n_docs);
    for (int64_t j = 0; j < n_images; j++)
        groups->open[j] = -1;
    return ST_OK;
}

void plan_stop_joining(plan *planned)
{
    grouping *groups = planned->joining;
    plan_stop_prefixes(planned);
    if (!groups)
        return;
    free(groups->open);
    free(groups->group_of);
    free(groups->groups);
    free(groups);
    planned->joining = NULL;
}

/* --- lanes --- */

/* Finds the pieces in which a source must be read, as runs of units. */
static status find_chunks(plan *planned, mixture_lane *lane)
{
    int64_t capacity = 0, last = -1;
    for (uint64_t unit = 0; unit < lane->n_units; unit++) {
        const unit_doc *doc = &planned->docs[planned->units[lane->first + unit].first];
        const int64_t chunk = planned->data->adapter->chunk(planned->data, doc->sample);
        if (chunk < 0) /* the source can be read at any place */
            return ST_OK;
        if (unit > 0 && chunk == last)
            continue;
        last = chunk;
        TRY(array_room((void **)&lane->chunks, (int64_t)lane->n_chunks, &capacity,
                       sizeof *lane->chunks));
        lane->chunks[lane->n_chunks++] = unit;
    }
    TRY(array_room((void **)&lane->chunks, (int64_t)lane->n_chunks, &capacity,
                   sizeof *lane->chunks));
    lane->chunks[lane->n_chunks] = lane->n_units;
    return ST_OK;
}

/* Units that an epoch takes from a lane: its share of all units by weight, and at least one. */
static uint64_t share_of(double weight, double weights, int64_t units)
{
    const double share = weight / weights * (double)units;
    return share < 1 ? 1 : (uint64_t)(share + 0.5);
}

/* Makes one lane for each part of a mixture, or a single lane. Units are in the order of the
 * samples, so the units of a part lie side by side. */
static status make_lanes(plan *planned)
{
    const int64_t n_samples = planned->data->adapter->samples(planned->data);
    const dataset_part whole = {"", 0, n_samples, 0}, *parts = &whole;
    const int count =
        planned->data->adapter->parts ? planned->data->adapter->parts(planned->data, &parts) : 1;
    double weights = 0;
    int64_t unit = 0;
    planned->lanes = (mixture_lane *)calloc((size_t)count, sizeof *planned->lanes);
    if (!planned->lanes)
        return FAIL(ST_NO_MEMORY, "no memory for a plan");
    planned->n_lanes = count;
    for (int k = 0; k < count; k++)
        weights += parts[k].weight;
    for (int k = 0; k < count; k++) {
        mixture_lane *lane = &planned->lanes[k];
        *lane = (mixture_lane){.number = k, .first = (uint64_t)unit};
        while (unit < planned->n_units &&
               planned->docs[planned->units[unit].first].sample < parts[k].first + parts[k].count)
            unit++;
        lane->n_units = (uint64_t)unit - lane->first;
        if (parts[k].count == 0)
            return FAIL(ST_BAD_INPUT, "source %s holds no sample", parts[k].name);
        if (lane->n_units == 0)
            return FAIL(
                ST_BAD_INPUT,
                "source %s has no sample that can be used; what is wrong with the first: %s",
                parts[k].name, plan_cause(planned, parts[k].first));
        lane->per_epoch =
            weights > 0 ? share_of(parts[k].weight, weights, planned->n_units) : lane->n_units;
        if (planned->data->adapter->chunk)
            TRY(find_chunks(planned, lane));
    }
    return ST_OK;
}

static int64_t some_more(int64_t at, int64_t n_units)
{
    return at + SOME < n_units ? at + SOME : n_units;
}

static status measure_more(plan *planned)
{
    const int64_t count = planned->data->adapter->samples(planned->data),
                  to = some_more(planned->at, count);
    TRY(measure_some(planned, to));
    planned->at = to;
    if (to < count)
        return ST_OK;
    planned->at = 0;
    if (planned->kind == PLAN_SAMPLES || planned->n_units == 0) {
        planned->stage = STAGE_WINDOWS; /* there is nothing to join or to order */
    } else if (planned->conf->data_group == GROUP_SHARED_IMAGE) {
        TRY(begin_joining(planned));
        planned->stage = STAGE_JOIN;
    } else if (planned->conf->data_group == GROUP_SHARED_PREFIX) {
        TRY(plan_begin_prefixes(planned));
        planned->stage = STAGE_JOIN;
    } else {
        planned->stage = STAGE_LANES;
    }
    return ST_OK;
}

static status join_more(plan *planned)
{
    const int64_t to = some_more(planned->at, planned->n_units);
    const bool prefixes = planned->prefixing != NULL;
    for (; planned->at < to; planned->at++)
        TRY(prefixes ? plan_join_prefix(planned, planned->at)
                     : find_group(planned, planned->joining, planned->at));
    if (to < planned->n_units)
        return ST_OK;
    TRY(prefixes ? plan_lay_prefixes(planned) : lay_out(planned, planned->joining));
    plan_stop_joining(planned);
    if (plan_balances(planned))
        TRY(plan_split_units(planned));
    planned->stage = STAGE_LANES;
    return ST_OK;
}

status plan_make_units(plan *planned)
{
    if (planned->stage == STAGE_MEASURE)
        return measure_more(planned);
    if (planned->stage == STAGE_JOIN)
        return join_more(planned);
    TRY(make_lanes(planned));
    for (int k = 0; k < planned->n_lanes; k++)
        planned->epoch_units += planned->lanes[k].per_epoch;
    planned->stage = STAGE_WINDOWS;
    return ST_OK;
}
