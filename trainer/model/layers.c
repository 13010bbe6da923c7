/* layers.c: linear maps and norms over the registry's parameters, by the ops of ops/table.h. */
#include "trainer/model/layers.h"

#include "trainer/model/sequence.h"
#include "trainer/ops/table.h"

static const double layernorm_eps =
    1e-6; /* a constant of transformers' code; no key of config.json */

linear linear_bind(params *p, const char *name, bool with_bias)
{
    linear l = {.w = params_get(p, "%s.weight", name)};
    l.b = with_bias ? params_get(p, "%s.bias", name) : NULL;
    l.out = l.w->local[0];
    l.adapter = lora_bind(l.w);
    l.in =
        l.w->n_local / l.out; /* not shape[1]: the patch embedding's matrix has five dimensions */
    return l;
}

layernorm layernorm_bind(params *p, const char *name)
{
    return (layernorm){params_get(p, "%s.weight", name), params_get(p, "%s.bias", name)};
}

static gemm_args forward_args(const linear *l, int64_t rows, const void *x, void *y)
{
    return (gemm_args){.m = rows,
                       .n = l->out,
                       .k = l->in,
                       .alpha = 1,
                       .a = x,
                       .lda = l->in,
                       .b = l->w->act,
                       .ldb = l->in,
                       .trans_b = true,
                       .bias = l->b ? l->b->act : NULL,
                       .c = y,
                       .ldc = l->out};
}

/* The product, plus the adapter's if there is one. */
static status forward_linear(const pass_context *r, const linear *l, const gemm_args *a)
{
    TRY(op_gemm(r->s, a));
    return l->adapter.a ? lora_linear_fwd(r, &l->adapter, a->m, a->a, a->c, a->ldc) : ST_OK;
}

status linear_fwd(const pass_context *r, const linear *l, int64_t rows, const void *x, void *y,
                  int64_t y_stride)
{
    gemm_args a = forward_args(l, rows, x, y);
    a.ldc = y_stride ? y_stride : l->out;
    return forward_linear(r, l, &a);
}

status linear_fwd_biased(const pass_context *r, const linear *l, int64_t rows, const void *x,
                         const void *bias, void *y)
{
    gemm_args a = forward_args(l, rows, x, y);
    a.bias = bias ? bias : a.bias;
    return forward_linear(r, l, &a);
}

status linear_fwd_onto(const pass_context *r, const linear *l, int64_t rows, const void *x,
                       const void *residual, void *y)
{
    gemm_args a = forward_args(l, rows, x, y);
    a.residual = residual;
    return forward_linear(r, l, &a);
}

status linear_fwd_back(const pass_context *r, const linear *l, comm_at where, const void *x,
                       const void *residual, void *room, void *y)
{
    if (r->mesh->layout.tensor == 1)
        return linear_fwd_onto(r, l, r->context_tokens, x, residual, y);
    TRY(linear_fwd(r, l, r->context_tokens, x, room, 0));
    TRY(sequence_reduce(r, where, room, l->out, y));
    return add_to(r, r->n.tokens * l->out, residual, y);
}

status linear_bwd(const pass_context *r, const linear *l, int64_t rows, const void *x,
                  const void *dy, int64_t dy_stride, void *dx, bool dx_add)
{
    int64_t stride = dy_stride ? dy_stride : l->out;
    if (l->w->grad)
        TRY(op_gemm(r->s, &(gemm_args){.m = l->out,
                                       .n = l->in,
                                       .k = rows,
                                       .alpha = 1,
                                       .a = dy,
                                       .lda = stride,
                                       .trans_a = true,
                                       .b = x,
                                       .ldb = l->in,
                                       .c = l->w->grad,
                                       .ldc = l->in,
                                       .c_acc = true,
                                       .accumulate = true}));
    if (l->b && l->b->grad)
        TRY(op_bias_grad(r->s,
                         &(bias_grad_args){.rows = rows, .n = l->out, .dy = dy, .db = l->b->grad}));
    if (dx)
        TRY(op_gemm(r->s, &(gemm_args){.m = rows,
                                       .n = l->in,
                                       .k = l->out,
                                       .alpha = 1,
                                       .a = dy,
                                       .lda = stride,
                                       .b = l->w->act,
                                       .ldb = l->in,
                                       .c = dx,
                                       .ldc = l->in,
                                       .accumulate = dx_add}));
    return l->adapter.a ? lora_linear_bwd(r, &l->adapter, rows, x, dy, stride, dx) : ST_OK;
}

status layernorm_fwd(const pass_context *r, const layernorm *l, int64_t rows, int64_t width,
                     const void *x, void *y, void *mean, void *rstd)
{
    return op_layernorm_fwd(r->s, &(layernorm_fwd_args){.rows = rows,
                                                        .n = width,
                                                        .eps = layernorm_eps,
                                                        .x = x,
                                                        .w = l->w->act,
                                                        .b = l->b->act,
                                                        .y = y,
                                                        .mean = mean,
                                                        .rstd = rstd});
}

status layernorm_bwd(const pass_context *r, const layernorm *l, int64_t rows, int64_t width,
                     const void *x, const void *mean, const void *rstd, const void *dy, void *dx,
                     bool dx_add)
{
    return op_layernorm_bwd(r->s, &(layernorm_bwd_args){.rows = rows,
                                                        .n = width,
                                                        .x = x,
                                                        .w = l->w->act,
                                                        .mean = mean,
                                                        .rstd = rstd,
                                                        .dy = dy,
                                                        .dx = dx,
                                                        .dw = param_gradient(l->w),
                                                        .db = param_gradient(l->b),
                                                        .dx_accumulate = dx_add});
}

status rmsnorm_fwd(const pass_context *r, const param *w, int64_t rows, int64_t width,
                   const void *x, void *y, void *rstd)
{
    return op_rmsnorm_fwd(r->s, &(rmsnorm_fwd_args){.rows = rows,
                                                    .n = width,
                                                    .eps = r->d->text.rms_eps,
                                                    .x = x,
                                                    .w = w->act,
                                                    .y = y,
                                                    .rstd = rstd});
}

status rmsnorm_bwd(const pass_context *r, const param *w, int64_t rows, int64_t width,
                   const void *x, const void *rstd, const void *dy, void *dx, bool dx_add)
{
    return op_rmsnorm_bwd(r->s, &(rmsnorm_bwd_args){.rows = rows,
                                                    .n = width,
                                                    .x = x,
                                                    .w = w->act,
                                                    .rstd = rstd,
                                                    .dy = dy,
                                                    .dx = dx,
                                                    .dw = param_gradient(w),
                                                    .dx_accumulate = dx_add});
}

status add_to(const pass_context *r, int64_t n, const void *x, void *y)
{
    return op_add(r->s, &(add_args){.n = n, .a = x, .y = y});
}
