/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: how a simulated worker does a lease, item by item, and what the items do to it. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/work.h"

static const int64_t TELL_EVERY_NS = 50000000; /* between two ONs of an index lease */

const sim_data *job_data(const simulation *sim, const sim_job *job)
{
    return &sim->data[strcmp(json_text(json_find(job->said, "stream"), ""), "eval") == 0];
}

void work_forget(sim_job *job)
{
    heard_drop(&job->text);
    job->said = NULL;
    wire_msg_free(&job->files);
}

/* Reads which items a lease has. */
static void read_items(simulation *sim, sim_job *job)
{
    const bool images = job->kind == LEASE_IMAGES;
    const json_value *list = json_find(job->said, images                     ? "images"
                                                  : job->kind == LEASE_TEXTS ? "samples"
                                                                             : "docs");
    job->n_items = (int64_t)json_count(list);
    for (int64_t i = 0; i < job->n_items && i < MOST_ITEMS; i++) {
        const json_value *value = json_item(list, (size_t)i);
        const int64_t id = images ? json_int(value, -1) : json_int(json_find(value, "id"), -1);
        job->item[i] = json_int(json_find(value, "prefix"), 0) ? ~id : id;
        if (json_count(json_find(value, "grids")) > 0 &&
            json_bool(json_find(value, "same"), false)) /* workers refuse that */
            sim_break(sim, INV_WIRE, "sample %lld has pictures and the text of the one before it",
                      (long long)id);
    }
}

/* It does nothing, until its owner looks after it. */
static void hog(simulation *sim, int number)
{
    sim->worker[number]->job.frozen = true;
    sim_queue_put(
        &sim->queue,
        (sim_event){.at_ns = sim->now_ns + sim_random_between(&sim->lies, 5 * SECOND, 60 * SECOND),
                    .kind = EVENT_WORKER,
                    .who = number,
                    .word = KILLED});
}

void work_begin(simulation *sim, int number, const frame *head, heard *text, wire_msg *message)
{
    sim_worker *worker = sim->worker[number];
    const char *kind = json_text(json_find(text->said, "kind"), "");
    work_forget(&worker->job);
    worker->job_before = worker->job.number;
    worker->job = (sim_job){.number = head->row,
                            .kind = strcmp(kind, "row") == 0      ? LEASE_ROW
                                    : strcmp(kind, "images") == 0 ? LEASE_IMAGES
                                                                  : LEASE_TEXTS,
                            .each = json_bool(json_find(text->said, "each"), false),
                            .text = text,
                            .said = text->said};
    if (wire_msg_new(&worker->job.files) != ST_OK ||
        wire_msg_move(worker->job.files, message) != ST_OK)
        abort();
    worker->job.began_ns = work_files_read_ns(worker->job.files, text->said, sim->now_ns);
    read_items(sim, &worker->job);
    if (json_find(text->said, "compare") && !worker_decides(sim, worker))
        sim_break(sim, INV_ROLES, "worker %d, which does not decide, gets the rows of others",
                  number);
    if (worker->job.n_items > MOST_ITEMS)
        sim_break(sim, INV_MEMORY, "a lease has %lld items", (long long)worker->job.n_items);
    if (worker->bent == BENT_HOGS)
        hog(sim, number);
    work_go_on(sim, number);
}

/* Whether encoding a sample of a texts lease, or the one that it is compared with,
 * ends the worker. */
static bool text_kills(const sim_data *data, const json_value *object)
{
    const json_value *after = json_find(object, "after");
    const int64_t own = json_int(json_find(object, "id"), 0),
                  other = after && json_typeof(after) == JSON_OBJECT
                              ? json_int(json_find(after, "id"), 0)
                              : own;
    return data->sample[own].fate == TEXT_KILLS || data->sample[other].fate == TEXT_KILLS;
}

/* Finds out what the item that is begun does to the worker. Returns how long it takes. */
static int64_t meet_item(simulation *sim, sim_worker *worker)
{
    sim_job *job = &worker->job;
    const sim_data *data = job_data(sim, job);
    const json_value *object = json_item(
        json_find(job->said, job->kind == LEASE_ROW ? "docs" : "samples"), (size_t)job->at);
    int64_t picture;
    const picture_fate fate = job->kind == LEASE_ROW      ? doc_fate(sim, worker, object, &picture)
                              : job->kind == LEASE_IMAGES ? header_fate(sim, worker, job->at)
                                                          : PICTURE_FINE;
    const int64_t usual = job->kind == LEASE_ROW ? sim->rules.row_ns : 200 * US;
    const int64_t takes =
        sim_random_tail(&sim->delays, 1, usual) * (worker->bent == BENT_SLOW ? 20 : 1);
    const bool kills = fate == PICTURE_KILLS || fate == PICTURE_KILLS_HEADER ||
                       (job->kind == LEASE_TEXTS && text_kills(data, object));
    if (kills) {
        job->doom = "signal 11";
        job->doom_how = PROC_END_CRASH;
    } else if (fate == PICTURE_TROUBLE) {
        job->doom = "cannot be read";
        job->doom_how = PROC_END_LEFT;
    } else if (fate == PICTURE_HANGS) {
        job->doom = "signal 14";
        job->doom_how = PROC_END_TIME;
        return (int64_t)(sim->options.prepd_sample_timeout * 1e9);
    }
    const int64_t limit = (int64_t)(sim->options.prepd_sample_timeout * 0.9e9);
    return takes < limit ? takes : limit;
}

/* Says which item it begins. Of index leases only some items are told. */
static void tell_on(simulation *sim, sim_worker *worker)
{
    sim_job *job = &worker->job;
    int64_t item = job->item[job->at];
    char json[64];
    if (job->kind != LEASE_ROW && !job->each && job->told_ns &&
        sim->now_ns - job->told_ns < TELL_EVERY_NS)
        return;
    if (worker->bent == BENT_STALLS)
        item = job->item[sim_random_below(&sim->lies, (uint64_t)job->at + 1)];
    if (worker->bent == BENT_LIES_ON)
        item = lie_item(sim, job);
    job->told_ns = sim->now_ns;
    snprintf(json, sizeof json, "{\"item\":%lld}", (long long)item);
    link_say(sim, worker->link, KIND_ON, job->number, json);
}

/* Says again where it is, and does nothing, until someone ends it. */
static void stall(simulation *sim, int number)
{
    enum { MOST_STALLED = 900 };
    if (++sim->worker[number]->stalled > MOST_STALLED)
        worker_end(sim, number, PROC_END_OUTSIDE, -1, "signal 9");
    else
        worker_go_on_after(sim, number, sim_random_between(&sim->delays, 50 * MS, 500 * MS));
}

void work_go_on(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    sim_job *job = &worker->job;
    if (job->frozen)
        return;
    if (job->doom && job->doom_how == PROC_END_LEFT) {
        link_say(sim, worker->link, KIND_ERROR, 0,
                 "{\"code\":\"ST_IO\",\"message\":\"a file that was sent cannot be read\"}");
        worker_end(sim, number, PROC_END_LEFT, status_exit_code(ST_IO), job->doom);
        return;
    }
    if (job->doom) {
        worker_end(sim, number, job->doom_how, -1, job->doom);
        return;
    }
    if (job->at == job->n_items) {
        work_answer(sim, number);
        return;
    }
    tell_on(sim, worker);
    if (worker->bent == BENT_STALLS && job->at > 0) {
        stall(sim, number);
        return;
    }
    const int64_t takes = meet_item(sim, worker);
    job->at++;
    sim_queue_put(&sim->queue, (sim_event){.at_ns = sim->now_ns + takes,
                                           .kind = EVENT_WORKER,
                                           .who = number,
                                           .word = ++worker->turn});
}
