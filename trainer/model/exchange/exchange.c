/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.c: the exchange of exchange.h by the host.
 *
 * An owner takes its rows in the order (expert, sending rank, slot); round j has the rows
 * [j R, (j + 1) R) of that order. The rows that one rank sends in a round are consecutive slots of
 * it, since its slots are sorted by expert too. So a round is an all-to-all of such runs, followed
 * by a permutation from the order of ranks to the order of experts. */
#include "trainer/model/exchange/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/ops/table.h"

status exchange_open(exchange *state, const text_dims *dims, const layout *degrees, int64_t slots)
{
    size_t ranks = (size_t)degrees->expert, rows = (size_t)exchange_rows_for(slots) + 1;
    *state =
        (exchange){.rows = exchange_rows_for(slots),
                   .slots = slots,
                   .host_borders = calloc(ranks * (size_t)(dims->experts + 1), sizeof(int32_t)),
                   .host_offset = calloc((size_t)dims->experts + 1, sizeof(int32_t)),
                   .host_from = calloc(rows, sizeof(int32_t)),
                   .host_to = calloc(rows, sizeof(int32_t)),
                   .send_first = calloc(5 * ranks, sizeof(int64_t))};
    if (!state->host_borders || !state->host_offset || !state->host_from || !state->host_to ||
        !state->send_first) {
        exchange_close(state);
        return FAIL(ST_NO_MEMORY, "no memory to exchange %lld slots", (long long)slots);
    }
    state->send_count = state->send_first + ranks;
    state->came_first = state->send_count + ranks;
    state->came_count = state->came_first + ranks;
    state->next = state->came_count + ranks;
    return ST_OK;
}

void exchange_close(exchange *state)
{
    free(state->host_borders);
    free(state->host_offset);
    free(state->host_from);
    free(state->host_to);
    free(state->send_first);
    *state = (exchange){0};
}

/* One forward or backward over a layer. */
typedef struct pass {
    const pass_context *ctx;
    const exchange *state;
    const exchange_weights *weights;
    const comm *group;
    int64_t experts, own; /* E, and how many of them this rank has */
    int64_t rounds;
    int64_t rows; /* that this rank receives in the current round */
} pass;

/* How many slots rank `from` has for `expert`. */
static int64_t slots_of(const pass *walk, int from, int64_t expert)
{
    const int32_t *borders = walk->state->host_borders + from * (walk->experts + 1);
    return borders[expert + 1] - borders[expert];
}

/* Gathers every rank's offsets to the host, and counts the rounds that the fullest owner needs. */
static status gather_borders(pass *walk, const int32_t *offset)
{
    const backend_vtable *backend = walk->ctx->stream->dev->backend;
    const exchange *state = walk->state;
    int64_t count = walk->experts + 1, most = 0;
    TRY(comm_all_gather(walk->group, walk->ctx->stream,
                        (comm_at){"gather expert counts", walk->weights->layer}, offset,
                        state->borders, count, DT_I32));
    TRY(backend->to_host(walk->ctx->stream, state->host_borders, state->borders,
                         (size_t)(walk->group->size * count) * sizeof(int32_t)));
    TRY(backend->wait(walk->ctx->stream));
    for (int owner = 0; owner < walk->group->size; owner++) {
        int64_t rows = 0;
        for (int from = 0; from < walk->group->size; from++) {
            const int32_t *borders = state->host_borders + from * count + owner * walk->own;
            rows += borders[walk->own] - borders[0];
        }
        most = rows > most ? rows : most;
    }
    walk->rounds = (most + state->rows - 1) / state->rows;
    return ST_OK;
}

/* How many of [at, at + slots) lie inside [begin, begin + room); *out_first:
 * the first, from `at`. */
static int64_t overlap(int64_t at, int64_t slots, int64_t begin, int64_t room, int64_t *out_first)
{
    int64_t first = begin > at ? begin - at : 0, end = begin + room - at;
    end = end < slots ? end : slots;
    *out_first = first;
    return end > first ? end - first : 0;
}

/* Computes what this rank sends to each owner in a round. */
static void plan_sends(const pass *walk, int64_t round)
{
    const exchange *state = walk->state;
    const int32_t *mine = state->host_borders + walk->group->rank * (walk->experts + 1);
    for (int owner = 0; owner < walk->group->size; owner++) {
        int64_t at = 0, first;
        state->send_first[owner] = state->send_count[owner] = 0;
        for (int64_t i = owner * walk->own; i < (owner + 1) * walk->own; i++)
            for (int from = 0; from < walk->group->size; from++) {
                int64_t slots = slots_of(walk, from, i);
                int64_t count = overlap(at, slots, round * state->rows, state->rows, &first);
                at += slots;
                if (from != walk->group->rank || count == 0)
                    continue;
                if (state->send_count[owner] == 0)
                    state->send_first[owner] = mine[i] + first;
                state->send_count[owner] += count;
            }
    }
}

/* Computes what this rank receives in a round: a run from each rank, and their order by expert. */
static void plan_rows(pass *walk, int64_t round)
{
    const exchange *state = walk->state;
    const int64_t begin = round * state->rows, mine = walk->group->rank * walk->own;
    int64_t first, at = 0, n_rows = 0;
    memset(state->came_count, 0, (size_t)walk->group->size * sizeof *state->came_count);
    for (int64_t i = mine; i < mine + walk->own; i++)
        for (int from = 0; from < walk->group->size; from++) {
            int64_t slots = slots_of(walk, from, i);
            state->came_count[from] += overlap(at, slots, begin, state->rows, &first);
            at += slots;
        }
    for (int from = 0, sum = 0; from < walk->group->size; sum += (int)state->came_count[from++])
        state->next[from] = state->came_first[from] = sum;
    at = 0;
    for (int64_t i = 0; i < walk->own; i++) {
        state->host_offset[i] = (int32_t)n_rows;
        for (int from = 0; from < walk->group->size; from++) {
            int64_t slots = slots_of(walk, from, mine + i);
            int64_t count = overlap(at, slots, begin, state->rows, &first);
            at += slots;
            for (; count > 0; count--, n_rows++) {
                state->host_from[n_rows] = (int32_t)state->next[from];
                state->host_to[state->next[from]++] = (int32_t)n_rows;
            }
        }
    }
    state->host_offset[walk->own] = (int32_t)n_rows;
    walk->rows = n_rows;
}

static status plan_round(pass *walk, int64_t round)
{
    const backend_vtable *backend = walk->ctx->stream->dev->backend;
    const exchange *state = walk->state;
    stream *queue = walk->ctx->stream;
    size_t bytes;
    TRY(backend->wait(queue)); /* until the device has read the lists of the round before */
    plan_sends(walk, round);
    plan_rows(walk, round);
    bytes = (size_t)walk->rows * sizeof(int32_t);
    TRY(backend->to_device(queue, state->offset, state->host_offset,
                           (size_t)(walk->own + 1) * sizeof(int32_t)));
    if (bytes == 0)
        return ST_OK;
    TRY(backend->to_device(queue, state->from, state->host_from, bytes));
    return backend->to_device(queue, state->to, state->host_to, bytes);
}

/* Turns counts of rows into counts of elements, or back. */
static void scale_counts(const pass *walk, int64_t *list, bool to_elements)
{
    for (int i = 0; i < walk->group->size; i++)
        list[i] = to_elements ? list[i] * walk->ctx->dims->text.hidden
                              : list[i] / walk->ctx->dims->text.hidden;
}

/* Sends slots to their owners (there), or rows back to the ranks that sent them. */
static status move_slots(const pass *walk, const char *what, bool there, const void *from, void *to)
{
    const exchange *state = walk->state;
    int64_t *const list[] = {state->send_first, state->send_count, state->came_first,
                             state->came_count};
    const comm_at at = {what, walk->weights->layer};
    st_dtype act = walk->ctx->stream->dev->backend->act;
    for (int i = 0; i < 4; i++)
        scale_counts(walk, list[i], true);
    status st = there ? comm_all_to_all(walk->group, walk->ctx->stream, at, from, list[0], list[1],
                                        to, list[2], list[3], act)
                      : comm_all_to_all(walk->group, walk->ctx->stream, at, from, list[2], list[3],
                                        to, list[0], list[1], act);
    for (int i = 0; i < 4; i++)
        scale_counts(walk, list[i], false);
    return st;
}

static status reorder_slots(const pass *walk, const int32_t *index, const void *x, void *y)
{
    return op_rows_gather(walk->ctx->stream,
                          &(rows_gather_args){.n = walk->rows,
                                              .width = walk->ctx->dims->text.hidden,
                                              .index = index,
                                              .x = x,
                                              .y = y});
}

/* by_expert [rows, H] = the slots of this round that all ranks send here, by expert. */
static status send_slots(const pass *walk, const char *what, const void *slots, void *by_expert)
{
    TRY(move_slots(walk, what, true, slots, walk->state->came));
    return reorder_slots(walk, walk->state->from, walk->state->came, by_expert);
}

static status send_back(const pass *walk, const char *what, const void *by_expert, void *slots)
{
    TRY(reorder_slots(walk, walk->state->to, by_expert, walk->state->came));
    return move_slots(walk, what, false, walk->state->came, slots);
}

static status begin_pass(const pass_context *ctx, const exchange *state,
                         const exchange_weights *weights, const int32_t *offset, pass *out)
{
    const layout *degrees = &ctx->mesh->layout;
    *out = (pass){.ctx = ctx,
                  .state = state,
                  .weights = weights,
                  .group = mesh_comm(ctx->mesh, MESH_EXPERT),
                  .experts = ctx->dims->text.experts,
                  .own = ctx->dims->text.experts / degrees->expert};
    return gather_borders(out, offset);
}

static status host_fwd(const pass_context *ctx, const exchange *state,
                       const exchange_weights *weights, const int32_t *offset, const void *x,
                       void *o)
{
    pass walk;
    TRY(begin_pass(ctx, state, weights, offset, &walk));
    for (int64_t round = 0; round < walk.rounds; round++) {
        TRY(plan_round(&walk, round));
        TRY(send_slots(&walk, "send to experts", x, state->x));
        TRY(exchange_experts_fwd(ctx, state, weights, state->o));
        TRY(send_back(&walk, "return from experts", state->o, o));
    }
    return ST_OK;
}

static status host_bwd(const pass_context *ctx, const exchange *state,
                       const exchange_weights *weights, const int32_t *offset, void *x,
                       const void *do_)
{
    pass walk;
    TRY(begin_pass(ctx, state, weights, offset, &walk));
    for (int64_t round = 0; round < walk.rounds; round++) {
        TRY(plan_round(&walk, round));
        TRY(send_slots(&walk, "send to experts again", x, state->x));
        TRY(send_slots(&walk, "send gradients to experts", do_, state->o));
        TRY(exchange_experts_bwd(ctx, state, weights, state->x));
        TRY(send_back(&walk, "return gradients from experts", state->x, x));
    }
    return ST_OK;
}

status exchange_fwd(const pass_context *ctx, const exchange *state, const exchange_weights *weights,
                    const int32_t *offset, const void *x, void *o)
{
    return (state->on_device ? exchange_device_fwd : host_fwd)(ctx, state, weights, offset, x, o);
}

status exchange_bwd(const pass_context *ctx, const exchange *state, const exchange_weights *weights,
                    const int32_t *offset, void *x, const void *do_)
{
    return (state->on_device ? exchange_device_bwd : host_bwd)(ctx, state, weights, offset, x, do_);
}
