/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_exchange.c: lists what a pass sends and receives, and moves it all in one group of
 * calls. */

#include "trainer/model/text/decoder.h"

static const char activations[] = "send activations", gradients[] = "send their gradients",
                  statistics[] = "send router statistics";

/* One array that is sent to (out) or received from a neighbouring stage. */
typedef struct cargo {
    const char *what;
    void *at;
    int64_t count;
    st_dtype dtype;
    int stage; /* the neighbour */
    bool out;
} cargo;

enum { MOST_CARGO = 4 };

static void add_cargo(cargo *list, int *inout_n, cargo load)
{
    list[(*inout_n)++] = load;
}

/* Appends what a pass sends when it is done (out) or needs before it begins. The two neighbours
 * list the same arrays in the same order. */
static void list_of(const pipeline_exchange *exchanged, bool out, const comm *group,
                    const stream *queue, const model_dims *dims, cargo *list, int *inout_n)
{
    const decoder *stack = exchanged->stack;
    if (exchanged->kind == PASS_NONE)
        return;
    const bool ahead = exchanged->kind == PASS_FORWARD || (exchanged->kind == PASS_BOTH && !out);
    const int64_t layer = ahead == out ? stack->part.end : stack->part.first;
    if (ahead == out ? stack->part.closes : stack->part.opens)
        return;
    cargo one = {.what = ahead ? activations : gradients,
                 .at = ahead ? stack->x[layer] : stack->dx,
                 .count = exchanged->tokens * dims->text.hidden,
                 .dtype = queue->dev->backend->act,
                 .stage = ahead == out ? group->rank + 1 : group->rank - 1,
                 .out = out};
    if (ahead || decoder_reaches_below(stack, layer))
        add_cargo(list, inout_n, one);
    if (!stack->aux.on)
        return;
    one.what = statistics;
    one.at = out && !ahead ? stack->aux.sent : stack->aux.count_total;
    one.count = moe_aux_elements(dims->text.experts);
    one.dtype = queue->dev->backend->acc;
    add_cargo(list, inout_n, one);
}

static status move_cargo(const comm *group, stream *queue, const cargo *load)
{
    const comm_at at = {load->what, -1};
    if (load->out)
        return comm_send(group, queue, at, load->at, load->count, load->dtype, load->stage);
    return comm_recv(group, queue, at, load->at, load->count, load->dtype, load->stage);
}

status pipeline_exchange_cross(const comm *pipeline, stream *queue, const model_dims *dims,
                               const pipeline_exchange *done, const pipeline_exchange *next)
{
    cargo list[MOST_CARGO];
    int count = 0;
    list_of(done, true, pipeline, queue, dims, list, &count);
    list_of(next, false, pipeline, queue, dims, list, &count);
    if (count == 0)
        return ST_OK;
    if (done->kind != PASS_NONE && done->stack->aux.on)
        TRY(queue->dev->backend->copy(queue, done->stack->aux.sent, done->stack->aux.count_total,
                                      (size_t)moe_aux_elements(dims->text.experts) *
                                          st_dtype_size(queue->dev->backend->acc)));
    TRY(comm_begin(pipeline, queue));
    for (int i = 0; i < count; i++)
        TRY(move_cargo(pipeline, queue, &list[i]));
    return comm_end(pipeline, queue);
}
