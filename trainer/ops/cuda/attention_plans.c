/* SPDX-License-Identifier: Apache-2.0 */
/* attention_plans.c: see attention_plans.h. */
#include "trainer/ops/cuda/attention_plans.h"

#ifdef TESSERA_CUDNN

#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/device/cuda_device.h"

enum { PLANS_FIRST = 16 };

static void plans_done(void *data)
{
    attention_plans *all = data;
    for (int64_t i = 0; i < all->n; i++)
        cudnn_plan_done(&all->list[i].plan);
    cudnn_api()->Destroy(all->handle);
    free(all->list);
    free(all);
}

status attention_plans_of(stream *queue, attention_plans **out)
{
    cuda_device *cuda = (cuda_device *)queue->dev;
    if (!cuda->kept[KEPT_ATTENTION].data) {
        cudnnHandle_t handle = NULL;
        CUDNN_TRY(Create, &handle);
        attention_plans *all = calloc(1, sizeof *all);
        if (!all) {
            cudnn_api()->Destroy(handle);
            return FAIL(ST_NO_MEMORY, "attention: no memory for plans");
        }
        all->handle = handle;
        cuda->kept[KEPT_ATTENTION] = (cuda_kept){all, plans_done};
    }
    *out = cuda->kept[KEPT_ATTENTION].data;
    CUDNN_TRY(SetStream, (*out)->handle, cuda_handle(queue));
    return ST_OK;
}

/* How many engines are passed over in this way of attention. */
static int passed_over(const stream *queue, const attention_shape *shape, bool backward)
{
    const int choice = choice_attention(shape->causal, backward);
    return queue->dev->choices.way[choice] == ATTENTION_BY_NEXT_ENGINE;
}

static status plan_new(stream *queue, attention_plans *all, const attention_shape *shape,
                       bool backward, made_plan *out)
{
    if (((const cuda_stream *)queue)->capturing)
        return FAIL(
            ST_INTERNAL,
            "attention: a step is captured with a shape that did not run before the capture");
    queue->dev->counts.allocations++;
    *out = (made_plan){
        .shape = *shape, .backward = backward, .passed_over = passed_over(queue, shape, backward)};
    cudnn_target target = {.handle = all->handle,
                           .deterministic = shape->deterministic,
                           .passed_over = out->passed_over};
    status st = backward ? attention_graph_backward(shape, &target, &out->plan)
                         : attention_graph_forward(shape, &target, &out->plan);
    if (st == ST_OK)
        return ST_OK;
    return status_context(st,
                          "attention of %lld segments of %lld tokens, %lld heads over %lld of "
                          "width %lld",
                          (long long)shape->segments, (long long)shape->longest,
                          (long long)shape->heads, (long long)shape->kv_heads,
                          (long long)shape->head_dim);
}

status attention_plan_for(stream *queue, attention_plans *all, const attention_shape *shape,
                          bool backward, const cudnn_plan **out)
{
    for (int64_t i = 0; i < all->n; i++) {
        const made_plan *known = &all->list[i];
        if (known->backward == backward &&
            known->passed_over == passed_over(queue, shape, backward) &&
            memcmp(&known->shape, shape, sizeof *shape) == 0) {
            *out = known->refused ? NULL : &known->plan;
            return ST_OK;
        }
    }
    if (all->n == all->capacity) {
        int64_t capacity = all->capacity ? 2 * all->capacity : PLANS_FIRST;
        made_plan *list = realloc(all->list, (size_t)capacity * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "attention: no memory for plans");
        all->list = list;
        all->capacity = capacity;
    }
    made_plan *made = &all->list[all->n];
    status st = plan_new(queue, all, shape, backward, made);
    if (st == ST_UNAVAILABLE && !queue->dev->choices.strict) {
        log_warn("attention uses our own kernels direction=%s reason=\"cuDNN: %s\"",
                 backward ? "backward" : "forward", status_text());
        status_clear();
        made->refused = true;
    } else if (st != ST_OK) {
        return st;
    }
    all->n++;
    *out = made->refused ? NULL : &made->plan;
    return ST_OK;
}

#endif
