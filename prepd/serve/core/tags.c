/* tags.c: the tag of a row (proto/tag.h): what the dispatcher knows of it when it gives the lease,
 * from plan, index and lists of bad samples alone. A worker is told none of the texts. */
#include <stdio.h>
#include <stdlib.h>

#include "prepd/serve/core/dispatch_state.h"

/* How many labels a document has that count; -1 for a part of a text, whose share is not known. */
static int64_t targets_of(const consumer_seat *consumer, const planned_doc *doc)
{
    index_sample record;
    if (doc->prefix || blank_cause(consumer, doc->sample))
        return 0;
    if (doc->tokens != doc->whole && !doc->before)
        return -1;
    index_sample_get(consumer->src->index, doc->sample, &record);
    return record.targets;
}

/* Writes one number of each document, or null where it is -1 and may be missing. */
typedef int64_t (*doc_number)(const consumer_seat *consumer, const planned_row *placed,
                              int64_t doc);

static int64_t doc_id(const consumer_seat *consumer, const planned_row *placed, int64_t doc)
{
    (void)consumer;
    return placed->docs[doc].sample;
}

static int64_t doc_part(const consumer_seat *consumer, const planned_row *placed, int64_t doc)
{
    (void)consumer;
    return placed->docs[doc].prefix ? -1 : placed->docs[doc].part;
}

static int64_t doc_prefix(const consumer_seat *consumer, const planned_row *placed, int64_t doc)
{
    (void)consumer;
    if (!placed->docs[doc].before)
        return -1;
    while (!placed->docs[doc].prefix)
        doc--;
    return doc;
}

static int64_t doc_length(const consumer_seat *consumer, const planned_row *placed, int64_t doc)
{
    (void)consumer;
    return placed->docs[doc].tokens;
}

static int64_t doc_targets(const consumer_seat *consumer, const planned_row *placed, int64_t doc)
{
    return targets_of(consumer, &placed->docs[doc]);
}

static void put_numbers(const consumer_seat *consumer, const planned_row *placed, const char *key,
                        doc_number of, bool optional, json_writer *writer)
{
    json_begin_key_array(writer, key);
    for (int64_t doc = 0; doc < placed->n_docs; doc++) {
        const int64_t value = of(consumer, placed, doc);
        if (optional && value < 0)
            json_put_null(writer);
        else
            json_put_int(writer, value);
    }
    json_end_array(writer);
}

/* Writes the grids of the row's items: time, height, width of each, in patches. An item is listed
 * where it first appears. */
static void put_grids(const planned_row *placed, json_writer *writer)
{
    json_begin_key_array(writer, "grids");
    for (int64_t i = 0; i < placed->n_docs; i++) {
        const planned_doc *doc = &placed->docs[i];
        for (int32_t k = 0; !doc->shared && !doc->before && k < doc->n_images; k++) {
            json_put_int(writer, fit_runs(doc->grids[k]));
            json_put_int(writer, doc->grids[k].rows);
            json_put_int(writer, doc->grids[k].columns);
        }
    }
    json_end_array(writer);
}

/* Tells one choice of blank documents from another. */
static uint64_t bad_mark(const consumer_seat *consumer, const planned_row *placed)
{
    uint64_t mark = 0;
    for (int64_t doc = 0; doc < placed->n_docs; doc++)
        if (blank_cause(consumer, placed->docs[doc].sample))
            mark = mark * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)doc + 1;
    return mark;
}

static void put_worker(const worker_seat *worker, json_writer *writer)
{
    char name[sizeof(worker->host) + 32];
    snprintf(name, sizeof(name), "%d on %s", (int)worker->pid, worker->host);
    json_put_key_cstr(writer, "worker", name);
}

/* Writes the texts that a row's metadata becomes. */
static status put_texts(consumer_seat *consumer, const planned_row *placed, uint64_t next,
                        arena *memory, json_writer *writer)
{
    char *cursor;
    TRY(payload_cursor(consumer, placed, next, memory, &cursor));
    json_put_key_cstr(writer, "cursor", cursor);
    free(cursor);
    TRY(payload_quarantine(consumer, placed, memory, writer));
    return payload_references(consumer->src, placed, writer);
}

status tag_list_bytes(consumer_seat *consumer, const planned_row *placed, arena *memory,
                      int64_t *out)
{
    json_writer writer;
    char *text = NULL;
    size_t size = 0;
    *out = 0;
    if (bad_mark(consumer, placed) == 0)
        return ST_OK;
    json_writer_init(&writer);
    json_begin_object(&writer);
    status st = payload_quarantine(consumer, placed, memory, &writer);
    json_end_object(&writer);
    if (st == ST_OK)
        st = json_writer_take(&writer, &text, &size);
    json_writer_done(&writer);
    free(text);
    *out = (int64_t)size;
    return st;
}

status tag_make(dispatch *state, lease *leased, const planned_row *placed,
                const worker_seat *worker)
{
    consumer_seat *consumer = leased->owner;
    json_writer writer;
    char *text = NULL;
    size_t size;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "row", (int64_t)leased->row);
    put_worker(worker, &writer);
    put_numbers(consumer, placed, "ids", doc_id, false, &writer);
    put_numbers(consumer, placed, "parts", doc_part, false, &writer);
    put_numbers(consumer, placed, "prefixes", doc_prefix, false, &writer);
    put_numbers(consumer, placed, "lengths", doc_length, false, &writer);
    put_numbers(consumer, placed, "targets", doc_targets, true, &writer);
    put_grids(placed, &writer);
    status st = put_texts(consumer, placed, leased->after, &state->scratch, &writer);
    json_end_object(&writer);
    if (st == ST_OK)
        st = json_writer_take(&writer, &text, &size);
    json_writer_done(&writer);
    TRY(st);
    free(leased->tag);
    leased->tag = text;
    leased->by = worker->number;
    leased->account = worker->decider ? 0 : worker->of->number;
    const uint64_t mark = bad_mark(consumer, placed);
    if (mark != leased->bad_mark)
        doubt_void(&state->accounts, leased); /* what was made of it before is another row now */
    leased->bad_mark = mark;
    return ST_OK;
}
