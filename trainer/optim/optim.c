/* SPDX-License-Identifier: Apache-2.0 */
/* optim.c: implements optim.h. The trained tensors are listed by group, so that the sum of squares
 * after each group gives the group's norm, and all of them are updated in one launch. Where units
 * are updated in backward (optim_units.c), they are listed by unit and group. */
#include "trainer/optim/optim.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "common/conf/conf.h"
#include "trainer/optim/optimizer_parts.h"

/* ---- the learning rate ---- */

static double decay_shape(int type, double progress)
{
    switch (type) {
    case DECAY_LINEAR:
        return 1.0 - progress;
    case DECAY_COSINE:
        return 0.5 * (1.0 + cos(M_PI * progress));
    case DECAY_SQRT:
        return 1.0 - sqrt(progress);
    default:
        return 1.0;
    }
}

double schedule_lr(const schedule *rates, int64_t step)
{
    if (step <= rates->warmup_steps)
        return rates->peak * (double)step / (double)rates->warmup_steps;
    if (rates->steps <= 0 || rates->decay_type == DECAY_CONSTANT)
        return rates->peak;
    int64_t decay_steps = (int64_t)llround(rates->decay_ratio * (double)rates->steps);
    if (decay_steps > rates->steps - rates->warmup_steps)
        decay_steps = rates->steps - rates->warmup_steps;
    int64_t into = step - (rates->steps - decay_steps);
    if (decay_steps <= 0 || into <= 0)
        return rates->peak;
    double progress = (double)into / (double)decay_steps;
    if (progress > 1.0)
        progress = 1.0;
    return rates->peak * (rates->min_factor +
                          (1.0 - rates->min_factor) * decay_shape(rates->decay_type, progress));
}

/* ---- the lists of tensors ---- */

/* The random numbers of a row. Its rank's local tensor is a box of the published one, which may be
 * cut along the first axis, where its elements stay neighbours, and along one other. */
static optim_random random_of(int64_t seed, const param *row)
{
    char purpose[160];
    snprintf(purpose, sizeof purpose, "round/%s", row->name);
    const rng_key key = rng_key_make((uint64_t)seed, purpose);
    const slice *box = &row->held;
    int64_t stride[SLICE_AXES], place = 0;
    int cut = 0;
    stride[SLICE_AXES - 1] = 1;
    for (int axis = SLICE_AXES - 1; axis > 0; axis--)
        stride[axis - 1] = stride[axis] * box->size[axis];
    for (int axis = 0; axis < SLICE_AXES; axis++) {
        place += box->first[axis] * stride[axis];
        if (axis > 0 && box->count[axis] != box->size[axis]) {
            assert(cut == 0);
            cut = axis;
        }
    }
    const int64_t most = cut ? box->count[cut] * stride[cut] : slice_count(box);
    return (optim_random){.key = {key.word[0], key.word[1]},
                          .first = row->own_first,
                          .run = most > 0 ? most : 1,
                          .stride = cut ? stride[cut - 1] : most,
                          .base = place};
}

optim_tensor optim_tensor_of(const conf *options, const param *row, int64_t first_chunk)
{
    const double decay = row->decay ? options->optimizer_weight_decay : 0.0;
    optim_tensor out = {.n = row->own_n,
                        .first_chunk = first_chunk,
                        .lr_factor = row->lr_factor,
                        .decay = row->own_decay >= 0 ? row->own_decay : decay,
                        .p = row->value,
                        .m = row->moment1,
                        .v = row->moment2,
                        .m_scale = row->scale1,
                        .v_scale = row->scale2,
                        .g = row->own_grad,
                        .p_act = row->own_act == row->value ? NULL : row->own_act};
    if (!row->act_master)
        return out;
    out.rounding = OPTIM_RANDOM;
    out.random = random_of(options->training_seed, row);
    return out;
}

/* Appends the trained tensors of a group, of one unit or of all (unit -1), to `host` and to
 * optim->all. *out: their run. */
static void optimizer_list_group(optimizer *optim, const conf *options, int group, int unit,
                                 optim_tensor *host, optim_list *out)
{
    const params *registry = optim->params;
    optim_list run = {.tensor = optim->tensors + optim->all.n_tensors,
                      .first_chunk = optim->all.n_chunks};
    for (int64_t i = 0; i < registry->count; i++) {
        const param *entry = &registry->list[i];
        if ((int)entry->group != group || (unit >= 0 && entry->unit != unit) || entry->frozen ||
            entry->own_n == 0)
            continue;
        optim_tensor *listed = &host[optim->all.n_tensors++];
        *listed = optim_tensor_of(options, entry, optim->all.n_chunks);
        if (optim->states)
            host_states_move(optim->states, entry, listed);
        optim->all.n_chunks += (entry->own_n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
        run.n_tensors++;
        run.coded |= entry->coded || entry->act_master;
    }
    run.n_chunks = optim->all.n_chunks - run.first_chunk;
    optim->all.coded |= run.coded;
    *out = run;
}

/* Lists all trained tensors by unit and group, as optimizer_list_group does. ST_NO_MEMORY. */
static status optimizer_list_units(optimizer *optim, const conf *options, optim_tensor *host)
{
    const params *registry = optim->params;
    unit_updates *units = &optim->units;
    units->lowest = 0;
    units->highest = -1; /* a pipeline stage may have nothing that is trained */
    for (int64_t i = 0; i < registry->n_spans; i++) { /* in rising order of unit */
        if (!registry->spans[i].trained)
            continue;
        units->lowest = units->highest < 0 ? registry->spans[i].unit : units->lowest;
        units->highest = registry->spans[i].unit;
    }
    units->unit = calloc((size_t)(units->highest + 2), sizeof *units->unit);
    if (!units->unit)
        return FAIL(ST_NO_MEMORY, "optimizer: out of memory");
    for (int j = units->highest; j >= units->lowest; j--) {
        unit_lists *own = &units->unit[j];
        own->all = (optim_list){.tensor = optim->tensors + optim->all.n_tensors,
                                .first_chunk = optim->all.n_chunks};
        for (int k = 0; k < GROUP_COUNT; k++) {
            optimizer_list_group(optim, options, k, j, host, &own->group[k]);
            own->all.n_tensors += own->group[k].n_tensors;
            own->all.n_chunks += own->group[k].n_chunks;
            own->all.coded |= own->group[k].coded;
        }
    }
    return ST_OK;
}

/* ---- the optimizer ---- */

/* Lists what is trained and sends the list to the device. Waits for that. */
static status send_tensors(optimizer *optim, const conf *options, stream *queue)
{
    const backend_vtable *backend = queue->dev->backend;
    const bool whole = !optim->params->in_backward;
    const size_t lists = whole && optim->states ? 2 : 1;
    const size_t bytes = lists * (size_t)optim->params->count * sizeof(optim_tensor);
    status st = ST_OK;
    TRY(backend->alloc(queue->dev, bytes, (void **)&optim->tensors));
    optim_tensor *host = malloc(bytes > 0 ? bytes : 1);
    if (!host)
        return FAIL(ST_NO_MEMORY, "optimizer: out of memory");
    optim->all.tensor = optim->tensors;
    for (int j = 0; j < GROUP_COUNT && whole; j++)
        optimizer_list_group(optim, options, j, -1, host, &optim->group[j]);
    if (!whole || optim->states)
        st = optimizer_list_units(optim, options, host);
    if (st == ST_OK)
        st = backend->to_device(queue, optim->tensors, host, bytes);
    if (st == ST_OK)
        st = backend->wait(queue);
    free(host);
    return st;
}

status optimizer_new(const conf *options, params *registry, stream *queue, optimizer **out)
{
    status st = ST_OK;
    optimizer *optim = calloc(1, sizeof *optim);
    if (!optim)
        return FAIL(ST_NO_MEMORY, "optimizer: out of memory");
    optim->params = registry;
    optim->beta1 = options->optimizer_beta1;
    optim->beta2 = options->optimizer_beta2;
    optim->eps = options->optimizer_eps;
    optim->max_norm = options->training_max_norm;
    const backend_vtable *backend = queue->dev->backend;
    TRY_OR(done,
           backend->alloc(queue->dev, sizeof *optim->sum_squares, (void **)&optim->sum_squares));
    TRY_OR(done,
           backend->alloc(queue->dev, GROUP_COUNT * sizeof(double), (void **)&optim->after_group));
    TRY_OR(done, backend->alloc(queue->dev, sizeof *optim->scalars, (void **)&optim->scalars));
    TRY_OR(done, backend->alloc_host(queue->dev, (size_t)(backend->ahead + 1) * sizeof *optim->sent,
                                     (void **)&optim->sent));
    if (registry->moments_on_host)
        TRY_OR(done, host_states_new(registry, queue->dev, &optim->states));
    TRY_OR(done, send_tensors(optim, options, queue));
    *out = optim;
    return ST_OK;
done:
    optimizer_free(&optim, queue);
    return st;
}

void optimizer_free(optimizer **held, stream *queue)
{
    optimizer *optim = *held;
    if (!optim)
        return;
    queue->dev->backend->release(queue->dev, optim->sum_squares);
    queue->dev->backend->release(queue->dev, optim->after_group);
    queue->dev->backend->release(queue->dev, optim->scalars);
    queue->dev->backend->release(queue->dev, optim->tensors);
    optimizer_units_done(optim, queue->dev);
    host_states_free(&optim->states, queue->dev);
    if (optim->sent)
        queue->dev->backend->release_host(queue->dev, optim->sent);
    free(optim);
    *held = NULL;
}

/* Adds the sums of squares of all ranks. The ranks of a replica store every element once between
 * them, and replicas store the same, so one replica's sum is the whole. */
static status sum_ranks(optimizer *optim, stream *queue)
{
    const mesh *ranks = optim->params->mesh;
    const comm_at at = {"sum squares of gradients", -1};
    if (!ranks)
        return ST_OK;
    TRY(comm_all_reduce(mesh_comm(ranks, MESH_WHOLE), queue, at, optim->after_group, GROUP_COUNT,
                        DT_F64, COMM_SUM));
    TRY(comm_all_reduce(mesh_comm(ranks, MESH_PIPELINE), queue, at, optim->after_group, GROUP_COUNT,
                        DT_F64, COMM_SUM));
    return queue->dev->backend->copy(queue, optim->sum_squares,
                                     &optim->after_group[GROUP_COUNT - 1],
                                     sizeof *optim->sum_squares);
}

/* Computes the sum of squares, and keeps its value after each group. */
static status sum_gradients(optimizer *optim, stream *queue)
{
    const backend_vtable *backend = queue->dev->backend;
    TRY(backend->zero(queue, optim->sum_squares, sizeof *optim->sum_squares));
    for (int i = 0; i < GROUP_COUNT; i++) {
        TRY(op_sum_squares(
            queue, &(sum_squares_args){.list = optim->group[i], .total = optim->sum_squares}));
        TRY(backend->copy(queue, &optim->after_group[i], optim->sum_squares,
                          sizeof *optim->sum_squares));
    }
    return sum_ranks(optim, queue);
}

status optimizer_send(optimizer *optim, stream *queue, int64_t step, double lr)
{
    const backend_vtable *backend = queue->dev->backend;
    step_scalars *sent = &optim->sent[step % (backend->ahead + 1)];
    *sent = (step_scalars){
        .lr = lr,
        .beta1 = optim->beta1,
        .beta2 = optim->beta2,
        .eps = optim->eps,
        .bias1 = 1.0 - pow(optim->beta1, (double)step),
        .bias2 = 1.0 - pow(optim->beta2, (double)step),
        .number = (double)step,
    };
    return backend->to_device(queue, optim->scalars, sent, sizeof *sent);
}

/* Updates everything: in one call, or unit by unit where the states rest on the host. */
static status update_all(const optimizer *optim, stream *queue)
{
    if (!optim->states)
        return op_adamw(queue, &(adamw_args){.list = optim->all, .step = optim->scalars});
    TRY(host_states_begin(optim->states, queue));
    for (int unit = optim->units.highest; unit >= optim->units.lowest; unit--)
        if (optim->units.unit[unit].all.n_tensors > 0)
            TRY(optimizer_update_unit(optim, queue, unit));
    return host_states_end(optim->states, queue);
}

status optimizer_update(optimizer *optim, stream *queue, const double *weight)
{
    if (optim->params->in_backward)
        return FAIL(ST_INTERNAL, "units that are updated in backward are updated as a whole");
    TRY(sum_gradients(optim, queue));
    TRY(op_step_finish(queue, &(step_finish_args){.max_norm = optim->max_norm,
                                                  .sum_squares = optim->sum_squares,
                                                  .weight = weight,
                                                  .step = optim->scalars}));
    return update_all(optim, queue);
}

status optimizer_step(optimizer *optim, stream *queue, int64_t step, double lr,
                      const double *weight)
{
    TRY(optimizer_send(optim, queue, step, lr));
    return optimizer_update(optim, queue, weight);
}

status optimizer_fetch(const optimizer *optim, stream *queue, optimizer_facts *host)
{
    const backend_vtable *backend = queue->dev->backend;
    TRY(backend->to_host(queue, &host->scalars, optim->scalars, sizeof host->scalars));
    return backend->to_host(queue, host->after_group, optim->after_group, sizeof host->after_group);
}

optimizer_report optimizer_report_of(const optimizer_facts *facts)
{
    optimizer_report out = {.grad_norm = facts->scalars.grad_norm,
                            .skipped = facts->scalars.skip != 0.0,
                            .stopped_at = (int)facts->scalars.stopped - 1};
    double all = facts->after_group[GROUP_COUNT - 1], before = 0.0;
    for (int i = 0; i < GROUP_COUNT; i++) {
        double share = all > 0.0 ? (facts->after_group[i] - before) / all : 0.0;
        out.group_norm[i] = facts->scalars.grad_norm * sqrt(share);
        before = facts->after_group[i];
    }
    return out;
}

status optimizer_read(const optimizer *optim, stream *queue, optimizer_report *out)
{
    optimizer_facts facts;
    TRY(optimizer_fetch(optim, queue, &facts));
    TRY(queue->dev->backend->wait(queue));
    *out = optimizer_report_of(&facts);
    return ST_OK;
}
