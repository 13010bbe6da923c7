/* SPDX-License-Identifier: Apache-2.0 */
/* invariants.c: what everyone outside the dispatcher can see. What only its state shows is in
 * state_checks.c. */
#include "tests/sim/prepd/invariants.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/jobs.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/sim_twins.h"

void check_credit(simulation *sim, const sim_daemon *from, const wire_peer *to, int64_t bytes)
{
    const sim_link *link = link_of_peer(sim, to);
    (void)from;
    if (link->twin_of)
        return; /* it came when the rank had gone, and leaves at once */
    if (link->kind != END_RANK)
        sim_break(sim, INV_ROLES, "a row is sent to someone who is no consumer");
    sim_rank *rank = sim->rank[link->who];
    if (&sim->link[rank->link < 0 ? 0 : rank->link] != link || rank->link < 0)
        return; /* it has gone meanwhile */
    if (rank->under_way > 0 && rank->under_way + bytes > sim->rules.credit)
        sim_break(sim, INV_CREDIT,
                  "rank %d has %lld bytes under way, is sent %lld more and has granted %lld",
                  link->who, (long long)rank->under_way, (long long)bytes,
                  (long long)sim->rules.credit);
    rank->under_way += bytes;
}

/* The number after a key of a JSON text; -1 if there is none. */
static int64_t number_after(const char *text, const char *key)
{
    const char *found = strstr(text, key);
    return found ? strtoll(found + strlen(key), NULL, 10) : -1;
}

static int64_t count_entries(const char *list)
{
    int64_t count = 0;
    static const char key[] = "{\"id\":";
    for (const char *at = list; (at = strstr(at, key)); at += strlen(key))
        count++;
    return count;
}

/* Whether a document must be blank in this job's rows that are made at this time: what it shows is
 * bad, or its ranks say so; of a prefix, all of its branches are bad. */
static bool must_be_blank(const sim_stream_job *job, const reference_doc *want, int64_t at_ns)
{
    bool all_told = true;
    for (int32_t i = want->branches ? 1 : 0; i <= want->branches; i++)
        all_told &= job_was_told(job, want[i].sample);
    return all_told || sim_data_is_bad(job->rows->data, want->sample, at_ns);
}

static void check_doc(simulation *sim, const sim_stream_job *job, uint64_t number,
                      const reference_doc *want, const sim_row *row, int64_t place)
{
    const sim_row_doc *got = &row->doc[place];
    if (got->sample != want->sample || (got->content != want->content && !row->lied))
        sim_break(
            sim, INV_ROWS,
            "row %llu: document %lld is not what the plan says of sample %lld (it is of %lld)",
            (unsigned long long)number, (long long)place, (long long)want->sample,
            (long long)got->sample);
    else if (got->bad && !must_be_blank(job, want, sim->now_ns))
        sim_break(sim, INV_HEALTHY, "row %llu: the good sample %lld counts as bad",
                  (unsigned long long)number, (long long)want->sample);
    else if (!got->bad && must_be_blank(job, want, row->began_ns))
        sim_break(sim, INV_ROWS, "row %llu: the bad sample %lld counts as good",
                  (unsigned long long)number, (long long)want->sample);
}

/* The row with which a rank's cursor must lead on. */
static uint64_t row_after(const simulation *sim, const sim_stream_job *job, const sim_rank *rank,
                          uint64_t number)
{
    const uint64_t batch = (uint64_t)sim->options.training_global_batch_size,
                   step_end = (number / batch + 1) * batch;
    uint64_t next;
    if (job->ranks == 1)
        return number + 1;
    return reference_next(job->rows, job->ranks, rank->rank, number + 1, &next) && next < step_end
               ? next
               : step_end;
}

/* Writes what the answers of a row are judged by, as its tag has it;
 * "" if nothing is known of any. */
static void write_references(const sim_data *data, const reference_row *want, char *out,
                             size_t size)
{
    size_t length = (size_t)snprintf(out, size, "[");
    bool any = false;
    for (int64_t i = 0; i < want->n_docs && length < size; i++) {
        const char *text =
            want->docs[i].branches ? "" : data->sample[want->docs[i].sample].judged_by;
        any |= text[0] != 0;
        length += (size_t)snprintf(out + length, size - length, "%s%s", i ? "," : "",
                                   text[0] ? text : "null");
    }
    if (length < size)
        snprintf(out + length, size - length, "]");
    if (!any)
        out[0] = 0;
}

static void check_references(simulation *sim, const sim_stream_job *job, const reference_row *want,
                             const json_value *tag)
{
    static char text[MOST_DOCS * 48];
    text[0] = 0;
    if (job->rows->options->is_held_out)
        write_references(job->rows->data, want, text, sizeof text);
    if (strcmp(json_text(json_find(tag, "references"), ""), text) != 0)
        sim_break(sim, INV_TAGS, "a tag says that answers are judged by %.120s, and not by %.120s",
                  json_text(json_find(tag, "references"), ""), text);
}

void check_tag(simulation *sim, int who, uint64_t number, const sim_row *row)
{
    const sim_rank *rank = sim->rank[who];
    const sim_stream_job *job = &sim->job[rank->job];
    const reference_row *want = reference_find_row(job->rows, number);
    const json_value *ids = json_find(row->tag, "ids"), *parts = json_find(row->tag, "parts");
    bool same = want && (int64_t)json_count(ids) == want->n_docs &&
                json_int(json_find(row->tag, "row"), -1) == (int64_t)number &&
                json_text(json_find(row->tag, "worker"), "")[0];
    for (int64_t i = 0; same && i < want->n_docs; i++)
        same = json_int(json_item(ids, (size_t)i), -1) == want->docs[i].sample &&
               (json_int(json_item(parts, (size_t)i), 0) < 0) == (want->docs[i].branches > 0);
    if (!same)
        sim_break(sim, INV_TAGS, "the tag of row %llu does not say what the plan says",
                  (unsigned long long)number);
    else
        check_references(sim, job, want, row->tag);
}

void check_row(simulation *sim, int who, uint64_t number, const sim_row *row)
{
    sim_rank *rank = sim->rank[who];
    const sim_stream_job *job = &sim->job[rank->job];
    const reference_row *want = reference_find_row(job->rows, number);
    const char *cursor = json_text(json_find(row->tag, "cursor"), ""),
               *list = json_text(json_find(row->tag, "quarantine"), "");
    int64_t bad = 0;
    check_tag(sim, who, number, row);
    if (rank->state != RANK_READING)
        sim_break(sim, INV_ORDER, "rank %d gets row %llu before it is welcomed", who,
                  (unsigned long long)number);
    if (!rank->any_left || number != rank->next || !want)
        sim_break(sim, INV_ORDER, "rank %d gets row %llu where %s%llu must come", who,
                  (unsigned long long)number, rank->any_left ? "row " : "the end, after row ",
                  (unsigned long long)rank->next);
    if (sim->broken[0])
        return;
    if (row->n_docs != want->n_docs)
        sim_break(sim, INV_ROWS, "row %llu has %lld documents, and the plan says %lld",
                  (unsigned long long)number, (long long)row->n_docs, (long long)want->n_docs);
    for (int64_t i = 0; i < want->n_docs && !sim->broken[0]; i++) {
        check_doc(sim, job, number, &want->docs[i], row, i);
        bad += row->doc[i].bad && want->docs[i].branches == 0;
    }
    sim->stats->rows_lied += row->lied;
    if (row->lied && sim->options.prepd_audit >= 1)
        sim_break(sim, INV_AUDIT, "row %llu is a lie, although deciders check all rows",
                  (unsigned long long)number);
    sim->stats->quarantined += (uint64_t)bad;
    /* The sample stream names what the index refuses as well. */
    if (count_entries(list) != bad && want->n_docs > 0)
        sim_break(sim, INV_ROWS, "row %llu has %lld bad samples and lists %lld",
                  (unsigned long long)number, (long long)bad, (long long)count_entries(list));
    rank->cursor_row = row_after(sim, job, rank, number);
    if (number_after(cursor, "\"row\":") != (int64_t)rank->cursor_row)
        sim_break(sim, INV_CURSORS, "the cursor after row %llu leads to row %lld and not to %llu",
                  (unsigned long long)number, (long long)number_after(cursor, "\"row\":"),
                  (unsigned long long)rank->cursor_row);
}

void check_welcome(simulation *sim, int who, const json_value *said)
{
    const sim_rank *rank = sim->rank[who];
    const sim_stream_job *job = &sim->job[rank->job];
    char digest[HASH_TEXT];
    const uint64_t row = rank->cursor ? rank->cursor_row : job->begin;
    if (rank->brings == CURSOR_OTHER_WEIGHTS || rank->brings == CURSOR_OTHER_DATA)
        sim_break(sim, INV_CURSORS, "rank %d is welcomed with a cursor of another stream", who);
    if (check_welcome_to_other(sim, who))
        return;
    if (rank->astray)
        sim_break(sim, INV_ROLES, "rank %d is welcomed by a daemon that does not serve it", who);
    const json_value *prints = json_find(said, "fingerprints");
    if (strcmp(json_text(json_find(prints, "images"), ""), sim_prints[PRINT_IMAGES]) != 0 ||
        strcmp(json_text(json_find(prints, "tokens"), ""), sim_prints[PRINT_TOKENS]) != 0)
        sim_break(sim, INV_WIRE, "rank %d is welcomed with fingerprints that are not the daemon's",
                  who);
    hash_print(index_digest(job->rows->index), digest);
    if (strcmp(json_text(json_find(said, "index"), ""), digest) != 0)
        sim_break(sim, INV_INDEX, "rank %d is welcomed with another index than the data has", who);
    if (json_int(json_find(said, "row"), -1) != (int64_t)row)
        sim_break(sim, INV_CURSORS, "rank %d is welcomed at row %lld and not at %llu", who,
                  (long long)json_int(json_find(said, "row"), -1), (unsigned long long)row);
}

void check_end_of_stream(simulation *sim, int who, const json_value *said)
{
    const sim_rank *rank = sim->rank[who];
    (void)said;
    if (rank->any_left)
        sim_break(sim, INV_ORDER, "rank %d is told the end, and row %llu is still to come", who,
                  (unsigned long long)rank->next);
}

void check_refusal(simulation *sim, const sim_worker *worker, status why)
{
    if (worker->ship && !sim->options.data_ship && why == ST_CONFIG)
        return; /* it has no copy of the data, and no files are sent */
    /* A daemon that could not look at the file itself takes what is told about it for a claim. */
    if (worker->bent == BENT_POOR_COPY && why != ST_NO_INPUT && !worker->breached &&
        !sim->daemon[worker->daemon].was_blind)
        sim_break(sim, INV_DEVIANT, "a worker with a poor copy is refused for another reason: %s",
                  status_text());
    if (why == ST_NO_MEMORY && sim->rules.weight[FAULT_NO_MEMORY] > 0)
        return;
    const bool differs = worker->bent == BENT_OTHER_BUILD || worker->bent == BENT_OTHER_DECODER ||
                         worker->bent == BENT_OTHER_TOKENIZER;
    if (differs && why != ST_MISMATCH)
        sim_break(sim, INV_DEVIANT, "a worker that differs is refused for another reason: %s",
                  status_text());
    const char *named = strstr(status_text(), " of worker "),
               *called = strstr(status_text(), "(pid ");
    if ((named && strtoll(named + strlen(" of worker "), NULL, 10) != worker->pid) ||
        (called && strtoll(called + strlen("(pid "), NULL, 10) != worker->pid))
        sim_break(sim, INV_DEVIANT, "worker %d is dismissed in the name of another: %s",
                  (int)worker->pid, status_text());
    if ((worker->bent == BENT_HONEST || worker->bent == BENT_SLOW) && !worker->breached)
        sim_break(sim, INV_HONEST, "an honest worker is refused: %s", status_text());
}

void check_consumer_refusal(simulation *sim, int who, status why)
{
    const sim_rank *rank = sim->rank[who];
    if (strstr(status_text(), "that are what was ordered") && !sim->job[rank->job].refuses)
        sim_break(sim, INV_HONEST, "rank %d has refused no good row, and is turned away: %s", who,
                  status_text());
    if (rank->astray && why == ST_CONFIG) {
        char named[64];
        snprintf(named, sizeof named, "(prepd.ranks), and the consumer is rank %d of", rank->rank);
        if (!strstr(status_text(), named))
            sim_break(sim, INV_HONEST, "rank %d is not told that it asks the wrong daemon: %s", who,
                      status_text());
        return;
    }
    if (why == ST_CONFIG && twin_is_told(status_text()))
        return; /* check_twin_refusal has looked at it */
    if (check_other_cursor(sim, who, why) || check_other_data(sim, who, why))
        return;
    if (why != ST_UNAVAILABLE && why != ST_STOPPED &&
        !(why == ST_IO && sim->rules.weight[FAULT_NO_FILES] > 0) &&
        !(why == ST_NO_MEMORY &&
          sim->rules.weight[FAULT_NO_SHIP] + sim->rules.weight[FAULT_NO_MEMORY] > 0))
        sim_break(sim, INV_HONEST, "rank %d is refused: %s", who, status_text());
}
