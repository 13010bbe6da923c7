/* SPDX-License-Identifier: Apache-2.0 */
/* optim_units.c: updates one FSDP unit after the other while the backward pass goes on
 * (optimizer_in_backward). The units call it on the stream on which their gradients were summed
 * (parallel/fsdp.h), in the same order on every rank. The first unit of a step agrees with all
 * ranks on the loss and on the sum of the target weights, since nothing may change in a step that
 * cannot count; every unit agrees on its own squares, which say whether its gradient is finite. */
#include <stdlib.h>
#include <string.h>

#include "trainer/optim/optimizer_parts.h"

void optimizer_units_done(optimizer *optim, device *dev)
{
    unit_updates *units = &optim->units;
    dev->backend->release(dev, units->agreed);
    dev->backend->release(dev, units->squares);
    dev->backend->release(dev, units->unit_squares);
    dev->backend->release(dev, units->share);
    free(units->unit);
}

int optimizer_first_unit(const optimizer *optim)
{
    return optim->units.highest;
}

/* Sums loss and weight of the step over all ranks. */
static status agree_on_step(const optimizer *optim, stream *queue)
{
    const unit_updates *units = &optim->units;
    const backend_vtable *backend = queue->dev->backend;
    TRY(backend->copy(queue, units->agreed, units->loss, sizeof(double)));
    TRY(backend->copy(queue, units->agreed + 1, units->weight, sizeof(double)));
    if (!optim->params->mesh)
        return ST_OK;
    return comm_all_reduce(mesh_comm(optim->params->mesh, MESH_WORLD), queue,
                           (comm_at){"sum loss before updates", -1}, units->agreed, 2, DT_F64,
                           COMM_SUM);
}

/* Sums the squares of a unit's gradients by group, over the ranks of a replica. */
static status sum_unit(const optimizer *optim, stream *queue, int number)
{
    const unit_updates *units = &optim->units;
    const backend_vtable *backend = queue->dev->backend;
    TRY(backend->zero(queue, units->squares, GROUP_COUNT * sizeof(double)));
    for (int i = 0; i < GROUP_COUNT; i++)
        TRY(op_sum_squares(queue, &(sum_squares_args){.list = units->unit[number].group[i],
                                                      .total = units->squares + i}));
    if (!optim->params->mesh)
        return ST_OK;
    return comm_all_reduce(mesh_comm(optim->params->mesh, MESH_WHOLE), queue,
                           (comm_at){"sum squares of gradients", -1}, units->squares, GROUP_COUNT,
                           DT_F64, COMM_SUM);
}

status optimizer_update_unit(const optimizer *optim, stream *queue, int unit)
{
    const unit_updates *units = &optim->units;
    const adamw_args update = {.list = units->unit[unit].all, .step = optim->scalars};
    if (!optim->states)
        return op_adamw(queue, &update);
    TRY(host_states_enter(optim->states, queue, unit));
    TRY(op_adamw(queue, &update));
    return host_states_leave(optim->states, queue, unit);
}

static status update_unit(void *user, stream *queue, int number)
{
    const optimizer *optim = user;
    const unit_updates *units = &optim->units;
    if (number == units->highest && optim->states)
        TRY(host_states_begin(optim->states, queue));
    if (number == units->highest)
        TRY(agree_on_step(optim, queue));
    TRY(sum_unit(optim, queue, number));
    TRY(op_unit_finish(queue, &(unit_finish_args){.unit = number,
                                                  .groups = GROUP_COUNT,
                                                  .units = units->count,
                                                  .first = number == units->highest,
                                                  .last = number == units->lowest,
                                                  .max_norm = optim->max_norm,
                                                  .squares = units->squares,
                                                  .loss = units->agreed,
                                                  .weight = units->agreed + 1,
                                                  .after_group = optim->after_group,
                                                  .unit_squares = units->unit_squares,
                                                  .share = units->share,
                                                  .step = optim->scalars}));
    TRY(optimizer_update_unit(optim, queue, number));
    return number == units->lowest && optim->states ? host_states_end(optim->states, queue) : ST_OK;
}

/* Leaves the shares of units that are trained now; if others had one too, those that are left add
 * up to 1 again. Otherwise they stay as they are, to the bit. */
static void keep_trained(const params *registry, int64_t n_units, double *share)
{
    double all = 0, kept = 0;
    for (int64_t i = 0, at = 0; i < n_units; i++) {
        bool trained = false;
        for (; at < registry->n_spans && registry->spans[at].unit <= i; at++)
            trained |= registry->spans[at].trained;
        all += share[i];
        share[i] = trained ? share[i] : 0;
        kept += share[i];
    }
    for (int64_t i = 0; i < n_units && kept > 0 && kept < all; i++)
        share[i] /= kept;
}

/* Begins with the shares given, or with none. Waits. */
static status send_shares(const optimizer *optim, stream *queue, const double *share)
{
    const unit_updates *units = &optim->units;
    const size_t bytes = (size_t)units->count * sizeof *share;
    const backend_vtable *backend = queue->dev->backend;
    TRY(backend->zero(queue, units->unit_squares, bytes));
    if (!share)
        return backend->zero(queue, units->share, bytes);
    double *kept = malloc(bytes);
    if (!kept)
        return FAIL(ST_NO_MEMORY, "optimizer: out of memory");
    memcpy(kept, share, bytes);
    keep_trained(optim->params, units->count, kept);
    status st = backend->to_device(queue, units->share, kept, bytes);
    if (st == ST_OK)
        st = backend->wait(queue);
    free(kept);
    return st;
}

status optimizer_in_backward(optimizer *optim, stream *queue, const double *loss,
                             const double *weight, int64_t n_units, const double *share)
{
    const backend_vtable *backend = queue->dev->backend;
    unit_updates *units = &optim->units;
    const size_t bytes = (size_t)n_units * sizeof *share;
    units->loss = loss;
    units->weight = weight;
    units->count = n_units;
    TRY(backend->alloc(queue->dev, 2 * sizeof(double), (void **)&units->agreed));
    TRY(backend->alloc(queue->dev, GROUP_COUNT * sizeof(double), (void **)&units->squares));
    TRY(backend->alloc(queue->dev, bytes, (void **)&units->unit_squares));
    TRY(backend->alloc(queue->dev, bytes, (void **)&units->share));
    TRY(send_shares(optim, queue, share));
    fsdp_units_update(optim->params->fsdp_units, &(unit_update){update_unit, optim});
    return backend->wait(queue);
}

status optimizer_fetch_shares(const optimizer *optim, stream *queue, double *host)
{
    const unit_updates *units = &optim->units;
    return queue->dev->backend->to_host(queue, host, units->share,
                                        (size_t)units->count * sizeof *host);
}
