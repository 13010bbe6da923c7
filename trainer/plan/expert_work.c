/* expert_work.c: see expert_work.h. */
#include "trainer/plan/expert_work.h"

#include "trainer/model/exchange/exchange.h"
#include "trainer/model/layers/recompute.h"

int64_t expert_work_again(const text_dims *text, const layout *degrees, unsigned what)
{
    const int64_t second = text->top_k * text->hidden * text->expert_width, first = 2 * second;
    if (exchange_is_needed(degrees))
        return first + (what & RECOMPUTE_FC2 ? first + second : 0);
    return (what & RECOMPUTE_FC1 ? first : 0) + (what & RECOMPUTE_FC2 ? second : 0);
}
