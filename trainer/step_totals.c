#include "trainer/step_totals.h"

#include <math.h>

static const size_t FLOPS = sizeof(flops) / sizeof(int64_t);

/* The numbers of a report that ranks share, in the order of step_totals. */
static void list(step_report *r, int64_t *out[STEP_TOTALS - 1])
{
    int64_t *const own[] = {&r->tokens, &r->row_capacity, &r->patches, &r->documents,
                            &r->images, &r->targets,      &r->rows};
    size_t n = sizeof own / sizeof *own;
    for (size_t i = 0; i < n; i++)
        out[i] = own[i];
    for (size_t i = 0; i < FLOPS; i++)
        out[n + i] = (int64_t *)&r->flops + i;
}

void step_totals_of(const session *s, const step_report *r, step_totals *out)
{
    const bool first = s->mesh.place.context == 0 && s->mesh.place.tensor == 0;
    step_report copy = *r;
    int64_t *number[STEP_TOTALS - 1];
    list(&copy, number);
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        out->count[i] = first || number[i] == &copy.targets ? (double)*number[i] : 0;
    out->count[STEP_TOTALS - 1] = r->stop;
}

void step_totals_into(const step_totals *t, step_report *inout)
{
    int64_t *number[STEP_TOTALS - 1];
    list(inout, number);
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        *number[i] = llround(t->count[i]);
    inout->stop = t->count[STEP_TOTALS - 1] > 0;
}

status step_totals_sum(const session *s, step_totals *counts)
{
    const comm *all = mesh_comm(&s->mesh, MESH_WORLD);
    const comm_at at = {"sum loss and counts", -1};
    TRY(comm_all_reduce(all, s->stream, at, s->sums.loss, 1, DT_F64, COMM_SUM));
    TRY(comm_all_reduce(all, s->stream, at, s->sums.weight, 1, DT_F64, COMM_SUM));
    return comm_all_reduce(all, s->stream, at, counts, STEP_TOTALS, DT_F64, COMM_SUM);
}
