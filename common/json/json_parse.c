/* json_parse.c: turns yajl's events into documents. In a whole parse they build one document. In
 * streaming (json_stream.c) they skip everything outside of the wanted array and build each of its
 * items as a small document of its own. */
#include "common/json/json_parser.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "common/base/utf8.h"

enum { SMALL_DIGITS = 18, KEY_SHOWN = 100 };

typedef struct document {
    json_value root; /* the first member, so that a pointer to it is a pointer to the document */
    arena memory;
} document;

/* How many bytes of the chunk yajl has consumed, the current token included. */
static size_t consumed(const json_parser *p)
{
    size_t n = yajl_get_bytes_consumed(p->yajl);
    return n < p->chunk_size ? n : p->chunk_size;
}

/* The line of the chunk's byte `at`, and the offset at which that line begins. */
static void locate(const json_parser *p, size_t at, int64_t *out_line, int64_t *out_start)
{
    *out_line = p->line;
    *out_start = p->line_base;
    for (size_t i = 0; i < at;) {
        const unsigned char *end = (const unsigned char *)memchr(p->chunk + i, '\n', at - i);
        if (!end)
            break;
        i = (size_t)(end - p->chunk) + 1;
        ++*out_line;
        *out_start = p->base + (int64_t)i;
    }
}

/* Notes that an item begins at this byte of the chunk. `at` is negative for a number that began in
 * the chunk before. Lines are counted from the last item on, so every byte is looked at once. */
static void item_begins(json_parser *p, int64_t at)
{
    while ((int64_t)p->counted < at) {
        const unsigned char *from = p->chunk + p->counted;
        const unsigned char *end =
            (const unsigned char *)memchr(from, '\n', (size_t)at - p->counted);
        p->counted = end ? (size_t)(end - p->chunk) + 1 : (size_t)at;
        p->counted_line += end != NULL;
    }
    p->item = (json_place){.offset = p->base + at, .line = p->counted_line};
}

status json_parser_fail(const json_parser *p, int64_t at, const char *what)
{
    int64_t line, start;
    locate(p, at > 0 ? (size_t)at : 0, &line, &start);
    int64_t offset = p->base + at;
    return FAIL_AT(ST_BAD_INPUT, p->source, line, offset, "%s (column %lld, byte %lld)", what,
                   (long long)(offset - start + 1), (long long)offset);
}

static status fail_here(const json_parser *p, const char *what)
{
    return json_parser_fail(p, (int64_t)consumed(p), what);
}

/* Called first by every callback: notes where the token that yajl just read ends. */
static json_parser *take_token(void *user)
{
    json_parser *p = (json_parser *)user;
    p->token_end = p->base + (int64_t)consumed(p);
    return p;
}

/* Whether the current token is neither an item of the streamed array nor inside of one. */
static bool outside_item(const json_parser *p)
{
    return p->streaming && !p->in_array;
}

/* Turns a status of the builder into the answer of a callback. A failure stops the parse, and gets
 * the present place if it has none. */
static int settle_status(json_parser *p, status st)
{
    if (st == ST_OK)
        return 1;
    if (st == ST_BAD_INPUT && status_last()->line < 0) {
        char what[STATUS_MESSAGE_MAX];
        strcpy(what, status_last()->message);
        st = fail_here(p, what);
    }
    p->st = st;
    return 0;
}

/* Puts null in place of a value that is left out. */
static int put_nothing(json_parser *p)
{
    const json_value none = {.type = JSON_NULL};
    p->leave_next = false;
    return settle_status(p, json_builder_scalar(&p->build, none));
}

/* Called at the end of every value. If it was an item of the streamed array, passes it to `each`.
 */
static int value_done(json_parser *p)
{
    const json_value *v = p->streaming ? json_builder_value(&p->build) : NULL;
    if (!v)
        return 1;
    if (v->type == JSON_OBJECT || v->type == JSON_ARRAY)
        p->item.bytes = p->base + (int64_t)consumed(p) - p->item.offset;
    p->st = p->each(p->user, p->item.bytes > JSON_ITEM_BYTES ? NULL : v, &p->item);
    arena_reset(p->build.memory);
    json_builder_reset(&p->build);
    return p->st == ST_OK;
}

/* Skips a value outside of the items. The wanted member must be an array, and is entered. */
static int skip_value(json_parser *p, json_type type)
{
    bool is_wanted = p->wanted_next || (!p->wanted && p->skipped == 0);
    p->wanted_next = false;
    if (is_wanted && type != JSON_ARRAY) {
        char what[256];
        snprintf(what, sizeof what, "%s%.*s%s: expected an array, found %s", p->wanted ? "\"" : "",
                 KEY_SHOWN, p->wanted ? p->wanted : "top level", p->wanted ? "\"" : "",
                 json_type_name(type));
        return settle_status(p, fail_here(p, what));
    }
    if (p->wanted && p->skipped == 0 && type != JSON_OBJECT)
        return settle_status(p, fail_here(p, "expected an object at the top level"));
    if (is_wanted) {
        p->in_array = true;
        p->found = true;
    } else if (type == JSON_ARRAY || type == JSON_OBJECT) {
        p->skipped++;
    }
    return 1;
}

static int put_scalar(json_parser *p, json_value v, size_t token_bytes)
{
    if (outside_item(p))
        return skip_value(p, v.type);
    if (p->left_out > 0)
        return 1;
    if (p->leave_next)
        return put_nothing(p);
    if (p->build.depth == 0)
        item_begins(p, (int64_t)consumed(p) - (int64_t)token_bytes);
    return settle_status(p, json_builder_scalar(&p->build, v)) && value_done(p);
}

static int on_null(void *user)
{
    json_value v = {.type = JSON_NULL};
    return put_scalar(take_token(user), v, 4);
}

static int on_bool(void *user, int yes)
{
    json_value v = {.type = JSON_BOOL, .as.yes = yes != 0};
    return put_scalar(take_token(user), v, yes ? 4 : 5);
}

/* Reads a whole number that certainly fits into 64 bits; false for any other number. yajl has
 * checked the form already. */
static bool small_int(const char *digits, size_t size, int64_t *out)
{
    const bool minus = digits[0] == '-';
    int64_t v = 0;
    if (size > SMALL_DIGITS)
        return false;
    for (size_t i = minus; i < size; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return false;
        v = 10 * v + (digits[i] - '0');
    }
    *out = minus ? -v : v;
    return true;
}

static int on_number(void *user, const char *digits, size_t size)
{
    json_parser *p = take_token(user);
    char text[JSON_NUMBER_MAX];
    json_value v = {.type = JSON_INT};
    if (p->left_out > 0)
        return 1;
    if (small_int(digits, size, &v.as.integer))
        return put_scalar(p, v, size);
    if (size >= sizeof text)
        return settle_status(p, fail_here(p, "a number of more than 511 digits"));
    memcpy(text, digits, size);
    text[size] = 0;
    errno = 0;
    if (!strpbrk(text, ".eE"))
        v.as.integer = strtoll(text, NULL, 10);
    if (errno == ERANGE ||
        strpbrk(text, ".eE")) { /* an integer beyond 64 bits becomes a real too */
        v.type = JSON_REAL;
        v.as.real = strtod(text, NULL);
        if (!isfinite(v.as.real))
            return settle_status(p, fail_here(p, "a number beyond the range of a double"));
    }
    return put_scalar(p, v, size);
}

static int on_text(void *user, const unsigned char *s, size_t size)
{
    json_parser *p = take_token(user);
    if (!utf8_valid(s, size)) /* yajl accepts surrogates and overlong forms */
        return settle_status(p, fail_here(p, "not JSON: invalid bytes in UTF8 string"));
    if (outside_item(p))
        return skip_value(p, JSON_TEXT);
    if (p->left_out > 0)
        return 1;
    if (p->leave_next)
        return put_nothing(p);
    if (p->build.depth == 0) /* its length in the file is unknown (escapes), so its end is noted */
        item_begins(p, (int64_t)consumed(p));
    return settle_status(p, json_builder_text(&p->build, (const char *)s, size)) && value_done(p);
}

static int begin_container(json_parser *p, bool is_object)
{
    if (outside_item(p))
        return skip_value(p, is_object ? JSON_OBJECT : JSON_ARRAY);
    if (p->left_out > 0 || p->leave_next) {
        p->leave_next = false;
        if (p->build.depth + p->left_out == JSON_MAX_DEPTH)
            return settle_status(p, fail_here(p, "values are nested too deep"));
        p->left_out++;
        return 1;
    }
    if (p->build.depth == 0)
        item_begins(p, (int64_t)consumed(p) - 1);
    return settle_status(p, json_builder_begin(&p->build, is_object));
}

static int end_container(json_parser *p)
{
    if (p->left_out > 0)
        return --p->left_out > 0 ? 1 : put_nothing(p);
    if (p->streaming && p->build.depth == 0) {
        if (p->in_array)
            p->in_array = false; /* the bracket of the array itself */
        else
            p->skipped--;
        return 1;
    }
    return settle_status(p, json_builder_end(&p->build)) && value_done(p);
}

static int on_begin_object(void *user)
{
    return begin_container(take_token(user), true);
}

static int on_begin_array(void *user)
{
    return begin_container(take_token(user), false);
}

static int on_end(void *user)
{
    return end_container(take_token(user));
}

static bool is_name(const char *name, const unsigned char *key, size_t size)
{
    return name && strlen(name) == size && memcmp(name, key, size) == 0;
}

static int on_key(void *user, const unsigned char *key, size_t size)
{
    json_parser *p = take_token(user);
    if (!utf8_valid(key, size))
        return settle_status(p, fail_here(p, "not JSON: invalid bytes in UTF8 string"));
    if (p->left_out > 0)
        return 1;
    if (!outside_item(p)) {
        p->leave_next = p->build.depth == 1 && is_name(p->without, key, size);
        return settle_status(p, json_builder_key(&p->build, (const char *)key, size));
    }
    p->wanted_next = p->skipped == 1 && is_name(p->wanted, key, size);
    if (p->wanted_next && p->found)
        return settle_status(p, fail_here(p, "the key of the array appears twice"));
    return 1;
}

static const yajl_callbacks CALLS = {
    .yajl_null = on_null,
    .yajl_boolean = on_bool,
    .yajl_number = on_number,
    .yajl_string = on_text,
    .yajl_start_map = on_begin_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_end,
    .yajl_start_array = on_begin_array,
    .yajl_end_array = on_end,
};

static status yajl_begin(json_parser *p)
{
    p->calls = CALLS;
    p->yajl = yajl_alloc(&p->calls, NULL, p);
    if (!p->yajl)
        return FAIL(ST_NO_MEMORY, "no memory for a JSON parser");
    return ST_OK;
}

status json_parser_open(json_parser *p, const char *source, arena *memory)
{
    memset(p, 0, sizeof *p);
    p->source = source;
    p->line = 1;
    json_builder_init(&p->build, memory);
    return yajl_begin(p);
}

void json_parser_close(json_parser *p)
{
    if (p->yajl)
        yajl_free(p->yajl);
    p->yajl = NULL;
    json_builder_done(&p->build);
}

status json_parser_step_over(json_parser *p)
{
    const char *before = p->wanted ? "{\"\":[null" : "[null";
    yajl_free(p->yajl);
    TRY(yajl_begin(p));
    p->calls = (yajl_callbacks){0};
    yajl_parse(p->yajl, (const unsigned char *)before, strlen(before));
    p->calls = CALLS;
    arena_reset(p->build.memory);
    json_builder_reset(&p->build);
    p->pairs = (json_pairs){.seen = p->base};
    p->leave_next = false;
    p->left_out = 0;
    p->token_end = p->base;
    return ST_OK;
}

/* Fails with the first line of what yajl says is wrong, and the place. */
static status yajl_failure(json_parser *p, yajl_status code)
{
    if (code == yajl_status_client_canceled)
        return p->st;
    unsigned char *words = yajl_get_error(p->yajl, 0, NULL, 0);
    char what[256];
    snprintf(what, sizeof what, "not JSON: %s", words ? (const char *)words : "unknown error");
    yajl_free_error(p->yajl, words);
    what[strcspn(what, "\n")] = 0;
    return fail_here(p, what);
}

status json_parser_feed(json_parser *p, const unsigned char *bytes, size_t size)
{
    p->chunk = bytes;
    p->chunk_size = size;
    p->counted = 0;
    p->counted_line = p->line;
    /* Bytes before half a pair are parsed first, so that their items are passed on and a fault in
     * them is the one that is reported. */
    const int64_t half = json_pairs_find(&p->pairs, bytes, size), good = half - p->base;
    if (half >= 0)
        size = good > 0 ? (size_t)good : 0;
    yajl_status code = yajl_parse(p->yajl, bytes, size);
    if (code != yajl_status_ok)
        return yajl_failure(p, code);
    if (half >= 0)
        return json_parser_fail(p, good, "not JSON: an escaped surrogate without the other half");
    return ST_OK;
}

void json_parser_advance(json_parser *p)
{
    locate(p, p->chunk_size, &p->line, &p->line_base);
    p->base += (int64_t)p->chunk_size;
    p->chunk_size = 0;
}

status json_parser_finish(json_parser *p)
{
    /* yajl_complete_parse counts its bytes from 0 again. Ours stay at the end of the input. */
    json_parser_advance(p);
    yajl_status code = yajl_complete_parse(p->yajl);
    if (code != yajl_status_ok)
        return yajl_failure(p, code);
    return ST_OK;
}

static status parse_document(json_parser *p, const char *text, size_t size, json_value *out)
{
    TRY(json_parser_feed(p, (const unsigned char *)text, size));
    TRY(json_parser_finish(p));
    const json_value *v = json_builder_value(&p->build);
    if (!v)
        return fail_here(p, "not JSON: no value");
    *out = *v;
    return ST_OK;
}

status json_parse(const char *text, size_t size, const char *source, json_value **out)
{
    json_parser p;
    document *doc = (document *)calloc(1, sizeof *doc);
    if (!doc)
        return FAIL(ST_NO_MEMORY, "no memory for a JSON document");
    arena_init(&doc->memory, 0);
    status st = json_parser_open(&p, source, &doc->memory);
    if (st == ST_OK)
        st = parse_document(&p, text, size, &doc->root);
    json_parser_close(&p);
    if (st == ST_OK) {
        *out = &doc->root;
        return ST_OK;
    }
    arena_done(&doc->memory);
    free(doc);
    return st;
}

void json_free(json_value **v)
{
    if (!v || !*v)
        return;
    document *doc = (document *)(void *)*v;
    arena_done(&doc->memory);
    free(doc);
    *v = NULL;
}
