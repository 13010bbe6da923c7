/* fsdp.c: implements fsdp.h. While a unit is computed, the side stream gathers the weights of the
 * next one and reduces the gradients of the one before. The buffers take turns by the parity of a
 * unit's number, so the next unit and the one before are always in the other buffer, both in a
 * forward and in a backward pass. Spans that stay whole have memory of their own. */
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
    stream *side; /* of collectives; NULL: they run on the compute stream */
    event *edge;
    turn turn[TURNS];
    void *block; /* the memory of all buffers */
};

int64_t unit_piece(int64_t count, int ranks)
{
    int64_t step = (int64_t)ranks * UNIT_ALIGN;
    return (count + step - 1) / step * UNIT_ALIGN;
}

/* Which buffers are laid out: weights or gradients, of spans that take turns or that stay. */
typedef struct kind {
    bool gradients, stay;
    size_t size; /* bytes of an element */
} kind;

static bool is_of(const unit_span *p, const unit_options *o, const kind *k)
{
    if (p->ranks == 1 || (k->gradients && !(p->trained && o->training)))
        return false;
    return k->stay == (p->stays || (!k->gradients && !o->reshard));
}

static void take_spans(unit_span *list, int64_t n, const unit_options *o, const kind *k, space *sp)
{
    for (int64_t i = 0; i < n; i++)
        if (is_of(&list[i], o, k)) {
            void *at = space_take(sp, list[i].piece * list[i].ranks, k->size);
            if (sp->base)
                *(k->gradients ? &list[i].whole_grad : &list[i].whole_act) = at;
        }
}

/* All units of one parity share the same bytes, as many as the largest of them needs. */
static void take_turns(unit_span *list, int64_t n, const unit_options *options, const kind *k,
                       space *sp)
{
    for (int t = 0; t < TURNS; t++) {
        size_t begin = space_mark(sp), end = begin;
        for (int64_t i = 0, of_unit; i < n; i += of_unit) {
            for (of_unit = 1; i + of_unit < n && list[i + of_unit].unit == list[i].unit;)
                of_unit++;
            if (list[i].unit % TURNS != t)
                continue;
            space_rewind(sp, begin);
            take_spans(list + i, of_unit, options, k, sp);
            end = sp->used > end ? sp->used : end;
        }
        space_rewind(sp, end);
    }
}

static void lay_out(unit_span *list, int64_t n, const unit_options *o, size_t act, size_t acc,
                    space *sp)
{
    take_spans(list, n, o, &(kind){.stay = true, .size = act}, sp);
    take_spans(list, n, o, &(kind){.gradients = true, .stay = true, .size = acc}, sp);
    take_turns(list, n, o, &(kind){.size = act}, sp);
    take_turns(list, n, o, &(kind){.gradients = true, .size = acc}, sp);
}

int64_t fsdp_units_bytes(unit_span *list, int64_t n, const unit_options *options, size_t act,
                         size_t acc)
{
    space sp = {0};
    lay_out(list, n, options, act, acc, &sp);
    return (int64_t)sp.peak;
}

/* Finds the spans of each unit, and the unit at which a backward pass ends. */
static status index_units(fsdp_units *u)
{
    u->n_units = u->span[u->count - 1].unit + 1;
    u->lowest = u->n_units;
    u->first = calloc((size_t)u->n_units + 1, sizeof *u->first);
    u->stayed = calloc((size_t)u->n_units, sizeof *u->stayed);
    if (!u->first || !u->stayed)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %d FSDP units", u->n_units);
    for (int64_t i = u->count - 1; i >= 0; i--) {
        if (u->span[i].trained)
            u->lowest = u->span[i].unit;
        u->first[u->span[i].unit + 1]++;
    }
    for (int k = 0; k < u->n_units; k++)
        u->first[k + 1] += u->first[k];
    return ST_OK;
}

static status open_units(fsdp_units *units, stream *s)
{
    device *dev = s->dev;
    const backend_vtable *v = dev->backend;
    TRY(index_units(units));
    if (v->ahead > 0)
        TRY(v->stream_new(dev, &units->side));
    TRY(v->event_new(dev, &units->edge));
    for (int t = 0; t < TURNS; t++) {
        TRY(v->event_new(dev, &units->turn[t].gathered));
        TRY(v->event_new(dev, &units->turn[t].used));
        TRY(v->event_new(dev, &units->turn[t].reduced));
    }
    size_t act = st_dtype_size(v->act), acc = st_dtype_size(v->acc);
    size_t bytes = (size_t)fsdp_units_bytes(units->span, units->count, &units->options, act, acc);
    TRY(v->alloc(dev, bytes, &units->block));
    for (int64_t i = 0; i < units->count; i++) {
        units->span[i].whole_act = units->span[i].act;
        units->span[i].whole_grad = units->span[i].grad;
    }
    lay_out(units->span, units->count, &units->options, act, acc, &(space){.base = units->block});
    return ST_OK;
}

status fsdp_units_new(stream *s, const mesh *ranks, unit_span *list, int64_t n,
                      const unit_options *options, fsdp_units **out)
{
    bool shared = false;
    for (int64_t i = 0; i < n; i++)
        shared |= list[i].ranks > 1;
    *out = NULL;
    if (!shared)
        return ST_OK;
    fsdp_units *units = calloc(1, sizeof *units);
    if (!units)
        return FAIL(ST_NO_MEMORY, "no memory for the FSDP units");
    *units = (fsdp_units){.mesh = ranks, .span = list, .count = n, .options = *options};
    status st = open_units(units, s);
    if (st != ST_OK)
        fsdp_units_free(&units, s);
    else
        *out = units;
    return st;
}

void fsdp_units_free(fsdp_units **held, stream *s)
{
    fsdp_units *units = *held;
    if (!units)
        return;
    const backend_vtable *v = s->dev->backend;
    if (units->block)
        v->release(s->dev, units->block);
    for (int t = 0; t < TURNS; t++) {
        event **each[] = {&units->turn[t].gathered, &units->turn[t].used, &units->turn[t].reduced};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            if (*each[i])
                v->event_free(each[i]);
    }
    if (units->edge)
        v->event_free(&units->edge);
    if (units->side)
        v->stream_free(&units->side);
    free(units->first);
    free(units->stayed);
    free(units);
    *held = NULL;
}

/* Makes what is queued on `to` from here on run after what is queued on `from`. */
static status join_streams(fsdp_units *u, stream *from, stream *to)
{
    if (!u->side)
        return ST_OK;
    TRY(from->dev->backend->event_record(from, u->edge));
    return from->dev->backend->event_follow(to, u->edge);
}

/* Lets the compute stream wait for a collective; a profile counts the wait as part of it. */
static status wait_for(stream *s, event *e, const char *what)
{
    TRY(device_call_begins(s, what));
    TRY(s->dev->backend->event_follow(s, e));
    return device_call_ended(s);
}

static stream *side_of(const fsdp_units *u, stream *s)
{
    return u->side ? u->side : s;
}

status fsdp_units_begin(fsdp_units *units, stream *s)
{
    if (!units)
        return ST_OK;
    for (int t = 0; t < TURNS; t++) {
        units->turn[t].holds = -1;
        units->turn[t].was_used = units->turn[t].was_reduced = false;
    }
    for (int k = 0; k < units->n_units; k++)
        units->stayed[k] = false;
    return join_streams(units, s, side_of(units, s));
}

status fsdp_units_end(fsdp_units *units, stream *s)
{
    if (!units || !units->side)
        return ST_OK;
    const bool trained = units->lowest < units->n_units; /* the lowest unit is reduced last */
    const bool vision = trained && units->span[units->first[units->lowest]].vision;
    TRY(s->dev->backend->event_record(units->side, units->edge));
    return wait_for(s, units->edge, vision ? UNITS_REDUCE_VISION : UNITS_REDUCE);
}

static status gather_unit(const fsdp_units *units, stream *side, int unit, bool staying)
{
    const backend_vtable *v = side->dev->backend;
    const kind k = {.stay = staying};
    for (int64_t i = units->first[unit]; i < units->first[unit + 1]; i++) {
        const unit_span *part = &units->span[i];
        comm_at at = {part->vision ? UNITS_GATHER_VISION : UNITS_GATHER, part->layer};
        if (is_of(part, &units->options, &k))
            TRY(comm_all_gather(mesh_comm(units->mesh, part->group), side, at, part->act,
                                part->whole_act, part->piece, v->act));
    }
    return ST_OK;
}

/* Begins to gather the unit's weights into its buffer, unless they are there already. */
static status fetch_unit(fsdp_units *units, stream *s, int unit)
{
    const backend_vtable *v = s->dev->backend;
    turn *buffer = &units->turn[unit % TURNS];
    stream *side = side_of(units, s);
    if (buffer->holds == unit)
        return ST_OK;
    if (buffer->was_used)
        TRY(v->event_follow(side, buffer->used));
    TRY(gather_unit(units, side, unit, false));
    if (!units->stayed[unit])
        TRY(gather_unit(units, side, unit, true));
    units->stayed[unit] = true;
    buffer->holds = unit;
    return v->event_record(side, buffer->gathered);
}

/* Whether this unit exists and its weights will be read next. */
static bool is_next(const fsdp_units *u, int unit, unit_use use)
{
    if (use == UNIT_FORWARD)
        return unit < u->n_units;
    return unit >= u->lowest && !u->span[u->first[unit]].forward_only;
}

status fsdp_units_enter(fsdp_units *units, stream *s, int unit, unit_use use)
{
    if (!units)
        return ST_OK;
    const bool vision = units->span[units->first[unit]].vision;
    turn *t = &units->turn[unit % TURNS];
    if (use != UNIT_FORWARD && t->was_reduced)
        TRY(wait_for(s, t->reduced, vision ? UNITS_REDUCE_VISION : UNITS_REDUCE));
    if (use != UNIT_GRADIENT) {
        TRY(fetch_unit(units, s, unit));
        TRY(wait_for(s, t->gathered, vision ? UNITS_GATHER_VISION : UNITS_GATHER));
    }
    int next = use == UNIT_FORWARD ? unit + 1 : unit - 1;
    return is_next(units, next, use) ? fetch_unit(units, s, next) : ST_OK;
}

/* Sums the unit's gradients over the ranks, adds this rank's piece to what it stores, and clears
 * the buffer. */
static status reduce_unit(const fsdp_units *units, stream *side, int unit)
{
    const backend_vtable *v = side->dev->backend;
    const size_t size = st_dtype_size(v->acc);
    for (int64_t i = units->first[unit]; i < units->first[unit + 1]; i++) {
        const unit_span *part = &units->span[i];
        comm_at at = {part->vision ? UNITS_REDUCE_VISION : UNITS_REDUCE, part->layer};
        if (part->ranks == 1 || !part->trained)
            continue;
        void *mine = (char *)part->whole_grad + (size_t)(part->rank * part->piece) * size;
        TRY(comm_reduce_scatter(mesh_comm(units->mesh, part->group), side, at, part->whole_grad,
                                mine, part->piece, v->acc));
        TRY(op_add(side, &(add_args){.n = part->piece, .a = mine, .y = part->grad, .acc = true}));
        TRY(v->zero(side, part->whole_grad, (size_t)(part->ranks * part->piece) * size));
    }
    return ST_OK;
}

status fsdp_units_leave(fsdp_units *units, stream *s, int unit, unit_use use)
{
    if (!units)
        return ST_OK;
    const backend_vtable *v = s->dev->backend;
    turn *buffer = &units->turn[unit % TURNS];
    TRY(v->event_record(s, buffer->used));
    buffer->was_used = true;
    if (use == UNIT_FORWARD)
        return ST_OK;
    stream *side = side_of(units, s);
    TRY(v->event_follow(side, buffer->used));
    TRY(reduce_unit(units, side, unit));
    TRY(v->event_record(side, buffer->reduced));
    buffer->was_reduced = true;
    return ST_OK;
}
