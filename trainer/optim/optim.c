/* optim.c: implements optim.h. The trained tensors are listed by group, so that the sum of squares
 * after each group gives the group's norm, and all of them are updated in one launch. */
#include "trainer/optim/optim.h"

#include <math.h>
#include <stdlib.h>

struct optimizer {
    params *params;
    double beta1, beta2, eps, decay, max_norm;
    /* What is trained: all of it, and each group's run of tensors. */
    optim_list all, group[GROUP_COUNT];
    /* On the device. */
    optim_tensor *tensors;
    double *sum_squares; /* [1] */
    double *after_group; /* [GROUP_COUNT] the value of sum_squares after each group */
    step_scalars *scalars;
    /* In pinned memory. */
    step_scalars *sent; /* [ahead + 1] by step */
};

static optim_tensor tensor_of(const optimizer *o, const param *q, int64_t first_chunk)
{
    double decay = q->decay ? o->decay : 0.0;
    return (optim_tensor){.n = q->own_n,
                          .first_chunk = first_chunk,
                          .lr_factor = q->lr_factor,
                          .decay = q->own_decay >= 0 ? q->own_decay : decay,
                          .p = q->value,
                          .m = q->moment1,
                          .v = q->moment2,
                          .g = q->own_grad,
                          .p_act = q->own_act == q->value ? NULL : q->own_act};
}

/* Lists what is trained, by group, and sends the list to the device. Waits for that. */
static status send_tensors(optimizer *o, stream *s)
{
    const backend_vtable *v = s->dev->backend;
    const params *p = o->params;
    const size_t bytes = (size_t)p->count * sizeof(optim_tensor);
    TRY(v->alloc(s->dev, bytes, (void **)&o->tensors));
    optim_tensor *host = malloc(bytes > 0 ? bytes : 1);
    if (!host)
        return FAIL(ST_NO_MEMORY, "optimizer: out of memory");
    o->all.tensor = o->tensors;
    for (int g = 0; g < GROUP_COUNT; g++) {
        optim_list *own = &o->group[g];
        *own =
            (optim_list){.tensor = o->tensors + o->all.n_tensors, .first_chunk = o->all.n_chunks};
        for (int64_t i = 0; i < p->count; i++) {
            const param *q = &p->list[i];
            if ((int)q->group != g || q->frozen || q->own_n == 0)
                continue;
            host[o->all.n_tensors++] = tensor_of(o, q, o->all.n_chunks);
            o->all.n_chunks += (q->own_n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
            own->n_tensors++;
        }
        own->n_chunks = o->all.n_chunks - own->first_chunk;
    }
    status st = v->to_device(s, o->tensors, host, bytes);
    if (st == ST_OK)
        st = v->wait(s);
    free(host);
    return st;
}

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
    const backend_vtable *v = s->dev->backend;
    TRY_OR(done, v->alloc(s->dev, sizeof *o->sum_squares, (void **)&o->sum_squares));
    TRY_OR(done, v->alloc(s->dev, GROUP_COUNT * sizeof(double), (void **)&o->after_group));
    TRY_OR(done, v->alloc(s->dev, sizeof *o->scalars, (void **)&o->scalars));
    TRY_OR(done,
           v->alloc_host(s->dev, (size_t)(v->ahead + 1) * sizeof *o->sent, (void **)&o->sent));
    TRY_OR(done, send_tensors(o, s));
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
    s->dev->backend->release(s->dev, o->sum_squares);
    s->dev->backend->release(s->dev, o->after_group);
    s->dev->backend->release(s->dev, o->scalars);
    s->dev->backend->release(s->dev, o->tensors);
    if (o->sent)
        s->dev->backend->release_host(s->dev, o->sent);
    free(o);
    *held = NULL;
}

/* Adds the sums of squares of all ranks. The ranks of a replica store every element once between
 * them, and replicas store the same, so one replica's sum is the whole. */
static status sum_ranks(optimizer *o, stream *s)
{
    const mesh *m = o->params->mesh;
    const comm_at at = {"sum squares of gradients", -1};
    if (!m)
        return ST_OK;
    TRY(comm_all_reduce(mesh_comm(m, MESH_WHOLE), s, at, o->after_group, GROUP_COUNT, DT_F64,
                        COMM_SUM));
    TRY(comm_all_reduce(mesh_comm(m, MESH_PIPELINE), s, at, o->after_group, GROUP_COUNT, DT_F64,
                        COMM_SUM));
    return s->dev->backend->copy(s, o->sum_squares, &o->after_group[GROUP_COUNT - 1],
                                 sizeof *o->sum_squares);
}

/* Computes the sum of squares, and keeps its value after each group. */
static status sum_gradients(optimizer *o, stream *s)
{
    const backend_vtable *v = s->dev->backend;
    TRY(v->zero(s, o->sum_squares, sizeof *o->sum_squares));
    for (int g = 0; g < GROUP_COUNT; g++) {
        TRY(op_sum_squares(s, &(sum_squares_args){.list = o->group[g], .total = o->sum_squares}));
        TRY(v->copy(s, &o->after_group[g], o->sum_squares, sizeof *o->sum_squares));
    }
    return sum_ranks(o, s);
}

status optimizer_send(optimizer *o, stream *s, int64_t step, double lr)
{
    const backend_vtable *v = s->dev->backend;
    step_scalars *sent = &o->sent[step % (v->ahead + 1)];
    *sent = (step_scalars){
        .lr = lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .bias1 = 1.0 - pow(o->beta1, (double)step),
        .bias2 = 1.0 - pow(o->beta2, (double)step),
    };
    return v->to_device(s, o->scalars, sent, sizeof *sent);
}

status optimizer_update(optimizer *o, stream *s, const double *weight)
{
    TRY(sum_gradients(o, s));
    TRY(op_step_finish(s, &(step_finish_args){.max_norm = o->max_norm,
                                              .sum_squares = o->sum_squares,
                                              .weight = weight,
                                              .step = o->scalars}));
    return op_adamw(s, &(adamw_args){.list = o->all, .step = o->scalars});
}

status optimizer_step(optimizer *o, stream *s, int64_t step, double lr, const double *weight)
{
    TRY(optimizer_send(o, s, step, lr));
    return optimizer_update(o, s, weight);
}

status optimizer_fetch(const optimizer *o, stream *s, optimizer_facts *host)
{
    const backend_vtable *v = s->dev->backend;
    TRY(v->to_host(s, &host->scalars, o->scalars, sizeof host->scalars));
    return v->to_host(s, host->after_group, o->after_group, sizeof host->after_group);
}

optimizer_report optimizer_report_of(const optimizer_facts *f)
{
    optimizer_report out = {.grad_norm = f->scalars.grad_norm, .skipped = f->scalars.skip != 0.0};
    double all = f->after_group[GROUP_COUNT - 1], before = 0.0;
    for (int g = 0; g < GROUP_COUNT; g++) {
        double share = all > 0.0 ? (f->after_group[g] - before) / all : 0.0;
        out.group_norm[g] = f->scalars.grad_norm * sqrt(share);
        before = f->after_group[g];
    }
    return out;
}

status optimizer_read(const optimizer *o, stream *s, optimizer_report *out)
{
    optimizer_facts f;
    TRY(optimizer_fetch(o, s, &f));
    TRY(s->dev->backend->wait(s));
    *out = optimizer_report_of(&f);
    return ST_OK;
}
