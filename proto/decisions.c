/* decisions.c: see decisions.h. The list is sorted by sample; new entries are appended and sorted
 * in at the end of a reading. */
#include "proto/decisions.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"

void decisions_done(decisions *list)
{
    for (int64_t i = 0; i < list->n_entries; i++)
        free(list->entry[i].cause);
    free(list->entry);
    *list = (decisions){0};
}

/* Below 0 if `left` stands before `right` in a list, or would be the one of the two that stands. */
static int compare_entries(const void *left, const void *right)
{
    const decision *first = (const decision *)left, *second = (const decision *)right;
    if (first->sample != second->sample)
        return first->sample < second->sample ? -1 : 1;
    if (first->row != second->row)
        return first->row < second->row ? -1 : 1;
    return strcmp(first->cause, second->cause);
}

/* The entry of this sample among the first `count`, which are sorted; NULL if there is none. */
static decision *find_entry(const decisions *list, int64_t count, int64_t sample)
{
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        if (list->entry[mid].sample < sample)
            low = mid + 1;
        else
            high = mid;
    }
    return low < count && list->entry[low].sample == sample ? &list->entry[low] : NULL;
}

/* Whether adding `heard` would change the first `count` entries of the list. */
static bool is_news(const decisions *list, int64_t count, const decision *heard)
{
    const decision *known = find_entry(list, count, heard->sample);
    return !known || compare_entries(heard, known) < 0;
}

static status read_entry(const json_value *item, int64_t row, const char *source, decision *out)
{
    const char *cause;
    TRY(json_want_int(item, "id", source, &out->sample));
    TRY(json_want_text(item, "cause", source, &cause));
    out->cause = (char *)cause; /* the caller copies it */
    out->row = row;
    if (json_given(item, "row"))
        TRY(json_want_int(item, "row", source, &out->row));
    if (out->sample >= 0 && out->row >= 0)
        return ST_OK;
    return FAIL_IN(ST_BAD_INPUT, source,
                   "a quarantined sample has the impossible id %lld or row %lld",
                   (long long)out->sample, (long long)out->row);
}

/* Appends a copy of the entry. */
static status append_entry(decisions *list, const decision *entry)
{
    if (list->n_entries == list->capacity) {
        const int64_t capacity = list->capacity ? 2 * list->capacity : 16;
        decision *more = (decision *)realloc(list->entry, (size_t)capacity * sizeof *more);
        if (!more)
            return FAIL(ST_NO_MEMORY, "no memory for %lld quarantined samples",
                        (long long)capacity);
        list->entry = more;
        list->capacity = capacity;
    }
    char *cause = strdup(entry->cause);
    if (!cause)
        return FAIL(ST_NO_MEMORY, "no memory for the cause of a quarantined sample");
    list->entry[list->n_entries++] = (decision){entry->sample, entry->row, cause};
    return ST_OK;
}

/* Sorts the list in which entries were appended, and keeps the first of each sample. */
static void settle_entries(decisions *list)
{
    int64_t kept = 0;
    qsort(list->entry, (size_t)list->n_entries, sizeof *list->entry, compare_entries);
    for (int64_t i = 0; i < list->n_entries; i++) {
        if (kept > 0 && list->entry[kept - 1].sample == list->entry[i].sample)
            free(list->entry[i].cause);
        else
            list->entry[kept++] = list->entry[i];
    }
    list->n_entries = kept;
}

static status add_items(decisions *inout, const json_value *items, int64_t row, const char *source)
{
    const int64_t old = inout->n_entries;
    decision entry;
    status st = ST_OK;
    if (json_typeof(items) != JSON_ARRAY)
        return FAIL_IN(ST_BAD_INPUT, source, "the quarantine list is %s, not an array",
                       json_type_name(json_typeof(items)));
    for (size_t i = 0; i < json_count(items) && st == ST_OK; i++) {
        st = read_entry(json_item(items, i), row, source, &entry);
        if (st == ST_OK && is_news(inout, old, &entry))
            st = append_entry(inout, &entry);
    }
    while (st != ST_OK && inout->n_entries > old)
        free(inout->entry[--inout->n_entries].cause);
    if (inout->n_entries > old)
        settle_entries(inout);
    return st;
}

status decisions_read(decisions *inout, const char *text, int64_t row, const char *source)
{
    json_value *items = NULL;
    if (!text[0])
        return ST_OK;
    TRY(json_parse(text, strlen(text), source, &items));
    const status st = add_items(inout, items, row, source);
    json_free(&items);
    return st;
}

status decisions_read_cursor(decisions *inout, const char *cursor, const char *source)
{
    json_value *value = NULL;
    if (!cursor[0])
        return ST_OK;
    TRY(json_parse(cursor, strlen(cursor), source, &value));
    const json_value *items = json_given(value, "quarantine");
    status st = items ? add_items(inout, items, DECISION_ROW_UNKNOWN, source) : ST_OK;
    if (json_typeof(value) != JSON_OBJECT)
        st = FAIL_IN(ST_BAD_INPUT, source, "the cursor is %s, not an object",
                     json_type_name(json_typeof(value)));
    json_free(&value);
    return st;
}

static void put_entry(json_writer *writer, const decision *entry)
{
    json_begin_object(writer);
    json_put_key_int(writer, "id", entry->sample);
    json_put_key_cstr(writer, "cause", entry->cause);
    if (entry->row != DECISION_ROW_UNKNOWN)
        json_put_key_int(writer, "row", entry->row);
    json_end_object(writer);
}

status decisions_write_news(const decisions *known, const decisions *heard, char **out)
{
    json_writer writer;
    int64_t count = 0;
    *out = NULL;
    json_writer_init(&writer);
    json_begin_array(&writer);
    for (int64_t i = 0; i < heard->n_entries; i++)
        if (is_news(known, known->n_entries, &heard->entry[i])) {
            put_entry(&writer, &heard->entry[i]);
            count++;
        }
    json_end_array(&writer);
    const status st = count ? json_writer_take(&writer, out, NULL) : ST_OK;
    json_writer_done(&writer);
    return st;
}

status decisions_write(const decisions *list, char **out)
{
    json_writer writer;
    json_writer_init(&writer);
    json_begin_array(&writer);
    for (int64_t i = 0; i < list->n_entries; i++)
        put_entry(&writer, &list->entry[i]);
    json_end_array(&writer);
    const status st = json_writer_take(&writer, out, NULL);
    json_writer_done(&writer);
    return st;
}

status decisions_cut_cursor(const char *cursor, const char *source, char **out)
{
    json_value *value = NULL;
    json_writer writer;
    const char *key;
    TRY(json_parse(cursor, strlen(cursor), source, &value));
    json_writer_init(&writer);
    json_begin_object(&writer);
    for (size_t i = 0; i < json_count(value); i++) {
        const json_value *member = json_member(value, i, &key);
        if (member && strcmp(key, "quarantine") != 0)
            json_put_key_value(&writer, key, member);
    }
    json_begin_key_array(&writer, "quarantine");
    json_end_array(&writer);
    json_end_object(&writer);
    const status st = json_writer_take(&writer, out, NULL);
    json_writer_done(&writer);
    json_free(&value);
    return st;
}
