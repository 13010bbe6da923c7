/* SPDX-License-Identifier: Apache-2.0 */
/* sim_queue.c: see sim_queue.h. */
#include "tests/sim/common/sim_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_before(const sim_event *left, const sim_event *right)
{
    return left->at_ns != right->at_ns ? left->at_ns < right->at_ns : left->order < right->order;
}

void sim_queue_put(sim_queue *queue, sim_event event)
{
    if (queue->count == queue->capacity) {
        queue->capacity = queue->capacity ? 2 * queue->capacity : 64;
        queue->event = realloc(queue->event, queue->capacity * sizeof *queue->event);
        if (!queue->event) {
            fprintf(stderr, "no memory for %zu simulated events\n", queue->capacity);
            abort();
        }
    }
    event.order = queue->puts++;
    size_t at = queue->count++;
    while (at > 0 && is_before(&event, &queue->event[(at - 1) / 2])) {
        queue->event[at] = queue->event[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->event[at] = event;
}

bool sim_queue_take(sim_queue *queue, sim_event *out)
{
    if (queue->count == 0)
        return false;
    *out = queue->event[0];
    const sim_event last = queue->event[--queue->count];
    size_t at = 0;
    for (size_t child = 1; child < queue->count; child = 2 * at + 1) {
        if (child + 1 < queue->count && is_before(&queue->event[child + 1], &queue->event[child]))
            child++;
        if (!is_before(&queue->event[child], &last))
            break;
        queue->event[at] = queue->event[child];
        at = child;
    }
    queue->event[at] = last;
    return true;
}

const sim_event *sim_queue_next(const sim_queue *queue)
{
    return queue->count ? &queue->event[0] : NULL;
}

void sim_queue_done(sim_queue *queue)
{
    free(queue->event);
    memset(queue, 0, sizeof *queue);
}
