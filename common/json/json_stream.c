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

#include "common/json/json_parser.h"
#include "common/json/json_scan.h"

enum { CHUNK_BYTES = 256 * 1024 };

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
    ssize_t n;
    do
        n = read(fd, to, size);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return FAIL_IN(ST_IO, path, "read failed: %s", strerror(errno));
    *out_n = (size_t)n;
    return ST_OK;
}

status json_load(const char *path, json_value **out)
{
    status st = ST_OK;
    char *text = NULL;
    size_t size = 0, capacity = 0;
    int fd;
    TRY(open_file(path, &fd));
    for (size_t n = 1; n > 0; size += n) {
        if (capacity - size < CHUNK_BYTES) {
            capacity = 2 * capacity + CHUNK_BYTES;
            char *grown = (char *)realloc(text, capacity);
            if (!grown) {
                st = FAIL_IN(ST_NO_MEMORY, path, "no memory for %zu bytes of JSON", capacity);
                goto done;
            }
            text = grown;
        }
        TRY_OR(done, read_some(fd, path, text + size, capacity - size, &n));
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
static size_t piece_bytes(const stream *s)
{
    const int64_t had = s->skipping || !s->scan.in_text ? 0 : s->parser.base - s->text_at;
    const int64_t most = JSON_ITEM_BYTES + 1 - had, want = had < most ? had : most;
    return want > CHUNK_BYTES ? (size_t)want : CHUNK_BYTES;
}

/* Reads the next piece. While a text is open the piece is filled completely, although `next` may
 * give only a few bytes at a time, so that the bound above holds. */
static status read_piece(stream *s, size_t *out_n)
{
    const size_t want = piece_bytes(s);
    const bool whole = s->scan.in_text;
    size_t n = 0, more = 0;
    if (want > s->capacity) {
        unsigned char *grown = (unsigned char *)realloc(s->buffer, want);
        if (!grown)
            return FAIL_IN(ST_NO_MEMORY, s->parser.source, "no memory for %zu bytes of JSON", want);
        s->buffer = grown;
        s->capacity = want;
    }
    do {
        TRY(s->next(s->input, s->buffer + n, want - n, &more));
        n += more;
    } while (whole && more > 0 && n < want);
    *out_n = n;
    return ST_OK;
}

/* Notes which token the bytes that were fed leave incomplete. */
static void look_at_rest(stream *s)
{
    const json_parser *p = &s->parser;
    size_t from = 0;
    if (p->token_end >= p->base) {
        from = (size_t)(p->token_end - p->base);
        s->scan = (json_scan){0};
    }
    const int64_t began = json_scan_all(&s->scan, p->chunk + from, p->chunk_size - from);
    if (began >= 0)
        s->text_at = p->token_end >= p->base ? p->token_end + began : p->base + began;
}

/* Called between two pieces: fails for a number or text that is too long, and begins to skip an
 * item that is. */
static status check_lengths(stream *s)
{
    json_parser *p = &s->parser;
    const int64_t text = s->scan.in_text ? p->base - s->text_at : 0;
    const int64_t depth = p->build.depth + p->left_out;
    const int64_t item = depth > 0 ? p->base - p->item.offset : text;
    if (s->scan.bare >= JSON_NUMBER_MAX)
        return json_parser_fail(p, -s->scan.bare, "a number of more than 511 digits");
    if (!p->in_array && text > JSON_ITEM_BYTES)
        return json_parser_fail(p, -text, "a text longer than 64 MiB");
    if (!p->in_array || (item <= JSON_ITEM_BYTES && p->build.n_values <= JSON_ITEM_VALUES))
        return ST_OK;
    if (depth == 0)
        p->item = (json_place){.offset = s->text_at, .line = p->line};
    s->skipping = true;
    s->depth = depth;
    return ST_OK;
}

static status feed_some(stream *s, const unsigned char *bytes, size_t size)
{
    json_scan ahead = s->scan; /* an open text is fed to its end at once, anything else in pieces */
    size_t n = size < CHUNK_BYTES ? size : CHUNK_BYTES;
    if (ahead.in_text)
        n = json_scan_text(&ahead, bytes, size);
    TRY(json_parser_feed(&s->parser, bytes, n));
    look_at_rest(s);
    json_parser_advance(&s->parser);
    return check_lengths(s);
}

static status skip_some(stream *s, const unsigned char *bytes, size_t size)
{
    json_parser *p = &s->parser;
    p->chunk = bytes;
    p->chunk_size = json_scan_close(&s->scan, &s->depth, bytes, size);
    json_parser_advance(p);
    if (s->depth > 0 || s->scan.in_text)
        return ST_OK;
    s->skipping = false;
    s->scan = (json_scan){0};
    TRY(json_parser_step_over(p));
    p->item.bytes = p->base - p->item.offset;
    return p->each(p->user, NULL, &p->item);
}

static status stream_pieces(stream *s)
{
    json_parser *p = &s->parser;
    for (size_t n;;) {
        TRY(read_piece(s, &n));
        if (n == 0)
            break;
        for (const int64_t from = p->base; p->base < from + (int64_t)n;) {
            const size_t at = (size_t)(p->base - from);
            TRY((s->skipping ? skip_some : feed_some)(s, s->buffer + at, n - at));
        }
    }
    TRY(json_parser_finish(p));
    if (!p->found)
        return FAIL_IN(ST_BAD_INPUT, p->source, "has no member \"%s\" (expected an array)",
                       p->wanted ? p->wanted : "");
    return ST_OK;
}

status json_stream_from(const char *source, json_next next, void *input, const char *key,
                        const char *without, json_each each, void *user)
{
    stream s = {.next = next, .input = input};
    arena memory;
    arena_init(&memory, 0);
    status st = json_parser_open(&s.parser, source, &memory);
    s.parser.streaming = true;
    s.parser.wanted = key;
    s.parser.without = without;
    s.parser.each = each;
    s.parser.user = user;
    if (st == ST_OK)
        st = stream_pieces(&s);
    free(s.buffer);
    json_parser_close(&s.parser);
    arena_done(&memory);
    return st;
}

typedef struct open_json {
    const char *path;
    int fd;
} open_json;

static status next_of_file(void *input, void *to, size_t size, size_t *out_n)
{
    const open_json *f = (const open_json *)input;
    return read_some(f->fd, f->path, to, size, out_n);
}

status json_stream_array(const char *path, const char *key, const char *without, json_each each,
                         void *user)
{
    open_json f = {.path = path};
    TRY(open_file(path, &f.fd));
    status st = json_stream_from(path, next_of_file, &f, key, without, each, user);
    close(f.fd);
    return st;
}
