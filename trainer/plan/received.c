/* received.c: adds up the bytes of each kind of collective. Every function below adds the lines of
 * one part of the model; "wide" and "narrow" are the bytes of one call. */
#include "trainer/plan/received.h"

#include <assert.h>

#include "trainer/model/unit_order.h"

typedef struct list {
    received_line *line;
    int count;
} list;

static void add_line(list *l, const char *what, mesh_group group, int64_t bytes)
{
    assert(l->count < RECEIVED_LINES);
    l->line[l->count++] = (received_line){what, group, bytes};
}

/* How often a micro-step gathers a span. It is gathered again for the backward pass unless it is
 * still there: on the last pipeline stage the last layer and the head are, since their backward
 * pass follows at once, while on other stages the backward pass of another micro-step comes
 * between. */
static int64_t gathers(const params *p, const model_dims *d, const stage_part *part,
                       const unit_span *x)
{
    const int head = unit_head(d);
    bool recomputed = (p->reshard || !part->closes) && !x->stays && !x->forward_only &&
                      x->unit != head && x->unit != head - 1;
    return 1 + recomputed;
}

received_weights received_weights_of(const params *p, const model_dims *d, const mesh *m,
                                     const received_work *w, bool vision)
{
    const stage_part part = stage_part_of(d, &m->layout, m->place.pipeline);
    const int64_t act = w->micro_steps * (int64_t)w->act, acc = w->micro_steps * (int64_t)w->acc;
    received_weights out = {{0}};
    for (int64_t i = 0; i < p->n_spans; i++) {
        const unit_span *x = &p->spans[i];
        const int64_t others = x->vision == vision ? (x->ranks - 1) * x->piece : 0;
        out.gather[x->group] += gathers(p, d, &part, x) * others * act;
        out.reduce[x->group] += x->trained * others * acc;
    }
    return out;
}

static void add_weights(list *l, const params *p, const model_dims *d, const mesh *m,
                        const received_work *w)
{
    int64_t gather[2] = {0}, reduce[2] = {0};
    for (int vision = 0; vision < 2; vision++) {
        const received_weights of = received_weights_of(p, d, m, w, vision);
        for (int g = 0; g < MESH_GROUPS; g++) {
            gather[vision] += of.gather[g];
            reduce[vision] += of.reduce[g];
        }
    }
    add_line(l, UNITS_GATHER, MESH_WHOLE, gather[0]);
    add_line(l, UNITS_GATHER_VISION, MESH_WHOLE, gather[1]);
    add_line(l, UNITS_REDUCE, MESH_WHOLE, reduce[0]);
    add_line(l, UNITS_REDUCE_VISION, MESH_WHOLE, reduce[1]);
}

/* Elements that this rank receives in an all-reduce of n elements. */
static int64_t reduced(const comm *c, int64_t n)
{
    return comm_all_reduce_gets(c->rank, c->size, n);
}

/* The decoder layers of a stage, and how far down the backward pass goes. */
typedef struct layers {
    const stage_part *part;
    int64_t lowest; /* the lowest layer that the backward pass reaches; part->end: none */
    bool features;  /* the backward pass goes on into the tower's mergers */
} layers;

static layers layers_of(const params *p, const stage_part *part)
{
    layers a = {.part = part, .lowest = part->end};
    for (int64_t i = 0; i < p->n_spans; i++) {
        const unit_span *x = &p->spans[i];
        a.features |= x->vision && !x->forward_only;
        if (x->layer >= 0 && !x->forward_only && x->layer < a.lowest)
            a.lowest = x->layer;
    }
    return a;
}

enum { DENSE = 1, MOE = 2, BOTH = DENSE | MOE };

static bool is_one(const model_dims *d, int64_t l, unsigned kinds)
{
    return kinds & (dims_layer_is_moe(d, l) ? MOE : DENSE);
}

static int64_t forwards(const model_dims *d, const layers *a, unsigned kinds)
{
    int64_t n = 0;
    for (int64_t l = a->part->first; l < a->part->end; l++)
        n += is_one(d, l, kinds);
    return n;
}

static int64_t backwards(const model_dims *d, const layers *a, unsigned kinds)
{
    int64_t n = 0;
    for (int64_t l = a->lowest; l < a->part->end; l++)
        n += is_one(d, l, kinds);
    return n;
}

/* How many layers recompute `what` in their backward pass. */
static int64_t recomputed_passes(const model_dims *d, const layers *a, unsigned kinds,
                                 const received_work *w, unsigned what)
{
    int64_t n = 0;
    for (int64_t l = a->lowest; l < a->part->end; l++)
        n += is_one(d, l, kinds) && (recompute_of(&w->recomputed, l) & what);
    return n;
}

/* Pieces of the sequence are gathered before attention and reduced after it, in every layer. */
static void add_attention(list *l, const model_dims *d, const mesh *m, const layers *a,
                          const received_work *w)
{
    const text_dims *t = &d->text;
    const int64_t act = (int64_t)w->act;
    const int64_t n = forwards(d, a, BOTH), back = backwards(d, a, BOTH);
    const int64_t tensor = m->layout.tensor, context = m->layout.context;
    const int64_t all = w->tokens * act; /* of a layer */
    const int64_t wide = all * (tensor - 1) * t->hidden;
    const int64_t narrow =
        all * (context - 1) * t->kv_heads * t->head_dim; /* T x tensor / tensor */
    add_line(l, "gather attention input", MESH_TENSOR,
             (n + back + recomputed_passes(d, a, BOTH, w, RECOMPUTE_QKV)) * wide);
    add_line(l, "reduce attention output", MESH_TENSOR,
             (n + recomputed_passes(d, a, BOTH, w, RECOMPUTE_PROJ)) * wide);
    add_line(l, "gather attention gradient", MESH_TENSOR, back * wide);
    add_line(l, "reduce attention gradient", MESH_TENSOR, back * wide);
    add_line(l, "gather keys and values", MESH_CONTEXT,
             2 * (n + back + recomputed_passes(d, a, BOTH, w, RECOMPUTE_ATTENTION)) * narrow);
    add_line(l, "reduce keys and values", MESH_CONTEXT, 2 * back * narrow);
}

static void add_dense_mlp(list *l, const model_dims *d, const mesh *m, const layers *a,
                          const received_work *w)
{
    const int64_t n = forwards(d, a, DENSE), back = backwards(d, a, DENSE);
    const int64_t wide = w->tokens * d->text.hidden * (m->layout.tensor - 1) * (int64_t)w->act;
    add_line(l, "gather MLP input", MESH_TENSOR,
             (n + back + recomputed_passes(d, a, DENSE, w, RECOMPUTE_FC1)) * wide);
    add_line(l, "reduce MLP output", MESH_TENSOR, n * wide);
    add_line(l, "gather MLP gradient", MESH_TENSOR, back * wide);
    add_line(l, "reduce MLP gradient", MESH_TENSOR, back * wide);
}

/* Where experts are cut over tensor ranks, each of these ranks must see the tokens of all of them.
 */
static void add_expert_tensor(list *l, const model_dims *d, const mesh *m, const layers *a,
                              const received_work *w)
{
    const text_dims *t = &d->text;
    const int64_t n = forwards(d, a, MOE), back = backwards(d, a, MOE);
    const int64_t recomputed = recomputed_passes(d, a, MOE, w, RECOMPUTE_FC2),
                  acc = (int64_t)w->acc;
    const int64_t others = w->tokens * (m->layout.expert_tensor - 1);
    const int64_t wide = others * t->hidden * (int64_t)w->act, choices = others * t->top_k;
    add_line(l, "gather choices", MESH_TENSOR, choices * ((n + recomputed) * 4 + (n + back) * acc));
    add_line(l, "gather expert input", MESH_TENSOR, (n + back + recomputed) * wide);
    add_line(l, "reduce expert output", MESH_TENSOR, n * wide);
    add_line(l, "gather expert gradient", MESH_TENSOR, back * wide);
    add_line(l, "reduce gradients of choices", MESH_TENSOR, back * choices * acc);
    add_line(l, "reduce expert gradient", MESH_TENSOR, back * wide);
}

static void add_exchange(list *l, const model_dims *d, const mesh *m, const layers *a,
                         const received_work *w)
{
    const text_dims *t = &d->text;
    const int64_t passes =
        forwards(d, a, MOE) + backwards(d, a, MOE) + recomputed_passes(d, a, MOE, w, RECOMPUTE_FC2);
    const int64_t slot = t->hidden * (int64_t)w->act;
    const int64_t counts = (m->layout.expert - 1) * (t->experts + 1) * 4;
    received_slots there = {0}, back = {0}; /* forward and recomputed passes; backward passes */
    for (int64_t i = a->part->first; i < a->part->end && w->slots; i++) {
        const bool reached = i >= a->lowest;
        const int64_t times = 1 + (reached && (recompute_of(&w->recomputed, i) & RECOMPUTE_FC2));
        there.come += times * w->slots[i].come;
        there.go += times * w->slots[i].go;
        back.come += reached * w->slots[i].come;
        back.go += reached * w->slots[i].go;
    }
    add_line(l, "gather expert counts", MESH_EXPERT, w->micro_steps * passes * counts);
    add_line(l, "send to experts", MESH_EXPERT, there.come * slot);
    add_line(l, "return from experts", MESH_EXPERT, there.go * slot);
    add_line(l, "send to experts again", MESH_EXPERT, back.come * slot);
    add_line(l, "send gradients to experts", MESH_EXPERT, back.come * slot);
    add_line(l, "return gradients from experts", MESH_EXPERT, back.go * slot);
}

static void add_features(list *l, const model_dims *d, const mesh *m, const layers *a,
                         const received_work *w)
{
    const int64_t rows = a->part->opens * (m->layout.context * m->layout.tensor - 1) *
                         w->feature_rows * d->text.hidden * (int64_t)w->act;
    const int64_t deep = d->vision.depth > 0 ? d->vision.n_deepstack : 0;
    add_line(l, "gather visual rows", MESH_ROW, rows);
    add_line(l, "gather deepstack features", MESH_ROW, deep * rows);
    add_line(l, "reduce feature gradients", MESH_ROW, a->features * (1 + deep) * rows);
}

/* Activations, gradients and router statistics go between pipeline stages. */
static void add_borders(list *l, const model_dims *d, const layers *a, const received_work *w)
{
    const stage_part *part = a->part;
    const int64_t x = w->tokens * d->text.hidden * (int64_t)w->act;
    const int64_t statistics = (2 * d->text.experts + 2) * (int64_t)w->acc;
    add_line(l, "send activations", MESH_PIPELINE, !part->opens * x);
    add_line(l, "send their gradients", MESH_PIPELINE,
             (!part->closes && a->lowest < part->end) * x);
    if (w->aux > 0)
        add_line(l, "send router statistics", MESH_PIPELINE,
                 w->micro_steps * (!part->opens + !part->closes) * statistics);
}

int received_lines(const params *p, const model_dims *d, const mesh *m, const received_work *w,
                   received_line out[RECEIVED_LINES])
{
    const stage_part part = stage_part_of(d, &m->layout, m->place.pipeline);
    const layers a = layers_of(p, &part);
    list l = {out, 0};
    const int64_t statistics = 2 * d->text.experts + 2, acc = (int64_t)w->acc;
    add_weights(&l, p, d, m, w);
    add_line(&l, "sum replicas' gradients", MESH_REPLICATE,
             reduced(mesh_comm(m, MESH_REPLICATE), p->trained_elements) * acc);
    add_attention(&l, d, m, &a, w);
    add_dense_mlp(&l, d, m, &a, w);
    add_expert_tensor(&l, d, m, &a, w);
    add_exchange(&l, d, m, &a, w);
    add_features(&l, d, m, &a, w);
    const comm *ranks = mesh_comm(m, MESH_WORLD);
    add_line(&l, "sum loss and counts", MESH_WORLD,
             (2 * reduced(ranks, 1) + reduced(ranks, 2) + reduced(ranks, STEP_TOTALS)) *
                 (int64_t)sizeof(double));
    add_line(&l, "sum squares of gradients", MESH_WHOLE,
             (reduced(mesh_comm(m, MESH_WHOLE), GROUP_COUNT) +
              reduced(mesh_comm(m, MESH_PIPELINE), GROUP_COUNT)) *
                 (int64_t)sizeof(double));
    if (w->aux > 0)
        add_line(&l, "sum router statistics", MESH_STAGE,
                 part.closes * w->micro_steps * reduced(mesh_comm(m, MESH_STAGE), statistics) *
                     acc);
    add_borders(&l, d, &a, w);
    return l.count;
}
