/* SPDX-License-Identifier: Apache-2.0 */
/* json_write.c: the writer of json.h, which appends the text of values to a growing buffer. */
#include "common/json/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/base/words.h"

void json_writer_init(json_writer *writer)
{
    memset(writer, 0, sizeof *writer);
}

void json_writer_done(json_writer *writer)
{
    if (!writer)
        return;
    free(writer->text);
    memset(writer, 0, sizeof *writer);
}

/* Makes room for this many more bytes and the NUL after them, and adds them to the size. Returns
 * where they go; NULL if there is no memory. */
static char *grow_by(json_writer *writer, size_t size)
{
    if (writer->out_of_memory)
        return NULL;
    if (size >= writer->capacity - writer->size) {
        size_t want;
        if (__builtin_add_overflow(writer->size + 1, size, &want) || want > SIZE_MAX / 2) {
            writer->out_of_memory = true;
            return NULL;
        }
        if (want < 2 * writer->capacity)
            want = 2 * writer->capacity;
        if (want < 256)
            want = 256;
        char *grown = (char *)realloc(writer->text, want);
        if (!grown) {
            writer->out_of_memory = true;
            return NULL;
        }
        writer->text = grown;
        writer->capacity = want;
    }
    char *to = writer->text + writer->size;
    writer->size += size;
    writer->text[writer->size] = 0;
    return to;
}

static void append_text(json_writer *writer, const char *text, size_t size)
{
    char *to = grow_by(writer, size);
    if (to && size)
        memcpy(to, text, size);
}

static void append_cstr(json_writer *writer, const char *text)
{
    append_text(writer, text, strlen(text));
}

/* Called before a value or key: puts the comma that separates it from the one before. */
static void separate(json_writer *writer)
{
    if (writer->need_comma)
        append_text(writer, ",", 1);
    writer->need_comma = false;
}

static void put_word(json_writer *writer, const char *word)
{
    separate(writer);
    append_cstr(writer, word);
    writer->need_comma = true;
}

static void open_bracket(json_writer *writer, const char *bracket)
{
    separate(writer);
    append_text(writer, bracket, 1);
}

static void close_bracket(json_writer *writer, const char *bracket)
{
    append_text(writer, bracket, 1);
    writer->need_comma = true;
}

void json_begin_object(json_writer *writer)
{
    open_bracket(writer, "{");
}

void json_end_object(json_writer *writer)
{
    close_bracket(writer, "}");
}

void json_begin_array(json_writer *writer)
{
    open_bracket(writer, "[");
}

void json_end_array(json_writer *writer)
{
    close_bracket(writer, "]");
}

static void put_escaped(json_writer *writer, unsigned char byte)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt",
                      digit[] = "0123456789abcdef";
    const char *at = byte ? strchr(plain, byte) : NULL;
    if (at) {
        const char text[] = {'\\', letter[at - plain]};
        append_text(writer, text, sizeof text);
    } else {
        const char text[] = {'\\', 'u', '0', '0', digit[byte >> 4], digit[byte & 15]};
        append_text(writer, text, sizeof text);
    }
}

/* Writes a character of several bytes. One that would control a terminal is written as visible.h
 * shows it (\u202e), which is also how JSON escapes it. */
static void put_wide(json_writer *writer, const char *text, size_t length)
{
    char one[VISIBLE_CHAR];
    visible_char(text, length, one);
    append_cstr(writer, one);
}

/* Whether all of eight bytes are characters that need no change. The highest bit of a byte tells
 * that it is not, in one of the four sums; a carry comes only out of a byte of which one tells so.
 */
static bool is_plain_word(const unsigned char *text)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    uint64_t word;
    memcpy(&word, text, sizeof word);
    const uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
    const uint64_t low = word - ones * 0x20, wide = (word + ones) | word; /* above 0x7E */
    return (((quote - ones) | (slash - ones) | low | wide) & high) == 0;
}

/* How many bytes at the beginning of a text are characters that need no change. */
static size_t plain_run(const unsigned char *text, size_t size)
{
    size_t run = 0;
    while (run + 8 <= size && is_plain_word(text + run))
        run += 8;
    while (run < size && text[run] >= 0x20 && text[run] < 0x7F && text[run] != '"' &&
           text[run] != '\\')
        run++;
    return run;
}

/* Writes what is between the quotes of a text, of which the first characters need no change. */
static void put_inner(json_writer *writer, const char *text, size_t size, size_t run)
{
    const unsigned char *at = (const unsigned char *)text;
    for (size_t i = 0;; run = plain_run(at + i, size - i)) {
        append_text(writer, text + i, run); /* in one piece */
        i += run;
        if (i == size)
            break;
        size_t length = utf8_length(at + i, size - i);
        if (length > 1)
            put_wide(writer, text + i, length);
        else if (length == 0)
            append_text(writer, "\xEF\xBF\xBD",
                        3); /* U+FFFD: JSON must be UTF-8, a file name need not */
        else
            put_escaped(writer, at[i]);
        i += length ? length : 1;
    }
}

/* Writes a text in quotes, and a colon after it if it is a key. Most texts and all keys of ours
 * need no change, so their room is made at once. */
static void put_quoted(json_writer *writer, const char *text, size_t size, bool is_key)
{
    const size_t run = plain_run((const unsigned char *)text, size);
    if (run < size) {
        separate(writer);
        append_text(writer, "\"", 1);
        put_inner(writer, text, size, run);
        append_text(writer, "\":", 1 + (size_t)is_key);
    } else {
        char *to = grow_by(writer, writer->need_comma + size + 2 + (size_t)is_key);
        if (!to)
            return;
        if (writer->need_comma)
            *to++ = ',';
        *to++ = '"';
        if (size)
            memcpy(to, text, size);
        to[size] = '"';
        if (is_key)
            to[size + 1] = ':';
    }
    writer->need_comma = !is_key;
}

void json_put_text(json_writer *writer, const char *text, size_t size)
{
    put_quoted(writer, text, size, false);
}

void json_put_cstr(json_writer *writer, const char *text)
{
    json_put_text(writer, text, strlen(text));
}

void json_put_key(json_writer *writer, const char *key)
{
    put_quoted(writer, key, strlen(key), true);
}

void json_put_int(json_writer *writer, int64_t value)
{
    char text[24];
    size_t at = sizeof text;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        text[--at] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0)
        text[--at] = '-';
    if (writer->need_comma)
        text[--at] = ',';
    append_text(writer, text + at, sizeof text - at);
    writer->need_comma = true;
}

void json_put_real(json_writer *writer, double value)
{
    char text[40];
    if (!isfinite(value)) {
        put_word(writer, "null"); /* JSON has no infinities and no NaN */
        return;
    }
    if (value == floor(value) && fabs(value) < 1e15) {
        snprintf(text, sizeof text, "%.1f", value); /* %g would write 30.0 as 3e+01 */
        put_word(writer, text);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0"); /* so that it reads back as a real */
    put_word(writer, text);
}

void json_put_bool(json_writer *writer, bool value)
{
    put_word(writer, value ? "true" : "false");
}

void json_put_null(json_writer *writer)
{
    put_word(writer, "null");
}

void json_put_value(json_writer *writer, const json_value *value)
{
    const char *key;
    switch (json_typeof(value)) {
    case JSON_NULL:
        json_put_null(writer);
        break;
    case JSON_BOOL:
        json_put_bool(writer, json_bool(value, false));
        break;
    case JSON_INT:
        json_put_int(writer, json_int(value, 0));
        break;
    case JSON_REAL:
        json_put_real(writer, json_real(value, 0));
        break;
    case JSON_TEXT:
        json_put_text(writer, json_text(value, ""), json_text_size(value));
        break;
    case JSON_ARRAY:
        json_begin_array(writer);
        for (size_t i = 0; i < json_count(value); i++)
            json_put_value(writer, json_item(value, i));
        json_end_array(writer);
        break;
    case JSON_OBJECT:
        json_begin_object(writer);
        for (size_t i = 0; i < json_count(value); i++) {
            const json_value *member = json_member(value, i, &key);
            json_put_key_value(writer, key, member);
        }
        json_end_object(writer);
        break;
    }
}

void json_put_raw(json_writer *writer, const char *json, size_t size)
{
    separate(writer);
    append_text(writer, json, size);
    writer->need_comma = true;
}

void json_put_key_text(json_writer *writer, const char *key, const char *text, size_t size)
{
    json_put_key(writer, key);
    json_put_text(writer, text, size);
}

void json_put_key_cstr(json_writer *writer, const char *key, const char *text)
{
    json_put_key(writer, key);
    json_put_cstr(writer, text);
}

void json_put_key_int(json_writer *writer, const char *key, int64_t value)
{
    json_put_key(writer, key);
    json_put_int(writer, value);
}

void json_put_key_real(json_writer *writer, const char *key, double value)
{
    json_put_key(writer, key);
    json_put_real(writer, value);
}

void json_put_key_bool(json_writer *writer, const char *key, bool value)
{
    json_put_key(writer, key);
    json_put_bool(writer, value);
}

void json_put_key_null(json_writer *writer, const char *key)
{
    json_put_key(writer, key);
    json_put_null(writer);
}

void json_put_key_value(json_writer *writer, const char *key, const json_value *value)
{
    json_put_key(writer, key);
    json_put_value(writer, value);
}

void json_put_key_raw(json_writer *writer, const char *key, const char *json, size_t size)
{
    json_put_key(writer, key);
    json_put_raw(writer, json, size);
}

void json_begin_key_object(json_writer *writer, const char *key)
{
    json_put_key(writer, key);
    json_begin_object(writer);
}

void json_begin_key_array(json_writer *writer, const char *key)
{
    json_put_key(writer, key);
    json_begin_array(writer);
}

status json_writer_take(json_writer *writer, char **out_text, size_t *out_size)
{
    append_text(writer, "", 0); /* so that an empty text is a text and not NULL */
    if (writer->out_of_memory) {
        json_writer_done(writer);
        return FAIL(ST_NO_MEMORY, "no memory to write JSON");
    }
    *out_text = writer->text;
    if (out_size)
        *out_size = writer->size;
    json_writer_init(writer);
    return ST_OK;
}
