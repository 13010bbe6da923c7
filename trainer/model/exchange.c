/* exchange.c: the exchange of exchange.h by the host.
 *
 * An owner takes its rows in the order (expert, sending rank, slot); round j has the rows
 * [j R, (j + 1) R) of that order. The rows that one rank sends in a round are consecutive slots of
 * it, since its slots are sorted by expert too. So a round is an all-to-all of such runs, followed
 * by a permutation from the order of ranks to the order of experts. */
#include <stdlib.h>
#include <string.h>

#include "trainer/model/exchange_rounds.h"
#include "trainer/ops/table.h"

status exchange_open(exchange *e, const text_dims *d, const layout *l, int64_t slots)
{
    size_t ranks = (size_t)l->expert, rows = (size_t)exchange_rows_for(slots) + 1;
    *e = (exchange){.rows = exchange_rows_for(slots),
                    .slots = slots,
                    .host_borders = calloc(ranks * (size_t)(d->experts + 1), sizeof(int32_t)),
                    .host_offset = calloc((size_t)d->experts + 1, sizeof(int32_t)),
                    .host_from = calloc(rows, sizeof(int32_t)),
                    .host_to = calloc(rows, sizeof(int32_t)),
                    .send_first = calloc(5 * ranks, sizeof(int64_t))};
    if (!e->host_borders || !e->host_offset || !e->host_from || !e->host_to || !e->send_first) {
        exchange_close(e);
        return FAIL(ST_NO_MEMORY, "no memory to exchange %lld slots", (long long)slots);
    }
    e->send_count = e->send_first + ranks;
    e->came_first = e->send_count + ranks;
    e->came_count = e->came_first + ranks;
    e->next = e->came_count + ranks;
    return ST_OK;
}

void exchange_close(exchange *e)
{
    free(e->host_borders);
    free(e->host_offset);
    free(e->host_from);
    free(e->host_to);
    free(e->send_first);
    *e = (exchange){0};
}

/* One forward or backward over a layer. */
typedef struct pass {
    const pass_context *r;
    const exchange *e;
    const exchange_weights *w;
    const comm *c;
    int64_t experts, own; /* E, and how many of them this rank has */
    int64_t rounds;
    int64_t rows; /* that this rank receives in the current round */
} pass;

/* How many slots rank `from` has for expert x. */
static int64_t slots_of(const pass *p, int from, int64_t x)
{
    const int32_t *b = p->e->host_borders + from * (p->experts + 1);
    return b[x + 1] - b[x];
}

/* On a device without storage there are no choices to read, so every expert gets equally many
 * slots. */
static void even_borders(const pass *p)
{
    const layout *l = &p->r->mesh->layout;
    const int64_t tokens = l->expert_tensor > 1 ? p->r->context_tokens : p->r->n.tokens;
    for (int from = 0; from < p->c->size; from++)
        for (int64_t x = 0; x <= p->experts; x++)
            p->e->host_borders[from * (p->experts + 1) + x] =
                (int32_t)(tokens * p->r->d->text.top_k * x / p->experts);
}

/* Gathers every rank's offsets to the host, and counts the rounds that the fullest owner needs. */
static status gather_borders(pass *p, const int32_t *offset)
{
    const backend_vtable *v = p->r->s->dev->v;
    const exchange *e = p->e;
    int64_t n = p->experts + 1, most = 0;
    TRY(comm_all_gather(p->c, p->r->s, (comm_at){"gather expert counts", p->w->layer}, offset,
                        e->borders, n, DT_I32));
    TRY(v->to_host(p->r->s, e->host_borders, e->borders,
                   (size_t)(p->c->size * n) * sizeof(int32_t)));
    TRY(v->wait(p->r->s));
    if (!device_has_storage(p->r->s->dev))
        even_borders(p);
    for (int owner = 0; owner < p->c->size; owner++) {
        int64_t rows = 0;
        for (int from = 0; from < p->c->size; from++) {
            const int32_t *b = e->host_borders + from * n + owner * p->own;
            rows += b[p->own] - b[0];
        }
        most = rows > most ? rows : most;
    }
    p->rounds = (most + e->rows - 1) / e->rows;
    return ST_OK;
}

/* How many of [at, at + n) lie inside [begin, begin + room); *out_first: the first, from `at`. */
static int64_t overlap(int64_t at, int64_t n, int64_t begin, int64_t room, int64_t *out_first)
{
    int64_t first = begin > at ? begin - at : 0, end = begin + room - at;
    end = end < n ? end : n;
    *out_first = first;
    return end > first ? end - first : 0;
}

/* Computes what this rank sends to each owner in a round. */
static void plan_sends(const pass *p, int64_t round)
{
    const exchange *e = p->e;
    const int32_t *mine = e->host_borders + p->c->rank * (p->experts + 1);
    for (int owner = 0; owner < p->c->size; owner++) {
        int64_t at = 0, first;
        e->send_first[owner] = e->send_count[owner] = 0;
        for (int64_t x = owner * p->own; x < (owner + 1) * p->own; x++)
            for (int from = 0; from < p->c->size; from++) {
                int64_t slots = slots_of(p, from, x);
                int64_t n = overlap(at, slots, round * e->rows, e->rows, &first);
                at += slots;
                if (from != p->c->rank || n == 0)
                    continue;
                if (e->send_count[owner] == 0)
                    e->send_first[owner] = mine[x] + first;
                e->send_count[owner] += n;
            }
    }
}

/* Computes what this rank receives in a round: a run from each rank, and their order by expert. */
static void plan_rows(pass *p, int64_t round)
{
    const exchange *e = p->e;
    const int64_t begin = round * e->rows, mine = p->c->rank * p->own;
    int64_t first, at = 0, n_rows = 0;
    memset(e->came_count, 0, (size_t)p->c->size * sizeof *e->came_count);
    for (int64_t x = mine; x < mine + p->own; x++)
        for (int from = 0; from < p->c->size; from++) {
            int64_t slots = slots_of(p, from, x);
            e->came_count[from] += overlap(at, slots, begin, e->rows, &first);
            at += slots;
        }
    for (int from = 0, sum = 0; from < p->c->size; sum += (int)e->came_count[from++])
        e->next[from] = e->came_first[from] = sum;
    at = 0;
    for (int64_t x = 0; x < p->own; x++) {
        e->host_offset[x] = (int32_t)n_rows;
        for (int from = 0; from < p->c->size; from++) {
            int64_t slots = slots_of(p, from, mine + x);
            int64_t n = overlap(at, slots, begin, e->rows, &first);
            at += slots;
            for (; n > 0; n--, n_rows++) {
                e->host_from[n_rows] = (int32_t)e->next[from];
                e->host_to[e->next[from]++] = (int32_t)n_rows;
            }
        }
    }
    e->host_offset[p->own] = (int32_t)n_rows;
    p->rows = n_rows;
}

static status plan_round(pass *p, int64_t round)
{
    const backend_vtable *v = p->r->s->dev->v;
    const exchange *e = p->e;
    stream *s = p->r->s;
    size_t bytes;
    TRY(v->wait(s)); /* until the device has read the lists of the round before */
    plan_sends(p, round);
    plan_rows(p, round);
    bytes = (size_t)p->rows * sizeof(int32_t);
    TRY(v->to_device(s, e->offset, e->host_offset, (size_t)(p->own + 1) * sizeof(int32_t)));
    if (bytes == 0)
        return ST_OK;
    TRY(v->to_device(s, e->from, e->host_from, bytes));
    return v->to_device(s, e->to, e->host_to, bytes);
}

/* Turns counts of rows into counts of elements, or back. */
static void scale_counts(const pass *p, int64_t *list, bool to_elements)
{
    for (int i = 0; i < p->c->size; i++)
        list[i] = to_elements ? list[i] * p->r->d->text.hidden : list[i] / p->r->d->text.hidden;
}

/* Sends slots to their owners (there), or rows back to the ranks that sent them. */
static status move_slots(const pass *p, const char *what, bool there, const void *from, void *to)
{
    const exchange *e = p->e;
    int64_t *const list[] = {e->send_first, e->send_count, e->came_first, e->came_count};
    const comm_at at = {what, p->w->layer};
    st_dtype act = p->r->s->dev->v->act;
    for (int i = 0; i < 4; i++)
        scale_counts(p, list[i], true);
    status st =
        there
            ? comm_all_to_all(p->c, p->r->s, at, from, list[0], list[1], to, list[2], list[3], act)
            : comm_all_to_all(p->c, p->r->s, at, from, list[2], list[3], to, list[0], list[1], act);
    for (int i = 0; i < 4; i++)
        scale_counts(p, list[i], false);
    return st;
}

static status reorder_slots(const pass *p, const int32_t *index, const void *x, void *y)
{
    return op_rows_gather(
        p->r->s, &(rows_gather_args){
                     .n = p->rows, .width = p->r->d->text.hidden, .index = index, .x = x, .y = y});
}

/* by_expert [rows, H] = the slots of this round that all ranks send here, in the order of experts.
 */
static status send_slots(const pass *p, const char *what, const void *slots, void *by_expert)
{
    TRY(move_slots(p, what, true, slots, p->e->came));
    return reorder_slots(p, p->e->from, p->e->came, by_expert);
}

static status send_back(const pass *p, const char *what, const void *by_expert, void *slots)
{
    TRY(reorder_slots(p, p->e->to, by_expert, p->e->came));
    return move_slots(p, what, false, p->e->came, slots);
}

static status begin_pass(const pass_context *r, const exchange *e, const exchange_weights *w,
                         const int32_t *offset, pass *out)
{
    const layout *l = &r->mesh->layout;
    *out = (pass){.r = r,
                  .e = e,
                  .w = w,
                  .c = mesh_comm(r->mesh, MESH_EXPERT),
                  .experts = r->d->text.experts,
                  .own = r->d->text.experts / l->expert};
    return gather_borders(out, offset);
}

static status host_fwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                       const int32_t *offset, const void *x, void *o)
{
    pass p;
    TRY(begin_pass(r, e, w, offset, &p));
    for (int64_t round = 0; round < p.rounds; round++) {
        TRY(plan_round(&p, round));
        TRY(send_slots(&p, "send to experts", x, e->x));
        TRY(exchange_experts_fwd(r, e, w, e->o));
        TRY(send_back(&p, "return from experts", e->o, o));
    }
    return ST_OK;
}

static status host_bwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                       const int32_t *offset, void *x, const void *do_)
{
    pass p;
    TRY(begin_pass(r, e, w, offset, &p));
    for (int64_t round = 0; round < p.rounds; round++) {
        TRY(plan_round(&p, round));
        TRY(send_slots(&p, "send to experts again", x, e->x));
        TRY(send_slots(&p, "send gradients to experts", do_, e->o));
        TRY(exchange_experts_bwd(r, e, w, e->x));
        TRY(send_back(&p, "return gradients from experts", e->x, x));
    }
    return ST_OK;
}

status exchange_fwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                    const int32_t *offset, const void *x, void *o)
{
    return (e->on_device ? exchange_device_fwd : host_fwd)(r, e, w, offset, x, o);
}

status exchange_bwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                    const int32_t *offset, void *x, const void *do_)
{
    return (e->on_device ? exchange_device_bwd : host_bwd)(r, e, w, offset, x, do_);
}
