/* lora.c: the work of adapters in forward and backward, as lora.h describes it. lora_params.c has
 * their rows of the registry and merged values. */
#include "trainer/model/lora.h"

#include "trainer/model/grouped_product.h"
#include "trainer/model/layers.h"
#include "trainer/model/moe.h"
#include "trainer/ops/table.h"

lora lora_bind(const param *w)
{
    if (!w->lora)
        return (lora){0};
    const param *a = w + w->lora;
    return (lora){
        .a = a, .b = a + 1, .scale = w->lora_scale, .rank = a->shape[w->n_dims == 2 ? 0 : 2]};
}

void lora_scratch_layout(lora_scratch *t, space *sp, const shape *z, int64_t rank, bool experts)
{
    const text_dims *d = &z->d->text;
    const int64_t width = d->expert_width / z->ranks->expert_tensor;
    int64_t slots = moe_is_shared(z->ranks) ? exchange_rows(z) : z->cap.tokens * d->top_k;
    slots = experts && slots > z->context_tokens ? slots : z->context_tokens;
    int64_t wide = 2 * width > d->hidden ? 2 * width : d->hidden;
    *t = (lora_scratch){0};
    if (rank == 0)
        return;
    t->xa = space_take(sp, slots * rank, z->act);
    t->dxa = space_take(sp, slots * rank, z->act);
    if (experts)
        t->wide = space_take(sp, slots * wide, z->act);
}

/* xa [rows, r] = x At */
static status shrink_rows(const pass_context *r, const lora *l, int64_t rows, const void *x)
{
    int64_t in = l->a->local[1];
    return op_gemm(r->s, &(gemm_args){.m = rows,
                                      .n = l->rank,
                                      .k = in,
                                      .alpha = 1,
                                      .a = x,
                                      .lda = in,
                                      .b = l->a->act,
                                      .ldb = in,
                                      .trans_b = true,
                                      .c = r->lora->xa,
                                      .ldc = l->rank});
}

status lora_linear_fwd(const pass_context *r, const lora *l, int64_t rows, const void *x, void *y,
                       int64_t y_stride)
{
    TRY(shrink_rows(r, l, rows, x));
    return op_gemm(r->s, &(gemm_args){.m = rows,
                                      .n = l->b->local[0],
                                      .k = l->rank,
                                      .alpha = l->scale,
                                      .a = r->lora->xa,
                                      .lda = l->rank,
                                      .b = l->b->act,
                                      .ldb = l->rank,
                                      .trans_b = true,
                                      .c = y,
                                      .ldc = y_stride,
                                      .accumulate = true});
}

/* dW [m, n] += alpha xt y of k rows */
static status weight_gradient(const pass_context *r, const param *w, int64_t k, double alpha,
                              const void *x, int64_t x_stride, const void *y, int64_t y_stride)
{
    if (!w->grad)
        return ST_OK; /* the user has frozen this half */
    return op_gemm(r->s, &(gemm_args){.m = w->local[0],
                                      .n = w->local[1],
                                      .k = k,
                                      .alpha = alpha,
                                      .a = x,
                                      .lda = x_stride,
                                      .trans_a = true,
                                      .b = y,
                                      .ldb = y_stride,
                                      .c = w->grad,
                                      .ldc = w->local[1],
                                      .c_acc = true,
                                      .accumulate = true});
}

status lora_linear_bwd(const pass_context *r, const lora *l, int64_t rows, const void *x,
                       const void *dy, int64_t dy_stride, void *dx)
{
    int64_t in = l->a->local[1], out = l->b->local[0];
    TRY(shrink_rows(r, l, rows, x));
    TRY(weight_gradient(r, l->b, rows, l->scale, dy, dy_stride, r->lora->xa, l->rank));
    TRY(op_gemm(r->s, &(gemm_args){.m = rows,
                                   .n = l->rank,
                                   .k = out,
                                   .alpha = l->scale,
                                   .a = dy,
                                   .lda = dy_stride,
                                   .b = l->b->act,
                                   .ldb = l->rank,
                                   .c = r->lora->dxa,
                                   .ldc = l->rank}));
    TRY(weight_gradient(r, l->a, rows, 1, r->lora->dxa, l->rank, x, in));
    if (!dx)
        return ST_OK;
    return op_gemm(r->s, &(gemm_args){.m = rows,
                                      .n = in,
                                      .k = l->rank,
                                      .alpha = 1,
                                      .a = r->lora->dxa,
                                      .lda = l->rank,
                                      .b = l->a->act,
                                      .ldb = in,
                                      .c = dx,
                                      .ldc = in,
                                      .accumulate = true});
}

/* op_grouped_gemm has no factor, so x [rows, r] is scaled by an op of its own. */
static status scaled(const pass_context *r, const lora *l, int64_t rows, void *x)
{
    return op_scale(r->s, &(scale_args){.n = rows * l->rank, .factor = l->scale, .y = x});
}

/* xa [rows, r] = s x A */
static status shrink_slots(const pass_context *r, const lora *l, int64_t rows,
                           const int32_t *offset, void *x)
{
    TRY(grouped_product(r, GROUPED_FWD, l->a, rows, offset, x, r->lora->xa));
    return scaled(r, l, rows, r->lora->xa);
}

static status add_slots(const pass_context *r, int64_t elements, void *y)
{
    return op_add(r->s, &(add_args){.n = elements, .a = r->lora->wide, .y = y});
}

status lora_experts_fwd(const pass_context *r, const lora *l, int64_t rows, const int32_t *offset,
                        void *x, void *y)
{
    TRY(shrink_slots(r, l, rows, offset, x));
    TRY(grouped_product(r, GROUPED_FWD, l->b, rows, offset, r->lora->xa, r->lora->wide));
    return add_slots(r, rows * l->b->local[2], y);
}

status lora_experts_grads(const pass_context *r, const lora *l, int64_t rows, const int32_t *offset,
                          void *x, void *dy)
{
    TRY(shrink_slots(r, l, rows, offset, x));
    TRY(grouped_product(r, GROUPED_WGRAD, l->b, rows, offset, r->lora->xa, dy));
    TRY(grouped_product(r, GROUPED_DGRAD, l->b, rows, offset, r->lora->dxa, dy));
    TRY(scaled(r, l, rows, r->lora->dxa));
    return grouped_product(r, GROUPED_WGRAD, l->a, rows, offset, x, r->lora->dxa);
}

status lora_experts_dx(const pass_context *r, const lora *l, int64_t rows, const int32_t *offset,
                       void *dx)
{
    TRY(grouped_product(r, GROUPED_DGRAD, l->a, rows, offset, r->lora->wide, r->lora->dxa));
    return add_slots(r, rows * l->a->local[1], dx);
}
