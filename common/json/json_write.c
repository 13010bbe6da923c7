/* json_write.c: the writer of json.h, which appends the text of values to a growing buffer. */
#include "common/json/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/base/visible.h"

void json_writer_init(json_writer *w)
{
    memset(w, 0, sizeof *w);
}

void json_writer_done(json_writer *w)
{
    if (!w)
        return;
    free(w->text);
    memset(w, 0, sizeof *w);
}

static void append_text(json_writer *w, const char *s, size_t n)
{
    if (w->out_of_memory)
        return;
    if (n >= w->capacity - w->size) {
        size_t want;
        if (__builtin_add_overflow(w->size + 1, n, &want) || want > SIZE_MAX / 2) {
            w->out_of_memory = true;
            return;
        }
        if (want < 2 * w->capacity)
            want = 2 * w->capacity;
        if (want < 256)
            want = 256;
        char *grown = (char *)realloc(w->text, want);
        if (!grown) {
            w->out_of_memory = true;
            return;
        }
        w->text = grown;
        w->capacity = want;
    }
    if (n)
        memcpy(w->text + w->size, s, n);
    w->size += n;
    w->text[w->size] = 0;
}

static void append_cstr(json_writer *w, const char *s)
{
    append_text(w, s, strlen(s));
}

/* Called before a value or key: puts the comma that separates it from the one before. */
static void separate(json_writer *w)
{
    if (w->need_comma)
        append_text(w, ",", 1);
    w->need_comma = false;
}

static void put_word(json_writer *w, const char *word)
{
    separate(w);
    append_cstr(w, word);
    w->need_comma = true;
}

static void open_bracket(json_writer *w, const char *bracket)
{
    separate(w);
    append_text(w, bracket, 1);
}

static void close_bracket(json_writer *w, const char *bracket)
{
    append_text(w, bracket, 1);
    w->need_comma = true;
}

void json_begin_object(json_writer *w)
{
    open_bracket(w, "{");
}

void json_end_object(json_writer *w)
{
    close_bracket(w, "}");
}

void json_begin_array(json_writer *w)
{
    open_bracket(w, "[");
}

void json_end_array(json_writer *w)
{
    close_bracket(w, "]");
}

static void put_escaped(json_writer *w, unsigned char c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = c ? strchr(plain, c) : NULL;
    char text[8];
    if (at)
        snprintf(text, sizeof text, "\\%c", letter[at - plain]);
    else
        snprintf(text, sizeof text, "\\u%04x", c);
    append_cstr(w, text);
}

/* Writes a character of several bytes. One that would control a terminal is written as visible.h
 * shows it (\u202e), which is also how JSON escapes it. */
static void put_wide(json_writer *w, const char *s, size_t length)
{
    char one[VISIBLE_CHAR];
    visible_char(s, length, one);
    append_cstr(w, one);
}

void json_put_text(json_writer *w, const char *s, size_t size)
{
    const unsigned char *p = (const unsigned char *)s;
    separate(w);
    append_text(w, "\"", 1);
    size_t i = 0;
    while (i < size) {
        size_t run = i; /* characters that need no change are copied in one piece */
        while (run < size && p[run] >= 0x20 && p[run] < 0x7F && p[run] != '"' && p[run] != '\\')
            run++;
        append_text(w, s + i, run - i);
        i = run;
        if (i == size)
            break;
        size_t length = utf8_length(p + i, size - i);
        if (length > 1)
            put_wide(w, s + i, length);
        else if (length == 0)
            append_text(w, "\xEF\xBF\xBD",
                        3); /* U+FFFD: JSON must be UTF-8, a file name need not */
        else
            put_escaped(w, p[i]);
        i += length ? length : 1;
    }
    append_text(w, "\"", 1);
    w->need_comma = true;
}

void json_put_cstr(json_writer *w, const char *s)
{
    json_put_text(w, s, strlen(s));
}

void json_put_key(json_writer *w, const char *key)
{
    json_put_cstr(w, key);
    append_text(w, ":", 1);
    w->need_comma = false;
}

void json_put_int(json_writer *w, int64_t v)
{
    char text[24];
    size_t at = sizeof text;
    uint64_t left = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        text[--at] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (v < 0)
        text[--at] = '-';
    separate(w);
    append_text(w, text + at, sizeof text - at);
    w->need_comma = true;
}

void json_put_real(json_writer *w, double v)
{
    char text[40];
    if (!isfinite(v)) {
        put_word(w, "null"); /* JSON has no infinities and no NaN */
        return;
    }
    if (v == floor(v) && fabs(v) < 1e15) {
        snprintf(text, sizeof text, "%.1f", v); /* %g would write 30.0 as 3e+01 */
        put_word(w, text);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0"); /* so that it reads back as a real */
    put_word(w, text);
}

void json_put_bool(json_writer *w, bool v)
{
    put_word(w, v ? "true" : "false");
}

void json_put_null(json_writer *w)
{
    put_word(w, "null");
}

void json_put_value(json_writer *w, const json_value *v)
{
    const char *key;
    switch (json_typeof(v)) {
    case JSON_NULL:
        json_put_null(w);
        break;
    case JSON_BOOL:
        json_put_bool(w, json_bool(v, false));
        break;
    case JSON_INT:
        json_put_int(w, json_int(v, 0));
        break;
    case JSON_REAL:
        json_put_real(w, json_real(v, 0));
        break;
    case JSON_TEXT:
        json_put_text(w, json_text(v, ""), json_text_size(v));
        break;
    case JSON_ARRAY:
        json_begin_array(w);
        for (size_t i = 0; i < json_count(v); i++)
            json_put_value(w, json_item(v, i));
        json_end_array(w);
        break;
    case JSON_OBJECT:
        json_begin_object(w);
        for (size_t i = 0; i < json_count(v); i++) {
            const json_value *member = json_member(v, i, &key);
            json_put_key_value(w, key, member);
        }
        json_end_object(w);
        break;
    }
}

void json_put_raw(json_writer *w, const char *json, size_t size)
{
    separate(w);
    append_text(w, json, size);
    w->need_comma = true;
}

void json_put_key_text(json_writer *w, const char *key, const char *s, size_t size)
{
    json_put_key(w, key);
    json_put_text(w, s, size);
}

void json_put_key_cstr(json_writer *w, const char *key, const char *s)
{
    json_put_key(w, key);
    json_put_cstr(w, s);
}

void json_put_key_int(json_writer *w, const char *key, int64_t v)
{
    json_put_key(w, key);
    json_put_int(w, v);
}

void json_put_key_real(json_writer *w, const char *key, double v)
{
    json_put_key(w, key);
    json_put_real(w, v);
}

void json_put_key_bool(json_writer *w, const char *key, bool v)
{
    json_put_key(w, key);
    json_put_bool(w, v);
}

void json_put_key_null(json_writer *w, const char *key)
{
    json_put_key(w, key);
    json_put_null(w);
}

void json_put_key_value(json_writer *w, const char *key, const json_value *v)
{
    json_put_key(w, key);
    json_put_value(w, v);
}

void json_put_key_raw(json_writer *w, const char *key, const char *json, size_t size)
{
    json_put_key(w, key);
    json_put_raw(w, json, size);
}

void json_begin_key_object(json_writer *w, const char *key)
{
    json_put_key(w, key);
    json_begin_object(w);
}

void json_begin_key_array(json_writer *w, const char *key)
{
    json_put_key(w, key);
    json_begin_array(w);
}

status json_writer_take(json_writer *w, char **out_text, size_t *out_size)
{
    append_text(w, "", 0); /* so that an empty text is a text and not NULL */
    if (w->out_of_memory) {
        json_writer_done(w);
        return FAIL(ST_NO_MEMORY, "no memory to write JSON");
    }
    *out_text = w->text;
    if (out_size)
        *out_size = w->size;
    json_writer_init(w);
    return ST_OK;
}
