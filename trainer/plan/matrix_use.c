/* matrix_use.c: see matrix_use.h. */
#include "trainer/plan/matrix_use.h"

#include <string.h>

#include "trainer/model/exchange/exchange.h"
#include "trainer/model/exchange/exchange.h"
#include "trainer/plan/recompute_plan.h"

bool matrix_is_expert(const param *row)
{
    return row->cut == CUT_EXPERT;
}

bool matrix_is_gate_up(const param *row)
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

bool matrix_is_reached(const matrix_use *how, const param *row)
{
    return row->layer >= how->first_reached;
}

bool matrix_is_recomputed(const matrix_use *how, const param *row)
{
    return matrix_is_reached(how, row) &&
           (recompute_of(how->again, row->layer) & kind_of(how, row)) != 0;
}

matrix_use matrix_use_of(const conf *options, const layout *degrees, const model_dims *dims,
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
