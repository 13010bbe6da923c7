/* yaml.c: walks libyaml's events by recursive descent: a stream holds one document, which is a
 * mapping; the value of a key is a scalar, a list of scalars or another mapping. */
#include "common/conf/yaml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/base/arena.h"

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

/* Fails with what libyaml says is wrong. */
static status syntax_error(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return FAIL_IN(ST_NO_MEMORY, r->source, "no memory to read YAML");
    if (p->error == YAML_READER_ERROR)
        return FAIL_AT(ST_CONFIG, r->source, -1, (int64_t)p->problem_offset, "not YAML: %s",
                       p->problem ? p->problem : "unreadable");
    return FAIL_AT(ST_CONFIG, r->source, line_of(p->problem_mark), -1,
                   "not YAML: %s%s%s (column %zu)", p->context ? p->context : "",
                   p->context ? ": " : "", p->problem ? p->problem : "unknown error",
                   p->problem_mark.column + 1);
}

static status next(reader *r, yaml_event_t *e)
{
    if (!yaml_parser_parse(&r->parser, e))
        return syntax_error(r);
    return ST_OK;
}

static status check_new_key(reader *r, int64_t line)
{
    r->passed_over = false;
    for (size_t i = 0; i < r->n_keys; i++) {
        if (strcmp(r->keys[i], r->key) != 0)
            continue;
        status st = FAIL_AT(ST_CONFIG, r->source, line, -1, "the key %s appears twice", r->key);
        r->passed_over = true;
        return r->fault ? r->fault(r->user, st) : st;
    }
    if (r->n_keys == KEYS_MAX)
        return FAIL_AT(ST_CONFIG, r->source, line, -1, "the file has more than %d keys", KEYS_MAX);
    char *copy;
    TRY(arena_strndup(&r->memory, r->key, strlen(r->key), &copy));
    r->keys[r->n_keys++] = copy;
    return ST_OK;
}

/* Appends ".name" to the key of the enclosing mapping. */
static status push_key(reader *r, const yaml_event_t *e)
{
    const char *name = (const char *)e->data.scalar.value;
    size_t length = e->data.scalar.length, outer = strlen(r->key);
    int64_t line = line_of(e->start_mark);
    if (length == 0 || strlen(name) != length || outer + length + 2 > sizeof r->key)
        return FAIL_AT(ST_CONFIG, r->source, line, -1,
                       "a key must have 1 to %d bytes, its sections included", KEY_MAX - 2);
    if (outer)
        r->key[outer++] = '.';
    memcpy(r->key + outer, name, length + 1);
    return check_new_key(r, line);
}

static bool is_null(const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    if (e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    return !*text || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0;
}

static status read_scalar(reader *r, const yaml_event_t *e, int64_t line)
{
    const char *text = (const char *)e->data.scalar.value;
    if (strlen(text) != e->data.scalar.length)
        return FAIL_AT(ST_CONFIG, r->source, line, -1, "%s: the value contains a NUL character",
                       r->key);
    yaml_item item = {r->key, text, false, is_null(e), line};
    return r->passed_over ? ST_OK : r->each(r->user, &item);
}

/* Appends a list item and a comma to `joined`, of which *used bytes are filled. */
static status join_item(const reader *r, const yaml_event_t *e, int64_t line, char *joined,
                        size_t *used)
{
    const char *text = (const char *)e->data.scalar.value;
    const bool scalar = e->type == YAML_SCALAR_EVENT;
    const size_t n = scalar ? e->data.scalar.length : 0;
    if (!scalar || *used + n + 2 > LIST_MAX)
        return FAIL_AT(ST_CONFIG, r->source, line, -1,
                       "%s: a list can hold plain values only, of %d bytes in all", r->key,
                       LIST_MAX - 2);
    if (strlen(text) != n)
        return FAIL_AT(ST_CONFIG, r->source, line, -1, "%s: a value contains a NUL character",
                       r->key);
    if (strchr(text, ','))
        return FAIL_AT(ST_CONFIG, r->source, line, -1,
                       "%s: \"%.100s\" contains a comma, which separates the values of a list",
                       r->key, text);
    memcpy(joined + *used, text, n);
    *used += n;
    joined[(*used)++] = ',';
    return ST_OK;
}

static status read_list(reader *r, int64_t line)
{
    char joined[LIST_MAX];
    size_t used = 0;
    for (;;) {
        yaml_event_t e;
        TRY(next(r, &e));
        if (e.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&e);
            break;
        }
        status st = join_item(r, &e, line, joined, &used);
        yaml_event_delete(&e);
        TRY(st);
    }
    joined[used ? used - 1 : 0] = 0; /* in place of the last comma */
    yaml_item item = {r->key, joined, true, false, line};
    return r->passed_over ? ST_OK : r->each(r->user, &item);
}

static status read_mapping(reader *r, int depth);

/* Reads the value of r->key; e is its first event. */
static status read_value(reader *r, const yaml_event_t *e, int64_t line, int depth)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return read_scalar(r, e, line);
    case YAML_SEQUENCE_START_EVENT:
        return read_list(r, line);
    case YAML_MAPPING_START_EVENT:
        if (depth == DEPTH_MAX)
            return FAIL_AT(ST_CONFIG, r->source, line, -1, "keys are nested deeper than %d",
                           DEPTH_MAX);
        return read_mapping(r, depth + 1);
    default:
        return FAIL_AT(ST_CONFIG, r->source, line, -1,
                       "%s: YAML aliases are not supported; write the value out", r->key);
    }
}

/* Reads from after the start of a mapping to its end. */
static status read_mapping(reader *r, int depth)
{
    const size_t outer = strlen(r->key);
    for (;;) {
        yaml_event_t e;
        TRY(next(r, &e));
        if (e.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&e);
            return ST_OK;
        }
        int64_t line = line_of(e.start_mark);
        status st = e.type == YAML_SCALAR_EVENT
                        ? push_key(r, &e)
                        : FAIL_AT(ST_CONFIG, r->source, line, -1, "expected a key");
        yaml_event_delete(&e);
        TRY(st);
        TRY(next(r, &e));
        st = read_value(r, &e, line, depth);
        yaml_event_delete(&e);
        TRY(st);
        r->key[outer] = 0;
    }
}

static status read_stream(reader *r)
{
    bool began = false;
    for (;;) {
        yaml_event_t e;
        TRY(next(r, &e));
        yaml_event_type_t type = e.type;
        int64_t line = line_of(e.start_mark);
        bool empty = type == YAML_SCALAR_EVENT && is_null(&e);
        yaml_event_delete(&e);
        if (type == YAML_STREAM_END_EVENT)
            return ST_OK;
        if (type == YAML_STREAM_START_EVENT || type == YAML_DOCUMENT_END_EVENT || empty)
            continue;
        if (type == YAML_DOCUMENT_START_EVENT) {
            if (began)
                return FAIL_AT(ST_CONFIG, r->source, line, -1,
                               "a second YAML document begins here; the file can hold only one");
            began = true;
            continue;
        }
        if (type != YAML_MAPPING_START_EVENT)
            return FAIL_AT(ST_CONFIG, r->source, line, -1,
                           "expected \"section:\" and \"key: value\" lines");
        TRY(read_mapping(r, 1));
    }
}

status yaml_parse(const char *text, size_t size, const char *source, yaml_each each,
                  yaml_fault fault, void *user)
{
    reader r;
    memset(&r, 0, sizeof r);
    r.source = source;
    r.each = each;
    r.fault = fault;
    r.user = user;
    if (size > FILE_MAX)
        return FAIL_IN(ST_CONFIG, source, "is longer than %d bytes, so it is not a configuration",
                       FILE_MAX);
    if (!yaml_parser_initialize(&r.parser))
        return FAIL(ST_NO_MEMORY, "no memory for a YAML parser");
    arena_init(&r.memory, 0);
    void *keys;
    status st = arena_alloc(&r.memory, KEYS_MAX * sizeof *r.keys, &keys);
    if (st == ST_OK) {
        r.keys = (const char **)keys;
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, size);
        st = read_stream(&r);
    }
    yaml_parser_delete(&r.parser);
    arena_done(&r.memory);
    return st;
}

status yaml_read(const char *path, yaml_each each, yaml_fault fault, void *user)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
    status st;
    char *text = (char *)malloc(FILE_MAX + 1);
    size_t size = text ? fread(text, 1, FILE_MAX + 1, f) : 0;
    if (!text)
        st = FAIL(ST_NO_MEMORY, "no memory to read %s", path);
    else if (ferror(f))
        st = FAIL_IN(ST_IO, path, "read failed: %s", strerror(errno));
    else
        st = yaml_parse(text, size, path, each, fault, user);
    free(text);
    fclose(f);
    return st;
}
