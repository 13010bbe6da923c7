/* SPDX-License-Identifier: Apache-2.0 */
/* bad_samples.c: see bad_samples.h. Ids mostly come in rising order, and are then appended. */
#include "proto/row/bad_samples.h"

#include <stdlib.h>
#include <string.h>

void bad_samples_done(bad_samples *list)
{
    for (int64_t i = 0; list->cause && i < list->n; i++)
        free(list->cause[i]);
    free(list->cause);
    free(list->id);
    *list = (bad_samples){0};
}

/* The place of the first id that is not below this one. */
static int64_t place_of(const bad_samples *list, int64_t id)
{
    int64_t low = 0, high = list->n;
    if (high > 0 && list->id[high - 1] < id)
        return high;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (list->id[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const char *bad_samples_find(const bad_samples *list, int64_t id)
{
    const int64_t at = place_of(list, id);
    if (at == list->n || list->id[at] != id)
        return NULL;
    return list->cause && list->cause[at] ? list->cause[at] : "";
}

/* Makes room for so many ids, and for their causes if the list has any or gets the first. */
static status reserve(bad_samples *list, int64_t count, bool causes)
{
    if (count > BAD_SAMPLES_MOST)
        return FAIL(ST_BAD_INPUT, "there are more than %d bad samples: " BAD_SAMPLES_MEND,
                    BAD_SAMPLES_MOST);
    if (count > list->capacity) {
        int64_t more = list->capacity < 8 ? 16 : 2 * list->capacity;
        more = more < count ? count : more;
        int64_t *id = (int64_t *)realloc(list->id, (size_t)more * sizeof *id);
        if (!id)
            return FAIL(ST_NO_MEMORY, "no memory for %lld bad samples", (long long)count);
        list->id = id;
        char **cause =
            list->cause ? (char **)realloc(list->cause, (size_t)more * sizeof *cause) : NULL;
        if (list->cause && !cause)
            return FAIL(ST_NO_MEMORY, "no memory for %lld bad samples", (long long)count);
        list->cause = cause;
        list->capacity = more;
    }
    if (causes && !list->cause) {
        list->cause = (char **)calloc((size_t)list->capacity, sizeof *list->cause);
        if (!list->cause)
            return FAIL(ST_NO_MEMORY, "no memory for %lld bad samples", (long long)count);
    }
    return ST_OK;
}

static status copy_cause(const char *cause, char **out)
{
    size_t length = strlen(cause);
    if (length > BAD_CAUSE_BYTES)
        for (length = BAD_CAUSE_BYTES; length > 0 && ((uint8_t)cause[length] & 0xc0) == 0x80;)
            length--; /* cut between two characters of UTF-8 */
    *out = strndup(cause, length);
    return *out ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for the cause of a bad sample");
}

status bad_samples_add(bad_samples *list, int64_t id, const char *cause, bool *out_new)
{
    const int64_t at = place_of(list, id);
    char *copy = NULL;
    const bool is_new = at == list->n || list->id[at] != id;
    if (out_new)
        *out_new = is_new;
    if (!is_new)
        return ST_OK;
    TRY(reserve(list, list->n + 1, cause != NULL));
    if (cause)
        TRY(copy_cause(cause, &copy));
    const size_t after = (size_t)(list->n - at);
    memmove(list->id + at + 1, list->id + at, after * sizeof *list->id);
    list->id[at] = id;
    if (list->cause) {
        memmove(list->cause + at + 1, list->cause + at, after * sizeof *list->cause);
        list->cause[at] = copy;
    }
    list->n++;
    return ST_OK;
}

int64_t bad_samples_count_new(const bad_samples *list, const bad_samples *from)
{
    int64_t at = 0, count = 0;
    for (int64_t i = 0; i < from->n; i++) {
        while (at < list->n && list->id[at] < from->id[i])
            at++;
        count += at == list->n || list->id[at] != from->id[i];
    }
    return count;
}

status bad_samples_merge(bad_samples *list, const bad_samples *from)
{
    if (list->index[0] && from->index[0] && strcmp(list->index, from->index) != 0)
        return FAIL(ST_BAD_INPUT,
                    "the bad samples of two lists are of different data: of index %s and of index "
                    "%s",
                    list->index, from->index);
    const int64_t added = bad_samples_count_new(list, from);
    TRY(reserve(list, list->n + added, false));
    if (!list->index[0])
        memcpy(list->index, from->index, sizeof list->index);
    /* From the end on, so that each id is moved once. */
    int64_t at = list->n - 1, to = list->n + added - 1;
    for (int64_t i = from->n - 1; to > at; to--) {
        const bool takes_old = at >= 0 && list->id[at] >= from->id[i];
        if (takes_old && list->id[at] == from->id[i])
            i--;
        list->id[to] = takes_old ? list->id[at] : from->id[i];
        if (list->cause)
            list->cause[to] = takes_old ? list->cause[at] : NULL;
        if (takes_old)
            at--;
        else
            i--;
    }
    list->n += added;
    return ST_OK;
}

/* --- ids as a text --- */

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
enum { DIGIT_BITS = 5, MORE = 1 << DIGIT_BITS, NUMBER_BITS = 60 };

static size_t number_bytes(uint64_t number)
{
    size_t bytes = 1;
    while ((number >>= DIGIT_BITS) > 0)
        bytes++;
    return bytes;
}

static char *put_number(char *to, uint64_t number)
{
    for (; number >= MORE; number >>= DIGIT_BITS)
        *to++ = DIGITS[MORE | (number & (MORE - 1))];
    *to++ = DIGITS[number];
    return to;
}

/* What must be added to the id before this one to get it. */
static uint64_t step_to(const bad_samples *list, int64_t at)
{
    return (uint64_t)(at > 0 ? list->id[at] - list->id[at - 1] : list->id[at]);
}

static status write_ids(const bad_samples *list, char **out)
{
    size_t size = 1;
    for (int64_t i = 0; i < list->n; i++)
        size += number_bytes(step_to(list, i));
    char *text = (char *)malloc(size), *to = text;
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for a text of %lld bad samples", (long long)list->n);
    for (int64_t i = 0; i < list->n; i++)
        to = put_number(to, step_to(list, i));
    *to = 0;
    *out = text;
    return ST_OK;
}

static int digit_of(char character)
{
    const char *at = character ? strchr(DIGITS, character) : NULL;
    return at ? (int)(at - DIGITS) : -1;
}

/* values: digit_of each character. */
static bool take_number(const int8_t values[256], const char **inout_text, uint64_t *out)
{
    uint64_t number = 0;
    for (int bits = 0; bits < NUMBER_BITS; bits += DIGIT_BITS) {
        const int digit = values[(uint8_t) * *inout_text];
        if (digit < 0)
            return false;
        ++*inout_text;
        number |= (uint64_t)(digit & (MORE - 1)) << bits;
        if (digit < MORE) {
            *out = number;
            return digit > 0 || bits == 0; /* a number has one form */
        }
    }
    return false;
}

static status read_ids(bad_samples *list, const char *text, int64_t count, const char *source)
{
    int8_t values[256];
    uint64_t id = 0, step;
    const char *at = text;
    for (int i = 0; i < 256; i++)
        values[i] = (int8_t)digit_of((char)i);
    for (int64_t i = 0; i < count; i++) {
        if (!take_number(values, &at, &step) || (i > 0 && step == 0) || id + step > INT64_MAX)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "number %lld of the %lld bad samples cannot be read, at byte %lld of "
                           "their text",
                           (long long)i, (long long)count, (long long)(at - text));
        id += step;
        TRY(bad_samples_add(list, (int64_t)id, NULL, NULL));
    }
    return *at == 0 ? ST_OK
                    : FAIL_IN(ST_BAD_INPUT, source,
                              "the text of %lld bad samples has more after byte %lld",
                              (long long)count, (long long)(at - text));
}

/* --- JSON --- */

static status read_object(bad_samples *list, const json_value *value, const char *source)
{
    const char *text;
    int64_t count;
    hash128 digest;
    TRY(json_want_int(value, "count", source, &count));
    TRY(json_want_text(value, "ids", source, &text));
    if (count < 0 || count > BAD_SAMPLES_MOST)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "the list has %lld bad samples, and %d are the most that any may "
                       "have: " BAD_SAMPLES_MEND,
                       (long long)count, BAD_SAMPLES_MOST);
    if (json_given(value, "index")) {
        const char *index;
        TRY(json_want_text(value, "index", source, &index));
        if (!hash_parse(index, &digest))
            return FAIL_IN(ST_BAD_INPUT, source, "the index \"%.40s\" of a list is not a digest",
                           index);
        hash_print(digest, list->index);
    }
    return read_ids(list, text, count, source);
}

static int by_id(const void *left, const void *right)
{
    const int64_t first = *(const int64_t *)left, second = *(const int64_t *)right;
    return first < second ? -1 : first > second;
}

/* The form of earlier programs, in any order. */
static status read_array(bad_samples *list, const json_value *value, const char *source)
{
    const char *cause;
    const size_t count = json_count(value);
    status st = ST_OK;
    int64_t *ids = (int64_t *)malloc((count + 1) * sizeof *ids);
    if (!ids)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bad samples", count);
    for (size_t i = 0; i < count; i++) {
        const json_value *entry = json_item(value, i);
        TRY_OR(done, json_want_int(entry, "id", source, &ids[i]));
        TRY_OR(done, json_want_text(entry, "cause", source, &cause));
        if (ids[i] < 0) {
            st = FAIL_IN(ST_BAD_INPUT, source, "a bad sample has the impossible id %lld",
                         (long long)ids[i]);
            goto done;
        }
    }
    qsort(ids, count, sizeof *ids, by_id);
    for (size_t i = 0; i < count && st == ST_OK; i++)
        st = bad_samples_add(list, ids[i], NULL, NULL);
done:
    free(ids);
    return st;
}

status bad_samples_read(bad_samples *list, const json_value *value, const char *source)
{
    bad_samples added = {0};
    status st;
    if (!value)
        return ST_OK;
    if (json_typeof(value) == JSON_OBJECT)
        st = read_object(&added, value, source);
    else if (json_typeof(value) == JSON_ARRAY)
        st = read_array(&added, value, source);
    else
        st = FAIL_IN(ST_BAD_INPUT, source,
                     "the quarantine is %s; it must be an object {index, count, ids} or an array",
                     json_type_name(json_typeof(value)));
    if (st == ST_OK)
        st = bad_samples_merge(list, &added);
    bad_samples_done(&added);
    return st;
}

status bad_samples_read_text(bad_samples *list, const char *text, const char *source)
{
    json_value *value = NULL;
    if (!text[0])
        return ST_OK;
    TRY(json_parse(text, strlen(text), source, &value));
    const status st = bad_samples_read(list, value, source);
    json_free(&value);
    return st;
}

status bad_samples_read_cursor(bad_samples *list, const json_value *cursor, const char *source)
{
    bad_samples added = {0};
    hash128 digest;
    status st = bad_samples_read(&added, json_given(cursor, "quarantine"), source);
    if (st == ST_OK && added.n > 0 &&
        hash_parse(json_text(json_find(cursor, "index"), ""), &digest))
        hash_print(digest, added.index);
    if (st == ST_OK)
        st = bad_samples_merge(list, &added);
    bad_samples_done(&added);
    return st;
}

void bad_samples_put_cursor(const json_value *cursor, json_writer *writer)
{
    const char *key;
    if (json_typeof(cursor) != JSON_OBJECT) {
        json_put_value(writer, cursor);
        return;
    }
    json_begin_object(writer);
    for (size_t i = 0; i < json_count(cursor); i++) {
        const json_value *member = json_member(cursor, i, &key);
        if (strcmp(key, "quarantine") != 0)
            json_put_key_value(writer, key, member);
    }
    json_end_object(writer);
}

status bad_samples_write(const bad_samples *list, char **out)
{
    json_writer writer;
    char *ids = NULL;
    if (list->n == 0) {
        *out = strdup("");
        return *out ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for an empty text");
    }
    TRY(write_ids(list, &ids));
    json_writer_init(&writer);
    json_begin_object(&writer);
    if (list->index[0])
        json_put_key_cstr(&writer, "index", list->index);
    json_put_key_int(&writer, "count", list->n);
    json_put_key_cstr(&writer, "ids", ids);
    json_end_object(&writer);
    free(ids);
    const status st = json_writer_take(&writer, out, NULL);
    json_writer_done(&writer);
    return st;
}
