/* SPDX-License-Identifier: Apache-2.0 */
/* json_parse.c: turns yajl's events into documents. In a whole parse they build one document. In
 * streaming (json_stream.c) they skip everything outside of the wanted array and build each of its
 * items as a separate small document. */
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
static size_t consumed(const json_parser *parser)
{
    size_t count = yajl_get_bytes_consumed(parser->yajl);
    return count < parser->chunk_size ? count : parser->chunk_size;
}

/* The line of the chunk's byte `at`, and the offset at which that line begins. */
static void locate(const json_parser *parser, size_t at, int64_t *out_line, int64_t *out_start)
{
    *out_line = parser->line;
    *out_start = parser->line_base;
    for (size_t i = 0; i < at;) {
        const unsigned char *end = (const unsigned char *)memchr(parser->chunk + i, '\n', at - i);
        if (!end)
            break;
        i = (size_t)(end - parser->chunk) + 1;
        ++*out_line;
        *out_start = parser->base + (int64_t)i;
    }
}

/* Notes that an item begins at this byte of the chunk. `at` is negative for a number that began in
 * the chunk before. Lines are counted from the last item on, so every byte is looked at once. */
static void item_begins(json_parser *parser, int64_t at)
{
    while ((int64_t)parser->counted < at) {
        const unsigned char *from = parser->chunk + parser->counted;
        const unsigned char *end =
            (const unsigned char *)memchr(from, '\n', (size_t)at - parser->counted);
        parser->counted = end ? (size_t)(end - parser->chunk) + 1 : (size_t)at;
        parser->counted_line += end != NULL;
    }
    parser->item = (json_place){.offset = parser->base + at, .line = parser->counted_line};
}

status json_parser_fail(const json_parser *parser, int64_t at, const char *what)
{
    int64_t line, start;
    locate(parser, at > 0 ? (size_t)at : 0, &line, &start);
    int64_t offset = parser->base + at;
    return FAIL_AT(ST_BAD_INPUT, parser->source, line, offset, "%s (column %lld, byte %lld)", what,
                   (long long)(offset - start + 1), (long long)offset);
}

static status fail_here(const json_parser *parser, const char *what)
{
    return json_parser_fail(parser, (int64_t)consumed(parser), what);
}

/* Called first by every callback: notes where the token that yajl just read ends. */
static json_parser *take_token(void *user)
{
    json_parser *parser = (json_parser *)user;
    parser->token_end = parser->base + (int64_t)consumed(parser);
    return parser;
}

/* Whether the current token is neither an item of the streamed array nor inside of one. */
static bool outside_item(const json_parser *parser)
{
    return parser->streaming && !parser->in_array;
}

/* Turns a status of the builder into the answer of a callback. A failure stops the parse, and gets
 * the present place if it has none. */
static int settle_status(json_parser *parser, status st)
{
    if (st == ST_OK)
        return 1;
    if (st == ST_BAD_INPUT && status_last()->line < 0) {
        char what[STATUS_MESSAGE_MAX];
        strcpy(what, status_last()->message);
        st = fail_here(parser, what);
    }
    parser->st = st;
    return 0;
}

/* Puts null in place of a value that is left out. */
static int put_nothing(json_parser *parser)
{
    const json_value none = {.type = JSON_NULL};
    parser->leave_next = false;
    return settle_status(parser, json_builder_scalar(&parser->build, none));
}

/* Called at the end of every value.
 * If it was an item of the streamed array, passes it to `each`. */
static int value_done(json_parser *parser)
{
    const json_value *value = parser->streaming ? json_builder_value(&parser->build) : NULL;
    if (!value)
        return 1;
    if (value->type == JSON_OBJECT || value->type == JSON_ARRAY)
        parser->item.bytes = parser->base + (int64_t)consumed(parser) - parser->item.offset;
    parser->st = parser->each(parser->user, parser->item.bytes > JSON_ITEM_BYTES ? NULL : value,
                              &parser->item);
    arena_reset(parser->build.memory);
    json_builder_reset(&parser->build);
    return parser->st == ST_OK;
}

/* Skips a value outside of the items. The wanted member must be an array, and is entered. */
static int skip_value(json_parser *parser, json_type type)
{
    bool is_wanted = parser->wanted_next || (!parser->wanted && parser->skipped == 0);
    parser->wanted_next = false;
    if (is_wanted && type != JSON_ARRAY) {
        char what[256];
        snprintf(what, sizeof what, "%s%.*s%s: expected an array, found %s",
                 parser->wanted ? "\"" : "", KEY_SHOWN,
                 parser->wanted ? parser->wanted : "top level", parser->wanted ? "\"" : "",
                 json_type_name(type));
        return settle_status(parser, fail_here(parser, what));
    }
    if (parser->wanted && parser->skipped == 0 && type != JSON_OBJECT)
        return settle_status(parser, fail_here(parser, "expected an object at the top level"));
    if (is_wanted) {
        parser->in_array = true;
        parser->found = true;
    } else if (type == JSON_ARRAY || type == JSON_OBJECT) {
        parser->skipped++;
    }
    return 1;
}

static int put_scalar(json_parser *parser, json_value value, size_t token_bytes)
{
    if (outside_item(parser))
        return skip_value(parser, value.type);
    if (parser->left_out > 0)
        return 1;
    if (parser->leave_next)
        return put_nothing(parser);
    if (parser->build.depth == 0)
        item_begins(parser, (int64_t)consumed(parser) - (int64_t)token_bytes);
    return settle_status(parser, json_builder_scalar(&parser->build, value)) && value_done(parser);
}

static int on_null(void *user)
{
    json_value value = {.type = JSON_NULL};
    return put_scalar(take_token(user), value, 4);
}

static int on_bool(void *user, int yes)
{
    json_value value = {.type = JSON_BOOL, .as.yes = yes != 0};
    return put_scalar(take_token(user), value, yes ? 4 : 5);
}

/* Reads a whole number that certainly fits into 64 bits; false for any other number. yajl has
 * checked the form already. */
static bool small_int(const char *digits, size_t size, int64_t *out)
{
    const bool minus = digits[0] == '-';
    int64_t value = 0;
    if (size > SMALL_DIGITS)
        return false;
    for (size_t i = minus; i < size; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return false;
        value = 10 * value + (digits[i] - '0');
    }
    *out = minus ? -value : value;
    return true;
}

static int on_number(void *user, const char *digits, size_t size)
{
    json_parser *parser = take_token(user);
    char text[JSON_NUMBER_MAX];
    json_value value = {.type = JSON_INT};
    if (parser->left_out > 0)
        return 1;
    if (small_int(digits, size, &value.as.integer))
        return put_scalar(parser, value, size);
    if (size >= sizeof text)
        return settle_status(parser, fail_here(parser, "a number of more than 511 digits"));
    memcpy(text, digits, size);
    text[size] = 0;
    errno = 0;
    if (!strpbrk(text, ".eE"))
        value.as.integer = strtoll(text, NULL, 10);
    if (errno == ERANGE ||
        strpbrk(text, ".eE")) { /* an integer beyond 64 bits becomes a real too */
        value.type = JSON_REAL;
        value.as.real = strtod(text, NULL);
        if (!isfinite(value.as.real))
            return settle_status(parser,
                                 fail_here(parser, "a number beyond the range of a double"));
    }
    return put_scalar(parser, value, size);
}

static int on_text(void *user, const unsigned char *bytes, size_t size)
{
    json_parser *parser = take_token(user);
    if (!utf8_valid(bytes, size)) /* yajl accepts surrogates and overlong forms */
        return settle_status(parser, fail_here(parser, "not JSON: invalid bytes in UTF8 string"));
    if (outside_item(parser))
        return skip_value(parser, JSON_TEXT);
    if (parser->left_out > 0)
        return 1;
    if (parser->leave_next)
        return put_nothing(parser);
    if (parser->build.depth ==
        0) /* its length in the file is unknown (escapes), so its end is noted */
        item_begins(parser, (int64_t)consumed(parser));
    return settle_status(parser, json_builder_text(&parser->build, (const char *)bytes, size)) &&
           value_done(parser);
}

static int begin_container(json_parser *parser, bool is_object)
{
    if (outside_item(parser))
        return skip_value(parser, is_object ? JSON_OBJECT : JSON_ARRAY);
    if (parser->left_out > 0 || parser->leave_next) {
        parser->leave_next = false;
        if (parser->build.depth + parser->left_out == JSON_MAX_DEPTH)
            return settle_status(parser, fail_here(parser, "values are nested too deep"));
        parser->left_out++;
        return 1;
    }
    if (parser->build.depth == 0)
        item_begins(parser, (int64_t)consumed(parser) - 1);
    return settle_status(parser, json_builder_begin(&parser->build, is_object));
}

static int end_container(json_parser *parser)
{
    if (parser->left_out > 0)
        return --parser->left_out > 0 ? 1 : put_nothing(parser);
    if (parser->streaming && parser->build.depth == 0) {
        if (parser->in_array)
            parser->in_array = false; /* the bracket of the array itself */
        else
            parser->skipped--;
        return 1;
    }
    return settle_status(parser, json_builder_end(&parser->build)) && value_done(parser);
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
    json_parser *parser = take_token(user);
    if (!utf8_valid(key, size))
        return settle_status(parser, fail_here(parser, "not JSON: invalid bytes in UTF8 string"));
    if (parser->left_out > 0)
        return 1;
    if (!outside_item(parser)) {
        parser->leave_next = parser->build.depth == 1 && is_name(parser->without, key, size);
        return settle_status(parser, json_builder_key(&parser->build, (const char *)key, size));
    }
    parser->wanted_next = parser->skipped == 1 && is_name(parser->wanted, key, size);
    if (parser->wanted_next && parser->found)
        return settle_status(parser, fail_here(parser, "the key of the array appears twice"));
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

static status yajl_begin(json_parser *parser)
{
    parser->calls = CALLS;
    parser->yajl = yajl_alloc(&parser->calls, NULL, parser);
    if (!parser->yajl)
        return FAIL(ST_NO_MEMORY, "no memory for a JSON parser");
    return ST_OK;
}

status json_parser_open(json_parser *parser, const char *source, arena *memory)
{
    memset(parser, 0, sizeof *parser);
    parser->source = source;
    parser->line = 1;
    json_builder_init(&parser->build, memory);
    return yajl_begin(parser);
}

void json_parser_close(json_parser *parser)
{
    if (parser->yajl)
        yajl_free(parser->yajl);
    parser->yajl = NULL;
    json_builder_done(&parser->build);
}

status json_parser_step_over(json_parser *parser)
{
    const char *before = parser->wanted ? "{\"\":[null" : "[null";
    yajl_free(parser->yajl);
    TRY(yajl_begin(parser));
    parser->calls = (yajl_callbacks){0};
    yajl_parse(parser->yajl, (const unsigned char *)before, strlen(before));
    parser->calls = CALLS;
    arena_reset(parser->build.memory);
    json_builder_reset(&parser->build);
    parser->pairs = (json_pairs){.seen = parser->base};
    parser->leave_next = false;
    parser->left_out = 0;
    parser->token_end = parser->base;
    return ST_OK;
}

/* Fails with the first line of what yajl says is wrong, and the place. */
static status yajl_failure(json_parser *parser, yajl_status code)
{
    if (code == yajl_status_client_canceled)
        return parser->st;
    unsigned char *words = yajl_get_error(parser->yajl, 0, NULL, 0);
    char what[256];
    snprintf(what, sizeof what, "not JSON: %s", words ? (const char *)words : "unknown error");
    yajl_free_error(parser->yajl, words);
    what[strcspn(what, "\n")] = 0;
    return fail_here(parser, what);
}

status json_parser_feed(json_parser *parser, const unsigned char *bytes, size_t size)
{
    parser->chunk = bytes;
    parser->chunk_size = size;
    parser->counted = 0;
    parser->counted_line = parser->line;
    /* Bytes before half a pair are parsed first, so that their items are passed on and a fault in
     * them is the one that is reported. */
    const int64_t half = json_pairs_find(&parser->pairs, bytes, size), good = half - parser->base;
    if (half >= 0)
        size = good > 0 ? (size_t)good : 0;
    yajl_status code = yajl_parse(parser->yajl, bytes, size);
    if (code != yajl_status_ok)
        return yajl_failure(parser, code);
    if (half >= 0)
        return json_parser_fail(parser, good,
                                "not JSON: an escaped surrogate without the other half");
    return ST_OK;
}

void json_parser_advance(json_parser *parser)
{
    locate(parser, parser->chunk_size, &parser->line, &parser->line_base);
    parser->base += (int64_t)parser->chunk_size;
    parser->chunk_size = 0;
}

status json_parser_finish(json_parser *parser)
{
    /* yajl_complete_parse counts its bytes from 0 again. Ours stay at the end of the input. */
    json_parser_advance(parser);
    yajl_status code = yajl_complete_parse(parser->yajl);
    if (code != yajl_status_ok)
        return yajl_failure(parser, code);
    return ST_OK;
}

static status parse_document(json_parser *parser, const char *text, size_t size, json_value *out)
{
    TRY(json_parser_feed(parser, (const unsigned char *)text, size));
    TRY(json_parser_finish(parser));
    const json_value *value = json_builder_value(&parser->build);
    if (!value)
        return fail_here(parser, "not JSON: no value");
    *out = *value;
    return ST_OK;
}

status json_parse(const char *text, size_t size, const char *source, json_value **out)
{
    json_parser parser;
    document *doc = (document *)calloc(1, sizeof *doc);
    if (!doc)
        return FAIL(ST_NO_MEMORY, "no memory for a JSON document");
    arena_init(&doc->memory, 0);
    status st = json_parser_open(&parser, source, &doc->memory);
    if (st == ST_OK)
        st = parse_document(&parser, text, size, &doc->root);
    json_parser_close(&parser);
    if (st == ST_OK) {
        *out = &doc->root;
        return ST_OK;
    }
    arena_done(&doc->memory);
    free(doc);
    return st;
}

void json_free(json_value **value)
{
    if (!value || !*value)
        return;
    document *doc = (document *)(void *)*value;
    arena_done(&doc->memory);
    free(doc);
    *value = NULL;
}
