/* SPDX-License-Identifier: Apache-2.0 */
/* params_store.c: the registry's device memory: which part of every FSDP unit this rank stores, and
 * where the model finds the whole of it (parallel/fsdp.h). */

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/params/params_states.h"
#include "trainer/model/params/quantised.h"
#include "trainer/ops/state_codes.h"

static const mesh_group owners[] = {MESH_WHOLE, MESH_DENSE, MESH_EXPERT_SHARD, MESH_EXPERT_WHOLE};
enum { OWNERS = sizeof owners / sizeof *owners };

mesh_group params_owners(const param *weight)
{
    if (weight->cut == CUT_EXPERT)
        return weight->cut_axis < 0 ? MESH_EXPERT_WHOLE : MESH_EXPERT_SHARD;
    return weight->cut == CUT_TENSOR ? MESH_DENSE : MESH_WHOLE;
}

void params_share(params *registry, const mesh *ranks, bool reshard)
{
    registry->mesh = ranks;
    registry->reshard = reshard;
}

/* Rows and pieces begin at multiples of this, so that no cut goes through a block of codes. */
static int64_t align_of(const params *registry)
{
    return registry->coded ? (int64_t)STATE_BLOCK : (int64_t)UNIT_ALIGN;
}

/* Pieces of codes begin at multiples of this many blocks, and so at multiples of 16 bytes. */
enum { CODES_ALIGN = 16 };

/* What a span consists of. */
typedef enum content { TRAINED, FROZEN_PLAIN, FROZEN_CODES, CONTENTS } content;

static content content_of(const param *row)
{
    return !row->frozen ? TRAINED : row->form == WEIGHT_PLAIN ? FROZEN_PLAIN : FROZEN_CODES;
}

/* How many elements of a span a row takes: its own, or its blocks. */
static int64_t elements_of(const param *row)
{
    return row->form == WEIGHT_PLAIN ? row->n_local : quantised_blocks(row);
}

/* The rows of each unit: those of unit u are row[first[u]] to row[first[u + 1] - 1]. */
typedef struct unit_rows {
    int64_t *first, *row; /* one heap block, owned by first */
    int count;            /* the number of units */
} unit_rows;

static status rows_by_unit(const params *registry, unit_rows *out)
{
    unit_rows rows = {0};
    for (int64_t i = 0; i < registry->count; i++)
        rows.count = registry->list[i].unit >= rows.count ? registry->list[i].unit + 1 : rows.count;
    rows.first = calloc((size_t)(rows.count + 2 + registry->count), sizeof *rows.first);
    if (!rows.first)
        return FAIL(ST_NO_MEMORY, "no memory for %d units", rows.count);
    rows.row = rows.first + rows.count + 2;
    for (int64_t i = 0; i < registry->count; i++)
        rows.first[registry->list[i].unit + 2]++;
    for (int j = 0; j < rows.count; j++)
        rows.first[j + 2] += rows.first[j + 1];
    for (int64_t i = 0; i < registry->count; i++)
        rows.row[rows.first[registry->list[i].unit + 1]++] = i;
    *out = rows;
    return ST_OK;
}

static bool is_vision(const param *row)
{
    return row->group == GROUP_VISION || row->group == GROUP_MERGER;
}

/* Appends a span: the rows of a unit that these owners share and that have this content, end to
 * end. If there are no such rows, there is no span. */
static void add_span(params *registry, const unit_rows *rows, int unit, mesh_group group,
                     content wanted)
{
    const bool codes = wanted == FROZEN_CODES;
    const int64_t align = codes ? CODES_ALIGN : align_of(registry);
    unit_span *to = &registry->spans[registry->n_spans];
    *to = (unit_span){.unit = unit, .group = group, .trained = wanted == TRAINED, .ranks = 1};
    to->element_bytes = codes ? weight_block_bytes(registry->base_form) : 0;
    to->on_host = wanted != TRAINED && registry->frozen_on_host;
    for (int64_t i = rows->first[unit]; i < rows->first[unit + 1]; i++) {
        param *row = &registry->list[rows->row[i]];
        if (row->elsewhere || params_owners(row) != group || content_of(row) != wanted)
            continue;
        row->span = registry->n_spans;
        row->at = to->count;
        to->count += round_up(elements_of(row), align);
        to->stays |= row->stays;
        to->forward_only = row->forward_only || !row->reached;
        to->layer = row->layer;
        to->vision = is_vision(row);
    }
    if (to->count == 0)
        return;
    if (registry->mesh) {
        to->ranks = mesh_comm(registry->mesh, group)->size;
        to->rank = mesh_comm(registry->mesh, group)->rank;
    }
    to->piece = unit_piece(to->count, to->ranks, align);
    registry->block_elements += codes ? 0 : to->piece;
    registry->coded_blocks += codes ? to->piece : 0;
    registry->trained_elements += to->trained ? to->piece : 0;
    registry->n_spans++;
}

/* Says where the spans begin in the blocks: what is trained comes first. Codes have their own, and
 * so has what rests on the host. */
static void set_firsts(params *registry)
{
    int64_t trained = 0, codes = 0,
            frozen = registry->frozen_on_host ? 0 : registry->trained_elements;
    for (int64_t i = 0; i < registry->n_spans; i++) {
        unit_span *to = &registry->spans[i];
        int64_t *next = to->trained ? &trained : to->element_bytes ? &codes : &frozen;
        to->first = *next;
        *next += to->piece;
    }
}

/* Marks the rows whose units the backward pass reaches. In the tower and in the decoder it goes
 * down to the lowest unit with something trained. If anything of vision is trained, it passes
 * through all of the decoder and all mergers. */
static void mark_reached(params *registry)
{
    int64_t layer = INT64_MAX;
    int block = INT_MAX; /* the lowest trained unit of the tower */
    bool features = false;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        const bool vision = is_vision(row), tower = row->group == GROUP_VISION || row->forward_only;
        const int64_t first =
            row->forward_only ? 0 : row->layer; /* the embedding needs all layers */
        if (row->frozen)
            continue;
        features |= vision;
        if (vision && tower && row->unit < block)
            block = row->unit;
        if (!vision && first >= 0 && first < layer)
            layer = first;
    }
    for (int64_t i = 0; i < registry->count; i++) {
        param *row = &registry->list[i];
        if (is_vision(row))
            row->reached = row->group == GROUP_VISION ? row->unit >= block : features;
        else
            row->reached = features || row->layer < 0 || row->layer >= layer;
    }
}

/* How many blocks of a matrix in codes this rank stores, from *out_first on. */
static int64_t own_blocks_of(const unit_span *in, const param *row, int64_t *out_first)
{
    int64_t begin = in->piece * in->rank, end = begin + in->piece;
    const int64_t row_end = row->at + quantised_blocks(row);
    begin = begin > row->at ? begin : row->at;
    end = end < row_end ? end : row_end;
    *out_first = end > begin ? begin - row->at : 0;
    return end > begin ? end - begin : 0;
}

static void own_elements(const unit_span *in, param *row)
{
    int64_t first;
    if (row->form == WEIGHT_PLAIN) {
        row->own_n = states_own_of(in, row, in->rank, &row->own_first);
        return;
    }
    const int64_t count = own_blocks_of(in, row, &first);
    row->own_first = count ? quantised_first(row, first) : 0;
    row->own_n = count ? quantised_first(row, first + count) - row->own_first : 0;
}

/* Sets which elements of each row this rank stores. */
static void set_own(params *registry)
{
    for (int64_t i = 0; i < registry->count; i++) {
        param *row = &registry->list[i];
        const unit_span *in = &registry->spans[row->span];
        row->own_first = row->own_n = 0;
        if (!row->elsewhere)
            own_elements(in, row);
    }
}

static status make_spans(params *registry)
{
    unit_rows rows;
    TRY(rows_by_unit(registry, &rows));
    free(registry->spans);
    registry->spans = calloc((size_t)rows.count * CONTENTS * OWNERS + 1, sizeof *registry->spans);
    registry->n_spans = registry->block_elements = registry->trained_elements = 0;
    registry->coded_blocks = 0;
    registry->coded = registry->act_masters = false;
    for (int64_t i = 0; i < registry->count; i++) {
        registry->coded |= registry->list[i].coded;
        registry->act_masters |= registry->list[i].act_master;
    }
    mark_reached(registry);
    for (int unit = 0; unit < rows.count && registry->spans; unit++)
        for (int i = 0; i < OWNERS; i++)
            for (int k = 0; k < CONTENTS; k++)
                add_span(registry, &rows, unit, owners[i], (content)k);
    free(rows.first);
    if (!registry->spans)
        return FAIL(ST_NO_MEMORY, "no memory for %d units", rows.count);
    set_firsts(registry);
    set_own(registry);
    return ST_OK;
}

static unit_options options_of(const params *registry, bool with_training)
{
    return (unit_options){.training = with_training,
                          .reshard = registry->reshard,
                          .in_backward = with_training && registry->in_backward};
}

/* The longest frozen vector; ops compute its gradient although it is not wanted. */
static int64_t longest_frozen(const params *registry)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (row->frozen && row->n_dims == 1 && row->n_local > longest)
            longest = row->n_local;
    }
    return longest;
}

/* Elements of the largest matrix that is expanded, and of all that are stored in codes. */
static int64_t largest_coded(const params *registry, int64_t *out_stored)
{
    int64_t largest = 0;
    *out_stored = 0;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (row->form == WEIGHT_PLAIN || row->elsewhere)
            continue;
        largest = row->n_local > largest ? row->n_local : largest;
        *out_stored += row->own_n;
    }
    return largest;
}

/* Elements of the block of acts; the others rest on the host. */
static int64_t count_acts(const params *registry)
{
    return registry->frozen_on_host ? registry->trained_elements : registry->block_elements;
}

status params_size(params *registry, const backend_vtable *backend, bool with_training,
                   params_sizes *out)
{
    const unit_options options = options_of(registry, with_training);
    size_t act = st_dtype_size(backend->act), acc = st_dtype_size(backend->acc);
    if (!registry->acts.at)
        TRY(make_spans(registry));
    const int64_t trained = with_training ? registry->trained_elements : 0;
    int64_t coded;
    const int64_t largest = largest_coded(registry, &coded);
    const int64_t codes = registry->coded_blocks * weight_block_bytes(registry->base_form);
    states_sizes states;
    TRY(states_sizes_of(registry, backend->act, backend->acc, &states));
    *out = (params_sizes){
        .stored = registry->block_elements,
        .trained = trained,
        .acts = count_acts(registry) * (int64_t)act,
        .resting = (registry->block_elements - count_acts(registry)) * (int64_t)act +
                   (registry->frozen_on_host ? codes : 0),
        .values =
            backend->act == backend->acc || registry->act_masters ? 0 : trained * (int64_t)acc,
        .grads = options.in_backward ? 0 : trained * (int64_t)acc,
        .act_masters = registry->act_masters,
        .moments = with_training ? states.block : 0,
        .moments_on_host = with_training && registry->moments_on_host,
        .unwanted = with_training ? longest_frozen(registry) * (int64_t)acc : 0,
        .codes = registry->frozen_on_host ? 0 : codes,
        .expanded = largest * (int64_t)act,
        .uncoded = coded * (int64_t)act,
        .gathered_bytes =
            registry->mesh || options.in_backward || registry->frozen_on_host
                ? fsdp_units_bytes(registry->spans, registry->n_spans, &options, act, acc)
                : 0};
    for (int j = 0; j < STATES_TURNS && out->moments_on_host; j++)
        out->turn[j] = round_up(states.turn[j], STATES_ALIGN);
    return ST_OK;
}

/* The block that has a span's weights. */
static const param_block *home_of(const params *registry, const unit_span *of)
{
    if (of->element_bytes)
        return &registry->codes;
    return of->on_host ? &registry->resting : &registry->acts;
}

static void place_spans(params *registry)
{
    for (int64_t i = 0; i < registry->n_spans; i++) {
        unit_span *to = &registry->spans[i];
        const size_t size =
            to->element_bytes ? (size_t)to->element_bytes : st_dtype_size(registry->acts.dtype);
        to->act = locate_part(home_of(registry, to)->at, to->first, size);
        to->grad = to->trained ? locate_in(&registry->grads, to->first) : NULL;
        to->whole_act = to->act;
        to->whole_grad = to->grad;
    }
}

/* A row whose act and acc are one type has its only copy as its value too. */
static void place_row(const params *registry, const unit_span *in, int64_t at, param *row)
{
    const bool one = registry->acts.dtype == registry->values.dtype;
    row->act_dtype = registry->acts.dtype;
    row->value_dtype = registry->values.dtype;
    row->moment_dtype = registry->moments1.dtype;
    row->own_act = locate_in(home_of(registry, in), at);
    row->value = one ? row->own_act : in->trained ? locate_in(&registry->values, at) : NULL;
    row->own_grad = locate_part(in->grad, at - in->first, st_dtype_size(registry->grads.dtype));
    row->moment1 = in->trained ? locate_in(&registry->moments1, at) : NULL;
    row->moment2 = in->trained ? locate_in(&registry->moments2, at) : NULL;
    row->act = locate_part(in->whole_act, row->at, st_dtype_size(registry->acts.dtype));
    row->grad = row->own_grad
                    ? locate_part(in->whole_grad, row->at, st_dtype_size(registry->grads.dtype))
                    : NULL;
    row->unwanted = row->frozen && row->n_dims == 1 ? registry->unwanted : NULL;
}

/* `at`: the number of the row's first stored block among the codes. */
static void place_codes(const params *registry, const unit_span *in, int64_t at, param *row)
{
    const size_t size = (size_t)in->element_bytes;
    row->act_dtype = registry->expanded.dtype;
    row->own_act = row->value = row->own_grad = row->grad = row->moment1 = row->moment2 = NULL;
    row->own_blocks = locate_part(registry->codes.at, at, size);
    row->blocks = locate_part(in->whole_act, row->at, size);
    row->act = registry->expanded.at;
}

static void place_rows(params *registry)
{
    for (int64_t i = 0; i < registry->count; i++) {
        param *row = &registry->list[i];
        const unit_span *in = &registry->spans[row->span];
        if (row->elsewhere)
            continue;
        const bool codes = row->form != WEIGHT_PLAIN;
        const int64_t own = codes ? quantised_block_of(row, row->own_first) : row->own_first;
        const int64_t skipped = row->own_n ? row->at + own - in->piece * in->rank : 0;
        if (codes) {
            place_codes(registry, in, in->first + skipped, row);
            continue;
        }
        place_row(registry, in, in->first + skipped, row);
    }
    states_place(registry);
}

static status take_block(param_block *block, device *dev)
{
    const size_t bytes = (size_t)block->count * st_dtype_size(block->dtype);
    return block->on_host ? device_host_array(dev, bytes, &block->at)
                          : dev->backend->alloc(dev, bytes, &block->at);
}

static void give_block(param_block *block, device *dev)
{
    if (block->at && block->on_host)
        device_release_host_array(dev, block->at);
    else if (block->at)
        dev->backend->release(dev, block->at);
    block->at = NULL;
}

static status take_codes(params *registry, device *dev)
{
    int64_t stored;
    registry->codes =
        (param_block){.dtype = DT_U8,
                      .count = registry->coded_blocks * weight_block_bytes(registry->base_form),
                      .on_host = registry->frozen_on_host};
    registry->expanded =
        (param_block){.dtype = dev->backend->act, .count = largest_coded(registry, &stored)};
    if (!registry->codes.count)
        return ST_OK;
    TRY(take_block(&registry->codes, dev));
    return take_block(&registry->expanded, dev);
}

static status take_blocks(params *registry, stream *queue, bool with_training)
{
    const backend_vtable *backend = queue->dev->backend;
    const size_t longest = (size_t)longest_frozen(registry);
    const param_block trained = {.dtype = backend->acc,
                                 .count = with_training ? registry->trained_elements : 0};
    registry->acts = (param_block){.dtype = backend->act, .count = count_acts(registry)};
    registry->resting = (param_block){.dtype = backend->act,
                                      .count = registry->block_elements - count_acts(registry),
                                      .on_host = true};
    registry->values = registry->grads = registry->moments1 = trained;
    registry->moments1.on_host = with_training && registry->moments_on_host;
    if (with_training && states_are_placed(registry, backend->act, backend->acc)) {
        states_sizes states;
        TRY(states_sizes_of(registry, backend->act, backend->acc, &states));
        registry->moments1.dtype = DT_U8;
        registry->moments1.count = states.block;
    }
    if (registry->act_masters)
        registry->values.dtype = backend->act;
    registry->moments2 = registry->moments1;
    TRY(take_block(&registry->acts, queue->dev));
    TRY(take_codes(registry, queue->dev));
    if (registry->resting.count)
        TRY(take_block(&registry->resting, queue->dev));
    if (registry->values.dtype == backend->act)
        registry->values.at = registry->acts.at;
    else if (with_training)
        TRY(take_block(&registry->values, queue->dev));
    if (!with_training)
        return ST_OK;
    if (longest)
        TRY(backend->alloc(queue->dev, longest * st_dtype_size(backend->acc), &registry->unwanted));
    if (!registry->in_backward)
        TRY(take_block(&registry->grads, queue->dev));
    TRY(take_block(&registry->moments1, queue->dev));
    return take_block(&registry->moments2, queue->dev);
}

status params_alloc(params *registry, stream *queue, bool with_training)
{
    const unit_options options = options_of(registry, with_training);
    status st;
    TRY(make_spans(registry));
    TRY_OR(undo, take_blocks(registry, queue, with_training));
    place_spans(registry);
    TRY_OR(undo, fsdp_units_new(queue, registry->mesh, registry->spans, registry->n_spans, &options,
                                &registry->fsdp_units));
    place_rows(registry);
    return ST_OK;
undo:
    params_release(registry, queue);
    return status_context(st, "%lld parameters%s", (long long)registry->total,
                          with_training ? " with gradients and two moments" : "");
}

void params_release(params *registry, stream *queue)
{
    if (registry->values.at == registry->acts.at)
        registry->values.at = NULL;
    param_block *blocks[] = {&registry->resting, &registry->values,   &registry->acts,
                             &registry->grads,   &registry->moments1, &registry->moments2,
                             &registry->codes,   &registry->expanded};
    fsdp_units_free(&registry->fsdp_units, queue);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        give_block(blocks[i], queue->dev);
    if (registry->unwanted)
        queue->dev->backend->release(queue->dev, registry->unwanted);
    registry->unwanted = NULL;
    if (!registry->spans)
        return;
    place_spans(registry);
    place_rows(registry);
}

status params_zero_grad(params *registry, stream *queue)
{
    size_t bytes = (size_t)registry->trained_elements * st_dtype_size(queue->dev->backend->acc);
    if (!registry->grads.at) /* units clear their own */
        return ST_OK;
    return queue->dev->backend->zero(queue, registry->grads.at, bytes);
}

status params_sum_replicas(params *registry, stream *queue)
{
    if (!registry->mesh)
        return ST_OK;
    return comm_all_reduce(mesh_comm(registry->mesh, MESH_REPLICATE), queue,
                           (comm_at){"sum replicas' gradients", -1}, registry->grads.at,
                           registry->trained_elements, queue->dev->backend->acc, COMM_SUM);
}
