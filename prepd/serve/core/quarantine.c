/* quarantine.c: a sorted array of samples with their causes, and the same list as JSON. */
#include "prepd/serve/core/quarantine.h"

#include <stdlib.h>
#include <string.h>

void quarantine_init(quarantine *refused)
{
    *refused = (quarantine){0};
}

void quarantine_done(quarantine *refused)
{
    for (int64_t i = 0; i < refused->n_entries; i++)
        free(refused->entry[i].cause);
    free(refused->entry);
    free(refused->json);
    *refused = (quarantine){0};
}

/* The first entry whose sample is not smaller than this one. */
static int64_t lower_bound(const quarantine *refused, int64_t sample)
{
    int64_t low = 0, high = refused->n_entries;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (refused->entry[mid].sample < sample)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const char *quarantine_find(const quarantine *refused, int64_t sample)
{
    int64_t at = lower_bound(refused, sample);
    return at < refused->n_entries && refused->entry[at].sample == sample ? refused->entry[at].cause
                                                                          : NULL;
}

status quarantine_add(quarantine *refused, int64_t sample, const char *cause, bool *out_new)
{
    int64_t at = lower_bound(refused, sample);
    if (at < refused->n_entries && refused->entry[at].sample == sample) {
        *out_new = false;
        return ST_OK;
    }
    if (refused->n_entries == refused->capacity) {
        int64_t capacity = refused->capacity ? 2 * refused->capacity : 16;
        quarantined *entry = realloc(refused->entry, (size_t)capacity * sizeof(*entry));
        if (!entry)
            return FAIL(ST_NO_MEMORY, "no memory for %lld quarantined samples",
                        (long long)capacity);
        refused->entry = entry;
        refused->capacity = capacity;
    }
    size_t length = strlen(cause);
    if (length > QUARANTINE_CAUSE_BYTES)
        for (length = QUARANTINE_CAUSE_BYTES;
             length > 0 && ((uint8_t)cause[length] & 0xc0) == 0x80;)
            length--; /* cut between two characters of UTF-8 */
    char *copy = strndup(cause, length);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for a cause");
    memmove(refused->entry + at + 1, refused->entry + at,
            (size_t)(refused->n_entries - at) * sizeof(*refused->entry));
    refused->entry[at] = (quarantined){sample, copy};
    refused->n_entries++;
    free(refused->json);
    refused->json = NULL;
    *out_new = true;
    return ST_OK;
}

status quarantine_json(quarantine *refused, const char **out)
{
    if (!refused->json) {
        json_writer writer;
        size_t size;
        json_writer_init(&writer);
        json_begin_array(&writer);
        for (int64_t i = 0; i < refused->n_entries; i++) {
            json_begin_object(&writer);
            json_put_key_int(&writer, "id", refused->entry[i].sample);
            json_put_key_cstr(&writer, "cause", refused->entry[i].cause);
            json_end_object(&writer);
        }
        json_end_array(&writer);
        status st = json_writer_take(&writer, &refused->json, &size);
        json_writer_done(&writer);
        if (st != ST_OK)
            return st;
        refused->quoted_bytes = (int64_t)size;
        for (size_t i = 0; i < size; i++) /* JSON has no other bytes that a text must escape */
            refused->quoted_bytes += refused->json[i] == '"' || refused->json[i] == '\\';
    }
    *out = refused->json;
    return ST_OK;
}

status quarantine_quoted_bytes(quarantine *refused, int64_t *out)
{
    const char *json;
    TRY(quarantine_json(refused, &json));
    *out = refused->quoted_bytes;
    return ST_OK;
}

static status check_entry(const json_value *entry, int64_t n_samples, const char *source)
{
    int64_t id;
    const char *cause;
    TRY(json_want_int(entry, "id", source, &id));
    TRY(json_want_text(entry, "cause", source, &cause));
    if (id < 0 || id >= n_samples)
        return FAIL_IN(ST_PROTOCOL, source,
                       "quarantined sample %lld is outside the %lld samples of the data set",
                       (long long)id, (long long)n_samples);
    if (strlen(cause) > QUARANTINE_CAUSE_BYTES)
        return FAIL_IN(ST_PROTOCOL, source,
                       "the cause of sample %lld has %zu bytes; at most %d are allowed",
                       (long long)id, strlen(cause), QUARANTINE_CAUSE_BYTES);
    return ST_OK;
}

/* An entry that is to be added, and its place in the list that it comes from. */
typedef struct newcomer {
    int64_t sample, place;
    const char *cause; /* borrowed */
} newcomer;

static int by_sample_then_place(const void *left, const void *right)
{
    const newcomer *first = (const newcomer *)left, *second = (const newcomer *)right;
    if (first->sample != second->sample)
        return first->sample < second->sample ? -1 : 1;
    return first->place < second->place ? -1 : first->place > second->place;
}

/* Merges the new entries in one pass. Inserting them one by one would take time that grows with the
 * square of the list's length if the list is in falling order. */
static status merge_newcomers(quarantine *refused, newcomer *list, int64_t n_entries)
{
    status st = ST_OK;
    int64_t old = 0, made = 0;
    if (n_entries == 0)
        return ST_OK;
    quarantined *entry = malloc((size_t)(refused->n_entries + n_entries) * sizeof(*entry));
    if (!entry)
        return FAIL(ST_NO_MEMORY, "no memory for %lld quarantined samples",
                    (long long)(refused->n_entries + n_entries));
    qsort(list, (size_t)n_entries, sizeof(*list), by_sample_then_place);
    for (int64_t i = 0; i < n_entries; i++) {
        while (old < refused->n_entries && refused->entry[old].sample <= list[i].sample)
            entry[made++] = refused->entry[old++];
        if (made && entry[made - 1].sample == list[i].sample)
            continue; /* the first cause stands */
        char *cause = strdup(list[i].cause);
        if (!cause) {
            st = FAIL(ST_NO_MEMORY, "no memory for a cause");
            break; /* the entries that were there before all stay */
        }
        entry[made++] = (quarantined){list[i].sample, cause};
    }
    while (old < refused->n_entries)
        entry[made++] = refused->entry[old++];
    free(refused->entry);
    free(refused->json);
    refused->json = NULL;
    refused->capacity = refused->n_entries + n_entries;
    refused->entry = entry;
    refused->n_entries = made;
    return st;
}

status quarantine_copy(quarantine *to, const quarantine *from)
{
    newcomer *list = malloc(((size_t)from->n_entries + 1) * sizeof(*list));
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld quarantined samples",
                    (long long)from->n_entries);
    for (int64_t i = 0; i < from->n_entries; i++)
        list[i] = (newcomer){from->entry[i].sample, i, from->entry[i].cause};
    const status st = merge_newcomers(to, list, from->n_entries);
    free(list);
    return st;
}

status quarantine_merge(quarantine *refused, const json_value *list, int64_t n_samples,
                        const char *source)
{
    if (json_typeof(list) != JSON_ARRAY)
        return FAIL_IN(ST_PROTOCOL, source, "quarantine is %s; it must be an array of {id, cause}",
                       json_type_name(json_typeof(list)));
    const size_t count = json_count(list);
    if (count > (size_t)n_samples)
        return FAIL_IN(ST_PROTOCOL, source,
                       "the list has %zu quarantined samples, more than the %lld of the data set",
                       count, (long long)n_samples);
    for (size_t i = 0; i < count; i++)
        TRY(check_entry(json_item(list, i), n_samples, source));
    newcomer *add = malloc((count + 1) * sizeof(*add));
    if (!add)
        return FAIL(ST_NO_MEMORY, "no memory for %zu quarantined samples", count);
    for (size_t i = 0; i < count; i++) {
        const json_value *entry = json_item(list, i);
        add[i] = (newcomer){json_int(json_find(entry, "id"), -1), (int64_t)i,
                            json_text(json_find(entry, "cause"), "")};
    }
    const status st = merge_newcomers(refused, add, (int64_t)count);
    free(add);
    return st;
}
