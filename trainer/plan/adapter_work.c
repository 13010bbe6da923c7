/* adapter_work.c: counts the calls of model/layers/lora.c, in its letters. */
#include "trainer/plan/adapter_work.h"

#include "trainer/plan/matrix_use.h"

enum { ACT = 2 /* bytes of bf16 */, ACC = 4 /* of fp32 */, MACS = 2 };

/* The part of an adapter that a rank has. */
typedef struct part {
    const rates *speeds;
    const param *half[2];         /* A, B; what the user has frozen gets no gradient */
    double in, out, rank, copies; /* copies: experts */
    double rows;                  /* of a micro-batch */
    bool grouped;
} part;

/* Parts into which ranks of a group divide the width of a half that is cut. */
static int64_t width_parts(const layout *degrees, const param *half)
{
    if (half->cut_axis < 0)
        return 1;
    return half->cut == CUT_EXPERT ? degrees->expert_tensor : degrees->tensor;
}

static part part_of(const matrix_use *how, const param *row, const rates *speeds)
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
    return (part){.speeds = speeds,
                  .half = {first, second},
                  .in = (double)(input / width_parts(degrees, first)),
                  .out = (double)(output / width_parts(degrees, second)),
                  .rank = (double)(grouped ? first->shape[2] : first->shape[0]),
                  .copies = grouped ? (double)(row->shape[0] / degrees->expert) : 1.0,
                  .rows = tokens * (double)gathered,
                  .grouped = grouped};
}

static void add_call(const part *of, double operations, double bytes, adapter_amount *inout)
{
    const double working = operations / of->speeds->of[of->grouped ? RATE_EXPERTS : RATE_DENSE];
    const double moving = bytes / of->speeds->of[RATE_COPY];
    inout->flops += operations;
    inout->bytes += bytes;
    inout->seconds += working > moving ? working : moving;
}

/* From `width` columns to r: s x A, or s dy Bt. Grouped products are scaled by an op of its own. */
static void count_shrinking(const part *of, double width, adapter_amount *inout)
{
    const double elements = of->rows * (width + of->rank) + of->copies * width * of->rank;
    add_call(of, MACS * of->rows * width * of->rank, ACT * elements, inout);
    if (of->grouped)
        add_call(of, 0, ACT * 2.0 * of->rows * of->rank, inout);
}

/* From r columns to `width`, added to what is there. Grouped products are added by an op of its
 * own. */
static void count_widening(const part *of, double width, adapter_amount *inout)
{
    const double passed = of->grouped ? 1.0 : 2.0;
    const double elements = of->rows * (of->rank + passed * width) + of->copies * width * of->rank;
    add_call(of, MACS * of->rows * width * of->rank, ACT * elements, inout);
    if (of->grouped)
        add_call(of, 0, ACT * 3.0 * of->rows * width, inout);
}

/* The gradient of a half with `width` columns, which is added to what is there. */
static void add_gradient(const part *of, const param *half, double width, adapter_amount *inout)
{
    const double bytes =
        ACT * of->rows * (width + of->rank) + 2.0 * ACC * of->copies * width * of->rank;
    if (!half->frozen)
        add_call(of, MACS * of->rows * width * of->rank, bytes, inout);
}

static void add_forward(const part *of, adapter_amount *inout)
{
    count_shrinking(of, of->in, inout);
    count_widening(of, of->out, inout);
}

static void add_adapter(const matrix_use *how, const param *row, const rates *speeds,
                        adapter_work *inout)
{
    const part of = part_of(how, row, speeds);
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
