/* SPDX-License-Identifier: Apache-2.0 */
/* plain_text.c: the adapter of plain text: records {"text": ...}, one per line, as C4 has them, in
 * .jsonl, .jsonl.gz or .jsonl.zst files; or .txt files (plain_text.c). A sample is a document, and
 * all of it is trained. What stays in memory is the place of each document; texts are read again
 * when they are wanted. */
#include "prepd/dataset/adapters/plain_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/utf8.h"
#include "prepd/dataset/records.h"

/* Plain text in .txt files (RECORDS_BLOCKS and RECORDS_FILES of records.h).
 *
 * A document is the text between two blank lines of a file, or a whole file. It is taken as it
 * stands: from its first line that is not blank to its last one, without the end of that line, and
 * with line ends of Windows (CR LF) as LF. A byte order mark at the beginning of a file is left
 * out. A document must be UTF-8 without zero bytes and may have RECORD_BYTES bytes; another one
 * stays in the list with a cause. A file is read a line at a time, so memory does not grow with it.
 */

/* Receives the place of one document. If it cannot be used, `cause` says why, with file and line.
 */
typedef status (*document_each)(void *user, const record_place *at, const char *cause);

/* Finds the documents of .txt files line by line. A line end never stands inside a
 * character, so each line can be checked by itself. */

enum { PEEK_BYTES = 1 << 16 /* of a file, in which its first line is looked at */ };

/* The state of a scan: the document whose lines are being read. */
typedef struct gathering {
    record_files *files;
    document_each each;
    void *user;
    bool whole; /* the file is one document, blank lines included */
    bool open;
    record_place at;   /* of the open document; its bytes are known at its end */
    int64_t end;       /* offset after its last line that is not blank */
    const char *fault; /* what is wrong with it; NULL: nothing */
    int64_t fault_line;
} gathering;

static status hand_out(gathering *gather)
{
    const char *name = records_name(gather->files, gather->at.file);
    char cause[512];
    if (!gather->open)
        return ST_OK;
    gather->open = false;
    if (!gather->fault) {
        gather->at.bytes = (int32_t)(gather->end - gather->at.offset);
        return gather->each(gather->user, &gather->at, NULL);
    }
    snprintf(cause, sizeof cause, "%.200s:%lld: %s", name, (long long)gather->fault_line,
             gather->fault);
    return gather->each(gather->user, &gather->at, cause);
}

/* What is wrong with a line; NULL if nothing is. */
static const char *fault_of_line(span line)
{
    if (!line.data)
        return "the document has more than 64 MiB";
    if (!utf8_valid(line.data, line.size))
        return "the text is not UTF-8: convert the file with iconv";
    return memchr(line.data, 0, line.size) ? "the text has a zero byte, so it is no text" : NULL;
}

static status on_line(void *user, span line, const line_place *at)
{
    gathering *gather = (gathering *)user;
    if (line.data && line_is_blank(line))
        return gather->whole ? ST_OK : hand_out(gather);
    if (!gather->open) {
        gather->open = true;
        gather->fault = NULL;
        gather->at.offset = at->offset;
        gather->at.line = at->line;
        gather->at.bytes = 0;
    }
    size_t size = line.size;
    while (line.data && line.data[size - 1] == '\r') /* it is not blank, so this ends */
        size--;
    gather->end = at->offset + (int64_t)size;
    const char *fault = gather->end - gather->at.offset > RECORD_BYTES
                            ? "the document has more than 64 MiB; blank lines divide a file"
                            : fault_of_line(line);
    if (fault && !gather->fault) {
        gather->fault = fault;
        gather->fault_line = at->line;
    }
    return ST_OK;
}

static status empty_file(gathering *gather)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%.200s: the file holds no text",
             records_name(gather->files, gather->at.file));
    gather->at = (record_place){.line = 1, .file = gather->at.file};
    return gather->each(gather->user, &gather->at, cause);
}

/* Fails if the first line is a record of JSON with a text: such a file would be trained as JSON. */
static status refuse_json(const record_files *files, int32_t file)
{
    size_t count = 0;
    json_value *value = NULL;
    char *head = (char *)malloc(PEEK_BYTES);
    if (!head)
        return FAIL(ST_NO_MEMORY, "no memory for a read buffer");
    status st = unpack_peek(records_unpack(files, file), head, PEEK_BYTES, &count);
    const char *end = st == ST_OK && count > 0 ? (const char *)memchr(head, '\n', count) : NULL;
    count = end ? (size_t)(end - head) : count;
    if (st == ST_OK && count > 0 && head[0] == '{' &&
        json_parse(head, count, "line", &value) == ST_OK && json_find(value, "text"))
        st = FAIL_IN(ST_BAD_INPUT, records_name(files, file),
                     "its name ends in .txt, which means plain text, but it holds a JSON record on "
                     "each line: rename it to .jsonl");
    json_free(&value);
    free(head);
    return st;
}

static status scan_file(gathering *gather, int32_t file)
{
    bool any;
    gather->at.file = file;
    TRY(refuse_json(gather->files, file));
    TRY(lines_each(records_unpack(gather->files, file), RECORD_BYTES, on_line, gather));
    any = gather->open;
    TRY(hand_out(gather));
    return gather->whole && !any ? empty_file(gather) : ST_OK;
}

/* Reads every file from its beginning to its end, and notes its restart points. Any status of
 * `each` but ST_OK ends the scan and is returned, except that ST_END becomes ST_OK. ST_BAD_INPUT
 * for a file that holds JSON lines after all. */
static status documents_scan(record_files *files, document_each each, void *user)
{
    gathering gather = {
        .files = files, .each = each, .user = user, .whole = records_form(files) == RECORDS_FILES};
    status st = ST_OK;
    for (int32_t k = 0; k < records_count(files) && st == ST_OK; k++) {
        st = scan_file(&gather, k);
        unpack_rest(records_unpack(files, k));
    }
    if (st != ST_OK && st != ST_END)
        return st;
    records_adopted(files);
    return ST_OK;
}

/* Reads a document again; it lives in `memory`, terminated. ST_BAD_INPUT if the file changed in the
 * meantime. */
static status documents_read(record_files *files, const record_place *at, arena *memory, char **out,
                             int64_t *out_bytes)
{
    const char *text;
    char *copy;
    size_t count = 0;
    TRY(records_bytes_of(files, at, &text));
    TRY(arena_alloc(memory, (size_t)at->bytes + 1, (void **)&copy));
    for (size_t i = 0; i < (size_t)at->bytes; i++) {
        while (text[i] == '\n' && count > 0 && copy[count - 1] == '\r')
            count--;
        copy[count++] = text[i];
    }
    copy[count] = 0;
    if (count == 0 || !utf8_valid(copy, count))
        return FAIL_AT(ST_BAD_INPUT, records_name(files, at->file), at->line, at->offset,
                       "the document changed while it was in use: start again");
    *out = copy;
    *out_bytes = (int64_t)count;
    return ST_OK;
}

static const texts *as_texts(const dataset *set)
{
    return (const texts *)set;
}

static void text_close(dataset *base)
{
    texts *set = (texts *)base;
    if (!set)
        return;
    records_close(&set->files);
    text_pool_done(&set->causes);
    free(set->all);
    free(set);
}

/* Why a record is not a document; NULL if it is one. */
static const char *fault_of(const json_value *value)
{
    const json_value *text = json_find(value, "text");
    if (!text)
        return "\"text\" is missing";
    if (json_typeof(text) != JSON_TEXT)
        return "\"text\" is not a text";
    return json_text_size(text) == 0 ? "\"text\" is empty" : NULL;
}

/* Notes the place of a document, and its cause if it has one. */
static status on_document(void *user, const record_place *at, const char *cause)
{
    texts *set = (texts *)user;
    text_document doc = {.at = *at};
    if (set->limit && set->count >= set->limit)
        return FAIL(ST_END, "data.limit");
    TRY(array_room((void **)&set->all, set->count, &set->capacity, sizeof *set->all));
    if (cause)
        TRY(text_pool_format(&set->causes, &doc.cause, "%s", cause));
    set->all[set->count++] = doc;
    return ST_OK;
}

static status on_record(void *user, const json_value *value, const record_place *at,
                        const char *cause)
{
    texts *set = (texts *)user;
    char whole[STATUS_MESSAGE_MAX];
    const char *fault = cause ? NULL : fault_of(value);
    if (!fault)
        return on_document(user, at, cause);
    snprintf(whole, sizeof whole, "%s:%" PRId64 ": %s", records_name(set->files, at->file),
             at->line, fault);
    return on_document(user, at, whole);
}

static status compute_identity(texts *set)
{
    hasher *hash = NULL;
    TRY(hasher_new(&hash));
    hasher_add(hash, "text", 4);
    hasher_add_u64(hash, (uint64_t)set->count);
    if (records_form(set->files) != RECORDS_JSON) /* of JSON it is as it always was */
        hasher_add_u64(hash, (uint64_t)records_form(set->files));
    status st = records_digest(set->files, hash);
    set->identity = hasher_value(hash);
    hasher_free(&hash);
    return st;
}

/* Reads every file twice from its beginning to its end: for its records and for its digest. */
static status read_all(texts *set, const conf *options)
{
    const bool json = records_form(set->files) == RECORDS_JSON;
    TRY(json ? records_scan(set->files, on_record, set)
             : documents_scan(set->files, on_document, set));
    if (set->count == 0)
        return FAIL_IN(ST_BAD_INPUT, options->data_path, "it holds no %s",
                       json ? "record" : "text");
    TRY(compute_identity(set));
    text_cache_save(set, options);
    return ST_OK;
}

static status text_open(const conf *options, dataset **out)
{
    status st;
    if (options->data_group != GROUP_NONE)
        return FAIL(ST_CONFIG,
                    "data.group is for data with pictures: with data.format text use none");
    texts *set = (texts *)calloc(1, sizeof *set);
    if (!set)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    set->base.adapter = &dataset_text;
    set->limit = options->data_limit;
    TRY_OR(failed, records_open(options, &set->files));
    cache_lock lock = {0};
    text_cache_enter(set, options, &lock);
    st = text_cache_load(set, options) ? ST_OK : read_all(set, options);
    cache_lock_leave(&lock);
    TRY_OR(failed, st);
    set->random = records_random(set->files);
    *out = &set->base;
    return ST_OK;
failed:
    text_close(&set->base);
    return st;
}

static int64_t text_samples(const dataset *set)
{
    return as_texts(set)->count;
}

static int64_t text_images(const dataset *set)
{
    (void)set;
    return 0;
}

static const char *text_image_path(const dataset *set, int64_t index)
{
    (void)set;
    (void)index;
    return "";
}

static const char *text_root(const dataset *set)
{
    return records_folder(as_texts(set)->files);
}

static hash128 text_identity(const dataset *set)
{
    return as_texts(set)->identity;
}

static int64_t text_chunk(const dataset *set, int64_t index)
{
    return as_texts(set)->random
               ? -1
               : records_chunk(as_texts(set)->files, &as_texts(set)->all[index].at);
}

static status text_outline(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const texts *set = as_texts(base);
    char name[320], *copy;
    if (index < 0 || index >= set->count)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, index, set->count);
    const text_document *doc = &set->all[index];
    if (records_form(set->files) == RECORDS_FILES)
        snprintf(name, sizeof name, "%.250s", records_name(set->files, doc->at.file));
    else
        snprintf(name, sizeof name, "%.250s:%" PRId64, records_name(set->files, doc->at.file),
                 doc->at.line);
    TRY(arena_strndup(memory, name, strlen(name), &copy));
    *out = (sample){
        .id = (uint64_t)index,
        .name = copy,
        .cause = doc->cause ? text_pool_at(&set->causes, doc->cause) : NULL,
        .plain = true,
        .text_bytes = doc->at.bytes,
    };
    return ST_OK;
}

/* Reads the text of document `index` again; it lives in `memory`. */
static status read_text(const texts *set, int64_t index, const char *name, arena *memory,
                        char **out, int64_t *out_bytes)
{
    const record_place *at = &set->all[index].at;
    json_value *value = NULL;
    if (records_form(set->files) != RECORDS_JSON)
        return documents_read(set->files, at, memory, out, out_bytes);
    TRY(records_read(set->files, at, &value));
    const json_value *text = json_find(value, "text");
    *out_bytes = (int64_t)json_text_size(text);
    const status st =
        fault_of(value)
            ? FAIL_IN(ST_BAD_INPUT, name, "the document changed while it was in use: start again")
            : arena_strndup(memory, json_text(text, ""), (size_t)*out_bytes, out);
    json_free(&value);
    return st;
}

static status text_get(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const texts *set = as_texts(base);
    sample smp;
    char *text;
    int64_t bytes;
    TRY(text_outline(base, index, memory, &smp));
    if (!smp.cause) {
        TRY(read_text(set, index, smp.name, memory, &text, &bytes));
        TRY(arena_calloc(memory, 1, sizeof(turn), (void **)&smp.turns));
        TRY(arena_calloc(memory, 1, sizeof(part), (void **)&smp.turns->parts));
        smp.n_turns = 1;
        smp.turns->role = ROLE_ASSISTANT;
        smp.turns->trained = true;
        smp.turns->n_parts = 1;
        smp.turns->parts[0] = (part){text, bytes, -1};
    }
    *out = smp;
    return ST_OK;
}

const dataset_vtable dataset_text = {
    .name = "text",
    .open = text_open,
    .close = text_close,
    .samples = text_samples,
    .sample = text_get,
    .outline = text_outline,
    .images = text_images,
    .image_path = text_image_path,
    .root = text_root,
    .chunk = text_chunk,
    .identity = text_identity,
};
