/* base_work.c: see base_work.h. */
#include "trainer/plan/base_work.h"

#include "trainer/plan/matrix_use.h"

enum { ACT = 2 /* bytes of bf16 */, MACS = 2 };

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
