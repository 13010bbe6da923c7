#include "trainer/plan/received.h"

#include <assert.h>

#include "trainer/model/unit_order.h"
#include "trainer/step_totals.h"

typedef struct list {
    received_line *line;
    int n;
} list;

static void add(list *l, const char *what, mesh_group group, int64_t bytes)
{
    assert(l->n < RECEIVED_LINES);
    l->line[l->n++] = (received_line){what, group, bytes};
}

/* How often a micro-step gathers a span: on the last stage the last layer and the head are there
 * still when backward begins; on others another micro-step's backward comes between. */
static int64_t gathers(const params *p, const model_dims *d, const stage_part *part,
                       const unit_span *x)
{
    const int head = unit_head(d);
    bool again = (p->reshard || !part->closes) && !x->stays && !x->forward_only &&
                 x->unit != head && x->unit != head - 1;
    return 1 + again;
}

static void add_weights(list *l, const params *p, const model_dims *d, const stage_part *part,
                        const received_work *w)
{
    int64_t gather[2] = {0}, reduce[2] = {0};
    for (int64_t i = 0; i < p->n_spans; i++) {
        const unit_span *x = &p->spans[i];
        gather[x->vision] += gathers(p, d, part, x) * (x->ranks - 1) * x->piece;
        reduce[x->vision] += x->trained * (x->ranks - 1) * x->piece;
    }
    const int64_t act = w->micro_steps * (int64_t)w->act, acc = w->micro_steps * (int64_t)w->acc;
    add(l, UNITS_GATHER, MESH_WHOLE, gather[0] * act);
    add(l, UNITS_GATHER_VISION, MESH_WHOLE, gather[1] * act);
    add(l, UNITS_REDUCE, MESH_WHOLE, reduce[0] * acc);
    add(l, UNITS_REDUCE_VISION, MESH_WHOLE, reduce[1] * acc);
}

/* Of an all reduce of n elements. */
static int64_t reduced(const comm *c, int64_t n)
{
    return comm_all_reduce_gets(c->rank, c->size, n);
}

static int64_t moe_layers(const model_dims *d, const stage_part *part)
{
    int64_t n = 0;
    for (int64_t l = part->first; l < part->end; l++)
        n += dims_layer_is_moe(d, l);
    return n;
}

/* Layers with experts, or dense ones, whose backward computes this kind again. */
static int64_t again_in(const model_dims *d, const stage_part *part, const received_work *w,
                        bool moe, unsigned kind)
{
    int64_t n = 0;
    for (int64_t l = part->first; l < part->end; l++)
        n += dims_layer_is_moe(d, l) == moe && (recompute_of(&w->again, l) & kind);
    return n;
}

static int64_t again_in_all(const model_dims *d, const stage_part *part, const received_work *w,
                            unsigned kind)
{
    return again_in(d, part, w, true, kind) + again_in(d, part, w, false, kind);
}

/* Sequence pieces into heads and back: n elements of T tokens in each of these, per layer. */
static void add_attention(list *l, const model_dims *d, const mesh *m, const stage_part *part,
                          const received_work *w)
{
    const text_dims *t = &d->text;
    const int64_t act = (int64_t)w->act, n = part->end - part->first;
    const int64_t tensor = m->layout.tensor, context = m->layout.context;
    const int64_t all = w->tokens * act; /* of a layer */
    const int64_t wide = all * (tensor - 1) * t->hidden;
    const int64_t narrow =
        all * (context - 1) * t->kv_heads * t->head_dim; /* T x tensor / tensor */
    add(l, "gather attention input", MESH_TENSOR,
        (2 * n + again_in_all(d, part, w, AGAIN_QKV)) * wide);
    add(l, "reduce attention output", MESH_TENSOR,
        (n + again_in_all(d, part, w, AGAIN_PROJ)) * wide);
    add(l, "gather attention gradient", MESH_TENSOR, n * wide);
    add(l, "reduce attention gradient", MESH_TENSOR, n * wide);
    add(l, "gather keys and values", MESH_CONTEXT,
        2 * (2 * n + again_in_all(d, part, w, AGAIN_ATTENTION)) * narrow);
    add(l, "reduce keys and values", MESH_CONTEXT, 2 * n * narrow);
}

static void add_dense_mlp(list *l, const model_dims *d, const mesh *m, const stage_part *part,
                          const received_work *w)
{
    const int64_t n = part->end - part->first - moe_layers(d, part); /* wide: of a layer */
    const int64_t wide = w->tokens * d->text.hidden * (m->layout.tensor - 1) * (int64_t)w->act;
    add(l, "gather MLP input", MESH_TENSOR,
        (2 * n + again_in(d, part, w, false, AGAIN_FC1)) * wide);
    add(l, "reduce MLP output", MESH_TENSOR, n * wide);
    add(l, "gather MLP gradient", MESH_TENSOR, n * wide);
    add(l, "reduce MLP gradient", MESH_TENSOR, n * wide);
}

/* Experts cut over tensor ranks: each of them sees all their tokens. */
static void add_expert_tensor(list *l, const model_dims *d, const mesh *m, const stage_part *part,
                              const received_work *w)
{
    const text_dims *t = &d->text;
    const int64_t again = again_in(d, part, w, true, AGAIN_FC2), acc = (int64_t)w->acc;
    const int64_t n = moe_layers(d, part), others = w->tokens * (m->layout.expert_tensor - 1);
    const int64_t wide = others * t->hidden * (int64_t)w->act, choices = others * t->top_k;
    add(l, "gather choices", MESH_TENSOR, choices * ((n + again) * 4 + 2 * n * acc));
    add(l, "gather expert input", MESH_TENSOR, (2 * n + again) * wide);
    add(l, "reduce expert output", MESH_TENSOR, n * wide);
    add(l, "gather expert gradient", MESH_TENSOR, n * wide);
    add(l, "reduce gradients of choices", MESH_TENSOR, n * choices * acc);
    add(l, "reduce expert gradient", MESH_TENSOR, n * wide);
}

static void add_exchange(list *l, const model_dims *d, const mesh *m, const stage_part *part,
                         const received_work *w)
{
    const text_dims *t = &d->text;
    const int64_t again = again_in(d, part, w, true, AGAIN_FC2), n = moe_layers(d, part);
    const int64_t slot = t->hidden * (int64_t)w->act;
    const int64_t come = n ? again * w->slots_come / n : 0; /* layers are taken for alike */
    const int64_t go = n ? again * w->slots_go / n : 0;
    const int64_t counts = (m->layout.expert - 1) * (t->experts + 1) * 4;
    add(l, "gather expert counts", MESH_EXPERT, w->micro_steps * (2 * n + again) * counts);
    add(l, "send to experts", MESH_EXPERT, (w->slots_come + come) * slot);
    add(l, "return from experts", MESH_EXPERT, (w->slots_go + go) * slot);
    add(l, "send to experts again", MESH_EXPERT, w->slots_come * slot);
    add(l, "send gradients to experts", MESH_EXPERT, w->slots_come * slot);
    add(l, "return gradients from experts", MESH_EXPERT, w->slots_go * slot);
}

static void add_features(list *l, const model_dims *d, const mesh *m, const stage_part *part,
                         const received_work *w)
{
    const int64_t rows = part->opens * (m->layout.context * m->layout.tensor - 1) *
                         w->feature_rows * d->text.hidden * (int64_t)w->act;
    const int64_t deep = d->vision.depth > 0 ? d->vision.n_deepstack : 0;
    add(l, "gather visual rows", MESH_ROW, rows);
    add(l, "gather deepstack features", MESH_ROW, deep * rows);
    add(l, "reduce feature gradients", MESH_ROW, (1 + deep) * rows);
}

/* Between pipeline stages. */
static void add_borders(list *l, const model_dims *d, const stage_part *part,
                        const received_work *w)
{
    const int64_t x = w->tokens * d->text.hidden * (int64_t)w->act;
    const int64_t statistics = (2 * d->text.experts + 2) * (int64_t)w->acc;
    add(l, "send activations", MESH_PIPELINE, !part->opens * x);
    add(l, "send their gradients", MESH_PIPELINE, !part->closes * x);
    if (w->aux > 0)
        add(l, "send router statistics", MESH_PIPELINE,
            w->micro_steps * (!part->opens + !part->closes) * statistics);
}

int received_lines(const params *p, const model_dims *d, const mesh *m, const received_work *w,
                   received_line out[RECEIVED_LINES])
{
    const stage_part part = stage_part_of(d, &m->layout, m->place.pipeline);
    list l = {out, 0};
    const int64_t statistics = 2 * d->text.experts + 2, acc = (int64_t)w->acc;
    add_weights(&l, p, d, &part, w);
    add(&l, "sum replicas' gradients", MESH_REPLICATE,
        reduced(mesh_comm(m, MESH_REPLICATE), p->trained_elements) * acc);
    add_attention(&l, d, m, &part, w);
    add_dense_mlp(&l, d, m, &part, w);
    add_expert_tensor(&l, d, m, &part, w);
    add_exchange(&l, d, m, &part, w);
    add_features(&l, d, m, &part, w);
    const comm *ranks = mesh_comm(m, MESH_WORLD);
    add(&l, "sum loss and counts", MESH_WORLD,
        (3 * reduced(ranks, 1) + reduced(ranks, STEP_TOTALS)) * (int64_t)sizeof(double));
    add(&l, "sum squares of gradients", MESH_WHOLE,
        (reduced(mesh_comm(m, MESH_WHOLE), GROUP_COUNT) +
         reduced(mesh_comm(m, MESH_PIPELINE), GROUP_COUNT)) *
            (int64_t)sizeof(double));
    if (w->aux > 0)
        add(&l, "sum router statistics", MESH_STAGE,
            part.closes * w->micro_steps * reduced(mesh_comm(m, MESH_STAGE), statistics) * acc);
    add_borders(&l, d, &part, w);
    return l.n;
}
