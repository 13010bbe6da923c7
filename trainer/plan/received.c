/* SPDX-License-Identifier: Apache-2.0 */
/* received.c: adds up the bytes of each kind of collective. Every function below adds the lines of
 * one part of the model; "wide" and "narrow" are the bytes of one call. */
#include "trainer/plan/received.h"

#include <assert.h>

#include "trainer/model/params/unit_order.h"

typedef struct list {
    received_line *line;
    int count;
} list;

static void add_line(list *rows, const char *what, mesh_group group, int64_t bytes)
{
    assert(rows->count < RECEIVED_LINES);
    rows->line[rows->count++] = (received_line){what, group, bytes};
}

/* How often a micro-step gathers a span. It is gathered again for the backward pass unless it is
 * still there: on the last pipeline stage the last layer and the head are, since their backward
 * pass follows at once, while on other stages the backward pass of another micro-step comes
 * between. */
static int64_t gathers(const params *registry, const model_dims *dims, const stage_part *part,
                       const unit_span *one)
{
    const int head = unit_head(dims);
    bool recomputed = (registry->reshard || !part->closes) && !one->stays && !one->forward_only &&
                      one->unit != head && one->unit != head - 1;
    return 1 + recomputed;
}

received_weights received_weights_of(const params *registry, const model_dims *dims,
                                     const mesh *groups, const received_work *work, bool vision)
{
    const stage_part part = stage_part_of(dims, &groups->layout, groups->place.pipeline);
    const int64_t act = work->micro_steps * (int64_t)work->act,
                  acc = work->micro_steps * (int64_t)work->acc;
    received_weights out = {{0}};
    for (int64_t i = 0; i < registry->n_spans; i++) {
        const unit_span *one = &registry->spans[i];
        const int64_t others = one->vision == vision ? (one->ranks - 1) * one->piece : 0;
        out.gather[one->group] +=
            gathers(registry, dims, &part, one) * others *
            (one->element_bytes ? work->micro_steps * one->element_bytes : act);
        out.reduce[one->group] += one->trained * others * acc;
    }
    return out;
}

static void add_weights(list *rows, const params *registry, const model_dims *dims,
                        const mesh *groups, const received_work *work)
{
    int64_t gather[2] = {0}, reduce[2] = {0};
    for (int vision = 0; vision < 2; vision++) {
        const received_weights of = received_weights_of(registry, dims, groups, work, vision);
        for (int i = 0; i < MESH_GROUPS; i++) {
            gather[vision] += of.gather[i];
            reduce[vision] += of.reduce[i];
        }
    }
    add_line(rows, UNITS_GATHER, MESH_WHOLE, gather[0]);
    add_line(rows, UNITS_GATHER_VISION, MESH_WHOLE, gather[1]);
    add_line(rows, UNITS_REDUCE, MESH_WHOLE, reduce[0]);
    add_line(rows, UNITS_REDUCE_VISION, MESH_WHOLE, reduce[1]);
}

/* Elements that this rank receives in an all-reduce of `count` elements. */
static int64_t reduced(const comm *group, int64_t count)
{
    return comm_all_reduce_gets(group->rank, group->size, count);
}

/* The decoder layers of a stage, and how far down the backward pass goes. */
typedef struct layers {
    const stage_part *part;
    int64_t lowest; /* the lowest layer that the backward pass reaches; part->end: none */
    bool features;  /* the backward pass goes on into the tower's mergers */
} layers;

static layers layers_of(const params *registry, const stage_part *part)
{
    layers stack = {.part = part, .lowest = part->end};
    for (int64_t i = 0; i < registry->n_spans; i++) {
        const unit_span *one = &registry->spans[i];
        stack.features |= one->vision && !one->forward_only;
        if (one->layer >= 0 && !one->forward_only && one->layer < stack.lowest)
            stack.lowest = one->layer;
    }
    return stack;
}

enum { DENSE = 1, MOE = 2, BOTH = DENSE | MOE };

static bool is_one(const model_dims *dims, int64_t layer, unsigned kinds)
{
    return kinds & (dims_layer_is_moe(dims, layer) ? MOE : DENSE);
}

static int64_t forwards(const model_dims *dims, const layers *stack, unsigned kinds)
{
    int64_t count = 0;
    for (int64_t i = stack->part->first; i < stack->part->end; i++)
        count += is_one(dims, i, kinds);
    return count;
}

static int64_t backwards(const model_dims *dims, const layers *stack, unsigned kinds)
{
    int64_t count = 0;
    for (int64_t i = stack->lowest; i < stack->part->end; i++)
        count += is_one(dims, i, kinds);
    return count;
}

/* How many layers recompute `what` in their backward pass. */
static int64_t recomputed_passes(const model_dims *dims, const layers *stack, unsigned kinds,
                                 const received_work *work, unsigned what)
{
    int64_t count = 0;
    for (int64_t i = stack->lowest; i < stack->part->end; i++)
        count += is_one(dims, i, kinds) && (recompute_of(&work->recomputed, i) & what);
    return count;
}

/* Pieces of the sequence are gathered before attention and reduced after it, in every layer. */
static void add_attention(list *rows, const model_dims *dims, const mesh *groups,
                          const layers *stack, const received_work *work)
{
    const text_dims *text = &dims->text;
    const int64_t act = (int64_t)work->act;
    const int64_t count = forwards(dims, stack, BOTH), back = backwards(dims, stack, BOTH);
    const int64_t tensor = groups->layout.tensor, context = groups->layout.context;
    const int64_t all = work->tokens * act; /* of a layer */
    const int64_t wide = all * (tensor - 1) * text->hidden;
    const int64_t narrow =
        all * (context - 1) * text->kv_heads * text->head_dim; /* T x tensor / tensor */
    add_line(rows, "gather attention input", MESH_TENSOR,
             (count + back + recomputed_passes(dims, stack, BOTH, work, RECOMPUTE_QKV)) * wide);
    add_line(rows, "reduce attention output", MESH_TENSOR,
             (count + recomputed_passes(dims, stack, BOTH, work, RECOMPUTE_PROJ)) * wide);
    add_line(rows, "gather attention gradient", MESH_TENSOR, back * wide);
    add_line(rows, "reduce attention gradient", MESH_TENSOR, back * wide);
    add_line(rows, "gather keys and values", MESH_CONTEXT,
             2 * (count + back + recomputed_passes(dims, stack, BOTH, work, RECOMPUTE_ATTENTION)) *
                 narrow);
    add_line(rows, "reduce keys and values", MESH_CONTEXT, 2 * back * narrow);
}

static void add_dense_mlp(list *rows, const model_dims *dims, const mesh *groups,
                          const layers *stack, const received_work *work)
{
    const int64_t count = forwards(dims, stack, DENSE), back = backwards(dims, stack, DENSE);
    const int64_t wide =
        work->tokens * dims->text.hidden * (groups->layout.tensor - 1) * (int64_t)work->act;
    add_line(rows, "gather MLP input", MESH_TENSOR,
             (count + back + recomputed_passes(dims, stack, DENSE, work, RECOMPUTE_FC1)) * wide);
    add_line(rows, "reduce MLP output", MESH_TENSOR, count * wide);
    add_line(rows, "gather MLP gradient", MESH_TENSOR, back * wide);
    add_line(rows, "reduce MLP gradient", MESH_TENSOR, back * wide);
}

/* Where experts are cut over tensor ranks,
 * each of these ranks must see the tokens of all of them. */
static void add_expert_tensor(list *rows, const model_dims *dims, const mesh *groups,
                              const layers *stack, const received_work *work)
{
    const text_dims *text = &dims->text;
    const int64_t count = forwards(dims, stack, MOE), back = backwards(dims, stack, MOE);
    const int64_t recomputed = recomputed_passes(dims, stack, MOE, work, RECOMPUTE_FC2),
                  acc = (int64_t)work->acc;
    const int64_t others = work->tokens * (groups->layout.expert_tensor - 1);
    const int64_t wide = others * text->hidden * (int64_t)work->act, choices = others * text->top_k;
    add_line(rows, "gather choices", MESH_TENSOR,
             choices * ((count + recomputed) * 4 + (count + back) * acc));
    add_line(rows, "gather expert input", MESH_TENSOR, (count + back + recomputed) * wide);
    add_line(rows, "reduce expert output", MESH_TENSOR, count * wide);
    add_line(rows, "gather expert gradient", MESH_TENSOR, back * wide);
    add_line(rows, "reduce gradients of choices", MESH_TENSOR, back * choices * acc);
    add_line(rows, "reduce expert gradient", MESH_TENSOR, back * wide);
}

static void add_exchange(list *rows, const model_dims *dims, const mesh *groups,
                         const layers *stack, const received_work *work)
{
    const text_dims *text = &dims->text;
    const int64_t passes = forwards(dims, stack, MOE) + backwards(dims, stack, MOE) +
                           recomputed_passes(dims, stack, MOE, work, RECOMPUTE_FC2);
    const int64_t slot = text->hidden * (int64_t)work->act;
    const int64_t counts = (groups->layout.expert - 1) * (text->experts + 1) * 4;
    received_slots there = {0}, back = {0}; /* forward and recomputed passes; backward passes */
    for (int64_t i = stack->part->first; i < stack->part->end && work->slots; i++) {
        const bool reached = i >= stack->lowest;
        const int64_t times = 1 + (reached && (recompute_of(&work->recomputed, i) & RECOMPUTE_FC2));
        there.come += times * work->slots[i].come;
        there.go += times * work->slots[i].go;
        back.come += reached * work->slots[i].come;
        back.go += reached * work->slots[i].go;
    }
    add_line(rows, "gather expert counts", MESH_EXPERT, work->micro_steps * passes * counts);
    add_line(rows, "send to experts", MESH_EXPERT, there.come * slot);
    add_line(rows, "return from experts", MESH_EXPERT, there.go * slot);
    add_line(rows, "send to experts again", MESH_EXPERT, back.come * slot);
    add_line(rows, "send gradients to experts", MESH_EXPERT, back.come * slot);
    add_line(rows, "return gradients from experts", MESH_EXPERT, back.go * slot);
}

static void add_features(list *entries, const model_dims *dims, const mesh *groups,
                         const layers *stack, const received_work *work)
{
    const int64_t rows = stack->part->opens * (groups->layout.context * groups->layout.tensor - 1) *
                         work->feature_rows * dims->text.hidden * (int64_t)work->act;
    const int64_t deep = dims->vision.depth > 0 ? dims->vision.n_deepstack : 0;
    add_line(entries, "gather visual rows", MESH_ROW, rows);
    add_line(entries, "gather deepstack features", MESH_ROW, deep * rows);
    add_line(entries, "reduce feature gradients", MESH_ROW, stack->features * (1 + deep) * rows);
}

/* Activations, gradients and router statistics go between pipeline stages. */
static void add_borders(list *rows, const model_dims *dims, const layers *stack,
                        const received_work *work)
{
    const stage_part *part = stack->part;
    const int64_t bytes = work->tokens * dims->text.hidden * (int64_t)work->act;
    const int64_t statistics = (2 * dims->text.experts + 2) * (int64_t)work->acc;
    add_line(rows, "send activations", MESH_PIPELINE, !part->opens * bytes);
    add_line(rows, "send their gradients", MESH_PIPELINE,
             (!part->closes && stack->lowest < part->end) * bytes);
    if (work->aux > 0)
        add_line(rows, "send router statistics", MESH_PIPELINE,
                 work->micro_steps * (!part->opens + !part->closes) * statistics);
}

/* What is summed of gradients besides their reduction, of the whole update or of each unit's. */
static void add_update(list *rows, const params *registry, const mesh *groups, int64_t acc)
{
    const comm *replicas = mesh_comm(groups, MESH_REPLICATE),
               *whole = mesh_comm(groups, MESH_WHOLE);
    int64_t units = 0, summed = reduced(replicas, registry->trained_elements);
    if (registry->in_backward)
        summed = 0;
    for (int64_t i = 0, last = -1; i < registry->n_spans && registry->in_backward; i++) {
        const unit_span *part = &registry->spans[i];
        if (!part->trained)
            continue;
        summed += reduced(replicas, part->piece);
        units += part->unit != last;
        last = part->unit;
    }
    add_line(rows, "sum replicas' gradients", MESH_REPLICATE, summed * acc);
    add_line(rows, "sum squares of gradients", MESH_WHOLE,
             (registry->in_backward ? units * reduced(whole, GROUP_COUNT)
                                    : reduced(whole, GROUP_COUNT) +
                                          reduced(mesh_comm(groups, MESH_PIPELINE), GROUP_COUNT)) *
                 (int64_t)sizeof(double));
    add_line(rows, "sum loss before updates", MESH_WORLD,
             registry->in_backward * reduced(mesh_comm(groups, MESH_WORLD), 2) *
                 (int64_t)sizeof(double));
}

int received_lines(const params *registry, const model_dims *dims, const mesh *groups,
                   const received_work *work, received_line out[RECEIVED_LINES])
{
    const stage_part part = stage_part_of(dims, &groups->layout, groups->place.pipeline);
    const layers stack = layers_of(registry, &part);
    list rows = {out, 0};
    const int64_t statistics = 2 * dims->text.experts + 2, acc = (int64_t)work->acc;
    add_weights(&rows, registry, dims, groups, work);
    add_update(&rows, registry, groups, acc);
    add_attention(&rows, dims, groups, &stack, work);
    add_dense_mlp(&rows, dims, groups, &stack, work);
    add_expert_tensor(&rows, dims, groups, &stack, work);
    add_exchange(&rows, dims, groups, &stack, work);
    add_features(&rows, dims, groups, &stack, work);
    const comm *ranks = mesh_comm(groups, MESH_WORLD);
    add_line(&rows, "sum loss and counts", MESH_WORLD,
             (2 * reduced(ranks, 1) + reduced(ranks, 2) + reduced(ranks, STEP_TOTALS)) *
                 (int64_t)sizeof(double));
    if (work->aux > 0)
        add_line(&rows, "sum router statistics", MESH_STAGE,
                 part.closes * work->micro_steps *
                     reduced(mesh_comm(groups, MESH_STAGE), statistics) * acc);
    add_borders(&rows, dims, &stack, work);
    return rows.count;
}
