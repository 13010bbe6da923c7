/* units.c: from samples to units, which are what the stream permutes and packs.
 *
 * Every sample is measured once and becomes one unit; a text longer than a row becomes several.
 * With data.group shared_image, units of the same picture are then joined into one. Last, the units
 * of each source are put into a lane. Measuring and joining are done in pieces of SOME, since the
 * dispatcher answers its peers between two pieces. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/plan/planner.h"

enum { SOME = 4096 }; /* samples or units of one piece, which takes milliseconds */

static status add_doc(plan *p, int64_t i, int32_t nth, int32_t tokens)
{
    TRY(array_room((void **)&p->docs, p->n_docs, &p->doc_capacity, sizeof *p->docs));
    p->docs[p->n_docs++] = (unit_doc){.sample = i, .part = nth, .tokens = tokens};
    if (tokens > p->longest)
        p->longest = tokens;
    if (!p->shortest || tokens < p->shortest)
        p->shortest = tokens;
    return ST_OK;
}

/* Makes a unit of the document that was added last. Of a part of a sample the number of targets is
 * not known; the smaller of the sample's targets and the part's tokens is a bound. */
static status add_unit(plan *p, int32_t tokens, const planned_doc *doc)
{
    TRY(array_room((void **)&p->units, p->n_units, &p->unit_capacity, sizeof *p->units));
    p->units[p->n_units++] = (plan_unit){
        .first = p->n_docs - 1,
        .n_docs = 1,
        .tokens = tokens,
        .patches = doc->patches,
        .targets = doc->targets < tokens ? doc->targets : tokens,
        .images = doc->n_images,
        .frames = doc->frames,
        .frame = doc->frame,
        .class = doc->n_images ? plan_class_of(doc->grids[0]) : TEXT_CLASS,
    };
    return ST_OK;
}

/* One unit for a sample; for a text longer than a row, one for each whole row of it and one for the
 * rest. */
static status add_sample(plan *p, const planned_doc *doc)
{
    int32_t left = doc->tokens;
    for (int32_t nth = 0; left > 0; nth++) {
        const int32_t some = left < p->token_budget ? left : (int32_t)p->token_budget;
        TRY(add_doc(p, doc->sample, nth, some));
        TRY(add_unit(p, some, doc));
        left -= some;
    }
    return ST_OK;
}

/* Measures the samples up to `to` and keeps the causes of those that cannot be in the stream. */
static status measure_some(plan *p, int64_t to)
{
    for (int64_t i = p->at; i < to; i++) {
        planned_doc doc;
        bool is_cause, is_new;
        const arena_mark mark = arena_save(&p->scratch);
        status st = plan_measure(p, i, &p->scratch, &doc, &is_cause);
        arena_release(&p->scratch, mark);
        if (st == ST_OK) {
            p->n_usable++;
            TRY(add_sample(p, &doc));
            continue;
        }
        if (!is_cause)
            return st;
        int64_t at, ignored;
        TRY(text_pool_format(&p->causes, &at, "%s", status_last()->message));
        TRY(id_map_put(&p->cause_of, i, at, &ignored, &is_new));
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

/* Sets *out to whether both samples show the same images at the same sizes. */
static status same_images(plan *p, int64_t a, int64_t b, bool *out)
{
    planned_doc x, y;
    bool is_cause;
    const arena_mark mark = arena_save(&p->scratch);
    status st = plan_measure(p, a, &p->scratch, &x, &is_cause);
    if (st == ST_OK)
        st = plan_measure(p, b, &p->scratch, &y, &is_cause);
    if (st == ST_OK) {
        *out = x.n_images == y.n_images;
        for (int32_t k = 0; *out && k < x.n_images; k++)
            *out = x.images[k] == y.images[k] && x.grids[k].rows == y.grids[k].rows &&
                   x.grids[k].columns == y.grids[k].columns;
    }
    arena_release(&p->scratch, mark);
    return st;
}

/* Puts unit u into the open group of its first image if it shows the same images and still fits a
 * row; otherwise it opens a group of its own. */
static status find_group(plan *p, grouping *g, int64_t u)
{
    const plan_unit *one = &p->units[u];
    const int64_t mine = p->docs[one->first].sample;
    planned_doc doc;
    bool is_cause, same = false;
    int64_t *open = NULL;
    if (one->images > 0) {
        const arena_mark mark = arena_save(&p->scratch);
        const status st = plan_measure(p, mine, &p->scratch, &doc, &is_cause);
        if (st == ST_OK)
            open = &g->open[doc.images[0]];
        arena_release(&p->scratch, mark);
        TRY(st);
    }
    if (open && *open >= 0 && g->groups[*open].tokens + one->tokens <= p->token_budget)
        TRY(same_images(p, g->groups[*open].first, mine, &same));
    if (same) {
        g->groups[*open].tokens += one->tokens;
        g->groups[*open].targets += one->targets;
        g->groups[*open].n_docs++;
        g->group_of[u] = *open;
        return ST_OK;
    }
    g->groups[g->count] = *one;
    g->groups[g->count].first = mine;
    g->group_of[u] = g->count++;
    if (open)
        *open = g->group_of[u];
    return ST_OK;
}

/* Lays the documents of each group side by side, in the order they had, and makes the groups the
 * plan's units. */
static status lay_out(plan *p, grouping *g)
{
    unit_doc *docs = (unit_doc *)malloc(((size_t)p->n_docs + 1) * sizeof *docs);
    int64_t next = 0;
    if (!docs)
        return FAIL(ST_NO_MEMORY, "no memory to join %" PRId64 " samples", p->n_docs);
    for (int64_t k = 0; k < g->count; k++) {
        g->groups[k].first = next;
        next += g->groups[k].n_docs;
        g->groups[k].n_docs = 0;
    }
    for (int64_t u = 0; u < p->n_units; u++) {
        plan_unit *to = &g->groups[g->group_of[u]];
        docs[to->first + to->n_docs++] = p->docs[p->units[u].first];
    }
    free(p->docs);
    free(p->units);
    p->docs = docs;
    p->units = g->groups;
    p->n_units = g->count;
    g->groups = NULL;
    return ST_OK;
}

/* Starts to join the questions of one picture into one unit, as many as a row holds. Their
 * documents then stand in one row and share the picture's visual tokens. */
static status begin_joining(plan *p)
{
    const int64_t n_images = p->data->adapter->images(p->data);
    grouping *g = p->joining = (grouping *)calloc(1, sizeof *g);
    if (g) {
        g->open = (int64_t *)malloc(((size_t)n_images + 1) * sizeof *g->open);
        g->group_of = (int64_t *)malloc(((size_t)p->n_units + 1) * sizeof *g->group_of);
        g->groups = (plan_unit *)malloc(((size_t)p->n_units + 1) * sizeof *g->groups);
    }
    if (!g || !g->open || !g->group_of || !g->groups)
        return FAIL(ST_NO_MEMORY, "no memory to join %" PRId64 " samples", p->n_docs);
    for (int64_t j = 0; j < n_images; j++)
        g->open[j] = -1;
    return ST_OK;
}

void plan_stop_joining(plan *p)
{
    grouping *g = p->joining;
    if (!g)
        return;
    free(g->open);
    free(g->group_of);
    free(g->groups);
    free(g);
    p->joining = NULL;
}

/* --- lanes --- */

/* Finds the pieces in which a source must be read, as runs of units. */
static status find_chunks(plan *p, mixture_lane *l)
{
    int64_t capacity = 0, last = -1;
    for (uint64_t u = 0; u < l->n_units; u++) {
        const unit_doc *doc = &p->docs[p->units[l->first + u].first];
        const int64_t chunk = p->data->adapter->chunk(p->data, doc->sample);
        if (chunk < 0) /* the source can be read at any place */
            return ST_OK;
        if (u > 0 && chunk == last)
            continue;
        last = chunk;
        TRY(array_room((void **)&l->chunks, (int64_t)l->n_chunks, &capacity, sizeof *l->chunks));
        l->chunks[l->n_chunks++] = u;
    }
    TRY(array_room((void **)&l->chunks, (int64_t)l->n_chunks, &capacity, sizeof *l->chunks));
    l->chunks[l->n_chunks] = l->n_units;
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
static status make_lanes(plan *p)
{
    const int64_t n_samples = p->data->adapter->samples(p->data);
    const dataset_part whole = {"", 0, n_samples, 0}, *parts = &whole;
    const int n = p->data->adapter->parts ? p->data->adapter->parts(p->data, &parts) : 1;
    double weights = 0;
    int64_t u = 0;
    p->lanes = (mixture_lane *)calloc((size_t)n, sizeof *p->lanes);
    if (!p->lanes)
        return FAIL(ST_NO_MEMORY, "no memory for a plan");
    p->n_lanes = n;
    for (int k = 0; k < n; k++)
        weights += parts[k].weight;
    for (int k = 0; k < n; k++) {
        mixture_lane *l = &p->lanes[k];
        *l = (mixture_lane){.number = k, .first = (uint64_t)u};
        while (u < p->n_units &&
               p->docs[p->units[u].first].sample < parts[k].first + parts[k].count)
            u++;
        l->n_units = (uint64_t)u - l->first;
        if (parts[k].count == 0)
            return FAIL(ST_BAD_INPUT, "source %s holds no sample", parts[k].name);
        if (l->n_units == 0)
            return FAIL(
                ST_BAD_INPUT,
                "source %s has no sample that can be used; what is wrong with the first: %s",
                parts[k].name, plan_cause(p, parts[k].first));
        l->per_epoch = weights > 0 ? share_of(parts[k].weight, weights, p->n_units) : l->n_units;
        if (p->data->adapter->chunk)
            TRY(find_chunks(p, l));
    }
    return ST_OK;
}

static int64_t some_more(int64_t at, int64_t n)
{
    return at + SOME < n ? at + SOME : n;
}

static status measure_more(plan *p)
{
    const int64_t n = p->data->adapter->samples(p->data), to = some_more(p->at, n);
    TRY(measure_some(p, to));
    p->at = to;
    if (to < n)
        return ST_OK;
    p->at = 0;
    if (p->kind == PLAN_SAMPLES || p->n_units == 0) {
        p->stage = STAGE_WINDOWS; /* there is nothing to join or to order */
    } else if (p->conf->data_group == GROUP_SHARED_IMAGE) {
        TRY(begin_joining(p));
        p->stage = STAGE_JOIN;
    } else {
        p->stage = STAGE_LANES;
    }
    return ST_OK;
}

static status join_more(plan *p)
{
    const int64_t to = some_more(p->at, p->n_units);
    for (; p->at < to; p->at++)
        TRY(find_group(p, p->joining, p->at));
    if (to < p->n_units)
        return ST_OK;
    TRY(lay_out(p, p->joining));
    plan_stop_joining(p);
    p->stage = STAGE_LANES;
    return ST_OK;
}

status plan_make_units(plan *p)
{
    if (p->stage == STAGE_MEASURE)
        return measure_more(p);
    if (p->stage == STAGE_JOIN)
        return join_more(p);
    TRY(make_lanes(p));
    for (int k = 0; k < p->n_lanes; k++)
        p->epoch_units += p->lanes[k].per_epoch;
    p->stage = STAGE_WINDOWS;
    return ST_OK;
}
