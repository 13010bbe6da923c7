/* step_totals.c: packs the counts of a step_report into an array that one all-reduce can sum. */
#include "trainer/run/step_totals.h"

#include <math.h>

static const size_t FLOPS = sizeof(flops) / sizeof(int64_t);

/* Addresses of the numbers that ranks add up, in the order of step_totals.count. Its last entry,
 * how many ranks were asked to stop, is not among them. */
static void list(step_report *r, int64_t *out[STEP_TOTALS - 1])
{
    int64_t *const own[] = {&r->tokens, &r->row_capacity, &r->patches, &r->documents,
                            &r->images, &r->targets,      &r->rows,    &r->cost};
    size_t n = sizeof own / sizeof *own;
    for (size_t i = 0; i < n; i++)
        out[i] = own[i];
    for (size_t i = 0; i < FLOPS; i++)
        out[n + i] = (int64_t *)&r->flops + i;
}

void step_totals_of(const session *s, const step_report *r, int64_t waited_ns, step_totals *out)
{
    const mesh_place *at = &s->mesh.place;
    const bool first = (at->context == 0 && at->tensor == 0) || world_simulated(s->world);
    step_report copy = *r;
    int64_t *number[STEP_TOTALS - 1];
    list(&copy, number);
    /* All stages of a pipeline have the same rows, so the first one counts them. Of the ranks that
     * share rows, the first counts everything but the targets, of which each rank counts its
     * part. */
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        out->count[i] =
            at->pipeline == 0 && (first || number[i] == &copy.targets) ? (double)*number[i] : 0;
    out->count[STEP_TOTALS - 1] = r->stop;
    out->dearest = (double)r->cost;
    out->waited = (double)waited_ns;
}

void step_totals_into(const session *s, const step_totals *t, step_report *inout)
{
    int64_t *number[STEP_TOTALS - 1];
    list(inout, number);
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        *number[i] = llround(t->count[i]);
    inout->stop = t->count[STEP_TOTALS - 1] > 0;
    const layout *l = &s->mesh.layout;
    /* Simulated ranks have no rows, so this one is the only consumer. */
    const double consumers = world_simulated(s->world) ? 1 : (double)(l->replicate * l->shard);
    inout->balance = inout->cost > 0 ? t->dearest * consumers / (double)inout->cost : 1;
    inout->wait_ns = llround(t->waited);
}

status step_totals_sum(const session *s, step_totals *counts)
{
    const comm *all = mesh_comm(&s->mesh, MESH_WORLD);
    const comm_at at = {"sum loss and counts", -1};
    TRY(comm_all_reduce(all, s->stream, at, s->sums.loss, 1, DT_F64, COMM_SUM));
    TRY(comm_all_reduce(all, s->stream, at, s->sums.weight, 1, DT_F64, COMM_SUM));
    TRY(comm_all_reduce(all, s->stream, at, counts->count, STEP_TOTALS, DT_F64, COMM_SUM));
    return comm_all_reduce(all, s->stream, at, &counts->dearest, 2, DT_F64, COMM_MAX);
}
