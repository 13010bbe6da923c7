/* pipeline_exchange.c: lists what a pass sends and receives, and moves it all in one group of
 * calls. */
#include "trainer/model/pipeline_exchange.h"

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

static void add_cargo(cargo *list, int *inout_n, cargo c)
{
    list[(*inout_n)++] = c;
}

/* Appends what a pass sends when it is done (out) or needs before it begins. The two neighbours
 * list the same arrays in the same order. */
static void list_of(const pipeline_exchange *b, bool out, const comm *c, const stream *s,
                    const model_dims *dims, cargo *list, int *inout_n)
{
    const decoder *stack = b->stack;
    if (b->kind == PASS_NONE)
        return;
    const bool ahead = b->kind == PASS_FORWARD || (b->kind == PASS_BOTH && !out);
    const int64_t layer = ahead == out ? stack->part.end : stack->part.first;
    if (ahead == out ? stack->part.closes : stack->part.opens)
        return;
    cargo one = {.what = ahead ? activations : gradients,
                 .at = ahead ? stack->x[layer] : stack->dx,
                 .count = b->tokens * dims->text.hidden,
                 .dtype = s->dev->backend->act,
                 .stage = ahead == out ? c->rank + 1 : c->rank - 1,
                 .out = out};
    if (ahead || decoder_reaches_below(stack, layer))
        add_cargo(list, inout_n, one);
    if (!stack->aux.on)
        return;
    one.what = statistics;
    one.at = out && !ahead ? stack->aux.sent : stack->aux.count_total;
    one.count = moe_aux_elements(dims->text.experts);
    one.dtype = s->dev->backend->acc;
    add_cargo(list, inout_n, one);
}

static status move_cargo(const comm *c, stream *s, const cargo *x)
{
    const comm_at at = {x->what, -1};
    if (x->out)
        return comm_send(c, s, at, x->at, x->count, x->dtype, x->stage);
    return comm_recv(c, s, at, x->at, x->count, x->dtype, x->stage);
}

status pipeline_exchange_cross(const comm *pipeline, stream *s, const model_dims *dims,
                               const pipeline_exchange *done, const pipeline_exchange *next)
{
    cargo list[MOST_CARGO];
    int n = 0;
    list_of(done, true, pipeline, s, dims, list, &n);
    list_of(next, false, pipeline, s, dims, list, &n);
    if (n == 0)
        return ST_OK;
    if (done->kind != PASS_NONE && done->stack->aux.on)
        TRY(s->dev->backend->copy(s, done->stack->aux.sent, done->stack->aux.count_total,
                                  (size_t)moe_aux_elements(dims->text.experts) *
                                      st_dtype_size(s->dev->backend->acc)));
    TRY(comm_begin(pipeline, s));
    for (int i = 0; i < n; i++)
        TRY(move_cargo(pipeline, s, &list[i]));
    return comm_end(pipeline, s);
}
