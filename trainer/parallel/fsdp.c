/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp.c: implements fsdp.h. While a unit is computed, the side stream gathers the weights of the
 * next one and reduces the gradients of the one before. The buffers take turns by the parity of a
 * unit's number, so the next unit and the one before are always in the other buffer, both in a
 * forward and in a backward pass. Spans that stay whole have their own memory. */
#include "trainer/parallel/fsdp.h"

#include <stdlib.h>

#include "trainer/ops/table.h"

enum { TURNS = 2 };

/* A buffer of weights and one of gradients, and the unit that has them. The events hold within a
 * micro-batch only: an event that was recorded before it must not be waited for, since the step may
 * be a captured graph. */
typedef struct turn {
    int holds;                        /* the unit whose weights are here; -1: none */
    event *gathered, *used, *reduced; /* after the gather; the computing; the reduction */
    bool was_used, was_reduced;       /* these events were recorded in this micro-batch */
} turn;

struct fsdp_units {
    const mesh *mesh;
    unit_span *span;
    int64_t count;
    int n_units, lowest; /* lowest: the first unit with gradients */
    int64_t *first;      /* [n_units + 1] unit k has the spans [first[k], first[k + 1]) */
    bool *stayed;        /* [n_units] the unit's staying spans were gathered in this micro-batch */
    unit_options options;
    unit_update update; /* with options.in_backward */
    stream *side;       /* of collectives and updates; NULL: they run on the compute stream */
    event *edge;
    turn turn[TURNS];
    void *block; /* the memory of all buffers */
};

int64_t unit_piece(int64_t count, int ranks, int64_t align)
{
    int64_t step = (int64_t)ranks * align;
    return (count + step - 1) / step * align;
}

/* Which buffers are laid out: weights or gradients, of spans that take turns or that stay. */
typedef struct kind {
    bool gradients, stay;
    size_t size; /* bytes of an element */
} kind;

static bool is_of(const unit_span *of, const unit_options *options, const kind *wanted)
{
    if (wanted->gradients && !(of->trained && options->training))
        return false;
    if (of->ranks == 1 && !(wanted->gradients ? options->in_backward : of->on_host))
        return false;
    return wanted->stay == (of->stays || (!wanted->gradients && !options->reshard));
}

static size_t element_of(const unit_span *part, const kind *wanted)
{
    return !wanted->gradients && part->element_bytes ? (size_t)part->element_bytes : wanted->size;
}

static void take_spans(unit_span *list, int64_t of_unit, const unit_options *options,
                       const kind *wanted, space *sp)
{
    for (int64_t i = 0; i < of_unit; i++)
        if (is_of(&list[i], options, wanted)) {
            void *at = space_take(sp, list[i].piece * list[i].ranks, element_of(&list[i], wanted));
            if (sp->base)
                *(wanted->gradients ? &list[i].whole_grad : &list[i].whole_act) = at;
        }
}

/* All units of one parity share the same bytes, as many as the largest of them needs. */
static void take_turns(unit_span *list, int64_t count, const unit_options *options,
                       const kind *wanted, space *sp)
{
    for (int j = 0; j < TURNS; j++) {
        size_t begin = space_mark(sp), end = begin;
        for (int64_t i = 0, of_unit; i < count; i += of_unit) {
            for (of_unit = 1; i + of_unit < count && list[i + of_unit].unit == list[i].unit;)
                of_unit++;
            if (list[i].unit % TURNS != j)
                continue;
            space_rewind(sp, begin);
            take_spans(list + i, of_unit, options, wanted, sp);
            end = sp->used > end ? sp->used : end;
        }
        space_rewind(sp, end);
    }
}

static void lay_out(unit_span *list, int64_t count, const unit_options *options, size_t act,
                    size_t acc, space *sp)
{
    take_spans(list, count, options, &(kind){.stay = true, .size = act}, sp);
    take_spans(list, count, options, &(kind){.gradients = true, .stay = true, .size = acc}, sp);
    take_turns(list, count, options, &(kind){.size = act}, sp);
    take_turns(list, count, options, &(kind){.gradients = true, .size = acc}, sp);
}

int64_t fsdp_units_bytes(unit_span *list, int64_t count, const unit_options *options, size_t act,
                         size_t acc)
{
    space sp = {0};
    lay_out(list, count, options, act, acc, &sp);
    return (int64_t)sp.peak;
}

/* Finds the spans of each unit, and the unit at which a backward pass ends. */
static status index_units(fsdp_units *units)
{
    units->n_units = units->span[units->count - 1].unit + 1;
    units->lowest = units->n_units;
    units->first = calloc((size_t)units->n_units + 1, sizeof *units->first);
    units->stayed = calloc((size_t)units->n_units, sizeof *units->stayed);
    if (!units->first || !units->stayed)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %d FSDP units", units->n_units);
    for (int64_t i = units->count - 1; i >= 0; i--) {
        if (units->span[i].trained)
            units->lowest = units->span[i].unit;
        units->first[units->span[i].unit + 1]++;
    }
    for (int k = 0; k < units->n_units; k++)
        units->first[k + 1] += units->first[k];
    return ST_OK;
}

static status open_units(fsdp_units *units, stream *queue)
{
    device *dev = queue->dev;
    const backend_vtable *backend = dev->backend;
    TRY(index_units(units));
    if (backend->ahead > 0)
        TRY(device_urgent_stream(dev, &units->side));
    TRY(backend->event_new(dev, &units->edge));
    for (int j = 0; j < TURNS; j++) {
        TRY(backend->event_new(dev, &units->turn[j].gathered));
        TRY(backend->event_new(dev, &units->turn[j].used));
        TRY(backend->event_new(dev, &units->turn[j].reduced));
    }
    size_t act = st_dtype_size(backend->act), acc = st_dtype_size(backend->acc);
    size_t bytes = (size_t)fsdp_units_bytes(units->span, units->count, &units->options, act, acc);
    TRY(backend->alloc(dev, bytes, &units->block));
    for (int64_t i = 0; i < units->count; i++) {
        units->span[i].whole_act = units->span[i].act;
        units->span[i].whole_grad = units->span[i].grad;
    }
    lay_out(units->span, units->count, &units->options, act, acc, &(space){.base = units->block});
    for (int64_t i = 0; i < units->count && units->options.in_backward; i++) {
        unit_span *part = &units->span[i];
        if (part->whole_grad)
            part->grad = (char *)part->whole_grad + (size_t)(part->rank * part->piece) * acc;
    }
    return ST_OK;
}

status fsdp_units_new(stream *queue, const mesh *ranks, unit_span *list, int64_t count,
                      const unit_options *options, fsdp_units **out)
{
    bool wanted = false;
    for (int64_t i = 0; i < count; i++)
        wanted |= list[i].ranks > 1 || list[i].on_host || (options->in_backward && list[i].trained);
    *out = NULL;
    if (!wanted)
        return ST_OK;
    fsdp_units *units = calloc(1, sizeof *units);
    if (!units)
        return FAIL(ST_NO_MEMORY, "no memory for the FSDP units");
    *units = (fsdp_units){.mesh = ranks, .span = list, .count = count, .options = *options};
    status st = open_units(units, queue);
    if (st != ST_OK)
        fsdp_units_free(&units, queue);
    else
        *out = units;
    return st;
}

void fsdp_units_free(fsdp_units **held, stream *queue)
{
    fsdp_units *units = *held;
    if (!units)
        return;
    const backend_vtable *backend = queue->dev->backend;
    if (units->block)
        backend->release(queue->dev, units->block);
    for (int j = 0; j < TURNS; j++) {
        event **each[] = {&units->turn[j].gathered, &units->turn[j].used, &units->turn[j].reduced};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            if (*each[i])
                backend->event_free(each[i]);
    }
    if (units->edge)
        backend->event_free(&units->edge);
    if (units->side)
        backend->stream_free(&units->side);
    free(units->first);
    free(units->stayed);
    free(units);
    *held = NULL;
}

/* Makes what is queued on `to` from here on run after what is queued on `from`. */
static status join_streams(fsdp_units *units, stream *from, stream *to)
{
    if (!units->side)
        return ST_OK;
    TRY(from->dev->backend->event_record(from, units->edge));
    return from->dev->backend->event_follow(to, units->edge);
}

/* Lets the compute stream wait for a collective; a profile counts the wait as part of it. */
static status wait_for(stream *queue, event *moment, const char *what)
{
    TRY(device_call_begins(queue, what));
    TRY(queue->dev->backend->event_follow(queue, moment));
    return device_call_ended(queue);
}

static stream *side_of(const fsdp_units *units, stream *queue)
{
    return units->side ? units->side : queue;
}

status fsdp_units_begin(fsdp_units *units, stream *queue)
{
    if (!units)
        return ST_OK;
    for (int i = 0; i < TURNS; i++) {
        units->turn[i].holds = -1;
        units->turn[i].was_used = units->turn[i].was_reduced = false;
    }
    for (int k = 0; k < units->n_units; k++)
        units->stayed[k] = false;
    return join_streams(units, queue, side_of(units, queue));
}

status fsdp_units_end(fsdp_units *units, stream *queue)
{
    if (!units || !units->side)
        return ST_OK;
    const bool trained = units->lowest < units->n_units; /* the lowest unit is reduced last */
    const bool vision = trained && units->span[units->first[units->lowest]].vision;
    TRY(queue->dev->backend->event_record(units->side, units->edge));
    return wait_for(queue, units->edge, vision ? UNITS_REDUCE_VISION : UNITS_REDUCE);
}

/* Brings a span to where it is read: this rank's piece from the host, if it rests there, and then
 * the pieces of all ranks. */
static status gather_span(const fsdp_units *units, stream *side, const unit_span *part)
{
    const backend_vtable *backend = side->dev->backend;
    const comm_at at = {part->vision ? UNITS_GATHER_VISION : UNITS_GATHER, part->layer};
    const int64_t count = part->piece * (part->element_bytes ? part->element_bytes : 1);
    const st_dtype dtype = part->element_bytes ? DT_U8 : backend->act;
    const size_t bytes = (size_t)count * st_dtype_size(dtype);
    const void *piece = part->act;
    if (part->on_host) {
        char *own = (char *)part->whole_act + (size_t)part->rank * bytes;
        TRY(backend->copy(side, own, part->act, bytes));
        piece = own;
    }
    if (part->ranks == 1)
        return ST_OK;
    return comm_all_gather(mesh_comm(units->mesh, part->group), side, at, piece, part->whole_act,
                           count, dtype);
}

static status gather_unit(const fsdp_units *units, stream *side, int unit, bool staying)
{
    const kind wanted = {.stay = staying};
    for (int64_t i = units->first[unit]; i < units->first[unit + 1]; i++)
        if (is_of(&units->span[i], &units->options, &wanted))
            TRY(gather_span(units, side, &units->span[i]));
    return ST_OK;
}

/* Begins to gather the unit's weights into its buffer, unless they are there already. */
static status fetch_unit(fsdp_units *units, stream *queue, int unit)
{
    const backend_vtable *backend = queue->dev->backend;
    turn *buffer = &units->turn[unit % TURNS];
    stream *side = side_of(units, queue);
    if (buffer->holds == unit)
        return ST_OK;
    if (buffer->was_used)
        TRY(backend->event_follow(side, buffer->used));
    TRY(gather_unit(units, side, unit, false));
    if (!units->stayed[unit])
        TRY(gather_unit(units, side, unit, true));
    units->stayed[unit] = true;
    buffer->holds = unit;
    return backend->event_record(side, buffer->gathered);
}

/* Whether this unit exists and its weights will be read next. */
static bool is_next(const fsdp_units *units, int unit, unit_use use)
{
    if (use == UNIT_FORWARD)
        return unit < units->n_units;
    return unit >= units->lowest && !units->span[units->first[unit]].forward_only;
}

status fsdp_units_enter(fsdp_units *units, stream *queue, int unit, unit_use use)
{
    if (!units)
        return ST_OK;
    const bool vision = units->span[units->first[unit]].vision;
    turn *said = &units->turn[unit % TURNS];
    if (use != UNIT_FORWARD && said->was_reduced)
        TRY(wait_for(queue, said->reduced, vision ? UNITS_REDUCE_VISION : UNITS_REDUCE));
    if (use != UNIT_GRADIENT) {
        TRY(fetch_unit(units, queue, unit));
        TRY(wait_for(queue, said->gathered, vision ? UNITS_GATHER_VISION : UNITS_GATHER));
    }
    int next = use == UNIT_FORWARD ? unit + 1 : unit - 1;
    return is_next(units, next, use) ? fetch_unit(units, queue, next) : ST_OK;
}

/* Sums a span's gradients over the ranks that store it together. *out_mine: this rank's piece. */
static status reduce_span(const fsdp_units *units, stream *side, const unit_span *part,
                          void **out_mine)
{
    const backend_vtable *backend = side->dev->backend;
    const comm_at at = {part->vision ? UNITS_REDUCE_VISION : UNITS_REDUCE, part->layer};
    *out_mine =
        (char *)part->whole_grad + (size_t)(part->rank * part->piece) * st_dtype_size(backend->acc);
    if (part->ranks == 1)
        return ST_OK;
    return comm_reduce_scatter(mesh_comm(units->mesh, part->group), side, at, part->whole_grad,
                               *out_mine, part->piece, backend->acc);
}

/* Clears the buffer of a span's gradients. */
static status clear_span(const unit_span *part, stream *side)
{
    const backend_vtable *backend = side->dev->backend;
    return backend->zero(side, part->whole_grad,
                         (size_t)(part->ranks * part->piece) * st_dtype_size(backend->acc));
}

/* Sums the unit's gradients over all ranks, lets them be used, and clears the buffer. */
static status update_unit(const fsdp_units *units, stream *side, int unit)
{
    const backend_vtable *backend = side->dev->backend;
    bool trained = false;
    void *mine;
    for (int64_t i = units->first[unit]; i < units->first[unit + 1]; i++) {
        const unit_span *part = &units->span[i];
        if (!part->trained)
            continue;
        trained = true;
        TRY(reduce_span(units, side, part, &mine));
        if (units->mesh)
            TRY(comm_all_reduce(mesh_comm(units->mesh, MESH_REPLICATE), side,
                                (comm_at){"sum replicas' gradients", part->layer}, mine,
                                part->piece, backend->acc, COMM_SUM));
    }
    if (!trained)
        return ST_OK;
    TRY(units->update.update(units->update.user, side, unit));
    for (int64_t i = units->first[unit]; i < units->first[unit + 1]; i++)
        if (units->span[i].trained)
            TRY(clear_span(&units->span[i], side));
    return ST_OK;
}

void fsdp_units_update(fsdp_units *units, const unit_update *update)
{
    if (units)
        units->update = *update;
}

/* Sums the unit's gradients over the ranks, adds this rank's piece to what it stores, and clears
 * the buffer. */
static status reduce_unit(const fsdp_units *units, stream *side, int unit)
{
    void *mine;
    for (int64_t i = units->first[unit]; i < units->first[unit + 1]; i++) {
        const unit_span *part = &units->span[i];
        if (part->ranks == 1 || !part->trained)
            continue;
        TRY(reduce_span(units, side, part, &mine));
        TRY(op_add(side, &(add_args){.n = part->piece, .a = mine, .y = part->grad, .acc = true}));
        TRY(clear_span(part, side));
    }
    return ST_OK;
}

status fsdp_units_leave(fsdp_units *units, stream *queue, int unit, unit_use use)
{
    if (!units)
        return ST_OK;
    const backend_vtable *backend = queue->dev->backend;
    turn *buffer = &units->turn[unit % TURNS];
    TRY(backend->event_record(queue, buffer->used));
    buffer->was_used = true;
    if (use == UNIT_FORWARD)
        return ST_OK;
    stream *side = side_of(units, queue);
    TRY(backend->event_follow(side, buffer->used));
    TRY(units->options.in_backward ? update_unit(units, side, unit)
                                   : reduce_unit(units, side, unit));
    TRY(backend->event_record(side, buffer->reduced));
    buffer->was_reduced = true;
    return ST_OK;
}
