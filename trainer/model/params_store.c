/* params_store.c: the registry's device memory: which part of every FSDP unit this rank stores, and
 * where the model finds the whole of it (parallel/fsdp.h). */
#include <limits.h>
#include <stdlib.h>

#include "trainer/model/params.h"

static const mesh_group owners[] = {MESH_WHOLE, MESH_DENSE, MESH_EXPERT_SHARD, MESH_EXPERT_WHOLE};
enum { OWNERS = sizeof owners / sizeof *owners };

void params_share(params *p, const mesh *m, bool reshard)
{
    p->mesh = m;
    p->reshard = reshard;
}

static int64_t align_count(int64_t n)
{
    return (n + UNIT_ALIGN - 1) / UNIT_ALIGN * UNIT_ALIGN;
}

/* The rows of each unit: those of unit u are row[first[u]] to row[first[u + 1] - 1]. */
typedef struct unit_rows {
    int64_t *first, *row; /* one heap block, owned by first */
    int count;            /* the number of units */
} unit_rows;

static status rows_by_unit(const params *p, unit_rows *out)
{
    unit_rows r = {0};
    for (int64_t i = 0; i < p->count; i++)
        r.count = p->list[i].unit >= r.count ? p->list[i].unit + 1 : r.count;
    r.first = calloc((size_t)(r.count + 2 + p->count), sizeof *r.first);
    if (!r.first)
        return FAIL(ST_NO_MEMORY, "no memory for %d units", r.count);
    r.row = r.first + r.count + 2;
    for (int64_t i = 0; i < p->count; i++)
        r.first[p->list[i].unit + 2]++;
    for (int u = 0; u < r.count; u++)
        r.first[u + 2] += r.first[u + 1];
    for (int64_t i = 0; i < p->count; i++)
        r.row[r.first[p->list[i].unit + 1]++] = i;
    *out = r;
    return ST_OK;
}

static bool is_vision(const param *row)
{
    return row->group == GROUP_VISION || row->group == GROUP_MERGER;
}

/* Appends a span: the rows of a unit that these owners share, end to end, either the trained ones
 * or the others. If there are no such rows, there is no span. */
static void add_span(params *p, const unit_rows *rows, int unit, mesh_group group, bool trained)
{
    unit_span *to = &p->spans[p->n_spans];
    *to = (unit_span){.unit = unit, .group = group, .trained = trained, .ranks = 1};
    for (int64_t i = rows->first[unit]; i < rows->first[unit + 1]; i++) {
        param *row = &p->list[rows->row[i]];
        if (row->elsewhere || params_owners(row) != group || row->frozen == trained)
            continue;
        row->span = p->n_spans;
        row->at = to->count;
        to->count += align_count(row->n_local);
        to->stays |= row->stays;
        to->forward_only = row->forward_only || !row->reached;
        to->layer = row->layer;
        to->vision = is_vision(row);
    }
    if (to->count == 0)
        return;
    if (p->mesh) {
        to->ranks = mesh_comm(p->mesh, group)->size;
        to->rank = mesh_comm(p->mesh, group)->rank;
    }
    to->piece = unit_piece(to->count, to->ranks);
    to->first = p->block_elements;
    p->block_elements += to->piece;
    if (trained) {
        to->first_trained = p->trained_elements;
        p->trained_elements += to->piece;
    }
    p->n_spans++;
}

/* Marks the rows whose units the backward pass reaches. In the tower and in the decoder it goes
 * down to the lowest unit with something trained. If anything of vision is trained, it passes
 * through all of the decoder and all mergers. */
static void mark_reached(params *p)
{
    int64_t layer = INT64_MAX;
    int block = INT_MAX; /* the lowest trained unit of the tower */
    bool features = false;
    for (int64_t i = 0; i < p->count; i++) {
        const param *row = &p->list[i];
        const bool eye = is_vision(row), tower = row->group == GROUP_VISION || row->forward_only;
        const int64_t first =
            row->forward_only ? 0 : row->layer; /* the embedding needs all layers */
        if (row->frozen)
            continue;
        features |= eye;
        if (eye && tower && row->unit < block)
            block = row->unit;
        if (!eye && first >= 0 && first < layer)
            layer = first;
    }
    for (int64_t i = 0; i < p->count; i++) {
        param *row = &p->list[i];
        if (is_vision(row))
            row->reached = row->group == GROUP_VISION ? row->unit >= block : features;
        else
            row->reached = features || row->layer < 0 || row->layer >= layer;
    }
}

/* Sets which elements of each row this rank stores. */
static void set_own(params *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        param *row = &p->list[i];
        const unit_span *in = &p->spans[row->span];
        row->own_first = row->own_n = 0;
        if (row->elsewhere)
            continue;
        int64_t begin = in->piece * in->rank, end = begin + in->piece;
        begin = begin > row->at ? begin : row->at;
        end = end < row->at + row->n_local ? end : row->at + row->n_local;
        row->own_first = end > begin ? begin - row->at : 0;
        row->own_n = end > begin ? end - begin : 0;
    }
}

static status make_spans(params *p)
{
    unit_rows rows;
    TRY(rows_by_unit(p, &rows));
    free(p->spans);
    p->spans = calloc((size_t)rows.count * 2 * OWNERS + 1, sizeof *p->spans);
    p->n_spans = p->block_elements = p->trained_elements = 0;
    mark_reached(p);
    for (int unit = 0; unit < rows.count && p->spans; unit++)
        for (int g = 0; g < OWNERS; g++)
            for (int frozen = 0; frozen < 2; frozen++)
                add_span(p, &rows, unit, owners[g], !frozen);
    free(rows.first);
    if (!p->spans)
        return FAIL(ST_NO_MEMORY, "no memory for %d units", rows.count);
    set_own(p);
    return ST_OK;
}

static unit_options options_of(const params *p, bool with_training)
{
    return (unit_options){.training = with_training, .reshard = p->reshard};
}

status params_size(params *p, const backend_vtable *v, bool with_training, params_sizes *out)
{
    const unit_options o = options_of(p, with_training);
    size_t act = st_dtype_size(v->act), acc = st_dtype_size(v->acc);
    if (!p->values)
        TRY(make_spans(p));
    if (!p->mesh) { /* one rank: count the rows without the gaps between them */
        *out = (params_sizes){.stored = p->total, .trained = with_training ? params_trained(p) : 0};
        return ST_OK;
    }
    *out = (params_sizes){.stored = p->block_elements,
                          .trained = with_training ? p->trained_elements : 0,
                          .gathered_bytes = fsdp_units_bytes(p->spans, p->n_spans, &o, act, acc)};
    return ST_OK;
}

/* The longest frozen vector; ops compute its gradient although it is not wanted. */
static int64_t longest_frozen(const params *p)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const param *row = &p->list[i];
        if (row->frozen && row->n_dims == 1 && row->n_local > longest)
            longest = row->n_local;
    }
    return longest;
}

static void *locate_part(void *block, int64_t at, size_t size)
{
    return block ? (char *)block + (size_t)at * size : NULL;
}

static void place_spans(params *p, size_t act, size_t acc)
{
    for (int64_t i = 0; i < p->n_spans; i++) {
        unit_span *to = &p->spans[i];
        to->act =
            p->acts ? locate_part(p->acts, to->first, act) : locate_part(p->values, to->first, acc);
        to->grad = to->trained ? locate_part(p->grads, to->first_trained, acc) : NULL;
        to->whole_act = to->act;
        to->whole_grad = to->grad;
    }
}

static void place_rows(params *p, size_t act, size_t acc)
{
    for (int64_t i = 0; i < p->count; i++) {
        param *row = &p->list[i];
        const unit_span *in = &p->spans[row->span];
        if (row->elsewhere)
            continue;
        int64_t skipped = row->own_n ? row->at + row->own_first - in->piece * in->rank : 0;
        int64_t at = in->first + skipped, trained = in->first_trained + skipped;
        row->value = locate_part(p->values, at, acc);
        row->own_act = p->acts ? locate_part(p->acts, at, act) : row->value;
        row->act = locate_part(in->whole_act, row->at, act);
        row->unwanted = row->frozen && row->n_dims == 1 ? p->unwanted : NULL;
        row->own_grad = in->trained ? locate_part(p->grads, trained, acc) : NULL;
        row->moment1 = in->trained ? locate_part(p->moments1, trained, acc) : NULL;
        row->moment2 = in->trained ? locate_part(p->moments2, trained, acc) : NULL;
        row->grad = row->own_grad ? locate_part(in->whole_grad, row->at, acc) : NULL;
    }
}

static status take_blocks(params *p, stream *s, bool with_training)
{
    const backend_vtable *v = s->dev->backend;
    const size_t acc = st_dtype_size(v->acc), trained = (size_t)p->trained_elements * acc;
    const int64_t longest = longest_frozen(p);
    TRY(v->alloc(s->dev, (size_t)p->block_elements * acc, &p->values));
    if (v->act != v->acc)
        TRY(v->alloc(s->dev, (size_t)p->block_elements * st_dtype_size(v->act), &p->acts));
    if (!with_training)
        return ST_OK;
    if (longest)
        TRY(v->alloc(s->dev, (size_t)longest * acc, &p->unwanted));
    TRY(v->alloc(s->dev, trained, &p->grads));
    TRY(v->alloc(s->dev, trained, &p->moments1));
    return v->alloc(s->dev, trained, &p->moments2);
}

status params_alloc(params *p, stream *s, bool with_training)
{
    const backend_vtable *v = s->dev->backend;
    const size_t act = st_dtype_size(v->act), acc = st_dtype_size(v->acc);
    const unit_options o = options_of(p, with_training);
    status st;
    TRY(make_spans(p));
    TRY_OR(undo, take_blocks(p, s, with_training));
    place_spans(p, act, acc);
    TRY_OR(undo, fsdp_units_new(s, p->mesh, p->spans, p->n_spans, &o, &p->fsdp_units));
    place_rows(p, act, acc);
    return ST_OK;
undo:
    params_release(p, s);
    return status_context(st, "%lld parameters%s", (long long)p->total,
                          with_training ? " with gradients and two moments" : "");
}

void params_release(params *p, stream *s)
{
    void **blocks[] = {&p->values, &p->acts, &p->grads, &p->moments1, &p->moments2, &p->unwanted};
    fsdp_units_free(&p->fsdp_units, s);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (*blocks[i])
            s->dev->backend->release(s->dev, *blocks[i]);
        *blocks[i] = NULL;
    }
    if (!p->spans)
        return;
    place_spans(p, 0, 0);
    place_rows(p, 0, 0);
}

status params_zero_grad(params *p, stream *s)
{
    size_t bytes = (size_t)p->trained_elements * st_dtype_size(s->dev->backend->acc);
    return s->dev->backend->zero(s, p->grads, bytes);
}

status params_sum_replicas(params *p, stream *s)
{
    if (!p->mesh)
        return ST_OK;
    return comm_all_reduce(mesh_comm(p->mesh, MESH_REPLICATE), s,
                           (comm_at){"sum replicas' gradients", -1}, p->grads, p->trained_elements,
                           s->dev->backend->acc, COMM_SUM);
}
