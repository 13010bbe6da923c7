/* work_rows.c: the answer to a row lease: the row, or what failed. */
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/real_row.h"
#include "tests/sim/prepd/work.h"

/* A third of the pictures that can be decoded come with a warning. */
static bool is_damaged(const simulation *sim, const sim_data *data, int32_t picture)
{
    return data->picture[picture].fate == PICTURE_FINE &&
           sim_random_mix(sim->seed + (uint64_t)picture) % 3 == 0;
}

/* Says where the time went, and which pictures were damaged. */
static void tell_stages(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    const sim_data *data = job_data(sim, job);
    const sim_sample *own =
        job->n_items > 0 && job->item[0] >= 0 ? &data->sample[job->item[0]] : NULL;
    char json[200] = "{\"item\":-1,\"stage_ns\":[1000,2000,3000],\"cache\":[1,2]}";
    if (own && own->n_shown > 0 && is_damaged(sim, data, own->shows[0]))
        snprintf(json, sizeof json,
                 "{\"item\":-1,\"stage_ns\":[1000],\"damaged\":[{\"id\":%lld,\"image\":0,"
                 "\"warning\":\"is cut off\"}]}",
                 (long long)job->item[0]);
    link_say(sim, worker->link, KIND_ON, job->number, json);
}

void work_answer_row(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    const row_lie lie = lie_row(sim, worker);
    tell_stages(sim, worker);
    if (work_answer_failures(sim, worker))
        return;
    link_send_up(sim, worker->link,
                 sim->coder ? real_row_make(sim->coder, &sim->row_memory, job_data(sim, job),
                                            job->said, lie, job->began_ns)
                            : sim_row_make(job->said, lie, job->began_ns));
}
