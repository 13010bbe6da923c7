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

static status hand_out(gathering *g)
{
    const char *name = records_name(g->files, g->at.file);
    char cause[512];
    if (!g->open)
        return ST_OK;
    g->open = false;
    if (!g->fault) {
        g->at.bytes = (int32_t)(g->end - g->at.offset);
        return g->each(g->user, &g->at, NULL);
    }
    snprintf(cause, sizeof cause, "%.200s:%lld: %s", name, (long long)g->fault_line, g->fault);
    return g->each(g->user, &g->at, cause);
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
    gathering *g = (gathering *)user;
    if (line.data && line_is_blank(line))
        return g->whole ? ST_OK : hand_out(g);
    if (!g->open) {
        g->open = true;
        g->fault = NULL;
        g->at.offset = at->offset;
        g->at.line = at->line;
        g->at.bytes = 0;
    }
    size_t size = line.size;
    while (line.data && line.data[size - 1] == '\r') /* it is not blank, so this ends */
        size--;
    g->end = at->offset + (int64_t)size;
    const char *fault = g->end - g->at.offset > RECORD_BYTES
                            ? "the document has more than 64 MiB; blank lines divide a file"
                            : fault_of_line(line);
    if (fault && !g->fault) {
        g->fault = fault;
        g->fault_line = at->line;
    }
    return ST_OK;
}

static status empty_file(gathering *g)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%.200s: the file holds no text",
             records_name(g->files, g->at.file));
    g->at = (record_place){.line = 1, .file = g->at.file};
    return g->each(g->user, &g->at, cause);
}

/* Fails if the first line is a record of JSON with a text: such a file would be trained as JSON. */
static status refuse_json(const record_files *files, int32_t file)
{
    size_t n = 0;
    json_value *value = NULL;
    char *head = (char *)malloc(PEEK_BYTES);
    if (!head)
        return FAIL(ST_NO_MEMORY, "no memory for a read buffer");
    status st = unpack_peek(records_unpack(files, file), head, PEEK_BYTES, &n);
    const char *end = st == ST_OK && n > 0 ? (const char *)memchr(head, '\n', n) : NULL;
    n = end ? (size_t)(end - head) : n;
    if (st == ST_OK && n > 0 && head[0] == '{' && json_parse(head, n, "line", &value) == ST_OK &&
        json_find(value, "text"))
        st = FAIL_IN(ST_BAD_INPUT, records_name(files, file),
                     "its name ends in .txt, which means plain text, but it holds a JSON record on "
                     "each line: rename it to .jsonl");
    json_free(&value);
    free(head);
    return st;
}

static status scan_file(gathering *g, int32_t file)
{
    bool any;
    g->at.file = file;
    TRY(refuse_json(g->files, file));
    TRY(lines_each(records_unpack(g->files, file), RECORD_BYTES, on_line, g));
    any = g->open;
    TRY(hand_out(g));
    return g->whole && !any ? empty_file(g) : ST_OK;
}

status documents_scan(record_files *files, document_each each, void *user)
{
    gathering g = {
        .files = files, .each = each, .user = user, .whole = records_form(files) == RECORDS_FILES};
    status st = ST_OK;
    for (int32_t k = 0; k < records_count(files) && st == ST_OK; k++) {
        st = scan_file(&g, k);
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
    size_t n = 0;
    TRY(records_bytes_of(files, at, &text));
    TRY(arena_alloc(memory, (size_t)at->bytes + 1, (void **)&copy));
    for (size_t i = 0; i < (size_t)at->bytes; i++) {
        while (text[i] == '\n' && n > 0 && copy[n - 1] == '\r')
            n--;
        copy[n++] = text[i];
    }
    copy[n] = 0;
    if (n == 0 || !utf8_valid(copy, n))
        return FAIL_AT(ST_BAD_INPUT, records_name(files, at->file), at->line, at->offset,
                       "the document changed while it was in use: start again");
    *out = copy;
    *out_bytes = (int64_t)n;
    return ST_OK;
}
