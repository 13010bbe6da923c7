/* SPDX-License-Identifier: Apache-2.0 */
/* work_lies.c: what simulated workers say that is not true. Liars agree, on any number of machines:
 * what one of them says of a thing, all of them say. */
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_row.h"
#include "tests/sim/prepd/work.h"

/* Whether liars lie about this. */
static bool is_lied_about(const simulation *sim, int64_t thing, int one_in)
{
    return sim_random_mix(sim->seed ^ (uint64_t)(thing + 1) << 8) % (uint64_t)one_in == 0;
}

int64_t lie_record(simulation *sim, const sim_worker *worker, int64_t item, int64_t value)
{
    if (worker->bent != BENT_LIES_RECORDS || !is_lied_about(sim, item, 8))
        return value;
    sim->stats->records_lied++;
    return value + 1;
}

int64_t lie_item(simulation *sim, const sim_job *job)
{
    switch (sim_random_below(&sim->lies, 4)) {
    case 0:
        return job->item[sim_random_below(&sim->lies, (uint64_t)job->n_items)];
    case 1:
        return job->item[job->at + 1 < job->n_items ? job->at + 1 : job->at];
    default:
        return job->item[job->at];
    }
}

row_lie lie_row(simulation *sim, const sim_worker *worker)
{
    const int64_t row = json_int(json_find(worker->job.said, "row"), 0);
    if (worker->bent == BENT_FLIPS)
        return sim_random_chance(&sim->lies, 1, 4) ? ROW_FLIPS : ROW_TRUE;
    if ((worker->bent != BENT_LIES_ROWS && worker->bent != BENT_LIES_IDS &&
         worker->bent != BENT_LIES_DIGEST && worker->bent != BENT_LIES_KILLS) ||
        !is_lied_about(sim, row, sim->rules.lies_of))
        return ROW_TRUE;
    return worker->bent == BENT_LIES_ROWS    ? ROW_LIES_CONTENT
           : worker->bent == BENT_LIES_IDS   ? ROW_LIES_IDS
           : worker->bent == BENT_LIES_KILLS ? ROW_KILLS
                                             : ROW_LIES_DIGEST;
}

int64_t lie_failure(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    const sim_data *data = job_data(sim, job);
    if (worker->bent != BENT_LIES_FAILED)
        return -1;
    for (int64_t place = 0; place < job->n_items; place++) {
        const int64_t id = lease_sample(job->item[place]);
        if (!is_lied_about(sim, id, 5) || sim_data_is_bad(data, id, INT64_MAX))
            continue;
        sim->stats->failures_made_up++;
        return place;
    }
    return -1;
}
