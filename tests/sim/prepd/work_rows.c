/* SPDX-License-Identifier: Apache-2.0 */
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

/* Whether a row that came with the lease is the one that was just made. */
static bool is_same(const simulation *sim, const wire_msg *made, const wire_msg *came, size_t at,
                    size_t n_parts)
{
    return sim->coder ? real_row_same(sim->coder, made, came, at, n_parts)
                      : sim_row_same(made, came, at);
}

/* Compares the rows that came with the lease with the one that was made, and says before each which
 * it is. Writes the member "same", with a comma before it; "" if none came. False if one of them
 * ends it. */
static bool put_same(simulation *sim, const sim_worker *worker, const wire_msg *made, char out[40])
{
    const sim_job *job = &worker->job;
    char json[32];
    const json_value *rows = json_find(job->said, "compare");
    size_t at = wire_msg_parts(job->files) - work_compared_parts(job->said);
    int length = 0;
    out[0] = 0;
    for (size_t i = 0; i < json_count(rows); i++) {
        const size_t n_parts = (size_t)json_int(json_item(rows, i), 0);
        snprintf(json, sizeof json, "{\"comparing\":%zu}", i);
        link_say(sim, worker->link, KIND_ON, job->number, json);
        if (!sim->coder && sim_row_kills(job->files, at))
            return false;
        length += sprintf(out + length, "%s%s", i ? "," : ",\"same\":[",
                          is_same(sim, made, job->files, at, n_parts) ? "true" : "false");
        at += n_parts;
    }
    if (length > 0)
        sprintf(out + length, "]");
    return true;
}

/* Says where the time went, which pictures were damaged, and which rows are the same. */
static void tell_stages(simulation *sim, const sim_worker *worker, const char *same)
{
    const sim_job *job = &worker->job;
    const sim_data *data = job_data(sim, job);
    const sim_sample *own =
        job->n_items > 0 && job->item[0] >= 0 ? &data->sample[job->item[0]] : NULL;
    char json[240];
    if (own && own->n_shown > 0 && is_damaged(sim, data, own->shows[0]))
        snprintf(json, sizeof json,
                 "{\"item\":-1,\"stage_ns\":[1000],\"damaged\":[{\"id\":%lld,\"image\":0,"
                 "\"warning\":\"is cut off\"}]%s}",
                 (long long)job->item[0], same);
    else
        snprintf(json, sizeof json, "{\"item\":-1,\"stage_ns\":[1000,2000,3000],\"cache\":[1,2]%s}",
                 same);
    link_say(sim, worker->link, KIND_ON, job->number, json);
}

bool work_answer_row(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    const row_lie lie = lie_row(sim, worker);
    char same[40];
    if (work_answer_failures(sim, worker))
        return true;
    wire_msg *made = sim->coder ? real_row_make(sim->coder, &sim->row_memory, job_data(sim, job),
                                                job->said, lie, job->began_ns)
                                : sim_row_make(job->said, lie, job->began_ns);
    if (!put_same(sim, worker, made, same)) {
        wire_msg_free(&made);
        return false;
    }
    tell_stages(sim, worker, same);
    link_send_up(sim, worker->link, made);
    return true;
}
