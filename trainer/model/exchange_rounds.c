/* exchange_rounds.c: the memory of a round of an exchange, and the work of experts on its rows. */
#include "trainer/model/exchange_rounds.h"

#include "trainer/model/grouped_product.h"
#include "trainer/ops/table.h"

static void layout_host(exchange *e, space *sp, const shape *z)
{
    const text_dims *d = &z->d->text;
    e->came = space_take(sp, e->rows * d->hidden, z->act);
    e->x = space_take(sp, e->rows * d->hidden, z->act);
    e->o = space_take(sp, e->rows * d->hidden, z->act);
    e->borders = space_take(sp, z->ranks->expert * (d->experts + 1), sizeof(int32_t));
    e->from = space_take(sp, e->rows, sizeof(int32_t));
    e->to = space_take(sp, e->rows, sizeof(int32_t));
}

static void layout_device(exchange *e, space *sp, const shape *z)
{
    const text_dims *d = &z->d->text;
    const exchange_window *w = e->window;
    e->x = w ? at(w->memory.own, (int64_t)w->x, 1) : NULL;
    e->o = w ? at(w->memory.own, (int64_t)w->o, 1) : NULL;
    e->borders = w ? at(w->memory.own, (int64_t)w->borders, 1) : NULL;
    e->place = space_take(sp, d->experts, sizeof(int32_t));
    e->order = space_take(sp, d->experts / z->ranks->expert + 1, sizeof(int32_t));
    e->rounds = space_take(sp, 1, sizeof(int32_t));
}

void exchange_layout(exchange *e, space *sp, const shape *z)
{
    const text_dims *d = &z->d->text;
    int64_t width = d->expert_width / z->ranks->expert_tensor, own = d->experts / z->ranks->expert;
    if (e->on_device)
        layout_device(e, sp, z);
    else
        layout_host(e, sp, z);
    e->gu = space_take(sp, e->rows * 2 * width, z->act);
    e->a = space_take(sp, e->rows * width, z->act);
    e->offset = space_take(sp, own + 1, sizeof(int32_t));
}

/* y = x W_e, plus what the adapter adds. */
static status multiply_experts(const pass_context *r, const exchange *e, const param *w,
                               const lora *adapter, void *x, void *y)
{
    TRY(grouped_product(r, GROUPED_FWD, w, e->rows, e->offset, x, y));
    return adapter->a ? lora_experts_fwd(r, adapter, e->rows, e->offset, x, y) : ST_OK;
}

/* Adds the gradients of the matrix and its adapter and writes dx, which may be x. */
static status product_bwd(const pass_context *r, const exchange *e, const param *w,
                          const lora *adapter, void *x, void *dy, void *dx)
{
    TRY(grouped_product(r, GROUPED_WGRAD, w, e->rows, e->offset, x, dy));
    if (adapter->a)
        TRY(lora_experts_grads(r, adapter, e->rows, e->offset, x, dy));
    TRY(grouped_product(r, GROUPED_DGRAD, w, e->rows, e->offset, dx, dy));
    return adapter->a ? lora_experts_dx(r, adapter, e->rows, e->offset, dx) : ST_OK;
}

/* a = silu(g) * u, with [g | u] = x GU_e */
static status activations(const pass_context *r, const exchange *e, const exchange_weights *w)
{
    TRY(multiply_experts(r, e, w->gate_up, &w->gate_up_adapter, e->x, e->gu));
    return op_swiglu_fwd(r->s, &(swiglu_fwd_args){.rows = e->rows,
                                                  .width = w->down->local[1],
                                                  .n_valid = e->offset + w->down->local[0],
                                                  .x = e->gu,
                                                  .y = e->a});
}

status exchange_experts_fwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                            void *o)
{
    TRY(activations(r, e, w));
    return multiply_experts(r, e, w->down, &w->down_adapter, e->a, o);
}

status exchange_experts_bwd(const pass_context *r, const exchange *e, const exchange_weights *w,
                            void *dx)
{
    TRY(activations(r, e, w));
    TRY(product_bwd(r, e, w->down, &w->down_adapter, e->a, e->o, e->a)); /* da */
    TRY(op_swiglu_bwd(r->s, &(swiglu_bwd_args){.rows = e->rows,
                                               .width = w->down->local[1],
                                               .n_valid = e->offset + w->down->local[0],
                                               .x = e->gu,
                                               .dy = e->a,
                                               .dx = e->gu})); /* [dg|du] */
    return product_bwd(r, e, w->gate_up, &w->gate_up_adapter, e->x, e->gu, dx);
}
