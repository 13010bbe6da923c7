/* SPDX-License-Identifier: Apache-2.0 */
/* host_states.c: see optimizer_parts.h. An event holds within one step only, since the step may be a
 * captured graph: an event of an earlier step must not be waited for. */
#include "trainer/optim/optimizer_parts.h"

#include <stdlib.h>

#include "trainer/model/params/params_states.h"

enum { BLOCKS = 2 }; /* of first and second moments */
static const char WAITS[] = "moments from the host";

typedef struct turn {
    char *at[BLOCKS];                 /* the buffers, on the device */
    int holds;                        /* the unit whose states are here, or on their way; -1 */
    event *brought, *used, *returned; /* after the copy to here; the update; the copy back */
    bool was_returned;                /* in this step */
} turn;

struct host_states {
    params *registry;
    states_range *range; /* heap, [n_units] */
    int n_units;
    void *block;          /* the memory of all buffers */
    stream *bring, *take; /* NULL: all is done on the stream of the updates */
    event *edge;
    turn turn[STATES_TURNS];
};

static char *host_block(const host_states *states, int block)
{
    const params *registry = states->registry;
    return block ? registry->moments2.at : registry->moments1.at;
}

static status find_ranges(host_states *states)
{
    const params *registry = states->registry;
    for (int64_t i = 0; i < registry->n_spans; i++)
        states->n_units = registry->spans[i].unit + 1; /* they come in rising order */
    states->range = calloc((size_t)states->n_units + 1, sizeof *states->range);
    if (!states->range)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %d units", states->n_units);
    for (int unit = 0; unit < states->n_units; unit++)
        states->range[unit] = states_range_of(registry, unit);
    return ST_OK;
}

static status take_buffers(host_states *states, device *dev)
{
    const backend_vtable *backend = dev->backend;
    params_sizes size;
    TRY(params_size(states->registry, backend, true, &size));
    const size_t bytes = (size_t)BLOCKS * (size_t)(size.turn[0] + size.turn[1]);
    TRY(backend->alloc(dev, bytes, &states->block));
    char *at = states->block;
    for (int j = 0; j < STATES_TURNS; j++) {
        for (int k = 0; k < BLOCKS; k++, at += size.turn[j])
            states->turn[j].at[k] = at;
        TRY(backend->event_new(dev, &states->turn[j].brought));
        TRY(backend->event_new(dev, &states->turn[j].used));
        TRY(backend->event_new(dev, &states->turn[j].returned));
    }
    TRY(backend->event_new(dev, &states->edge));
    if (backend->ahead == 0)
        return ST_OK;
    TRY(backend->stream_new(dev, &states->bring));
    return backend->stream_new(dev, &states->take);
}

status host_states_new(params *registry, device *dev, host_states **out)
{
    host_states *states = calloc(1, sizeof *states);
    if (!states)
        return FAIL(ST_NO_MEMORY, "no memory for the states on the host");
    states->registry = registry;
    status st = find_ranges(states);
    if (st == ST_OK)
        st = take_buffers(states, dev);
    if (st != ST_OK)
        host_states_free(&states, dev);
    else
        *out = states;
    return st;
}

void host_states_free(host_states **held, device *dev)
{
    host_states *states = *held;
    if (!states)
        return;
    const backend_vtable *backend = dev->backend;
    if (states->block)
        backend->release(dev, states->block);
    for (int j = 0; j < STATES_TURNS; j++) {
        turn *own = &states->turn[j];
        event **each[] = {&own->brought, &own->used, &own->returned};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            if (*each[i])
                backend->event_free(each[i]);
    }
    if (states->edge)
        backend->event_free(&states->edge);
    if (states->bring)
        backend->stream_free(&states->bring);
    if (states->take)
        backend->stream_free(&states->take);
    free(states->range);
    free(states);
    *held = NULL;
}

/* Where in the buffers an address of the block is. */
static void *move_address(const host_states *states, int unit, int block, const void *at)
{
    if (!at)
        return NULL;
    const int64_t place = (const char *)at - host_block(states, block);
    return states->turn[unit % STATES_TURNS].at[block] + (place - states->range[unit].first);
}

void host_states_move(const host_states *states, const param *row, optim_tensor *tensor)
{
    const param_block *values = &states->registry->values;
    const int unit = row->unit;
    tensor->m = move_address(states, unit, 0, tensor->m);
    tensor->v = move_address(states, unit, 1, tensor->v);
    tensor->m_scale = move_address(states, unit, 0, tensor->m_scale);
    tensor->v_scale = move_address(states, unit, 1, tensor->v_scale);
    if (row->value_dtype != values->dtype) /* a master value among the states */
        tensor->p = move_address(states, unit, 0, tensor->p);
}

/* Makes what is queued on `to` from here on run after what is queued on `from`. */
static status join_streams(const host_states *states, stream *from, stream *to)
{
    TRY(from->dev->backend->event_record(from, states->edge));
    return from->dev->backend->event_follow(to, states->edge);
}

status host_states_begin(host_states *states, stream *queue)
{
    for (int j = 0; j < STATES_TURNS; j++) {
        states->turn[j].holds = -1;
        states->turn[j].was_returned = false;
    }
    if (!states->bring)
        return ST_OK;
    TRY(join_streams(states, queue, states->bring));
    return join_streams(states, queue, states->take);
}

/* Begins to bring a unit's states, unless they are on their way already. */
static status bring_unit(host_states *states, stream *queue, int unit)
{
    const backend_vtable *backend = queue->dev->backend;
    const states_range *of = &states->range[unit];
    turn *own = &states->turn[unit % STATES_TURNS];
    stream *bring = states->bring ? states->bring : queue;
    if (own->holds == unit)
        return ST_OK;
    if (own->was_returned)
        TRY(backend->event_follow(bring, own->returned));
    for (int k = 0; k < BLOCKS; k++)
        TRY(backend->copy(bring, own->at[k], host_block(states, k) + of->first, (size_t)of->bytes));
    own->holds = unit;
    return backend->event_record(bring, own->brought);
}

status host_states_enter(host_states *states, stream *queue, int unit)
{
    int next = unit - 1;
    TRY(bring_unit(states, queue, unit));
    while (next >= 0 && states->range[next].bytes == 0)
        next--;
    if (next >= 0 && next % STATES_TURNS != unit % STATES_TURNS)
        TRY(bring_unit(states, queue, next));
    TRY(device_call_begins(queue, WAITS));
    TRY(queue->dev->backend->event_follow(queue, states->turn[unit % STATES_TURNS].brought));
    return device_call_ended(queue);
}

status host_states_leave(host_states *states, stream *queue, int unit)
{
    const backend_vtable *backend = queue->dev->backend;
    const states_range *of = &states->range[unit];
    turn *own = &states->turn[unit % STATES_TURNS];
    stream *take = states->take ? states->take : queue;
    TRY(backend->event_record(queue, own->used));
    TRY(backend->event_follow(take, own->used));
    for (int k = 0; k < BLOCKS; k++)
        TRY(backend->copy(take, host_block(states, k) + of->first, own->at[k], (size_t)of->bytes));
    own->was_returned = true;
    return backend->event_record(take, own->returned);
}

status host_states_end(host_states *states, stream *queue)
{
    if (!states->bring)
        return ST_OK;
    TRY(join_streams(states, states->bring, queue));
    return join_streams(states, states->take, queue);
}
