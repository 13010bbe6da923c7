/* SPDX-License-Identifier: Apache-2.0 */
/* work_answers.c: what a simulated worker answers: honestly, with lies,
 * or with what is no answer. */
#include <stdlib.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_row.h"
#include "tests/sim/prepd/work.h"

/* Names the file that is missing: of a clip, one of its frames. */
static void put_missing(const sim_data *data, int64_t picture, json_writer *writer)
{
    char file[32];
    snprintf(file, sizeof file, "%s%s", data->picture[picture].name,
             data->picture[picture].frames > 0 ? "/3" : "");
    json_put_key_cstr(writer, "missing", file);
}

/* Remembers that the worker says that it misses a file, if the daemon has it. */
static void tell_miss(const simulation *sim, const sim_worker *worker, int64_t picture)
{
    const picture_fate fate = job_data(sim, &worker->job)->picture[picture].fate;
    if (!worker->ship && !is_missing(fate) && fate != PICTURE_NOT_THERE)
        sim->worker[worker_find(sim, worker->pid)]->misses_told++;
}

static void put_picture(simulation *sim, const sim_worker *worker, int64_t nth, json_writer *writer)
{
    const sim_data *data = job_data(sim, &worker->job);
    const int64_t number = worker->job.item[nth];
    const index_image record = sim_data_picture_record(data, number);
    if (header_fate(sim, worker, nth) == PICTURE_NOT_THERE) {
        json_put_key_int(writer, "bytes", 0);
        json_put_key_int(writer, "mtime", 0);
        json_put_key_cstr(writer, "cause", "no such file");
        if (!worker->local)
            put_missing(data, number, writer);
        tell_miss(sim, worker, number);
        return;
    }
    json_put_key_int(writer, "bytes", record.file_bytes);
    /* Another machine's copy has its own time. */
    json_put_key_int(writer, "mtime",
                     record.mtime_ns + (worker->local || worker->ship ? 0 : worker->host));
    if (record.cause) {
        json_put_key_cstr(writer, "cause", record.cause);
        return;
    }
    json_put_key_int(writer, "width", lie_record(sim, worker, number, record.width));
    json_put_key_int(writer, "height", record.height);
    if (record.frames == 0)
        return;
    json_put_key_int(writer, "frames", record.frames);
    json_put_key_real(writer, "fps", record.fps);
}

/* How many tokens a text has in common with the one that the lease compares it with. */
static int64_t agrees_of(simulation *sim, const sim_job *job, const json_value *object,
                         int64_t number)
{
    const sim_data *data = job_data(sim, job);
    const json_value *after = json_find(object, "after"),
                     *samples = json_find(job->said, "samples");
    if (!after)
        return 0;
    if (json_typeof(after) == JSON_INT)
        after = json_item(samples, (size_t)json_int(after, 0));
    const int64_t other = json_int(json_find(after, "id"), -1);
    if (other < 0 || other >= number) {
        sim_break(sim, INV_INDEX, "sample %lld is compared with sample %lld", (long long)number,
                  (long long)other);
        return 0;
    }
    return number - other == data->sample[number].begins.before ? data->sample[number].begins.agrees
                                                                : 0;
}

static void put_text(simulation *sim, const sim_worker *worker, const json_value *object,
                     json_writer *writer)
{
    const sim_job *job = &worker->job;
    const int64_t number = json_int(json_find(object, "id"), 0);
    const sim_sample *own = &job_data(sim, job)->sample[number];
    if (json_bool(json_find(object, "plain"), false) != own->plain)
        sim_break(sim, INV_WIRE, "sample %lld is %s plain text, and its lease says otherwise",
                  (long long)number, own->plain ? "a" : "no");
    if (own->record.cause) {
        json_put_key_cstr(writer, "cause", own->record.cause);
        return;
    }
    json_put_key_int(writer, "tokens", lie_record(sim, worker, number, own->record.text_tokens));
    json_put_key_int(writer, "targets", own->record.targets);
    if (!json_bool(json_find(job->said, "begins"), false))
        return;
    json_put_key_int(writer, "agrees", agrees_of(sim, job, object, number));
    json_put_key_int(writer, "head", own->begins.head);
    json_put_key_int(writer, "first_label", own->begins.first_label);
}

static void say_written(simulation *sim, const sim_worker *worker, int kind, json_writer *writer)
{
    char *text;
    if (json_writer_take(writer, &text, NULL) != ST_OK)
        abort();
    link_say(sim, worker->link, kind, worker->job.number, text);
    free(text);
    json_writer_done(writer);
}

static void answer_records_of(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_begin_key_array(&writer, "records");
    for (int64_t i = 0; i < job->n_items; i++) {
        json_begin_object(&writer);
        if (job->kind == LEASE_IMAGES)
            put_picture(sim, worker, i, &writer);
        else
            put_text(sim, worker, json_item(json_find(job->said, "samples"), (size_t)i), &writer);
        json_end_object(&writer);
    }
    json_end_array(&writer);
    json_end_object(&writer);
    say_written(sim, worker, KIND_RECORDS, &writer);
}

/* Names the documents whose pictures cannot be decoded. False if there are none. */
bool work_answer_failures(simulation *sim, const sim_worker *worker)
{
    const sim_job *job = &worker->job;
    const json_value *docs = json_find(job->said, "docs");
    int64_t count = 0;
    json_writer writer;
    const int64_t made_up = lie_failure(sim, worker);
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_begin_key_array(&writer, "samples");
    for (int64_t i = 0; i < job->n_items; i++) {
        int64_t picture = 0;
        const picture_fate fate = doc_fate(sim, worker, json_item(docs, (size_t)i), &picture);
        if (fate != PICTURE_FAILS && !is_missing(fate) && i != made_up)
            continue;
        json_begin_object(&writer);
        json_put_key_int(&writer, "id", job->item[i]);
        json_put_key_cstr(&writer, "cause", "cannot be decoded");
        if (is_missing(fate))
            put_missing(job_data(sim, job), picture, &writer);
        if (is_missing(fate))
            tell_miss(sim, worker, picture);
        json_end_object(&writer);
        count++;
    }
    json_end_array(&writer);
    json_end_object(&writer);
    if (count > 0)
        say_written(sim, worker, KIND_FAILED, &writer);
    json_writer_done(&writer);
    return count > 0;
}

void work_answer(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    if (worker->bent == BENT_BREACHER && sim_random_chance(&sim->lies, 1, 4)) {
        work_breach(sim, number);
    } else if (worker->job.kind != LEASE_ROW) {
        answer_records_of(sim, worker);
    } else if (!work_answer_row(sim, worker)) {
        worker_end(sim, number, PROC_END_CRASH, -1, "signal 11");
        return;
    }
    work_forget(&worker->job);
    worker_done(sim, number);
}
