/* plan.c: the life of a plan (begun, prepared in slices, freed) and the documents of a row.
 *
 * plan_prepare does the next piece of work until the row that is asked for has a known place: first
 * the stages of planner.h, then one window after the other. plan_row finds the row's window by
 * bisection, plans that window again (or takes it from the cache) and measures its documents, since
 * only the number of rows of each window is kept. */
#include "prepd/plan/plan.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "prepd/plan/order.h"
#include "prepd/plan/planner.h"

/* Adds up what each row of a window holds, for the shape buckets and the report. */
static status note_rows(plan *p, const window_plan *w)
{
    for (int64_t k = 0; k < w->n_rows; k++) {
        row_stat r = {0};
        for (int64_t at = w->first[k]; at < w->first[k + 1]; at++) {
            const plan_unit *u = &p->units[w->items[at]];
            r.class = at == w->first[k] || r.class == u->class ? u->class : MIXED_CLASSES;
            r.tokens += u->tokens;
            r.patches += u->patches;
            r.targets += u->targets;
            r.images += u->images;
            r.frames += u->frames;
            r.frame = u->frame > r.frame ? u->frame : r.frame;
            r.visual += u->patches / 4 * u->n_docs;
            r.documents += u->n_docs;
            for (int32_t j = 0; j < u->n_docs; j++) {
                const int64_t tokens = p->docs[u->first + j].tokens;
                r.squares += tokens * tokens;
                if (tokens > r.longest)
                    r.longest = tokens;
            }
        }
        TRY(array_room((void **)&p->rows, p->n_rows, &p->row_capacity, sizeof *p->rows));
        p->rows[p->n_rows++] = r;
    }
    return ST_OK;
}

/* Plans the first window that is not known yet. The last window of epoch 0 completes the shape
 * buckets. */
static status know_window(plan *p, row_range *s)
{
    const window_plan *w;
    const uint64_t next = row_range_known(p, s);
    TRY(plan_window(p, next, &w));
    if (next < p->n_windows)
        TRY(note_rows(p, w));
    TRY(row_range_add(p, s, w->n_rows));
    return next + 1 == p->n_windows ? plan_make_buckets(p) : ST_OK;
}

/* Computes how many windows an epoch has and which is the stream's last, now that all units are
 * known. */
static status begin_windows(plan *p)
{
    const double epochs = p->conf->training_epochs;
    if (p->kind == PLAN_SAMPLES) {
        p->whole.end_row = p->whole.full_rows = (uint64_t)p->data->adapter->samples(p->data);
        return ST_OK;
    }
    if (p->data->adapter->samples(p->data) == 0)
        return FAIL(ST_BAD_INPUT,
                    "the data set holds no sample; data.path, data.split and data.limit "
                    "say which samples are taken");
    if (p->n_usable == 0)
        return FAIL(ST_BAD_INPUT, "no sample can be used; what is wrong with the first: %s",
                    plan_cause(p, 0));
    p->n_windows = order_windows(p->epoch_units, p->window);
    if (epochs > 0) {
        p->whole_epochs = (uint64_t)epochs;
        p->last_window = (p->whole_epochs + (epochs > (double)p->whole_epochs)) * p->n_windows;
    }
    return ST_OK;
}

/* Whether epoch 0 is planned. It comes before any other range, since its shape buckets and its
 * number of rows are the first things a consumer is told. */
static bool has_epoch(const plan *p)
{
    return row_range_known(p, &p->whole) >= p->n_windows;
}

static bool is_ready(const plan *p, const row_range *s, uint64_t row)
{
    if (p->stage != STAGE_WINDOWS || p->kind == PLAN_SAMPLES)
        return p->stage == STAGE_WINDOWS;
    if (!has_epoch(p))
        return false;
    if (row_range_known(p, s) == p->last_window)
        return true;
    return row == PLAN_ALL ? plan_endless(p) : row_range_rows(p, s) > row;
}

status plan_prepare(plan *p, row_range *s, uint64_t row, int64_t until_ns, bool *out_ready)
{
    if (!s)
        s = &p->whole;
    while (!is_ready(p, s, row) && clock_ns() < until_ns) {
        if (p->stage == STAGE_WINDOWS) {
            TRY(know_window(p, has_epoch(p) ? s : &p->whole));
            continue;
        }
        TRY(plan_make_units(p));
        if (p->stage == STAGE_WINDOWS)
            TRY(begin_windows(p));
    }
    *out_ready = is_ready(p, s, row);
    return ST_OK;
}

status plan_begin(const conf *c, const dataset *d, const data_index *x, plan_kind kind, plan **out)
{
    status st;
    if (index_samples(x) != d->adapter->samples(d) || index_images(x) != d->adapter->images(d))
        return FAIL(ST_BAD_INPUT,
                    "the index has %" PRId64 " samples and %" PRId64
                    " images, but the data set has %" PRId64 " and %" PRId64,
                    index_samples(x), index_images(x), d->adapter->samples(d),
                    d->adapter->images(d));
    plan *p = (plan *)calloc(1, sizeof *p);
    if (!p)
        return FAIL(ST_NO_MEMORY, "no memory for a plan");
    p->conf = c;
    p->data = d;
    p->index = x;
    p->kind = kind;
    p->seed = (uint64_t)c->training_seed;
    p->window = (uint64_t)c->data_window;
    p->token_budget = c->training_seq_len;
    p->patch_budget = plan_patches_of(c);
    p->last_window = UINT64_MAX;
    p->walkers = 1;
    arena_init(&p->scratch, 0);
    TRY_OR(failed, row_range_init(&p->whole, 0, 0));
    TRY_OR(failed, fit_limits_load(c, &p->limits));
    TRY_OR(failed, clip_limits_load(c, &p->clips));
    *out = p;
    return ST_OK;
failed:
    plan_free(&p);
    return st;
}

status plan_new(const conf *c, const dataset *d, const data_index *x, plan_kind kind, plan **out)
{
    plan *p;
    bool ready;
    TRY(plan_begin(c, d, x, kind, &p));
    status st = plan_prepare(p, NULL, PLAN_ALL, INT64_MAX, &ready);
    if (st != ST_OK)
        plan_free(&p);
    else
        *out = p;
    return st;
}

void plan_free(plan **p)
{
    if (!p || !*p)
        return;
    plan *q = *p;
    free(q->units);
    free(q->docs);
    for (int k = 0; k < q->n_lanes; k++)
        mixture_lane_done(&q->lanes[k]);
    free(q->lanes);
    free(q->rows);
    id_map_done(&q->cause_of);
    text_pool_done(&q->causes);
    row_range_done(&q->whole);
    while (q->others) {
        row_range *s = q->others;
        q->others = s->next;
        row_range_done(s);
        free(s);
    }
    plan_stop_joining(q);
    for (int64_t k = 0; k < q->n_cached; k++) {
        free(q->cache[k].first);
        free(q->cache[k].items);
    }
    free(q->cache);
    arena_done(&q->scratch);
    free(q);
    *p = NULL;
}

/* How many of the document's patches are from clips, whose patches span two frames. */
static int64_t clip_patches(const planned_doc *d)
{
    int64_t n = 0;
    for (int32_t k = 0; k < d->n_images; k++)
        n += d->grids[k].pairs > 0 ? fit_patches(d->grids[k]) : 0;
    return n;
}

/* Adds a document to the row. The sample is measured again for its grids, which the plan does not
 * keep; it cannot fail for a cause, since samples with a cause are not in the plan. */
static status add_doc(plan *p, unit_doc d, bool shared, arena *a, planned_row *r)
{
    bool is_cause;
    planned_doc *doc = &r->docs[r->n_docs];
    TRY(plan_measure(p, d.sample, a, doc, &is_cause));
    doc->part = d.part;
    doc->from = (int32_t)(d.part * p->token_budget);
    doc->tokens = d.tokens;
    doc->shared = shared && doc->n_images > 0;
    r->tokens += doc->tokens;
    r->patches += doc->shared ? 0 : doc->patches;
    r->pairs_patches += doc->shared ? 0 : clip_patches(doc);
    r->n_docs++;
    return ST_OK;
}

/* The row of PLAN_SAMPLES: one sample, with all its parts where its text is split. Empty for a
 * refused sample. */
static status sample_row(plan *p, uint64_t number, arena *a, planned_row *r)
{
    planned_doc whole;
    bool is_cause;
    if (plan_cause(p, (int64_t)number))
        return ST_OK;
    TRY(plan_measure(p, (int64_t)number, a, &whole, &is_cause));
    const int64_t parts = (whole.whole - 1) / p->token_budget + 1;
    TRY(arena_calloc(a, (size_t)parts, sizeof *r->docs, (void **)&r->docs));
    for (int64_t k = 0; k < parts; k++) {
        const int64_t left = whole.whole - k * p->token_budget;
        const int64_t some = left < p->token_budget ? left : p->token_budget;
        TRY(add_doc(p, (unit_doc){(int64_t)number, (int32_t)k, (int32_t)some}, false, a, r));
    }
    return ST_OK;
}

status plan_row(plan *p, row_range *s, uint64_t number, arena *a, planned_row *out)
{
    planned_row r = {.number = number};
    const window_plan *w;
    uint64_t first;
    bool ready;
    if (!s)
        s = &p->whole;
    TRY(plan_prepare(p, s, number, INT64_MAX, &ready));
    if (number >= s->end_row)
        return FAIL(ST_END, "the stream has %" PRIu64 " rows", s->end_row);
    if (p->kind == PLAN_SAMPLES) {
        TRY(sample_row(p, number, a, &r));
        *out = r;
        return ST_OK;
    }
    if (number < s->first_row[0])
        return FAIL(ST_INTERNAL,
                    "row %" PRIu64 " is asked of a range that begins with row %" PRIu64, number,
                    s->first_row[0]);
    if (number >= s->full_rows) { /* an empty row, which completes the last step */
        uint64_t last = row_range_window(p, s, s->full_rows - 1, &first);
        r.epoch = last / p->n_windows;
        r.window = last % p->n_windows;
        *out = r;
        return ST_OK;
    }
    uint64_t global = row_range_window(p, s, number, &first);
    TRY(plan_window(p, global, &w));
    r.epoch = global / p->n_windows;
    r.window = global % p->n_windows;
    int64_t k = (int64_t)(number - first);
    int64_t n = 0;
    for (int64_t at = w->first[k]; at < w->first[k + 1]; at++)
        n += p->units[w->items[at]].n_docs;
    TRY(arena_calloc(a, (size_t)n, sizeof *r.docs, (void **)&r.docs));
    for (int64_t at = w->first[k]; at < w->first[k + 1]; at++) {
        const plan_unit *u = &p->units[w->items[at]];
        for (int32_t j = 0; j < u->n_docs; j++)
            TRY(add_doc(p, p->docs[u->first + j], j > 0, a, &r));
    }
    *out = r;
    return ST_OK;
}

uint64_t plan_epoch_of(const plan *p, const row_range *s, uint64_t row, uint64_t *out_first)
{
    uint64_t first;
    if (!s)
        s = &p->whole;
    *out_first = 0;
    if (p->kind == PLAN_SAMPLES)
        return 0;
    const uint64_t last = s->full_rows - 1; /* empty rows belong to the last epoch */
    const uint64_t epoch = row_range_window(p, s, row < last ? row : last, &first) / p->n_windows;
    *out_first = s->first_row[(epoch - s->epoch) * p->n_windows];
    return epoch;
}
