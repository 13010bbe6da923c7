/* step_totals.c: packs the counts of a step_report into an array that one all-reduce can sum. */
#include "trainer/run/step_totals.h"

#include <math.h>

static const size_t FLOPS = sizeof(flops) / sizeof(int64_t);

/* Addresses of the numbers that ranks add up, in the order of step_totals.count. Its last entry,
 * how many ranks were asked to stop, is not among them. */
static void list(step_report *report, int64_t *out[STEP_TOTALS - 1])
{
    int64_t *const own[] = {&report->tokens,    &report->row_capacity, &report->patches,
                            &report->documents, &report->images,       &report->targets,
                            &report->rows,      &report->cost,         &report->pairs};
    enum { OWN = sizeof own / sizeof *own };
    _Static_assert(OWN + 1 == STEP_COUNTS,
                   "STEP_COUNTS (plan/received.h) is one more than the numbers above");
    for (size_t i = 0; i < OWN; i++)
        out[i] = own[i];
    for (size_t i = 0; i < FLOPS; i++)
        out[OWN + i] = (int64_t *)&report->flops + i;
}

void step_totals_of(const session *run, const step_report *report, int64_t waited_ns,
                    step_totals *out)
{
    const mesh_place *at = &run->mesh.place;
    const bool first = (at->context == 0 && at->tensor == 0) || world_simulated(run->world);
    step_report copy = *report;
    int64_t *number[STEP_TOTALS - 1];
    list(&copy, number);
    /* All stages of a pipeline have the same rows, so the first one counts them. Of the ranks that
     * share rows, the first counts everything but the targets, of which each rank counts its
     * part. */
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        out->count[i] =
            at->pipeline == 0 && (first || number[i] == &copy.targets) ? (double)*number[i] : 0;
    out->count[STEP_TOTALS - 1] = report->stop;
    out->dearest = (double)report->cost;
    out->waited = (double)waited_ns;
}

void step_totals_into(const session *run, const step_totals *totals, step_report *inout)
{
    int64_t *number[STEP_TOTALS - 1];
    list(inout, number);
    for (size_t i = 0; i < STEP_TOTALS - 1; i++)
        *number[i] = llround(totals->count[i]);
    inout->stop = totals->count[STEP_TOTALS - 1] > 0;
    const layout *degrees = &run->mesh.layout;
    /* Simulated ranks have no rows, so this one is the only consumer. */
    const double consumers = world_simulated(run->world) ? 1 : (double)layout_consumers(degrees);
    inout->balance = inout->cost > 0 ? totals->dearest * consumers / (double)inout->cost : 1;
    inout->wait_ns = llround(totals->waited);
}

status step_totals_sum(const session *run, step_totals *counts)
{
    const comm *all = mesh_comm(&run->mesh, MESH_WORLD);
    const comm_at at = {"sum loss and counts", -1};
    TRY(comm_all_reduce(all, run->stream, at, run->sums.loss, 1, DT_F64, COMM_SUM));
    TRY(comm_all_reduce(all, run->stream, at, run->sums.weight, 1, DT_F64, COMM_SUM));
    TRY(comm_all_reduce(all, run->stream, at, counts->count, STEP_TOTALS, DT_F64, COMM_SUM));
    return comm_all_reduce(all, run->stream, at, &counts->dearest, 2, DT_F64, COMM_MAX);
}
