#include "trainer/optim/optim.h"

#include <math.h>
#include <stdlib.h>

struct optimizer {
    params *params;
    double beta1, beta2, eps, decay, max_norm;
    /* device */
    double *sum_squares; /* [1] */
    step_scalars *scalars;
};

status optimizer_new(const conf *c, params *p, stream *s, optimizer **out)
{
    status st = ST_OK;
    optimizer *o = calloc(1, sizeof *o);
    if (!o)
        return FAIL(ST_NO_MEMORY, "optimizer: out of memory");
    o->params = p;
    o->beta1 = c->optimizer_beta1;
    o->beta2 = c->optimizer_beta2;
    o->eps = c->optimizer_eps;
    o->decay = c->optimizer_weight_decay;
    o->max_norm = c->training_max_norm;
    const backend_vtable *v = s->dev->v;
    TRY_OR(done, v->alloc(s->dev, sizeof *o->sum_squares, (void **)&o->sum_squares));
    TRY_OR(done, v->alloc(s->dev, sizeof *o->scalars, (void **)&o->scalars));
    *out = o;
    return ST_OK;
done:
    optimizer_free(&o, s);
    return st;
}

void optimizer_free(optimizer **held, stream *s)
{
    optimizer *o = *held;
    if (!o)
        return;
    s->dev->v->release(s->dev, o->sum_squares);
    s->dev->v->release(s->dev, o->scalars);
    free(o);
    *held = NULL;
}

status optimizer_step(optimizer *o, stream *s, int64_t step, double lr, const double *weight)
{
    const backend_vtable *v = s->dev->v;
    params *p = o->params;
    TRY(v->zero(s, o->sum_squares, sizeof *o->sum_squares));
    for (int64_t i = 0; i < p->n; i++)
        TRY(op_sum_squares(s, &(sum_squares_args){.n = p->list[i].count,
                                                  .x = p->list[i].grad,
                                                  .total = o->sum_squares}));

    step_scalars host = {
        .lr = lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .bias1 = 1.0 - pow(o->beta1, (double)step),
        .bias2 = 1.0 - pow(o->beta2, (double)step),
    };
    TRY(v->to_device(s, o->scalars, &host, sizeof host));
    TRY(op_step_finish(s, &(step_finish_args){.max_norm = o->max_norm,
                                              .sum_squares = o->sum_squares,
                                              .weight = weight,
                                              .step = o->scalars}));
    for (int64_t i = 0; i < p->n; i++) {
        param *q = &p->list[i];
        TRY(op_adamw(s, &(adamw_args){.n = q->count,
                                      .lr_factor = 1.0,
                                      .decay = q->decay ? o->decay : 0.0,
                                      .step = o->scalars,
                                      .p = q->value,
                                      .m = q->moment1,
                                      .v = q->moment2,
                                      .g = q->grad,
                                      .p_act = q->act == q->value ? NULL : q->act}));
    }
    return ST_OK;
}

status optimizer_read(optimizer *o, stream *s, optimizer_report *out)
{
    step_scalars host;
    TRY(s->dev->v->to_host(s, &host, o->scalars, sizeof host));
    TRY(s->dev->v->wait(s));
    out->grad_norm = host.grad_norm;
    out->skipped = host.skip != 0.0;
    return ST_OK;
}
