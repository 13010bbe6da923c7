/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c: the implementation of queue.h. try_next makes one step of a lane; if that lane waits for
 * another, it makes a step of the other. The thread sleeps only while it waits for work of other
 * processes. */
#include "tests/emulated/queue.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    NAP_NS = 50 * 1000, /* the first nap of a wait; each is twice as long as the one before */
    NAP_MOST_NS = 1000 * 1000,
    KEPT = 1024 /* nodes already run that a lane keeps before it drops them */
};

status lane_add(lane *on, const node *item)
{
    if (on->count == on->capacity) {
        int64_t capacity = on->capacity ? 2 * on->capacity : 256;
        node *at = realloc(on->at, (size_t)capacity * sizeof *at);
        if (!at)
            return FAIL(ST_NO_MEMORY, "emulated: no memory");
        on->at = at;
        on->capacity = capacity;
    }
    on->at[on->count++] = *item;
    return ST_OK;
}

static status try_next(queue_set *set, lane *on, graph *of, bool *out_did);

/* Makes one step of a graph: of its first lane or, while that one waits for other processes, of
 * another lane. */
static status try_launch(queue_set *set, graph *recorded, bool *out_did, bool *out_done)
{
    if (!recorded->running)
        for (int branch = 0; branch < recorded->count; branch++)
            recorded->branch[branch].passed = 0;
    recorded->running = true;
    *out_did = recorded->branch[0].count == 0;
    for (int branch = 0; branch < recorded->count && !*out_did; branch++)
        if (recorded->branch[branch].passed < recorded->branch[branch].count)
            TRY(try_next(set, &recorded->branch[branch], recorded, out_did));
    *out_done = recorded->branch[0].passed == recorded->branch[0].count;
    recorded->running = !*out_done;
    return ST_OK;
}

/* Makes one step of the lane that is waited for. */
static status help(queue_set *set, lane *other, graph *of, bool *out_did)
{
    if (other->passed == other->count)
        return FAIL(ST_INTERNAL, "emulated: a stream waits for an event that was not recorded");
    return try_next(set, other, of, out_did);
}

/* Makes one step of the lane `on` if it can; *out_did says whether it did. `of` is the graph that
 * the lane belongs to, or NULL for a stream's lane. */
static status try_next(queue_set *set, lane *on, graph *of, bool *out_did)
{
    node *item = &on->at[on->passed];
    bool done = true;
    *out_did = true;
    switch (item->kind) {
    case NODE_RUN:
        TRY(item->run(set->hands, item->args));
        break;
    case NODE_COPY:
        memmove(item->dst, item->src, item->bytes);
        break;
    case NODE_SHIPMENT:
        memcpy(item->dst, item->src, item->bytes);
        free((void *)item->src);
        break;
    case NODE_ZERO:
        memset(item->dst, 0, item->bytes);
        break;
    case NODE_OUTSIDE:
        done = item->poll(item->work, !item->begun);
        item->begun = !done;
        *out_did = done;
        break;
    case NODE_RECORD:
        item->event->ns = set->clock_ns;
        break;
    case NODE_FOLLOW:
        done = item->on->gone + item->on->passed >= item->place;
        if (!done)
            TRY(help(set, item->on, NULL, out_did));
        break;
    case NODE_FOLLOW_INSIDE:
        done = of->branch[item->branch].passed >= item->place;
        if (!done)
            TRY(help(set, &of->branch[item->branch], of, out_did));
        break;
    case NODE_LAUNCH:
        TRY(try_launch(set, item->graph, out_did, &done));
        break;
    }
    on->passed += done;
    set->clock_ns += done && item->kind <= NODE_OUTSIDE ? QUEUE_CALL_NS : 0;
    return ST_OK;
}

static void let_go(lane *on)
{
    if (on->passed < KEPT || 2 * on->passed < on->count)
        return;
    on->count -= on->passed;
    on->gone += on->passed;
    memmove(on->at, on->at + on->passed, (size_t)on->count * sizeof *on->at);
    on->passed = 0;
}

/* Makes one step of the lane `on`. While it waits for other processes, other lanes make progress,
 * as on a GPU. */
static status pass_step(queue_set *set, lane *on)
{
    for (long nap = NAP_NS;; nap = 2 * nap < NAP_MOST_NS ? 2 * nap : NAP_MOST_NS) {
        bool did = false;
        TRY(try_next(set, on, NULL, &did));
        for (int i = 0; i < set->count && !did; i++)
            if (&set->lane[i] != on && set->lane[i].passed < set->lane[i].count)
                TRY(try_next(set, &set->lane[i], NULL, &did));
        if (did)
            return ST_OK;
        nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
    }
}

int64_t queue_end(const lane *on)
{
    return on->gone + on->count;
}

status queue_pass(queue_set *set, lane *on, int64_t place)
{
    while (on->gone + on->passed < place)
        TRY(pass_step(set, on));
    for (int i = 0; i < set->count; i++)
        let_go(&set->lane[i]);
    return ST_OK;
}

/* Marks the first `upto` nodes of lane branch as passed, and all nodes of other lanes that they
 * follow. */
static void advance_branch(graph *recorded, int branch, int64_t upto)
{
    lane *on = &recorded->branch[branch];
    while (on->passed < upto) {
        const node *item = &on->at[on->passed++];
        if (item->kind == NODE_FOLLOW_INSIDE)
            advance_branch(recorded, item->branch, item->place);
    }
}

bool queue_is_joined(graph *recorded)
{
    bool joined = true;
    for (int branch = 0; branch < recorded->count; branch++)
        recorded->branch[branch].passed = 0;
    advance_branch(recorded, 0, recorded->branch[0].count);
    for (int branch = 0; branch < recorded->count; branch++)
        joined &= recorded->branch[branch].passed == recorded->branch[branch].count;
    return joined;
}

void queue_lane_done(lane *on)
{
    for (int64_t i = on->passed; i < on->count; i++)
        if (on->at[i].kind == NODE_SHIPMENT)
            free((void *)on->at[i].src);
    free(on->at);
    *on = (lane){0};
}

void queue_graph_free(graph *recorded)
{
    for (int branch = 0; branch < recorded->count; branch++) {
        const lane *on = &recorded->branch[branch];
        for (int64_t i = 0; i < on->count; i++)
            if (on->at[i].kind == NODE_OUTSIDE && on->at[i].drop)
                on->at[i].drop(on->at[i].work);
        free(on->at);
    }
    free(recorded);
}
