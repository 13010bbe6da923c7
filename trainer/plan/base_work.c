/* base_work.c: see base_work.h. */
#include "trainer/plan/base_work.h"

#include <math.h>
#include <string.h>

#include "trainer/model/exchange.h"
#include "trainer/model/moe.h"

enum { ACT = 2 /* bytes of bf16 */, MACS = 2 };

/* How a layer's matrices are used. */
typedef struct use {
    const layout *degrees;
    int64_t first_reached; /* the lowest layer that the backward pass reaches */
    int64_t tokens;        /* of a step, on all ranks .. */
    int64_t ranks;         /* .. that share them */
    bool shared;           /* ranks share experts .. */
    int64_t rounds;        /* .. in so many rounds of each pass */
} use;

static bool is_expert(const param *row)
{
    return row->cut == CUT_EXPERT;
}

static bool is_gate_up(const param *row)
{
    return strstr(row->name, ".gate_up_proj") != NULL;
}

/* The kind of output that a matrix makes, by which it is recomputed. Experts that ranks share are
 * recomputed as a whole, and the last product of a dense MLP never is. */
static unsigned kind_of(const use *how, const param *row)
{
    if (is_expert(row))
        return is_gate_up(row) && !how->shared ? RECOMPUTE_FC1 : RECOMPUTE_FC2;
    if (strstr(row->name, ".o_proj."))
        return RECOMPUTE_PROJ;
    if (strstr(row->name, ".down_proj."))
        return 0;
    return strstr(row->name, ".self_attn.") ? RECOMPUTE_QKV : RECOMPUTE_FC1;
}

/* Bytes that a rank moves to expand a matrix for all products of one pass of a step. */
static double expand_bytes(const use *how, const param *row)
{
    const layout *degrees = how->degrees;
    const double each = ACT + (double)weight_block_bytes(row->form) / WEIGHT_BLOCK;
    const int64_t ranks = is_expert(row)           ? degrees->expert * degrees->expert_tensor
                          : row->cut == CUT_TENSOR ? degrees->tensor
                                                   : 1;
    const int64_t times = degrees->accumulation * (is_expert(row) ? how->rounds : 1);
    return (double)row->count / (double)ranks * each * (double)times;
}

/* The backward pass expands a matrix for the gradient of its input. Where ranks share experts it
 * has to make their activations again, and so expands the first matrix twice. */
static void add_expanding(const use *how, const param *row, bool reached, bool recomputed,
                          base_work *inout)
{
    const double once = expand_bytes(how, row);
    inout->forward += once;
    inout->backward += reached ? once : 0;
    inout->again += recomputed ? once : 0;
    inout->again += reached && how->shared && is_expert(row) && is_gate_up(row) ? once : 0;
}

/* Forward reads the matrix for its norms, and each output for its length, and writes that again.
 * The backward pass repeats the norms and the product, and then reads the gradient and the product
 * and writes another gradient. */
static void add_lengths(const use *how, const param *row, bool reached, bool recomputed,
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

static use use_of(const conf *options, const layout *degrees, const model_dims *dims,
                  double reached, int64_t tokens)
{
    const text_dims *text = &dims->text;
    use how = {.degrees = degrees,
               .first_reached = text->layers - llround(reached * (double)text->layers),
               .tokens = tokens,
               .ranks = degrees->world / degrees->pipeline,
               .shared = text->experts > 0 && moe_is_shared(degrees),
               .rounds = 1};
    const int64_t micro = tokens / (how.ranks * degrees->accumulation);
    if (how.shared && memory_exchange_way(options, degrees) != EXCHANGE_BY_HOST)
        how.rounds = exchange_rounds_most(text, degrees->expert,
                                          micro * degrees->expert_tensor * text->top_k);
    return how;
}

base_work base_work_of(const conf *options, const layout *degrees, const model_dims *dims,
                       const params *registry, const recompute *again, double reached,
                       int64_t tokens)
{
    const use how = use_of(options, degrees, dims, reached, tokens);
    base_work sum = {0};
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        const bool passed = row->layer >= how.first_reached;
        const bool anew = passed && (recompute_of(again, row->layer) & kind_of(&how, row));
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
