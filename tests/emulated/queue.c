/* queue.c: the implementation of queue.h. try_next makes one step of a lane; if that lane waits for
 * another, it makes a step of the other. The thread sleeps only while it waits for work of other
 * processes. */
#include "tests/emulated/queue.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    NAP_NS = 50 * 1000,
    KEPT = 1024 /* nodes already run that a lane keeps before it drops them */
};

status lane_add(lane *l, const node *n)
{
    if (l->n == l->capacity) {
        int64_t capacity = l->capacity ? 2 * l->capacity : 256;
        node *at = realloc(l->at, (size_t)capacity * sizeof *at);
        if (!at)
            return FAIL(ST_NO_MEMORY, "emulated: no memory");
        l->at = at;
        l->capacity = capacity;
    }
    l->at[l->n++] = *n;
    return ST_OK;
}

static status try_next(queue_set *q, lane *l, graph *of, bool *out_did);

/* Makes one step of a graph: of its first lane or, while that one waits for other processes, of
 * another lane. */
static status try_launch(queue_set *q, graph *g, bool *out_did, bool *out_done)
{
    if (!g->running)
        for (int b = 0; b < g->n; b++)
            g->branch[b].passed = 0;
    g->running = true;
    *out_did = g->branch[0].n == 0;
    for (int b = 0; b < g->n && !*out_did; b++)
        if (g->branch[b].passed < g->branch[b].n)
            TRY(try_next(q, &g->branch[b], g, out_did));
    *out_done = g->branch[0].passed == g->branch[0].n;
    g->running = !*out_done;
    return ST_OK;
}

/* Makes one step of the lane that is waited for. */
static status help(queue_set *q, lane *other, graph *of, bool *out_did)
{
    if (other->passed == other->n)
        return FAIL(ST_INTERNAL, "emulated: a stream waits for an event that was not recorded");
    return try_next(q, other, of, out_did);
}

/* Makes one step of l if it can; *out_did says whether it did. `of` is the graph that the lane
 * belongs to, or NULL for a stream's lane. */
static status try_next(queue_set *q, lane *l, graph *of, bool *out_did)
{
    node *n = &l->at[l->passed];
    bool done = true;
    *out_did = true;
    switch (n->kind) {
    case NODE_RUN:
        TRY(n->run(q->hands, n->args));
        break;
    case NODE_COPY:
        memmove(n->dst, n->src, n->bytes);
        break;
    case NODE_SHIPMENT:
        memcpy(n->dst, n->src, n->bytes);
        free((void *)n->src);
        break;
    case NODE_ZERO:
        memset(n->dst, 0, n->bytes);
        break;
    case NODE_OUTSIDE:
        done = n->poll(n->work, !n->begun);
        n->begun = !done;
        *out_did = done;
        break;
    case NODE_RECORD:
        n->event->ns = q->clock_ns;
        break;
    case NODE_FOLLOW:
        done = n->on->gone + n->on->passed >= n->place;
        if (!done)
            TRY(help(q, n->on, NULL, out_did));
        break;
    case NODE_FOLLOW_INSIDE:
        done = of->branch[n->branch].passed >= n->place;
        if (!done)
            TRY(help(q, &of->branch[n->branch], of, out_did));
        break;
    case NODE_LAUNCH:
        TRY(try_launch(q, n->graph, out_did, &done));
        break;
    }
    l->passed += done;
    q->clock_ns += done && n->kind <= NODE_OUTSIDE ? QUEUE_CALL_NS : 0;
    return ST_OK;
}

static void let_go(lane *l)
{
    if (l->passed < KEPT || 2 * l->passed < l->n)
        return;
    l->n -= l->passed;
    l->gone += l->passed;
    memmove(l->at, l->at + l->passed, (size_t)l->n * sizeof *l->at);
    l->passed = 0;
}

/* Makes one step of l. While l waits for other processes, other lanes make progress, as on a
 * GPU. */
static status pass_step(queue_set *q, lane *l)
{
    for (;;) {
        bool did = false;
        TRY(try_next(q, l, NULL, &did));
        for (int i = 0; i < q->n && !did; i++)
            if (&q->lane[i] != l && q->lane[i].passed < q->lane[i].n)
                TRY(try_next(q, &q->lane[i], NULL, &did));
        if (did)
            return ST_OK;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

int64_t queue_end(const lane *l)
{
    return l->gone + l->n;
}

status queue_pass(queue_set *q, lane *l, int64_t place)
{
    while (l->gone + l->passed < place)
        TRY(pass_step(q, l));
    for (int i = 0; i < q->n; i++)
        let_go(&q->lane[i]);
    return ST_OK;
}

/* Marks the first `upto` nodes of lane b as passed, and all nodes of other lanes that they
 * follow. */
static void advance_branch(graph *g, int b, int64_t upto)
{
    lane *l = &g->branch[b];
    while (l->passed < upto) {
        const node *n = &l->at[l->passed++];
        if (n->kind == NODE_FOLLOW_INSIDE)
            advance_branch(g, n->branch, n->place);
    }
}

bool queue_is_joined(graph *g)
{
    bool joined = true;
    for (int b = 0; b < g->n; b++)
        g->branch[b].passed = 0;
    advance_branch(g, 0, g->branch[0].n);
    for (int b = 0; b < g->n; b++)
        joined &= g->branch[b].passed == g->branch[b].n;
    return joined;
}

void queue_lane_done(lane *l)
{
    for (int64_t i = l->passed; i < l->n; i++)
        if (l->at[i].kind == NODE_SHIPMENT)
            free((void *)l->at[i].src);
    free(l->at);
    *l = (lane){0};
}

void queue_graph_free(graph *g)
{
    for (int b = 0; b < g->n; b++)
        free(g->branch[b].at);
    free(g);
}
