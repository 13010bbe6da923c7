/* work_lies.c: what simulated workers say that is not true. Of any three that say something about
 * one thing, one lies at most: else nobody could tell who. */
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_row.h"
#include "tests/sim/prepd/work.h"

/* A lie is the liar's machine's own: its workers tell the same whenever they are asked, and no two
 * machines ever do. */
int64_t lie_record(simulation *sim, const sim_worker *worker, int64_t item, int64_t value)
{
    if (worker->bent != BENT_LIES_RECORDS ||
        sim_random_mix(sim->seed ^ (uint64_t)(item + 1) << 8 ^ (uint64_t)worker->supervisor) % 8)
        return value;
    sim->stats->records_lied++;
    return value + 1 + worker->supervisor;
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

/* How the worker changes this row. Nobody lies twice about one row: what is refused from two
 * workers is taken for the consumer's fault, and what two workers make alike for true. */
row_lie lie_row(simulation *sim, const sim_worker *worker)
{
    const int64_t row = json_int(json_find(worker->job.said, "row"), 0);
    if ((worker->bent != BENT_LIES_ROWS && worker->bent != BENT_LIES_IDS) ||
        sim->n_lied == MOST_LIED || !sim_random_chance(&sim->lies, 1, 4))
        return ROW_TRUE;
    for (int i = 0; i < sim->n_lied; i++)
        if (sim->lied[i] == row)
            return ROW_TRUE;
    sim->liar[sim->n_lied] = worker_find(sim, worker->pid);
    sim->lied[sim->n_lied++] = row;
    return worker->bent == BENT_LIES_ROWS ? ROW_LIES_CONTENT : ROW_LIES_IDS;
}

/* Whether no worker has lied about this sample yet. From now on one has. */
static bool is_first_lie(simulation *sim, const sim_data *data, int64_t id)
{
    const int64_t key = id * 2 + (data == &sim->data[1]);
    for (int i = 0; i < sim->n_doubted; i++)
        if (sim->doubted[i] == key)
            return false;
    if (sim->n_doubted == MOST_LIED)
        return false;
    sim->doubted[sim->n_doubted++] = key;
    return true;
}

int64_t lie_failure(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    const sim_data *data = job_data(sim, job);
    if (worker->bent != BENT_LIES_FAILED || job->n_items == 0 ||
        !sim_random_chance(&sim->lies, 1, 3))
        return -1;
    const int64_t place = (int64_t)sim_random_below(&sim->lies, (uint64_t)job->n_items),
                  id = lease_sample(job->item[place]);
    if (sim_data_is_bad(data, id, INT64_MAX) || !is_first_lie(sim, data, id))
        return -1; /* the lie would come true, and then stand against the honest one before */
    sim->stats->failures_made_up++;
    return place;
}

/* Whether a worker was given one sample to try alone, by what the daemon knows of it. */
static bool tries_alone(const simulation *sim, const sim_worker *worker)
{
    const dispatch *state = sim->daemon[worker->daemon].state;
    const worker_seat *seat = state ? state->seats : NULL;
    while (seat &&
           (seat->pid != worker->pid || !seat->work || seat->work->number != worker->job.number))
        seat = seat->next;
    return seat && lease_solo_item(seat->work) != LEASE_NO_ITEM;
}

bool lie_success(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    const sim_data *data = job_data(sim, job);
    if (worker->bent != BENT_LIES_FAILED || !tries_alone(sim, worker) || job->n_items == 0)
        return false;
    const int64_t id = lease_sample(job->item[0]);
    if (!sim_data_is_bad(data, id, sim->now_ns) || !is_first_lie(sim, data, id))
        return false;
    sim->stats->failures_hidden++;
    return true;
}
