/* SPDX-License-Identifier: Apache-2.0 */
/* sim_json.c: see sim_json.h. One function for each kind of value; each is false where the text is
 * not for this reader. */
#include "tests/sim/common/sim_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 18, MOST_DEPTH = 32, NUMBER_BYTES = 40 };

/* How far a text is read. */
typedef struct place {
    const char *at, *end;
    json_builder *build;
    char *unescaped; /* room for a text as long as the whole */
} place;

static bool read_value(place *from, int depth);

static bool take(place *from, char wanted)
{
    const bool there = from->at < from->end && *from->at == wanted;
    from->at += there;
    return there;
}

/* Copies a text from its first escape on, up to its closing quote. */
static bool unescape(place *from, const char *begin, size_t *out_size)
{
    static const char letter[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    size_t size = (size_t)(from->at - begin);
    memcpy(from->unescaped, begin, size);
    for (; from->at < from->end && *from->at != '"'; from->at++) {
        char byte = *from->at;
        if (byte < 0x20 || byte > 0x7E)
            return false;
        if (byte == '\\') {
            const char *known =
                ++from->at < from->end && *from->at ? strchr(letter, *from->at) : NULL;
            if (!known)
                return false;
            byte = meant[known - letter];
        }
        from->unescaped[size++] = byte;
    }
    *out_size = size;
    return take(from, '"');
}

/* Reads a text after its opening quote. What it returns stays until the next one is read. */
static bool read_text(place *from, const char **out, size_t *out_size)
{
    const char *begin = from->at;
    while (from->at < from->end && *from->at >= 0x20 && *from->at <= 0x7E && *from->at != '"' &&
           *from->at != '\\')
        from->at++;
    if (from->at == from->end)
        return false;
    *out = begin;
    *out_size = (size_t)(from->at - begin);
    if (*from->at == '"') {
        from->at++;
        return true;
    }
    *out = from->unescaped;
    return *from->at == '\\' && unescape(from, begin, out_size);
}

static size_t count_digits(const place *from)
{
    size_t count = 0;
    while (from->at + count < from->end && from->at[count] >= '0' && from->at[count] <= '9')
        count++;
    return count;
}

/* Passes the fraction and the exponent of a number. */
static bool pass_rest(place *from)
{
    if (take(from, '.')) {
        const size_t digits = count_digits(from);
        from->at += digits;
        if (digits == 0)
            return false;
    }
    if (!take(from, 'e') && !take(from, 'E'))
        return true;
    if (!take(from, '-'))
        (void)take(from, '+');
    const size_t digits = count_digits(from);
    from->at += digits;
    return digits > 0;
}

static bool read_number(place *from)
{
    const char *begin = from->at;
    const bool minus = take(from, '-');
    const size_t digits = count_digits(from);
    json_value value = {.type = JSON_INT};
    if (digits == 0 || digits > MOST_DIGITS || (digits > 1 && *from->at == '0'))
        return false;
    for (size_t i = 0; i < digits; i++)
        value.as.integer = 10 * value.as.integer + (*from->at++ - '0');
    value.as.integer = minus ? -value.as.integer : value.as.integer;
    const char *whole = from->at;
    if (!pass_rest(from))
        return false;
    if (from->at > whole) {
        char text[NUMBER_BYTES];
        const size_t size = (size_t)(from->at - begin);
        if (size >= sizeof text)
            return false;
        memcpy(text, begin, size);
        text[size] = 0;
        value = (json_value){.type = JSON_REAL, .as.real = strtod(text, NULL)};
    }
    return isfinite(value.type == JSON_REAL ? value.as.real : 0) &&
           json_builder_scalar(from->build, value) == ST_OK;
}

static bool read_word(place *from, const char *word, json_value value)
{
    const size_t size = strlen(word);
    if ((size_t)(from->end - from->at) < size || memcmp(from->at, word, size) != 0)
        return false;
    from->at += size;
    return json_builder_scalar(from->build, value) == ST_OK;
}

static bool read_array(place *from, int depth)
{
    if (json_builder_begin(from->build, false) != ST_OK)
        return false;
    if (!take(from, ']')) {
        do {
            if (!read_value(from, depth))
                return false;
        } while (take(from, ','));
        if (!take(from, ']'))
            return false;
    }
    return json_builder_end(from->build) == ST_OK;
}

static bool read_object(place *from, int depth)
{
    const char *key;
    size_t size;
    if (json_builder_begin(from->build, true) != ST_OK)
        return false;
    if (!take(from, '}')) {
        do {
            if (!take(from, '"') || !read_text(from, &key, &size) ||
                json_builder_key(from->build, key, size) != ST_OK || !take(from, ':') ||
                !read_value(from, depth))
                return false;
        } while (take(from, ','));
        if (!take(from, '}'))
            return false;
    }
    return json_builder_end(from->build) == ST_OK;
}

static bool read_value(place *from, int depth)
{
    const char *text;
    size_t size;
    if (from->at == from->end || depth == MOST_DEPTH)
        return false;
    switch (*from->at) {
    case '{':
        from->at++;
        return read_object(from, depth + 1);
    case '[':
        from->at++;
        return read_array(from, depth + 1);
    case '"':
        from->at++;
        return read_text(from, &text, &size) && json_builder_text(from->build, text, size) == ST_OK;
    case 't':
        return read_word(from, "true", (json_value){.type = JSON_BOOL, .as.yes = true});
    case 'f':
        return read_word(from, "false", (json_value){.type = JSON_BOOL});
    case 'n':
        return read_word(from, "null", (json_value){.type = JSON_NULL});
    default:
        return read_number(from);
    }
}

static void make_room(sim_json *reader, size_t size)
{
    if (size <= reader->room)
        return;
    free(reader->unescaped);
    reader->room = 2 * size;
    reader->unescaped = malloc(reader->room);
    if (!reader->unescaped)
        abort();
}

bool sim_json_read(sim_json *reader, const char *text, size_t size, arena *memory, json_value *out)
{
    make_room(reader, size);
    arena_reset(memory);
    json_builder_reset(&reader->build);
    reader->build.memory = memory;
    place at = {text, text + size, &reader->build, reader->unescaped};
    if (!read_value(&at, 0) || at.at != at.end)
        return false;
    *out = *json_builder_value(&reader->build);
    return true;
}

void sim_json_done(sim_json *reader)
{
    free(reader->unescaped);
    json_builder_done(&reader->build);
    *reader = (sim_json){0};
}
