/* SPDX-License-Identifier: Apache-2.0 */
/* tags.c: the tag of a row (proto/row/tag.h): what the dispatcher knows of it when it gives the lease,
 * from plan, index and lists of bad samples alone. A worker is told none of the texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"

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

static status put_blank(const source *section, int64_t id, const char *cause, arena *memory,
                        json_writer *writer)
{
    sample smp;
    TRY(section->data->adapter->outline(section->data, id, memory, &smp));
    json_begin_object(writer);
    json_put_key_int(writer, "id", id);
    json_put_key_cstr(writer, "cause", cause);
    json_put_key_cstr(writer, "name", smp.name ? smp.name : "");
    if (smp.n_images > 0)
        json_put_key_cstr(writer, "file",
                          section->data->adapter->image_path(section->data, smp.images[0]));
    json_end_object(writer);
    return ST_OK;
}

/* Writes which samples of this row are blank, and why; in the sample stream also why a sample is
 * refused. It is JSON text inside JSON, as it becomes a text of the row's metadata. */
static status put_quarantine(const consumer_seat *consumer, const planned_row *placed,
                             arena *memory, json_writer *writer)
{
    const source *section = consumer->src;
    json_writer list;
    char *text = NULL;
    size_t size = 0;
    status st = ST_OK;
    json_writer_init(&list);
    json_begin_array(&list);
    for (int64_t i = 0; i < placed->n_docs; i++) {
        const char *cause = blank_cause(consumer, placed->docs[i].sample);
        if (cause && !placed->docs[i].prefix) /* its branches stand in the list themselves */
            TRY_OR(done, put_blank(section, placed->docs[i].sample, cause, memory, &list));
    }
    if (consumer->kind == PLAN_SAMPLES && placed->n_docs == 0 &&
        (int64_t)placed->number < index_samples(section->index)) {
        const char *cause = plan_cause(consumer->plan, (int64_t)placed->number);
        if (cause)
            TRY_OR(done, put_blank(section, (int64_t)placed->number, cause, memory, &list));
    }
    json_end_array(&list);
    TRY_OR(done, json_writer_take(&list, &text, &size));
    json_put_key_text(writer, "quarantine", text, size);
done:
    free(text);
    json_writer_done(&list);
    return st;
}

/* Writes an entry per document, if any document has references. */
static status put_references(const source *section, const planned_row *placed, json_writer *writer)
{
    json_writer list;
    char *text = NULL;
    size_t size;
    bool any = false;
    if (!section->options.is_held_out || !section->data->adapter->reference)
        return ST_OK;
    json_writer_init(&list);
    json_begin_array(&list);
    for (int64_t i = 0; i < placed->n_docs; i++) {
        const char *reference =
            placed->docs[i].prefix
                ? NULL
                : section->data->adapter->reference(section->data, placed->docs[i].sample);
        any |= reference != NULL;
        if (reference)
            json_put_raw(&list, reference, strlen(reference));
        else
            json_put_null(&list);
    }
    json_end_array(&list);
    TRY(json_writer_take(&list, &text, &size));
    if (any)
        json_put_key_text(writer, "references", text, size);
    free(text);
    return ST_OK;
}

/* Writes the epoch in which the next step begins, or that of the row before if it is earlier, and
 * its first row. A consumer that comes back with this cursor needs nothing that lies before it. */
static void put_begin(const consumer_seat *consumer, uint64_t last, uint64_t next,
                      json_writer *writer)
{
    const uint64_t batch = (uint64_t)consumer->src->options.training_global_batch_size,
                   step = next - next % batch;
    uint64_t first;
    const uint64_t epoch =
        plan_epoch_of(consumer->plan, consumer->from, step < last ? step : last, &first);
    json_begin_key_object(writer, "begin");
    json_put_key_int(writer, "epoch", (int64_t)epoch);
    json_put_key_int(writer, "row", (int64_t)first);
    json_end_object(writer);
}

/* Writes the weights of a mixture, on which its order depends, by the names of its sources, and the
 * digest of the index without the weights. With both, a consumer that comes back to other weights
 * can be told which one differs. */
static void put_weights(const source *section, json_writer *writer)
{
    const dataset_part *parts = NULL;
    const int count =
        section->data->adapter->parts ? section->data->adapter->parts(section->data, &parts) : 0;
    char digest[HASH_TEXT];
    if (count == 0)
        return;
    hash_print(index_contents(section->index), digest);
    json_put_key_cstr(writer, "contents", digest);
    json_begin_key_object(writer, "weights");
    for (int k = 0; k < count; k++)
        json_put_key_real(writer, parts[k].name, parts[k].weight);
    json_end_object(writer);
}

/* The row before `next`: this one, or with several ranks a later one of its step, which another
 * rank may get. By it a cursor does not depend on which rows of a step were this consumer's. The
 * last step of the sample stream may end before `next`. */
static status find_last(consumer_seat *consumer, const planned_row *row, uint64_t next,
                        arena *memory, planned_row *out)
{
    *out = *row;
    for (uint64_t number = next; number > row->number + 1; number--) {
        const status st = plan_row(consumer->plan, consumer->from, number - 1, memory, out);
        if (st != ST_END)
            return st;
        *out = *row;
    }
    return ST_OK;
}

/* Writes the cursor of a consumer that has consumed this row and continues with row `next`. After a
 * whole step it has the same bytes for all ranks and on all daemons. */
static status make_cursor(consumer_seat *consumer, const planned_row *row, uint64_t next,
                          arena *memory, char **out)
{
    json_writer writer;
    planned_row last;
    char digest[HASH_TEXT];
    size_t size;
    TRY(find_last(consumer, row, next, memory, &last));
    hash_print(index_digest(consumer->src->index), digest);
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "stream", consumer->stream);
    json_put_key_int(&writer, "row", (int64_t)next);
    if (consumer->src->options.data_generation > 0)
        json_put_key_int(&writer, "generation", consumer->src->options.data_generation);
    json_put_key_int(&writer, "step",
                     (int64_t)(next / (uint64_t)consumer->src->options.training_global_batch_size));
    json_put_key_int(&writer, "epoch", (int64_t)last.epoch);
    json_put_key_int(&writer, "window", (int64_t)last.window);
    put_begin(consumer, last.number, next, &writer);
    json_put_key_int(&writer, "plan", plan_version(&consumer->src->options));
    json_put_key_cstr(&writer, "index", digest);
    put_weights(consumer->src, &writer);
    fingerprints_put(&consumer->src->fingerprints, &writer);
    json_end_object(&writer);
    const status st = json_writer_take(&writer, out, &size);
    json_writer_done(&writer);
    return st;
}

/* Writes the texts that a row's metadata becomes. */
static status put_texts(consumer_seat *consumer, const planned_row *placed, uint64_t next,
                        arena *memory, json_writer *writer)
{
    char *cursor;
    TRY(make_cursor(consumer, placed, next, memory, &cursor));
    json_put_key_cstr(writer, "cursor", cursor);
    free(cursor);
    TRY(put_quarantine(consumer, placed, memory, writer));
    return put_references(consumer->src, placed, writer);
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
    status st = put_quarantine(consumer, placed, memory, &writer);
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
