/* SPDX-License-Identifier: Apache-2.0 */
/* exchange_rounds.c: how many rows a round of an exchange has and how many rounds there can be, the
 * memory that one round needs, and the experts' work on its rows. */

#include "trainer/model/exchange/exchange.h"
#include "trainer/model/layers/layers.h"
#include "trainer/ops/table.h"

/* R over a rank's own slots. With even routing an owner receives as many rows as a rank has slots;
 * with room for a quarter more, the usual unevenness still needs only one round. */
enum { ROOM_NUMERATOR = 5, ROOM_DENOMINATOR = 4 };

int64_t exchange_rows_for(int64_t slots)
{
    return (slots * ROOM_NUMERATOR + ROOM_DENOMINATOR - 1) / ROOM_DENOMINATOR;
}

int64_t exchange_rounds_most(const text_dims *dims, int64_t ranks, int64_t slots)
{
    const int64_t own = dims->experts / ranks, of_token = own < dims->top_k ? own : dims->top_k;
    const int64_t rows = slots / dims->top_k * of_token * ranks, room = exchange_rows_for(slots);
    return (rows + room - 1) / room;
}

int64_t exchange_rows(const shape *sizes)
{
    return exchange_rows_for(sizes->cap.tokens * sizes->ranks->expert_tensor *
                             sizes->dims->text.top_k);
}

static void layout_host(exchange *state, space *sp, const shape *sizes)
{
    const text_dims *dims = &sizes->dims->text;
    state->came = space_take(sp, state->rows * dims->hidden, sizes->act);
    state->x = space_take(sp, state->rows * dims->hidden, sizes->act);
    state->o = space_take(sp, state->rows * dims->hidden, sizes->act);
    state->borders = space_take(sp, sizes->ranks->expert * (dims->experts + 1), sizeof(int32_t));
    state->from = space_take(sp, state->rows, sizeof(int32_t));
    state->to = space_take(sp, state->rows, sizeof(int32_t));
}

static void layout_device(exchange *state, space *sp, const shape *sizes)
{
    const text_dims *dims = &sizes->dims->text;
    const exchange_window *window = state->window;
    state->x = window ? at(window->memory.own, (int64_t)window->x, 1) : NULL;
    state->o = window ? at(window->memory.own, (int64_t)window->o, 1) : NULL;
    state->borders = window ? at(window->memory.own, (int64_t)window->borders, 1) : NULL;
    state->place = space_take(sp, dims->experts, sizeof(int32_t));
    state->order = space_take(sp, dims->experts / sizes->ranks->expert + 1, sizeof(int32_t));
    state->rounds = space_take(sp, 1, sizeof(int32_t));
}

void exchange_layout(exchange *state, space *sp, const shape *sizes)
{
    const text_dims *dims = &sizes->dims->text;
    int64_t width = dims->expert_width / sizes->ranks->expert_tensor,
            own = dims->experts / sizes->ranks->expert;
    if (state->on_device)
        layout_device(state, sp, sizes);
    else
        layout_host(state, sp, sizes);
    state->gu = space_take(sp, state->rows * 2 * width, sizes->act);
    state->a = space_take(sp, state->rows * width, sizes->act);
    state->offset = space_take(sp, own + 1, sizeof(int32_t));
}

/* a = silu(g) * u, with [g | u] = x GU_e */
static status activations(const pass_context *ctx, const exchange *state,
                          const exchange_weights *weights)
{
    TRY(experts_product(ctx, weights->gate_up, &weights->gate_up_adapter, state->rows,
                        state->offset, state->x, state->gu));
    return op_swiglu_fwd(ctx->stream,
                         &(swiglu_fwd_args){.rows = state->rows,
                                            .width = weights->down->local[1],
                                            .n_valid = state->offset + weights->down->local[0],
                                            .x = state->gu,
                                            .y = state->a});
}

status exchange_experts_fwd(const pass_context *ctx, const exchange *state,
                            const exchange_weights *weights, void *o)
{
    TRY(activations(ctx, state, weights));
    return experts_product(ctx, weights->down, &weights->down_adapter, state->rows, state->offset,
                           state->a, o);
}

status exchange_experts_bwd(const pass_context *ctx, const exchange *state,
                            const exchange_weights *weights, void *dx)
{
    TRY(activations(ctx, state, weights));
    TRY(experts_product_bwd(ctx, weights->down, &weights->down_adapter, state->rows, state->offset,
                            state->a, state->o, state->a)); /* da */
    TRY(op_swiglu_bwd(ctx->stream,
                      &(swiglu_bwd_args){.rows = state->rows,
                                         .width = weights->down->local[1],
                                         .n_valid = state->offset + weights->down->local[0],
                                         .x = state->gu,
                                         .dy = state->a,
                                         .dx = state->gu})); /* [dg|du] */
    return experts_product_bwd(ctx, weights->gate_up, &weights->gate_up_adapter, state->rows,
                               state->offset, state->x, state->gu, dx);
}
