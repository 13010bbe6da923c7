/* documents.c: finds the documents of .txt files line by line. A line end never stands inside a
 * character, so each line can be checked by itself. */
#include "prepd/dataset/documents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "prepd/dataset/lines.h"

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

status documents_scan(record_files *files, document_each each, void *user)
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

status documents_read(record_files *files, const record_place *at, arena *memory, char **out,
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
