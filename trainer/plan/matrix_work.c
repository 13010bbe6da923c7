/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_work.c: how often a step uses a matrix and with how many rows, and the work that follows.
 * Adapters are counted by the calls of model/layers/lora.c. */
#include "trainer/plan/matrix_work.h"

#include <string.h>

#include "trainer/model/exchange/exchange.h"
#include "trainer/model/layers/recompute.h"
#include "trainer/plan/recompute_plan.h"

enum { ACT = 2 /* bytes of bf16 */, ACC = 4 /* of fp32 */, MACS = 2 };

/* How a step uses the matrices of the decoder. */
typedef struct matrix_use {
    const layout *degrees;
    const text_dims *text;
    const recompute *again; /* what is recomputed of the decoder's layers */
    int64_t first_reached;  /* the lowest layer that the backward pass reaches */
    int64_t tokens;         /* of a step, on all ranks .. */
    int64_t ranks;          /* .. that share them */
    bool shared;            /* ranks share experts .. */
    int64_t rounds;         /* .. in so many rounds of each pass (model/exchange/exchange.h) */
} matrix_use;

static bool matrix_is_expert(const param *row)
{
    return row->cut == CUT_EXPERT;
}

/* The first matrix of experts. */
static bool matrix_is_gate_up(const param *row)
{
    return strstr(row->name, ".gate_up_proj") != NULL;
}

/* The kind of output that a matrix makes, by which it is recomputed. */
static unsigned kind_of(const matrix_use *how, const param *row)
{
    if (matrix_is_expert(row))
        return matrix_is_gate_up(row) && !how->shared ? RECOMPUTE_FC1 : RECOMPUTE_FC2;
    if (row->group == GROUP_ROUTER)
        return RECOMPUTE_ROUTE;
    if (strstr(row->name, ".o_proj."))
        return RECOMPUTE_PROJ;
    if (strstr(row->name, ".down_proj."))
        return 0;
    return strstr(row->name, ".self_attn.") ? RECOMPUTE_QKV : RECOMPUTE_FC1;
}

/* True if the backward pass goes through the layer of this matrix. */
static bool matrix_is_reached(const matrix_use *how, const param *row)
{
    return row->layer >= how->first_reached;
}

/* True if the backward pass makes the output of this matrix again. Experts that ranks share are
 * recomputed as a whole, and the last product of a dense MLP never is. */
static bool matrix_is_recomputed(const matrix_use *how, const param *row)
{
    return matrix_is_reached(how, row) &&
           (recompute_of(how->again, row->layer) & kind_of(how, row)) != 0;
}

static matrix_use matrix_use_of(const conf *options, const layout *degrees, const model_dims *dims,
                                const recompute *again, double reached, int64_t tokens)
{
    const text_dims *text = &dims->text;
    matrix_use how = {.degrees = degrees,
                      .text = text,
                      .again = again,
                      .first_reached = recompute_plan_first_reached(text->layers, reached),
                      .tokens = tokens,
                      .ranks = degrees->world / degrees->pipeline,
                      .shared = text->experts > 0 && exchange_is_needed(degrees),
                      .rounds = 1};
    const int64_t micro = tokens / (how.ranks * degrees->accumulation);
    if (how.shared && memory_exchange_way(options, degrees) != EXCHANGE_BY_HOST)
        how.rounds = exchange_rounds_most(text, degrees->expert,
                                          micro * degrees->expert_tensor * text->top_k);
    return how;
}

/* Bytes that a rank moves to expand a matrix for all products of one pass of a step. */
static double expand_bytes(const matrix_use *how, const param *row)
{
    const layout *degrees = how->degrees;
    const double each = ACT + (double)weight_block_bytes(row->form) / WEIGHT_BLOCK;
    const int64_t ranks = matrix_is_expert(row)    ? degrees->expert * degrees->expert_tensor
                          : row->cut == CUT_TENSOR ? degrees->tensor
                                                   : 1;
    const int64_t times = degrees->accumulation * (matrix_is_expert(row) ? how->rounds : 1);
    return (double)row->count / (double)ranks * each * (double)times;
}

/* The backward pass expands a matrix for the gradient of its input. Where ranks share experts it
 * has to make their activations again, and so expands the first matrix twice. */
static void add_expanding(const matrix_use *how, const param *row, bool reached, bool recomputed,
                          base_work *inout)
{
    const double once = expand_bytes(how, row);
    inout->forward += once;
    inout->backward += reached ? once : 0;
    inout->again += recomputed ? once : 0;
    inout->again +=
        reached && how->shared && matrix_is_expert(row) && matrix_is_gate_up(row) ? once : 0;
}

/* Forward reads the matrix for its norms, and each output for its length, and writes that again.
 * The backward pass repeats the norms and the product, and then reads the gradient and the product
 * and writes another gradient. */
static void add_lengths(const matrix_use *how, const param *row, bool reached, bool recomputed,
                        base_work *inout)
{
    const double outputs = (double)(how->tokens / how->ranks * row->shape[0] * ACT);
    const double norms = (double)row->count * ACT * (double)how->degrees->accumulation;
    inout->forward += norms + 2.0 * outputs;
    inout->backward += reached ? 3.0 * outputs : 0;
    inout->again += reached ? norms : 0;
    inout->again += recomputed ? norms + 2.0 * outputs : 0;
    inout->flops += reached ? MACS * how->tokens * row->count : 0;
}

base_work base_work_of(const conf *options, const layout *degrees, const model_dims *dims,
                       const params *registry, const recompute *again, double reached,
                       int64_t tokens)
{
    const matrix_use how = matrix_use_of(options, degrees, dims, again, reached, tokens);
    base_work sum = {0};
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        const bool passed = matrix_is_reached(&how, row), anew = matrix_is_recomputed(&how, row);
        if (row->form != WEIGHT_PLAIN)
            add_expanding(&how, row, passed, anew, &sum);
        if (row->dora)
            add_lengths(&how, row, passed, anew, &sum);
    }
    sum.forward /= (double)degrees->pipeline;
    sum.backward /= (double)degrees->pipeline;
    sum.again /= (double)degrees->pipeline;
    return sum;
}

/* The part of an adapter that a rank has. */
typedef struct adapter_part {
    const rates *speeds;
    const param *half[2];         /* A, B; what the user has frozen gets no gradient */
    double in, out, rank, copies; /* copies: experts */
    double rows;                  /* of a micro-batch */
    bool grouped;
} adapter_part;

/* Parts into which ranks of a group divide the width of a half that is cut. */
static int64_t width_parts(const layout *degrees, const param *half)
{
    if (half->cut_axis < 0)
        return 1;
    return half->cut == CUT_EXPERT ? degrees->expert_tensor : degrees->tensor;
}

static adapter_part part_of(const matrix_use *how, const param *row, const rates *speeds)
{
    const layout *degrees = how->degrees;
    const param *first = row + row->lora, *second = first + 1;
    const bool grouped = matrix_is_expert(row);
    const double tokens = (double)how->tokens / (double)(how->ranks * degrees->accumulation);
    const int64_t input = grouped ? first->shape[1] : row->shape[1];
    const int64_t output = grouped ? second->shape[2] : row->shape[0];
    const int64_t gathered = grouped                  ? how->text->top_k * degrees->expert_tensor
                             : row->cut == CUT_TENSOR ? degrees->tensor
                                                      : 1;
    return (adapter_part){.speeds = speeds,
                          .half = {first, second},
                          .in = (double)(input / width_parts(degrees, first)),
                          .out = (double)(output / width_parts(degrees, second)),
                          .rank = (double)(grouped ? first->shape[2] : first->shape[0]),
                          .copies = grouped ? (double)(row->shape[0] / degrees->expert) : 1.0,
                          .rows = tokens * (double)gathered,
                          .grouped = grouped};
}

static void add_call(const adapter_part *of, double operations, double bytes, adapter_amount *inout)
{
    const double working = operations / of->speeds->of[of->grouped ? RATE_EXPERTS : RATE_DENSE];
    const double moving = bytes / of->speeds->of[RATE_COPY];
    inout->flops += operations;
    inout->bytes += bytes;
    inout->seconds += working > moving ? working : moving;
}

/* From `width` columns to r: s x A, or s dy Bt. Grouped products are scaled by a separate op. */
static void count_shrinking(const adapter_part *of, double width, adapter_amount *inout)
{
    const double elements = of->rows * (width + of->rank) + of->copies * width * of->rank;
    add_call(of, MACS * of->rows * width * of->rank, ACT * elements, inout);
    if (of->grouped)
        add_call(of, 0, ACT * 2.0 * of->rows * of->rank, inout);
}

/* From r columns to `width`, added to what is there. Grouped products are added by an op of its
 * own. */
static void count_widening(const adapter_part *of, double width, adapter_amount *inout)
{
    const double passed = of->grouped ? 1.0 : 2.0;
    const double elements = of->rows * (of->rank + passed * width) + of->copies * width * of->rank;
    add_call(of, MACS * of->rows * width * of->rank, ACT * elements, inout);
    if (of->grouped)
        add_call(of, 0, ACT * 3.0 * of->rows * width, inout);
}

/* The gradient of a half with `width` columns, which is added to what is there. */
static void add_gradient(const adapter_part *of, const param *half, double width,
                         adapter_amount *inout)
{
    const double bytes =
        ACT * of->rows * (width + of->rank) + 2.0 * ACC * of->copies * width * of->rank;
    if (!half->frozen)
        add_call(of, MACS * of->rows * width * of->rank, bytes, inout);
}

static void add_forward(const adapter_part *of, adapter_amount *inout)
{
    count_shrinking(of, of->in, inout);
    count_widening(of, of->out, inout);
}

static void add_adapter(const matrix_use *how, const param *row, const rates *speeds,
                        adapter_work *inout)
{
    const adapter_part of = part_of(how, row, speeds);
    add_forward(&of, &inout->forward);
    if (matrix_is_recomputed(how, row))
        add_forward(&of, &inout->again);
    if (!matrix_is_reached(how, row))
        return;
    /* The backward pass of rows with lengths needs the whole product, and that of shared experts
     * their activations. */
    if (row->dora || (how->shared && matrix_is_expert(row) && matrix_is_gate_up(row)))
        add_forward(&of, &inout->again);
    count_shrinking(&of, of.in, &inout->again); /* x A was not kept */
    add_gradient(&of, of.half[1], of.out, &inout->backward);
    count_shrinking(&of, of.out, &inout->backward);
    add_gradient(&of, of.half[0], of.in, &inout->backward);
    count_widening(&of, of.in, &inout->backward);
}

static void multiply_by(double factor, adapter_amount *inout)
{
    inout->flops *= factor;
    inout->bytes *= factor;
    inout->seconds *= factor;
}

adapter_work adapter_work_of(const conf *options, const layout *degrees, const model_dims *dims,
                             const params *registry, const recompute *again, double reached,
                             int64_t tokens, const rates *speeds)
{
    const matrix_use how = matrix_use_of(options, degrees, dims, again, reached, tokens);
    adapter_work sum = {0};
    for (int64_t i = 0; i < registry->count; i++)
        if (registry->list[i].lora)
            add_adapter(&how, &registry->list[i], speeds, &sum);
    adapter_amount *const parts[] = {&sum.forward, &sum.backward, &sum.again};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        multiply_by((double)degrees->accumulation / (double)degrees->pipeline, parts[i]);
    return sum;
}
