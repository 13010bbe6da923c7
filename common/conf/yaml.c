/* SPDX-License-Identifier: Apache-2.0 */
/* yaml.c: walks libyaml's events by recursive descent: a stream holds one document, which is a
 * mapping; the value of a key is a scalar, a list of scalars or another mapping. */
#include "common/conf/yaml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/base/arena.h"
#include "common/base/file.h"

enum {
    FILE_MAX = 1 << 20,
    DEPTH_MAX = 16,
    KEY_MAX = 256,   /* bytes of a joined key, with its NUL */
    KEYS_MAX = 4096, /* in a file; a limit because the search for duplicates is linear */
    LIST_MAX = 4096, /* bytes of a joined list */
};

typedef struct reader {
    yaml_parser_t parser;
    const char *source;
    const char *text; /* the whole file, of size bytes */
    size_t size;
    yaml_each each;
    yaml_fault fault;
    void *user;
    bool passed_over;  /* the value that is being read has a key that another one has too */
    char key[KEY_MAX]; /* joined key of the mapping or value that is being read */
    arena memory;
    const char **keys; /* seen so far */
    size_t n_keys;
} reader;

static int64_t line_of(yaml_mark_t mark)
{
    return (int64_t)mark.line + 1;
}

/* The column, from 1, of the first tab that indents a line; 0 if none does. The line is counted
 * from 0, as libyaml does. */
static size_t indenting_tab(const reader *input, size_t line)
{
    const char *at = input->text, *end = input->text + input->size;
    for (; line > 0 && at < end; line--) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at = newline ? newline + 1 : end;
    }
    for (const char *begin = at; at < end && (*at == ' ' || *at == '\t'); at++)
        if (*at == '\t')
            return (size_t)(at - begin) + 1;
    return 0;
}

/* Fails with what libyaml says is wrong. */
static status syntax_error(const reader *input)
{
    const yaml_parser_t *parser = &input->parser;
    size_t tab;
    if (parser->error == YAML_MEMORY_ERROR)
        return FAIL_IN(ST_NO_MEMORY, input->source, "no memory to read YAML");
    if (parser->error == YAML_READER_ERROR)
        return FAIL_AT(ST_CONFIG, input->source, -1, (int64_t)parser->problem_offset,
                       "not YAML: %s", parser->problem ? parser->problem : "unreadable");
    if ((tab = indenting_tab(input, parser->problem_mark.line)) > 0)
        return FAIL_AT(ST_CONFIG, input->source, line_of(parser->problem_mark), -1,
                       "not YAML: there is a tab in the indentation (column %zu); YAML is indented "
                       "with spaces only, so put spaces in its place",
                       tab);
    return FAIL_AT(ST_CONFIG, input->source, line_of(parser->problem_mark), -1,
                   "not YAML: %s%s%s (column %zu)", parser->context ? parser->context : "",
                   parser->context ? ": " : "", parser->problem ? parser->problem : "unknown error",
                   parser->problem_mark.column + 1);
}

static status next(reader *input, yaml_event_t *event)
{
    if (!yaml_parser_parse(&input->parser, event))
        return syntax_error(input);
    return ST_OK;
}

static status check_new_key(reader *input, int64_t line)
{
    input->passed_over = false;
    for (size_t i = 0; i < input->n_keys; i++) {
        if (strcmp(input->keys[i], input->key) != 0)
            continue;
        status st =
            FAIL_AT(ST_CONFIG, input->source, line, -1, "the key %s appears twice", input->key);
        input->passed_over = true;
        return input->fault ? input->fault(input->user, st) : st;
    }
    if (input->n_keys == KEYS_MAX)
        return FAIL_AT(ST_CONFIG, input->source, line, -1, "the file has more than %d keys",
                       KEYS_MAX);
    char *copy;
    TRY(arena_strndup(&input->memory, input->key, strlen(input->key), &copy));
    input->keys[input->n_keys++] = copy;
    return ST_OK;
}

/* Appends ".name" to the key of the enclosing mapping. */
static status push_key(reader *input, const yaml_event_t *event)
{
    const char *name = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length, outer = strlen(input->key);
    int64_t line = line_of(event->start_mark);
    if (length == 0 || strlen(name) != length || outer + length + 2 > sizeof input->key)
        return FAIL_AT(ST_CONFIG, input->source, line, -1,
                       "a key must have 1 to %d bytes, its sections included", KEY_MAX - 2);
    if (outer)
        input->key[outer++] = '.';
    memcpy(input->key + outer, name, length + 1);
    return check_new_key(input, line);
}

static bool is_null(const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    if (event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    return !*text || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0;
}

static status read_scalar(reader *input, const yaml_event_t *event, int64_t line)
{
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return FAIL_AT(ST_CONFIG, input->source, line, -1, "%s: the value contains a NUL character",
                       input->key);
    yaml_item item = {input->key, text, false, is_null(event), line};
    return input->passed_over ? ST_OK : input->each(input->user, &item);
}

/* Appends a list item and a comma to `joined`, of which *used bytes are filled. */
static status join_item(const reader *input, const yaml_event_t *event, int64_t line, char *joined,
                        size_t *used)
{
    const char *text = (const char *)event->data.scalar.value;
    const bool scalar = event->type == YAML_SCALAR_EVENT;
    const size_t count = scalar ? event->data.scalar.length : 0;
    if (!scalar || *used + count + 2 > LIST_MAX)
        return FAIL_AT(ST_CONFIG, input->source, line, -1,
                       "%s: a list can hold plain values only, of %d bytes in all", input->key,
                       LIST_MAX - 2);
    if (strlen(text) != count)
        return FAIL_AT(ST_CONFIG, input->source, line, -1, "%s: a value contains a NUL character",
                       input->key);
    if (strchr(text, ','))
        return FAIL_AT(ST_CONFIG, input->source, line, -1,
                       "%s: \"%.100s\" contains a comma, which separates the values of a list",
                       input->key, text);
    memcpy(joined + *used, text, count);
    *used += count;
    joined[(*used)++] = ',';
    return ST_OK;
}

static status read_list(reader *input, int64_t line)
{
    char joined[LIST_MAX];
    size_t used = 0;
    for (;;) {
        yaml_event_t event;
        TRY(next(input, &event));
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            break;
        }
        status st = join_item(input, &event, line, joined, &used);
        yaml_event_delete(&event);
        TRY(st);
    }
    joined[used ? used - 1 : 0] = 0; /* in place of the last comma */
    yaml_item item = {input->key, joined, true, false, line};
    return input->passed_over ? ST_OK : input->each(input->user, &item);
}

static status read_mapping(reader *input, int depth);

/* Reads the value of input->key; `event` is its first event. */
static status read_value(reader *input, const yaml_event_t *event, int64_t line, int depth)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return read_scalar(input, event, line);
    case YAML_SEQUENCE_START_EVENT:
        return read_list(input, line);
    case YAML_MAPPING_START_EVENT:
        if (depth == DEPTH_MAX)
            return FAIL_AT(ST_CONFIG, input->source, line, -1, "keys are nested deeper than %d",
                           DEPTH_MAX);
        return read_mapping(input, depth + 1);
    default:
        return FAIL_AT(ST_CONFIG, input->source, line, -1,
                       "%s: YAML aliases are not supported; write the value out", input->key);
    }
}

/* Reads from after the start of a mapping to its end. */
static status read_mapping(reader *input, int depth)
{
    const size_t outer = strlen(input->key);
    for (;;) {
        yaml_event_t event;
        TRY(next(input, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return ST_OK;
        }
        int64_t line = line_of(event.start_mark);
        status st = event.type == YAML_SCALAR_EVENT
                        ? push_key(input, &event)
                        : FAIL_AT(ST_CONFIG, input->source, line, -1, "expected a key");
        yaml_event_delete(&event);
        TRY(st);
        TRY(next(input, &event));
        st = read_value(input, &event, line, depth);
        yaml_event_delete(&event);
        TRY(st);
        input->key[outer] = 0;
    }
}

static status read_stream(reader *input)
{
    bool began = false;
    for (;;) {
        yaml_event_t event;
        TRY(next(input, &event));
        yaml_event_type_t type = event.type;
        int64_t line = line_of(event.start_mark);
        bool empty = type == YAML_SCALAR_EVENT && is_null(&event);
        yaml_event_delete(&event);
        if (type == YAML_STREAM_END_EVENT)
            return ST_OK;
        if (type == YAML_STREAM_START_EVENT || type == YAML_DOCUMENT_END_EVENT || empty)
            continue;
        if (type == YAML_DOCUMENT_START_EVENT) {
            if (began)
                return FAIL_AT(ST_CONFIG, input->source, line, -1,
                               "a second YAML document begins here; the file can hold only one");
            began = true;
            continue;
        }
        if (type != YAML_MAPPING_START_EVENT)
            return FAIL_AT(ST_CONFIG, input->source, line, -1,
                           "expected \"section:\" and \"key: value\" lines");
        TRY(read_mapping(input, 1));
    }
}

status yaml_parse(const char *text, size_t size, const char *source, yaml_each each,
                  yaml_fault fault, void *user)
{
    reader input;
    memset(&input, 0, sizeof input);
    input.source = source;
    input.text = text;
    input.size = size;
    input.each = each;
    input.fault = fault;
    input.user = user;
    if (size > FILE_MAX)
        return FAIL_IN(ST_CONFIG, source, "is longer than %d bytes, so it is not a configuration",
                       FILE_MAX);
    if (!yaml_parser_initialize(&input.parser))
        return FAIL(ST_NO_MEMORY, "no memory for a YAML parser");
    arena_init(&input.memory, 0);
    void *keys;
    status st = arena_alloc(&input.memory, KEYS_MAX * sizeof *input.keys, &keys);
    if (st == ST_OK) {
        input.keys = (const char **)keys;
        yaml_parser_set_encoding(&input.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&input.parser, (const unsigned char *)text, size);
        st = read_stream(&input);
    }
    yaml_parser_delete(&input.parser);
    arena_done(&input.memory);
    return st;
}

status yaml_read(const char *path, yaml_each each, yaml_fault fault, void *user)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
    status st;
    char *text = (char *)malloc(FILE_MAX + 1);
    const int64_t size = text ? file_read_all(fileno(file), text, FILE_MAX + 1, -1) : 0;
    if (!text)
        st = FAIL(ST_NO_MEMORY, "no memory to read %s", path);
    else if (size < 0)
        st = FAIL_IN(ST_IO, path, "read failed: %s", strerror(errno));
    else
        st = yaml_parse(text, (size_t)size, path, each, fault, user);
    free(text);
    fclose(file);
    return st;
}
