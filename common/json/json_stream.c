/* SPDX-License-Identifier: Apache-2.0 */
/* json_stream.c: reads documents from files, and the items of one array from a file or stream of
 * any length.
 *
 * The input is fed to the parser in pieces. An item, number or text that grows beyond its limit is
 * found between two pieces; an item is then skipped by json_scan, since yajl would keep all of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/json/json_parser.h"

enum { CHUNK_BYTES = 256 * 1024 };

/* Tells the texts and brackets of JSON apart without building anything.
 *
 * When a token continues over several pieces of input, yajl keeps all of it and reads it again from
 * its beginning with every piece. So this file has to know whether a piece ends inside of a
 * text, and has to skip a text or an item that is too long without passing it to yajl. */

/* A state of zeros is between tokens. The input can be cut into pieces anywhere. */
typedef struct json_scan {
    bool in_text;
    bool escaped; /* in a text, and the byte before was a backslash */
    int64_t bare; /* bytes of the present number or word: those since the last bracket, comma,
                   * colon, white space or text */
} json_scan;

/* Reads to the end of an open text, its closing quote included, or all bytes. Returns how many it
 * read: 0 if no text is open. */
static size_t scan_text(json_scan *state, const unsigned char *bytes, size_t size)
{
    size_t at = 0;
    while (state->in_text && at < size) {
        const unsigned char letter = bytes[at++];
        if (state->escaped)
            state->escaped = false;
        else if (letter == '\\')
            state->escaped = true;
        else if (letter == '"')
            state->in_text = false;
    }
    return at;
}

static bool is_between(unsigned char letter)
{
    return letter == 0 || strchr(" \t\r\n,:[]{}", letter) != NULL;
}

/* Reads one byte outside of texts. */
static void take_outside(json_scan *state, unsigned char letter)
{
    state->in_text = letter == '"';
    state->bare = state->in_text || is_between(letter) ? 0 : state->bare + 1;
}

/* Reads until the *depth open brackets are closed and no text is open, or all bytes. Returns how
 * many it read: 0 if *depth is 0 and no text is open. */
static size_t scan_close(json_scan *state, int64_t *depth, const unsigned char *bytes, size_t size)
{
    size_t at = scan_text(state, bytes, size);
    while (*depth > 0 && at < size) {
        const unsigned char letter = bytes[at++];
        *depth += (letter == '{' || letter == '[') - (letter == '}' || letter == ']');
        take_outside(state, letter);
        at += scan_text(state, bytes + at, size - at);
    }
    return at;
}

/* Reads all bytes. If a text that begins among them is still open at their end, returns the index
 * at which it begins; -1 if no text is open, or it was open before. */
static int64_t scan_all(json_scan *state, const unsigned char *bytes, size_t size)
{
    int64_t began = -1;
    for (size_t at = scan_text(state, bytes, size); at < size;) {
        take_outside(state, bytes[at]);
        if (state->in_text)
            began = (int64_t)at;
        at++;
        at += scan_text(state, bytes + at, size - at);
    }
    return state->in_text ? began : -1;
}

static status open_file(const char *path, int *out_fd)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    *out_fd = fd;
    return ST_OK;
}

/* Reads up to `size` bytes; none at the end of the file. */
static status read_some(int fd, const char *path, void *to, size_t size, size_t *out_n)
{
    const ssize_t got = file_read_at(fd, to, size, -1);
    if (got < 0)
        return FAIL_IN(ST_IO, path, "read failed: %s", strerror(errno));
    *out_n = (size_t)got;
    return ST_OK;
}

status json_load(const char *path, json_value **out)
{
    status st = ST_OK;
    char *text = NULL;
    size_t size = 0, capacity = 0;
    int fd;
    TRY(open_file(path, &fd));
    for (size_t i = 1; i > 0; size += i) {
        if (capacity - size < CHUNK_BYTES) {
            capacity = 2 * capacity + CHUNK_BYTES;
            char *grown = (char *)realloc(text, capacity);
            if (!grown) {
                st = FAIL_IN(ST_NO_MEMORY, path, "no memory for %zu bytes of JSON", capacity);
                goto done;
            }
            text = grown;
        }
        TRY_OR(done, read_some(fd, path, text + size, capacity - size, &i));
    }
    st = json_parse(text, size, path, out);
done:
    free(text);
    close(fd);
    return st;
}

/* The input on its way to the parser. */
typedef struct stream {
    json_parser parser;
    json_next next;
    void *input;
    unsigned char *buffer;
    size_t capacity;
    json_scan
        scan; /* the state at the end of what yajl has, of which the last token may be incomplete */
    int64_t text_at; /* offset at which the open text begins, if scan.in_text */
    bool skipping;   /* an item that is too long is being skipped; yajl gets none of it */
    int64_t depth;   /* open brackets of that item */
} stream;

/* How many bytes to read next. yajl reads what it has of an open text again with every piece. So a
 * piece is at least as long as what it has, and all readings together are at most three times the
 * text. */
static size_t piece_bytes(const stream *queue)
{
    const int64_t had =
        queue->skipping || !queue->scan.in_text ? 0 : queue->parser.base - queue->text_at;
    const int64_t most = JSON_ITEM_BYTES + 1 - had, want = had < most ? had : most;
    return want > CHUNK_BYTES ? (size_t)want : CHUNK_BYTES;
}

/* Reads the next piece. While a text is open the piece is filled completely, although `next` may
 * give only a few bytes at a time, so that the bound above holds. */
static status read_piece(stream *queue, size_t *out_n)
{
    const size_t want = piece_bytes(queue);
    const bool whole = queue->scan.in_text;
    size_t count = 0, more = 0;
    if (want > queue->capacity) {
        unsigned char *grown = (unsigned char *)realloc(queue->buffer, want);
        if (!grown)
            return FAIL_IN(ST_NO_MEMORY, queue->parser.source, "no memory for %zu bytes of JSON",
                           want);
        queue->buffer = grown;
        queue->capacity = want;
    }
    do {
        TRY(queue->next(queue->input, queue->buffer + count, want - count, &more));
        count += more;
    } while (whole && more > 0 && count < want);
    *out_n = count;
    return ST_OK;
}

/* Notes which token the bytes that were fed leave incomplete. */
static void look_at_rest(stream *queue)
{
    const json_parser *parser = &queue->parser;
    size_t from = 0;
    if (parser->token_end >= parser->base) {
        from = (size_t)(parser->token_end - parser->base);
        queue->scan = (json_scan){0};
    }
    const int64_t began = scan_all(&queue->scan, parser->chunk + from, parser->chunk_size - from);
    if (began >= 0)
        queue->text_at =
            parser->token_end >= parser->base ? parser->token_end + began : parser->base + began;
}

/* Called between two pieces: fails for a number or text that is too long, and begins to skip an
 * item that is. */
static status check_lengths(stream *queue)
{
    json_parser *parser = &queue->parser;
    const int64_t text = queue->scan.in_text ? parser->base - queue->text_at : 0;
    const int64_t depth = parser->build.depth + parser->left_out;
    const int64_t item = depth > 0 ? parser->base - parser->item.offset : text;
    if (queue->scan.bare >= JSON_NUMBER_MAX)
        return json_parser_fail(parser, -queue->scan.bare, "a number of more than 511 digits");
    if (!parser->in_array && text > JSON_ITEM_BYTES)
        return json_parser_fail(parser, -text, "a text longer than 64 MiB");
    if (!parser->in_array ||
        (item <= JSON_ITEM_BYTES && parser->build.n_values <= JSON_ITEM_VALUES))
        return ST_OK;
    if (depth == 0)
        parser->item = (json_place){.offset = queue->text_at, .line = parser->line};
    queue->skipping = true;
    queue->depth = depth;
    return ST_OK;
}

static status feed_some(stream *queue, const unsigned char *bytes, size_t size)
{
    json_scan ahead =
        queue->scan; /* an open text is fed to its end at once, anything else in pieces */
    size_t count = size < CHUNK_BYTES ? size : CHUNK_BYTES;
    if (ahead.in_text)
        count = scan_text(&ahead, bytes, size);
    TRY(json_parser_feed(&queue->parser, bytes, count));
    look_at_rest(queue);
    json_parser_advance(&queue->parser);
    return check_lengths(queue);
}

static status skip_some(stream *queue, const unsigned char *bytes, size_t size)
{
    json_parser *parser = &queue->parser;
    parser->chunk = bytes;
    parser->chunk_size = scan_close(&queue->scan, &queue->depth, bytes, size);
    json_parser_advance(parser);
    if (queue->depth > 0 || queue->scan.in_text)
        return ST_OK;
    queue->skipping = false;
    queue->scan = (json_scan){0};
    TRY(json_parser_step_over(parser));
    parser->item.bytes = parser->base - parser->item.offset;
    return parser->each(parser->user, NULL, &parser->item);
}

static status stream_pieces(stream *queue)
{
    json_parser *parser = &queue->parser;
    for (size_t i;;) {
        TRY(read_piece(queue, &i));
        if (i == 0)
            break;
        for (const int64_t from = parser->base; parser->base < from + (int64_t)i;) {
            const size_t at = (size_t)(parser->base - from);
            TRY((queue->skipping ? skip_some : feed_some)(queue, queue->buffer + at, i - at));
        }
    }
    TRY(json_parser_finish(parser));
    if (!parser->found)
        return FAIL_IN(ST_BAD_INPUT, parser->source, "has no member \"%s\" (expected an array)",
                       parser->wanted ? parser->wanted : "");
    return ST_OK;
}

status json_stream_from(const char *source, json_next next, void *input, const char *key,
                        const char *without, json_each each, void *user)
{
    stream queue = {.next = next, .input = input};
    arena memory;
    arena_init(&memory, 0);
    status st = json_parser_open(&queue.parser, source, &memory);
    queue.parser.streaming = true;
    queue.parser.wanted = key;
    queue.parser.without = without;
    queue.parser.each = each;
    queue.parser.user = user;
    if (st == ST_OK)
        st = stream_pieces(&queue);
    free(queue.buffer);
    json_parser_close(&queue.parser);
    arena_done(&memory);
    return st;
}

typedef struct open_json {
    const char *path;
    int fd;
} open_json;

static status next_of_file(void *input, void *to, size_t size, size_t *out_n)
{
    const open_json *file = (const open_json *)input;
    return read_some(file->fd, file->path, to, size, out_n);
}

status json_stream_array(const char *path, const char *key, const char *without, json_each each,
                         void *user)
{
    open_json file = {.path = path};
    TRY(open_file(path, &file.fd));
    status st = json_stream_from(path, next_of_file, &file, key, without, each, user);
    close(file.fd);
    return st;
}
