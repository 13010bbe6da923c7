/* fsdp.c: see fsdp.h. */
#include "trainer/parallel/fsdp.h"

#include <stdlib.h>

#include "trainer/ops/table.h"

enum { TURNS = 2 };

/* A buffer of weights and one of gradients, and who has them. Events tell only within a
 * micro-batch: one that was recorded before it must not be waited for (a step may be a captured
 * graph). */
typedef struct turn {
    int holds;                        /* unit whose weights are here; -1: none */
    event *gathered, *used, *reduced; /* behind the gather; the compute; the gradients' way out */
    bool was_used, was_reduced;
} turn;

struct fsdp_units {
    const mesh *mesh;
    unit_span *span;
    int64_t n;
    int n_units, lowest; /* first unit with gradients */
    int64_t *first;      /* [n_units + 1] spans of a unit */
    bool *stayed;        /* [n_units] what stays was gathered in this micro-batch */
    unit_options o;
    stream *side; /* collectives; NULL: the compute stream itself */
    event *edge;
    turn turn[TURNS];
    void *block;
};

int64_t unit_piece(int64_t count, int ranks)
{
    int64_t step = (int64_t)ranks * UNIT_ALIGN;
    return (count + step - 1) / step * UNIT_ALIGN;
}

/* What is laid out: weights or gradients, that take turns or that stay. */
typedef struct kind {
    bool gradients, stay;
    size_t size; /* of an element */
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

/* Units of a parity share bytes. */
static void take_turns(unit_span *list, int64_t n, const unit_options *o, const kind *k, space *sp)
{
    for (int t = 0; t < TURNS; t++) {
        size_t begin = space_mark(sp), end = begin;
        for (int64_t i = 0, of_unit; i < n; i += of_unit) {
            for (of_unit = 1; i + of_unit < n && list[i + of_unit].unit == list[i].unit;)
                of_unit++;
            if (list[i].unit % TURNS != t)
                continue;
            space_rewind(sp, begin);
            take_spans(list + i, of_unit, o, k, sp);
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

int64_t fsdp_units_bytes(unit_span *list, int64_t n, const unit_options *o, size_t act, size_t acc)
{
    space sp = {0};
    lay_out(list, n, o, act, acc, &sp);
    return (int64_t)sp.peak;
}

/* Which spans are whose, and where backward ends. */
static status index_units(fsdp_units *u)
{
    u->n_units = u->span[u->n - 1].unit + 1;
    u->lowest = u->n_units;
    u->first = calloc((size_t)u->n_units + 1, sizeof *u->first);
    u->stayed = calloc((size_t)u->n_units, sizeof *u->stayed);
    if (!u->first || !u->stayed)
        return FAIL(ST_NO_MEMORY, "no memory for %d units", u->n_units);
    for (int64_t i = u->n - 1; i >= 0; i--) {
        if (u->span[i].trained)
            u->lowest = u->span[i].unit;
        u->first[u->span[i].unit + 1]++;
    }
    for (int k = 0; k < u->n_units; k++)
        u->first[k + 1] += u->first[k];
    return ST_OK;
}

static status open_units(fsdp_units *u, stream *s)
{
    device *dev = s->dev;
    const backend_vtable *v = dev->v;
    TRY(index_units(u));
    if (v->ahead > 0)
        TRY(v->stream_new(dev, &u->side));
    TRY(v->event_new(dev, &u->edge));
    for (int t = 0; t < TURNS; t++) {
        TRY(v->event_new(dev, &u->turn[t].gathered));
        TRY(v->event_new(dev, &u->turn[t].used));
        TRY(v->event_new(dev, &u->turn[t].reduced));
    }
    size_t act = st_dtype_size(v->act), acc = st_dtype_size(v->acc);
    size_t bytes = (size_t)fsdp_units_bytes(u->span, u->n, &u->o, act, acc);
    TRY(v->alloc(dev, bytes, &u->block));
    for (int64_t i = 0; i < u->n; i++) {
        u->span[i].whole_act = u->span[i].act;
        u->span[i].whole_grad = u->span[i].grad;
    }
    lay_out(u->span, u->n, &u->o, act, acc, &(space){.base = u->block});
    return ST_OK;
}

status fsdp_units_new(stream *s, const mesh *m, unit_span *list, int64_t n, const unit_options *o,
                      fsdp_units **out)
{
    bool shared = false;
    for (int64_t i = 0; i < n; i++)
        shared |= list[i].ranks > 1;
    *out = NULL;
    if (!shared)
        return ST_OK;
    fsdp_units *u = calloc(1, sizeof *u);
    if (!u)
        return FAIL(ST_NO_MEMORY, "no memory for units");
    *u = (fsdp_units){.mesh = m, .span = list, .n = n, .o = *o};
    status st = open_units(u, s);
    if (st != ST_OK)
        fsdp_units_free(&u, s);
    else
        *out = u;
    return st;
}

void fsdp_units_free(fsdp_units **held, stream *s)
{
    fsdp_units *u = *held;
    if (!u)
        return;
    const backend_vtable *v = s->dev->v;
    if (u->block)
        v->release(s->dev, u->block);
    for (int t = 0; t < TURNS; t++) {
        event **each[] = {&u->turn[t].gathered, &u->turn[t].used, &u->turn[t].reduced};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            if (*each[i])
                v->event_free(each[i]);
    }
    if (u->edge)
        v->event_free(&u->edge);
    if (u->side)
        v->stream_free(&u->side);
    free(u->first);
    free(u->stayed);
    free(u);
    *held = NULL;
}

/* What is queued on `to` from here on runs behind what is queued on `from`. */
static status join_streams(fsdp_units *u, stream *from, stream *to)
{
    if (!u->side)
        return ST_OK;
    TRY(from->dev->v->event_record(from, u->edge));
    return from->dev->v->event_follow(to, u->edge);
}

/* The same where computing waits for a collective: told as part of it. */
static status wait_for(stream *s, event *e, const char *what)
{
    TRY(device_call_begins(s, what));
    TRY(s->dev->v->event_follow(s, e));
    return device_call_ended(s);
}

static stream *side_of(const fsdp_units *u, stream *s)
{
    return u->side ? u->side : s;
}

status fsdp_units_begin(fsdp_units *u, stream *s)
{
    if (!u)
        return ST_OK;
    for (int t = 0; t < TURNS; t++) {
        u->turn[t].holds = -1;
        u->turn[t].was_used = u->turn[t].was_reduced = false;
    }
    for (int k = 0; k < u->n_units; k++)
        u->stayed[k] = false;
    return join_streams(u, s, side_of(u, s));
}

status fsdp_units_end(fsdp_units *u, stream *s)
{
    if (!u || !u->side)
        return ST_OK;
    const bool trained = u->lowest < u->n_units; /* its reduction comes last */
    const bool vision = trained && u->span[u->first[u->lowest]].vision;
    TRY(s->dev->v->event_record(u->side, u->edge));
    return wait_for(s, u->edge, vision ? UNITS_REDUCE_VISION : UNITS_REDUCE);
}

static status gather_unit(const fsdp_units *u, stream *side, int unit, bool staying)
{
    const backend_vtable *v = side->dev->v;
    const kind k = {.stay = staying};
    for (int64_t i = u->first[unit]; i < u->first[unit + 1]; i++) {
        const unit_span *p = &u->span[i];
        comm_at at = {p->vision ? UNITS_GATHER_VISION : UNITS_GATHER, p->layer};
        if (is_of(p, &u->o, &k))
            TRY(comm_all_gather(mesh_comm(u->mesh, p->group), side, at, p->act, p->whole_act,
                                p->piece, v->act));
    }
    return ST_OK;
}

/* The unit's weights are on their way into its buffer. */
static status fetch_unit(fsdp_units *u, stream *s, int unit)
{
    const backend_vtable *v = s->dev->v;
    turn *t = &u->turn[unit % TURNS];
    stream *side = side_of(u, s);
    if (t->holds == unit)
        return ST_OK;
    if (t->was_used)
        TRY(v->event_follow(side, t->used));
    TRY(gather_unit(u, side, unit, false));
    if (!u->stayed[unit])
        TRY(gather_unit(u, side, unit, true));
    u->stayed[unit] = true;
    t->holds = unit;
    return v->event_record(side, t->gathered);
}

/* Will this unit's weights be read next? */
static bool is_next(const fsdp_units *u, int unit, unit_use use)
{
    if (use == UNIT_FORWARD)
        return unit < u->n_units;
    return unit >= u->lowest && !u->span[u->first[unit]].forward_only;
}

status fsdp_units_enter(fsdp_units *u, stream *s, int unit, unit_use use)
{
    if (!u)
        return ST_OK;
    const bool vision = u->span[u->first[unit]].vision;
    turn *t = &u->turn[unit % TURNS];
    if (use != UNIT_FORWARD && t->was_reduced)
        TRY(wait_for(s, t->reduced, vision ? UNITS_REDUCE_VISION : UNITS_REDUCE));
    if (use != UNIT_GRADIENT) {
        TRY(fetch_unit(u, s, unit));
        TRY(wait_for(s, t->gathered, vision ? UNITS_GATHER_VISION : UNITS_GATHER));
    }
    int next = use == UNIT_FORWARD ? unit + 1 : unit - 1;
    return is_next(u, next, use) ? fetch_unit(u, s, next) : ST_OK;
}

/* Sums over the group; this rank's piece joins what it stores. */
static status reduce_unit(const fsdp_units *u, stream *side, int unit)
{
    const backend_vtable *v = side->dev->v;
    const size_t size = st_dtype_size(v->acc);
    for (int64_t i = u->first[unit]; i < u->first[unit + 1]; i++) {
        const unit_span *p = &u->span[i];
        comm_at at = {p->vision ? UNITS_REDUCE_VISION : UNITS_REDUCE, p->layer};
        if (p->ranks == 1 || !p->trained)
            continue;
        void *mine = (char *)p->whole_grad + (size_t)(p->rank * p->piece) * size;
        TRY(comm_reduce_scatter(mesh_comm(u->mesh, p->group), side, at, p->whole_grad, mine,
                                p->piece, v->acc));
        TRY(op_add(side, &(add_args){.n = p->piece, .a = mine, .y = p->grad, .acc = true}));
        TRY(v->zero(side, p->whole_grad, (size_t)(p->ranks * p->piece) * size));
    }
    return ST_OK;
}

status fsdp_units_leave(fsdp_units *u, stream *s, int unit, unit_use use)
{
    if (!u)
        return ST_OK;
    const backend_vtable *v = s->dev->v;
    turn *t = &u->turn[unit % TURNS];
    TRY(v->event_record(s, t->used));
    t->was_used = true;
    if (use == UNIT_FORWARD)
        return ST_OK;
    stream *side = side_of(u, s);
    TRY(v->event_follow(side, t->used));
    TRY(reduce_unit(u, side, unit));
    TRY(v->event_record(side, t->reduced));
    t->was_reduced = true;
    return ST_OK;
}
