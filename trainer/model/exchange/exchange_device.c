/* SPDX-License-Identifier: Apache-2.0 */
/* exchange_device.c: the exchange of exchange.h on the device, without the host:
 *
 *   offsets  write this rank's offsets into every window; meet
 *   plan     compute where slots go and which rounds are needed
 *   round    write rows into their owners' windows; meet: each owner has its rows, by expert
 *            run the experts, from x (and o) to back
 *            meet; read rows out of their owners' windows
 *
 * A meeting is a barrier of the ranks' devices. A place in a window may be overwritten only after a
 * meeting that follows its last reader: x and o are read before the second meeting of a round, back
 * before the first meeting of the next round, borders before the first meeting of the first round.
 * The first round always runs, even if no rank has a slot, since it separates two exchanges. All
 * ranks compute from the same numbers which rounds are needed, so they meet equally often. */

#include "common/program/log.h"
#include "trainer/model/exchange/exchange.h"
#include "trainer/ops/table.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/parallel/comm/comm_ledger.h"

enum {
    ALIGN = 256,
    PAGE = 2 << 20, /* GPUs share memory in pages of this size */
    ROWS_MOST = INT32_MAX
};

/* ---- the window ---- */

/* Appends `rows` bytes to a window of *inout_bytes and returns their offset. */
static size_t reserve_bytes(size_t *inout_bytes, int64_t rows)
{
    size_t first = (*inout_bytes + ALIGN - 1) / ALIGN * ALIGN;
    *inout_bytes = first + (size_t)rows;
    return first;
}

static exchange_window window_of(const text_dims *dims, const layout *degrees, int64_t slots,
                                 size_t act)
{
    const int64_t ranks = degrees->expert,
                  rows = exchange_rows_for(slots) * dims->hidden * (int64_t)act;
    exchange_window window = {0};
    window.arrived = reserve_bytes(&window.bytes, ranks * (int64_t)sizeof(uint32_t));
    window.met = reserve_bytes(&window.bytes, sizeof(uint32_t));
    window.moved = reserve_bytes(&window.bytes, EXCHANGE_MOVED * sizeof(int64_t));
    window.borders =
        reserve_bytes(&window.bytes, ranks * (dims->experts + 1) * (int64_t)sizeof(int32_t));
    window.x = reserve_bytes(&window.bytes, rows);
    window.o = reserve_bytes(&window.bytes, rows);
    window.back = reserve_bytes(&window.bytes, rows);
    window.bytes = (window.bytes + PAGE - 1) / PAGE * PAGE;
    return window;
}

int64_t exchange_window_bytes(const text_dims *dims, const layout *degrees, int64_t slots,
                              size_t act)
{
    return (int64_t)window_of(dims, degrees, slots, act).bytes;
}

static status open_window(stream *queue, const mesh *groups, const text_dims *dims, int64_t slots,
                          exchange_window *out)
{
    exchange_window window =
        window_of(dims, &groups->layout, slots, st_dtype_size(queue->dev->backend->act));
    if (slots > ROWS_MOST / groups->layout.expert)
        return FAIL(ST_UNAVAILABLE, "%lld slots of each of %lld ranks are more than 2^31 rows",
                    (long long)slots, (long long)groups->layout.expert);
    window.group = mesh_comm(groups, MESH_EXPERT);
    TRY(comm_window_open(mesh_comm(groups, MESH_WORLD), window.group, queue, window.bytes,
                         &window.memory));
    *out = window;
    return ST_OK;
}

/* ST_UNAVAILABLE may also mean that the job has ended, since every call then returns it. This fails
 * in that case; if it succeeds, the windows themselves are unavailable. */
static status check_standing(const comm *all)
{
    const status_note why = *status_last();
    TRY(comm_agree(all, (comm_at){"agree on windows", -1}, ST_OK, 0));
    status_set(&why);
    return ST_OK;
}

/* Logs which way is taken; rank 0 calls it once. */
static void log_choice(bool on_device, const char *why)
{
    if (on_device)
        log_info(
            "slots go to their experts on the device: ranks put and get rows by load and store");
    else
        log_warn("slots go to their experts through counts that the host reads, once per layer and "
                 "pass reason=\"%s\"",
                 why);
}

status exchange_window_open(stream *queue, const mesh *groups, const text_dims *dims, int64_t slots,
                            bool must, exchange_window *out, bool *out_open)
{
    status st = open_window(queue, groups, dims, slots, out);
    if (st == ST_UNAVAILABLE)
        TRY(check_standing(mesh_comm(groups, MESH_WORLD)));
    if (st == ST_UNAVAILABLE && must)
        return status_context(st, "comm.expert_exchange is device");
    if (st != ST_OK && st != ST_UNAVAILABLE)
        return st;
    if (groups->rank == 0)
        log_choice(st == ST_OK, st == ST_OK ? "" : status_text());
    status_clear();
    *out_open = st == ST_OK;
    return ST_OK;
}

void exchange_window_close(stream *queue, exchange_window *window)
{
    if (window->group)
        comm_window_close(window->group, queue, &window->memory);
    *window = (exchange_window){0};
}

static int64_t *moved_of(const exchange_window *window)
{
    return at(window->memory.own, (int64_t)window->moved, 1);
}

status exchange_clear_moved(stream *queue, const exchange_window *window)
{
    return queue->dev->backend->zero(queue, moved_of(window), EXCHANGE_MOVED * sizeof(int64_t));
}

status exchange_fetch_moved(stream *queue, const exchange_window *window, int64_t *out_pinned)
{
    return queue->dev->backend->to_host(queue, out_pinned, moved_of(window),
                                        EXCHANGE_MOVED * sizeof(int64_t));
}

/* The purposes of calls, in messages and in the ledger of traffic. */
static const char TO[] = "send to experts", FROM[] = "return from experts",
                  AGAIN[] = "send to experts again", GRADIENTS[] = "send gradients to experts",
                  RETURNED[] = "return gradients from experts";

void exchange_enter_moved(const exchange_window *window, const int64_t *moved, int64_t slot_bytes)
{
    const char *const what[] = {TO, FROM, AGAIN, GRADIENTS, RETURNED};
    static const int of[] = {0, 1, 2, 2, 3};
    for (int i = 0; i < 5; i++)
        comm_ledger_late(window->group->ledger, window->group, COMM_PEERS, what[i],
                         moved[of[i]] * slot_bytes);
}

/* ---- a pass over a layer ---- */

typedef struct pass {
    const pass_context *ctx;
    const exchange *state;
    const exchange_weights *weights;
    const exchange_window *window;
    const int32_t *offset;
    peer_set peers;
} pass;

/* Meets the other ranks. `of`: meets only if this round is needed; NULL: always. */
static status meet_peers(const pass *walk, const int32_t *of)
{
    return op_peers_meet(walk->ctx->stream,
                         &(peers_meet_args){.peers = walk->peers,
                                            .arrived = walk->window->arrived,
                                            .met = walk->window->met,
                                            .phase = MEET_ARRIVE | MEET_WAIT,
                                            .round = of ? *of : 0,
                                            .rounds = of ? walk->state->rounds : NULL,
                                            .watch = walk->window->memory.watch});
}

static status share_offsets(const pass *walk, bool backward)
{
    const int64_t experts = walk->ctx->dims->text.experts;
    TRY(op_peers_tell(walk->ctx->stream, &(peers_tell_args){.peers = walk->peers,
                                                            .at = walk->window->borders,
                                                            .count = experts + 1,
                                                            .values = walk->offset}));
    TRY(meet_peers(walk, NULL));
    return op_exchange_plan(
        walk->ctx->stream,
        &(exchange_plan_args){.ranks = walk->peers.size,
                              .experts = experts,
                              .rows = walk->state->rows,
                              .rank = walk->peers.rank,
                              .borders = walk->state->borders,
                              .place = walk->state->place,
                              .order = walk->state->order,
                              .rounds = walk->state->rounds,
                              .moved = moved_of(walk->window) + (backward ? 2 : 0)});
}

/* Begins a pass: shares offsets and plans where slots go. */
static status begin_device_pass(const pass_context *ctx, const exchange *state,
                                const exchange_weights *weights, const int32_t *offset,
                                bool backward, pass *out)
{
    const comm *group = state->window->group;
    const comm_at here = {"gather expert counts", weights->layer};
    *out = (pass){.ctx = ctx,
                  .state = state,
                  .weights = weights,
                  .window = state->window,
                  .offset = offset,
                  .peers = {state->window->memory.base, group->rank, group->size}};
    TRY(comm_peers_begin(group, ctx->stream, here,
                         (group->size - 1) * (ctx->dims->text.experts + 1) *
                             (int64_t)sizeof(int32_t)));
    return comm_peers_end(group, ctx->stream, here, share_offsets(out, backward));
}

static status move_round(const pass *walk, int32_t round, void *mine, size_t place, bool back)
{
    return op_exchange_rows(
        walk->ctx->stream,
        &(exchange_rows_args){.peers = walk->peers,
                              .at = place,
                              .back = back,
                              .round = round,
                              .slots = walk->state->slots,
                              .width = walk->ctx->dims->text.hidden,
                              .experts = walk->ctx->dims->text.experts,
                              .rows = walk->state->rows,
                              .offset = walk->offset,
                              .place = walk->state->place,
                              .order = walk->state->order,
                              .rounds = walk->state->rounds,
                              .mine = mine,
                              .round_offset = back ? NULL : walk->state->offset});
}

/* Sends the slots of a round to their owners. last: nothing else is sent in this round, so the
 * ranks meet. */
static status send_round(const pass *walk, const char *what, int32_t round, const void *slots,
                         size_t place, bool last)
{
    const comm_at here = {what, walk->weights->layer};
    TRY(comm_peers_begin(walk->window->group, walk->ctx->stream, here, 0));
    status st = move_round(walk, round, (void *)slots, place, false);
    if (st == ST_OK && last)
        st = meet_peers(walk, &round);
    return comm_peers_end(walk->window->group, walk->ctx->stream, here, st);
}

static status send_back(const pass *walk, const char *what, int32_t round, void *slots)
{
    const comm_at here = {what, walk->weights->layer};
    TRY(comm_peers_begin(walk->window->group, walk->ctx->stream, here, 0));
    status st = meet_peers(walk, &round);
    if (st == ST_OK)
        st = move_round(walk, round, slots, walk->window->back, true);
    return comm_peers_end(walk->window->group, walk->ctx->stream, here, st);
}

static int32_t rounds_most(const pass *walk)
{
    return (int32_t)exchange_rounds_most(&walk->ctx->dims->text, walk->peers.size,
                                         walk->state->slots);
}

status exchange_device_fwd(const pass_context *ctx, const exchange *state,
                           const exchange_weights *weights, const int32_t *offset, const void *x,
                           void *o)
{
    pass walk;
    TRY(begin_device_pass(ctx, state, weights, offset, false, &walk));
    for (int32_t round = 0; round < rounds_most(&walk); round++) {
        TRY(send_round(&walk, TO, round, x, walk.window->x, true));
        TRY(exchange_experts_fwd(ctx, state, weights,
                                 at(walk.window->memory.own, (int64_t)walk.window->back, 1)));
        TRY(send_back(&walk, FROM, round, o));
    }
    return ST_OK;
}

status exchange_device_bwd(const pass_context *ctx, const exchange *state,
                           const exchange_weights *weights, const int32_t *offset, void *x,
                           const void *do_)
{
    pass walk;
    TRY(begin_device_pass(ctx, state, weights, offset, true, &walk));
    for (int32_t round = 0; round < rounds_most(&walk); round++) {
        TRY(send_round(&walk, AGAIN, round, x, walk.window->x, false));
        TRY(send_round(&walk, GRADIENTS, round, do_, walk.window->o, true));
        TRY(exchange_experts_bwd(ctx, state, weights,
                                 at(walk.window->memory.own, (int64_t)walk.window->back, 1)));
        TRY(send_back(&walk, RETURNED, round, x));
    }
    return ST_OK;
}
