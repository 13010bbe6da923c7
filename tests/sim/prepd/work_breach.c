/* SPDX-License-Identifier: Apache-2.0 */
/* work_breach.c: answers that no worker gives. */
#include <stdio.h>

#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/work.h"

/* As many records as the lease has items, and nothing in them; one if it has none, as when all of
 * its items have been refused, since no record would be the true answer. */
static void write_empty_records(const sim_job *job, char *out)
{
    const int64_t count = job->n_items > 0 ? job->n_items : 1;
    out += sprintf(out, "{\"records\":[");
    for (int64_t i = 0; i < count; i++)
        out += sprintf(out, "%s{}", i ? "," : "");
    sprintf(out, "]}");
}

void work_breach(simulation *sim, int number)
{
    const sim_worker *worker = sim->worker[number];
    const sim_job *job = &worker->job;
    const bool is_row = job->kind == LEASE_ROW;
    char json[160], records[32 + 4 * MOST_ITEMS];
    write_empty_records(job, records);
    sim_log_tell(&sim->log, sim->now_ns, "worker %d breaks the protocol", number);
    switch (sim_random_below(&sim->lies, 6)) {
    case 0:
        link_breach(sim, worker->link, KIND_ON, job->number, "{\"item\":987654321}");
        break;
    case 1:
        link_breach(sim, worker->link, is_row ? KIND_RECORDS : KIND_FAILED, job->number,
                    is_row ? "{\"records\":[]}" : "{\"samples\":[{\"id\":0,\"cause\":\"x\"}]}");
        break;
    case 2:
        link_breach(sim, worker->link, is_row ? KIND_FAILED : KIND_RECORDS, job->number,
                    is_row ? "{\"samples\":[{\"id\":987654321,\"cause\":\"x\"}]}" : records);
        break;
    case 3:
        link_breach(sim, worker->link, KIND_HELLO, 0, "{}");
        break;
    case 4:
        if (is_row) { /* damage in a picture that the sample does not have */
            snprintf(json, sizeof json,
                     "{\"item\":-1,\"stage_ns\":[1],\"damaged\":[{\"id\":%lld,\"image\":%d,"
                     "\"warning\":\"w\"}]}",
                     (long long)lease_sample(job->item[0]),
                     sim_random_chance(&sim->lies, 1, 2) ? -1 : MOST_SHOWN);
            link_breach(sim, worker->link, KIND_ON, job->number, job->n_items ? json : "x");
            break;
        }
        link_breach(sim, worker->link, KIND_TERMS, 0, "{}");
        break;
    default:
        link_breach(sim, worker->link, KIND_ON, job->number, "no JSON");
    }
}
