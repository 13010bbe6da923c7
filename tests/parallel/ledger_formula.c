#include "tests/parallel/ledger_formula.h"

#include <string.h>

#include "trainer/model/unit_order.h"

static int64_t counted(const comm_ledger *l, const char *what)
{
    const comm_tally *list;
    int64_t bytes = 0;
    int n = comm_ledger_list(l, &list);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].what, what) == 0)
            bytes += list[i].step_bytes;
    return bytes;
}

/* How often a micro-step gathers a span. */
static int64_t times(const session *s, const unit_span *x)
{
    const int head = unit_head(&s->dims);
    bool again = s->params->reshard && !x->stays && !x->forward_only && x->unit != head &&
                 x->unit != head - 1;
    return 1 + again;
}

static int64_t gathered(const session *s, bool vision)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < s->params->n_spans; i++) {
        const unit_span *x = &s->params->spans[i];
        if (x->vision == vision)
            elements += times(s, x) * (x->ranks - 1) * x->piece;
    }
    return s->accumulation * elements * (int64_t)st_dtype_size(s->device->v->act);
}

static int64_t reduced(const session *s, bool vision)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < s->params->n_spans; i++) {
        const unit_span *x = &s->params->spans[i];
        if (x->vision == vision)
            elements += (x->ranks - 1) * x->piece;
    }
    return s->accumulation * elements * (int64_t)st_dtype_size(s->device->v->acc);
}

static int64_t of_replicas(const session *s)
{
    const comm *c = mesh_comm(&s->mesh, MESH_REPLICATE);
    int64_t all = s->params->trained_elements, piece = (all + c->size - 1) / c->size;
    int64_t own = all - c->rank * piece < piece ? all - c->rank * piece : piece;
    own = own > 0 ? own : 0;
    return ((c->size - 1) * own + all - own) * (int64_t)st_dtype_size(s->device->v->acc);
}

status ledger_formula_check(const session *s, const comm_ledger *l)
{
    const struct {
        const char *what;
        int64_t bytes;
    } want[] = {{UNITS_GATHER, gathered(s, false)},
                {UNITS_GATHER_VISION, gathered(s, true)},
                {UNITS_REDUCE, reduced(s, false)},
                {UNITS_REDUCE_VISION, reduced(s, true)},
                {"sum replicas' gradients", of_replicas(s)}};
    if (params_trained(s->params) < s->params->total)
        return ST_OK;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int64_t got = counted(l, want[i].what);
        if (got != want[i].bytes)
            return FAIL(ST_BAD_INPUT, "%s: %lld bytes a step, by the formula %lld", want[i].what,
                        (long long)got, (long long)want[i].bytes);
    }
    return ST_OK;
}
