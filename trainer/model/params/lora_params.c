/* SPDX-License-Identifier: Apache-2.0 */
/* lora_params.c: adapters as rows of the registry, gathered and merged, as lora_params.h says. */
#include "trainer/model/params/lora_params.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/dims/convert.h"
#include "trainer/model/params/quantised.h"
#include "trainer/ops/table.h"

static const char weight_end[] = ".weight";

size_t lora_module_size(const param *weight)
{
    size_t length = strlen(weight->name), end = sizeof weight_end - 1;
    return length > end && strcmp(weight->name + length - end, weight_end) == 0 ? length - end
                                                                                : length;
}

/* True for matrices of decoder layers, which excludes the embedding and the head. */
static bool may_adapt(const params *registry, const param *entry)
{
    size_t length = strlen(registry->text_prefix);
    return !entry->adapter && entry->n_dims > 1 &&
           strncmp(entry->name, registry->text_prefix, length) == 0 &&
           strncmp(entry->name + length, "layers.", 7) == 0;
}

/* A target is the last part of a module's name, or a pattern for the whole name. */
static bool is_named(const param *entry, const char *target)
{
    char module[sizeof entry->name];
    snprintf(module, sizeof module, "%.*s", (int)lora_module_size(entry), entry->name);
    const char *last = strrchr(module, '.');
    return strcmp(last ? last + 1 : module, target) == 0 || fnmatch(target, module, 0) == 0;
}

/* Marks the rows that `targets` names: lora = 1, until append_pair knows the right number. */
static status mark_targets(params *registry, const char *targets, int64_t *inout_n)
{
    for (const char *at = targets; *at;) {
        char target[160];
        size_t count = strcspn(at, ", ");
        snprintf(target, sizeof target, "%.*s", (int)count, at);
        at += count + (at[count] != 0);
        if (!count)
            continue;
        bool found = false;
        for (int64_t i = 0; i < registry->count; i++) {
            param *entry = &registry->list[i];
            if (!may_adapt(registry, entry) || !is_named(entry, target))
                continue;
            found = true;
            *inout_n += entry->lora == 0;
            entry->lora = 1;
        }
        if (!found)
            return FAIL(ST_CONFIG,
                        "lora.targets: \"%s\" names no matrix of the decoder's layers (q_proj, "
                        "k_proj, v_proj, o_proj, gate, gate_up_proj, down_proj, ..); trainer "
                        "inspect lists them all",
                        target);
    }
    return *inout_n ? ST_OK
                    : FAIL(ST_CONFIG, "lora.targets is empty; name the matrices that get adapters");
}

/* Appends one half of base's adapter to the list. shared_axis: the axis that it has in common with
 * base, under the same number. */
static void append_adapter(params *registry, const param *base, const char *which, param_init init,
                           int n_dims, const int64_t *shape, int shared_axis)
{
    bool linear = base->n_dims == 2;
    param *entry = &registry->list[registry->count++];
    *entry = (param){.n_dims = n_dims,
                     .count = 1,
                     .unit = base->unit,
                     .layer = base->layer,
                     .group = base->group,
                     .init = init,
                     .decay = true,
                     .adapter = true,
                     .cut_axis = -1,
                     .lr_factor = 1,
                     .own_decay = -1};
    snprintf(entry->name, sizeof entry->name, "%.*s.%s%s", (int)lora_module_size(base), base->name,
             which, linear ? weight_end : "");
    for (int i = 0; i < n_dims; i++) {
        entry->shape[i] = entry->local[i] = shape[i];
        entry->count *= shape[i];
    }
    entry->n_local = entry->count;
    entry->held = slice_whole(shape[0], entry->count / shape[0], 1, 1);
    if (base->cut_axis == shared_axis)
        entry->cut_axis = shared_axis;
    if (base->cut == CUT_EXPERT) { /* an expert's adapter is on the rank of the expert */
        const int64_t parts = entry->cut_axis == 2 ? base->held.size[2] : 1;
        entry->cut = CUT_EXPERT;
        entry->held = slice_whole(shape[0], shape[1], parts, shape[2] / parts);
    } else if (entry->cut_axis >= 0) {
        entry->cut = base->cut;
    }
    registry->total += entry->count;
}

/* Appends the lengths of base's rows. */
static void append_lengths(params *registry, param *base)
{
    param *entry = &registry->list[registry->count];
    append_adapter(registry, base, "lora_magnitude_vector", INIT_ZERO, 1, base->shape, 0);
    snprintf(entry->name, sizeof entry->name, "%.*s.lora_magnitude_vector",
             (int)lora_module_size(base), base->name);
    entry->decay = false;
    base->dora = true;
}

static void append_pair(params *registry, int64_t index)
{
    param *weight = &registry->list[index];
    const int64_t *shape = weight->shape, lora_rank = registry->lora_rank;
    bool linear = weight->n_dims == 2;
    weight->lora = registry->count - index;
    append_adapter(registry, weight, "lora_A", INIT_NORMAL, weight->n_dims,
                   linear ? (const int64_t[]){lora_rank, shape[1]}
                          : (const int64_t[]){shape[0], shape[1], lora_rank},
                   1);
    /* The variance of PEFT's first values, which are uniform within 1 / sqrt(in). */
    registry->list[registry->count - 1].init_std = 1 / sqrt(3 * (double)shape[1]);
    append_adapter(registry, weight, "lora_B", INIT_ZERO, weight->n_dims,
                   linear ? (const int64_t[]){shape[0], lora_rank}
                          : (const int64_t[]){shape[0], lora_rank, shape[2]},
                   linear ? 0 : 2);
    registry->lora_experts |= !linear;
    if (registry->lora_dora)
        append_lengths(registry, weight);
}

/* The length of a row is that of a whole linear map's, which routers and fused experts are not for
 * PEFT in every release of transformers. */
static status check_dora(const params *registry)
{
    for (int64_t i = 0; i < registry->count; i++)
        if (registry->list[i].lora && registry->list[i].group != GROUP_TEXT)
            return FAIL(ST_CONFIG,
                        "lora.dora: %s is a matrix of experts or of their router; name those of "
                        "attention and dense MLPs in lora.targets, or set lora.dora to false",
                        registry->list[i].name);
    return ST_OK;
}

status lora_add(params *registry, lora_kind kind, const char *targets)
{
    const double rank = (double)kind.rank, scale = kind.alpha / (kind.rslora ? sqrt(rank) : rank);
    int64_t count = 0, rows = registry->count;
    TRY(mark_targets(registry, targets, &count));
    if (kind.dora)
        TRY(check_dora(registry));
    param *list = realloc(registry->list, (size_t)(registry->count + 3 * count) * sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld adapters", (long long)count);
    registry->list = list;
    registry->lora_rank = kind.rank;
    registry->lora_alpha = kind.alpha;
    registry->lora_rslora = kind.rslora;
    registry->lora_dora = kind.dora;
    for (int64_t i = 0; i < rows; i++) {
        list[i].frozen = true;
        if (!list[i].lora)
            continue;
        list[i].lora_scale = scale;
        append_pair(registry, i);
    }
    return ST_OK;
}

/* Adds scale A B to elements [first, first + count) of w [in, out], which are at w; A [in, rank],
 * B [rank, out]. transposed: w [out, in], A [rank, in], B [out, rank]. */
static void add_product(const double *a, const double *b, int64_t rank, int64_t in, int64_t out,
                        bool transposed, double scale, int64_t first, int64_t count, double *w)
{
    for (int64_t at = 0; at < count; at++) {
        int64_t wide = transposed ? in : out;
        int64_t i = (first + at) / wide, j = (first + at) % wide;
        double sum = 0;
        for (int64_t k = 0; k < rank; k++)
            sum += transposed ? a[k * in + j] * b[i * rank + k] : a[i * rank + k] * b[k * out + j];
        w[at] += scale * sum;
    }
}

status lora_read(const param *weight, stream *queue, int64_t first, int64_t count, double *to)
{
    if (!weight->whole)
        return params_read_value(weight, queue, first, count, to);
    memcpy(to, weight->whole + first, (size_t)count * sizeof *to);
    return ST_OK;
}

/* Where a row is gathered; each has room for the largest one. */
typedef struct gather_room {
    void *all;    /* device memory: elements in acc */
    double *host; /* what this rank stores, then all of it in acc */
} gather_room;

/* entry->whole = what this rank stores of a row, at its place; zeros elsewhere. */
static status place_own(const param *entry, stream *queue, double *room)
{
    memset(entry->whole, 0, (size_t)entry->count * sizeof *entry->whole);
    if (entry->own_n > 0)
        TRY(params_read_value(entry, queue, 0, entry->own_n, room));
    for (int64_t i = 0, j, stored; i < entry->own_n; i += j) {
        j = slice_run(&entry->held, entry->own_first + i, entry->own_n - i, &stored);
        memcpy(entry->whole + stored, room + i, (size_t)j * sizeof *room);
    }
    return ST_OK;
}

/* Sums the ranks' parts of a row into entry->whole: within a replica,
 * one rank stores each element. */
static status gather_row(const params *registry, const param *entry, stream *queue,
                         const gather_room *room)
{
    static const mesh_group groups[] = {MESH_WHOLE, MESH_PIPELINE};
    const backend_vtable *backend = queue->dev->backend;
    TRY(place_own(entry, queue, room->host));
    convert_from_double(room->host, backend->acc, entry->whole, entry->count);
    TRY(backend->to_device(queue, room->all, room->host,
                           (size_t)entry->count * st_dtype_size(backend->acc)));
    for (int i = 0; i < 2; i++)
        TRY(comm_all_reduce(mesh_comm(registry->mesh, groups[i]), queue,
                            (comm_at){"gather adapters", entry->layer}, room->all, entry->count,
                            backend->acc, COMM_SUM));
    return params_read(room->all, queue, 0, entry->count, entry->whole);
}

static status gather_rows(params *registry, stream *queue, const gather_room *room)
{
    double *at = registry->adapters;
    for (int64_t i = 0; i < registry->count; i++) {
        param *entry = &registry->list[i];
        if (!entry->adapter)
            continue;
        entry->whole = at;
        at += entry->count;
        TRY(gather_row(registry, entry, queue, room));
    }
    return ST_OK;
}

status lora_gather(params *registry, stream *queue)
{
    const backend_vtable *backend = queue->dev->backend;
    int64_t sum = 0, most = 0;
    gather_room room = {0};
    if (!registry->mesh || registry->mesh->layout.world == 1 || !registry->lora_rank)
        return ST_OK;
    for (int64_t i = 0; i < registry->count; i++) {
        sum += registry->list[i].adapter ? registry->list[i].count : 0;
        most = registry->list[i].adapter && registry->list[i].count > most ? registry->list[i].count
                                                                           : most;
    }
    if (!registry->adapters)
        registry->adapters = malloc((size_t)sum * sizeof *registry->adapters);
    if (!registry->adapters)
        return FAIL(ST_NO_MEMORY, "no memory for %lld values of adapters", (long long)sum);
    room.host = malloc((size_t)most * sizeof *room.host);
    status st = room.host ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to gather adapters");
    if (st == ST_OK)
        st = backend->alloc(queue->dev, (size_t)most * st_dtype_size(backend->acc), &room.all);
    if (st == ST_OK)
        st = gather_rows(registry, queue, &room);
    if (room.all)
        backend->release(queue->dev, room.all);
    free(room.host);
    return st;
}

/* Adds the adapter's product to elements [first, first + count) of one matrix: a linear map's, or
 * that of expert number `matrix`. */
static status merge_matrix(const param *weight, stream *queue, int64_t matrix, int64_t first,
                           int64_t count, double *to)
{
    const param *pair = weight + weight->lora, *pair_b = pair + 1;
    bool linear = weight->n_dims == 2;
    int64_t in = weight->shape[1], out = linear ? weight->shape[0] : weight->shape[2];
    int64_t rank = linear ? pair->shape[0] : pair->shape[2];
    double *x = malloc((size_t)(rank * in) * sizeof *x),
           *y = malloc((size_t)(rank * out) * sizeof *y);
    status st = x && y ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to merge an adapter");
    if (st == ST_OK)
        st = lora_read(pair, queue, matrix * rank * in, rank * in, x);
    if (st == ST_OK)
        st = lora_read(pair_b, queue, matrix * rank * out, rank * out, y);
    if (st == ST_OK)
        add_product(x, y, rank, in, out, linear, weight->lora_scale, first, count, to);
    free(x);
    free(y);
    return st;
}

/* The same for elements [first, first + count) of the published tensor, which may span matrices. */
static status merge_adapter(const param *weight, stream *queue, int64_t first, int64_t count,
                            double *inout)
{
    int64_t size = weight->n_dims == 2 ? weight->count : weight->shape[1] * weight->shape[2];
    for (int64_t done = 0, part; done < count; done += part) {
        int64_t at = (first + done) % size;
        part = size - at < count - done ? size - at : count - done;
        TRY(merge_matrix(weight, queue, (first + done) / size, at, part, inout + done));
    }
    return ST_OK;
}

status lora_merge(const param *weight, stream *queue, int64_t first, int64_t count, double *inout)
{
    for (int64_t i = 0, run, stored; weight->lora && i < count; i += run) {
        run = slice_run(&weight->held, first + i, count - i, &stored);
        TRY(merge_adapter(weight, queue, stored, run, inout + i));
    }
    return ST_OK;
}

/* The lengths of one matrix's rows.
 * Its unit is entered, since frozen weights may rest elsewhere. */
static status set_lengths(params *registry, const param *weight, stream *queue, double *value)
{
    const param *pair = weight + weight->lora, *lengths = pair + 2;
    TRY(fsdp_units_enter(registry->fsdp_units, queue, weight->unit, UNIT_FORWARD));
    TRY(quantised_expand(queue, weight));
    TRY(op_dora_norm(queue, &(dora_norm_args){.out = weight->shape[0],
                                              .in = weight->shape[1],
                                              .rank = pair->shape[0],
                                              .scale = weight->lora_scale,
                                              .w = weight->act,
                                              .a = pair->act,
                                              .b = pair[1].act,
                                              .norm = lengths->own_act}));
    TRY(fsdp_units_leave(registry->fsdp_units, queue, weight->unit, UNIT_FORWARD));
    TRY(params_read_array(lengths->own_act, lengths->act_dtype, queue, 0, lengths->count, value));
    for (int64_t j = 0; j < lengths->count; j++)
        if (!(value[j] > 0)) /* what is computed is divided by it */
            return FAIL(
                ST_CONFIG,
                "lora.dora: row %lld of %s has the norm %g, by which DoRA cannot divide; leave its "
                "module out of lora.targets, or set lora.dora to false",
                (long long)j, weight->name, value[j]);
    return params_write(lengths, queue, 0, lengths->count, value);
}

status lora_set_lengths(params *registry, stream *queue)
{
    if (!registry->lora_dora)
        return ST_OK;
    TRY(fsdp_units_begin(registry->fsdp_units, queue));
    for (int64_t i = 0; i < registry->count; i++) {
        const param *weight = &registry->list[i];
        if (!weight->dora || weight->elsewhere)
            continue;
        double *value = malloc((size_t)weight->shape[0] * sizeof *value);
        if (!value)
            return FAIL(ST_NO_MEMORY, "no memory for %lld lengths", (long long)weight->shape[0]);
        const status st = set_lengths(registry, weight, queue, value);
        free(value);
        TRY(st);
    }
    return fsdp_units_end(registry->fsdp_units, queue);
}

/* What a row of a merged matrix is made of. */
typedef struct dora_row {
    const param *weight;
    stream *queue;
    double *a;    /* [rank, in] */
    double *b;    /* [rank] of the row */
    double *full; /* [in] the row, merged */
} dora_row;

/* Makes row `number` of the merged matrix: W + s B A with the length m. */
static status merge_row(const dora_row *room, int64_t number)
{
    const param *weight = room->weight, *pair = weight + weight->lora;
    const int64_t in = weight->shape[1], rank = pair->shape[0];
    double length, squares = 0;
    TRY(params_read_value(weight, room->queue, number * in, in, room->full));
    TRY(lora_read(pair + 1, room->queue, number * rank, rank, room->b));
    TRY(lora_read(pair + 2, room->queue, number, 1, &length));
    add_product(room->a, room->b, rank, in, 1, true, weight->lora_scale, 0, in, room->full);
    for (int64_t i = 0; i < in; i++)
        squares += room->full[i] * room->full[i];
    for (int64_t i = 0; i < in && squares > 0; i++)
        room->full[i] *= length / sqrt(squares);
    return ST_OK;
}

/* Elements [first, first + count) of a matrix whose rows have lengths; this rank has all of it. */
static status read_dora(const param *weight, stream *queue, int64_t first, int64_t count,
                        double *to)
{
    const param *pair = weight + weight->lora;
    const int64_t in = weight->shape[1], rank = pair->shape[0];
    double *rooms = malloc((size_t)(rank * in + rank + in) * sizeof *rooms);
    if (!rooms)
        return FAIL(ST_NO_MEMORY, "no memory to merge an adapter");
    const dora_row room = {weight, queue, rooms, rooms + rank * in, rooms + rank * in + rank};
    status st = lora_read(pair, queue, 0, rank * in, room.a);
    for (int64_t done = 0, part; done < count && st == ST_OK; done += part) {
        const int64_t at = (first + done) % in;
        part = in - at < count - done ? in - at : count - done;
        st = merge_row(&room, (first + done) / in);
        memcpy(to + done, room.full + at, (size_t)part * sizeof *to);
    }
    free(rooms);
    return st;
}

status lora_read_merged(const param *weight, stream *queue, int64_t first, int64_t count,
                        double *to)
{
    if (weight->dora)
        return read_dora(weight, queue, first, count, to);
    TRY(params_read_value(weight, queue, first - weight->own_first, count, to));
    return lora_merge(weight, queue, first, count, to);
}
