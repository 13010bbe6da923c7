/* quarantine.c: a sorted array of samples with their causes, and the same list as JSON. */
#include "prepd/serve/quarantine.h"

#include <stdlib.h>
#include <string.h>

void quarantine_init(quarantine *q)
{
    *q = (quarantine){0};
}

void quarantine_done(quarantine *q)
{
    for (int64_t i = 0; i < q->n_entries; i++)
        free(q->entry[i].cause);
    free(q->entry);
    free(q->json);
    *q = (quarantine){0};
}

/* The first entry whose sample is not smaller than this one. */
static int64_t lower_bound(const quarantine *q, int64_t sample)
{
    int64_t low = 0, high = q->n_entries;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (q->entry[mid].sample < sample)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const char *quarantine_find(const quarantine *q, int64_t sample)
{
    int64_t at = lower_bound(q, sample);
    return at < q->n_entries && q->entry[at].sample == sample ? q->entry[at].cause : NULL;
}

status quarantine_add(quarantine *q, int64_t sample, const char *cause, bool *out_new)
{
    int64_t at = lower_bound(q, sample);
    if (at < q->n_entries && q->entry[at].sample == sample) {
        *out_new = false;
        return ST_OK;
    }
    if (q->n_entries == q->capacity) {
        int64_t capacity = q->capacity ? 2 * q->capacity : 16;
        quarantined *entry = realloc(q->entry, (size_t)capacity * sizeof(*entry));
        if (!entry)
            return FAIL(ST_NO_MEMORY, "no memory for %lld quarantined samples",
                        (long long)capacity);
        q->entry = entry;
        q->capacity = capacity;
    }
    size_t n = strlen(cause);
    if (n > QUARANTINE_CAUSE_BYTES)
        for (n = QUARANTINE_CAUSE_BYTES; n > 0 && ((uint8_t)cause[n] & 0xc0) == 0x80;)
            n--; /* cut between two characters of UTF-8 */
    char *copy = strndup(cause, n);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for a cause");
    memmove(q->entry + at + 1, q->entry + at, (size_t)(q->n_entries - at) * sizeof(*q->entry));
    q->entry[at] = (quarantined){sample, copy};
    q->n_entries++;
    free(q->json);
    q->json = NULL;
    *out_new = true;
    return ST_OK;
}

status quarantine_json(quarantine *q, const char **out)
{
    if (!q->json) {
        json_writer w;
        size_t size;
        json_writer_init(&w);
        json_begin_array(&w);
        for (int64_t i = 0; i < q->n_entries; i++) {
            json_begin_object(&w);
            json_put_key_int(&w, "id", q->entry[i].sample);
            json_put_key_cstr(&w, "cause", q->entry[i].cause);
            json_end_object(&w);
        }
        json_end_array(&w);
        status st = json_writer_take(&w, &q->json, &size);
        json_writer_done(&w);
        if (st != ST_OK)
            return st;
    }
    *out = q->json;
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

static int by_sample_then_place(const void *a, const void *b)
{
    const newcomer *x = (const newcomer *)a, *y = (const newcomer *)b;
    if (x->sample != y->sample)
        return x->sample < y->sample ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Merges the new entries in one pass. Inserting them one by one would take time that grows with the
 * square of the list's length if the list is in falling order. */
static status merge_newcomers(quarantine *q, newcomer *list, int64_t n)
{
    status st = ST_OK;
    int64_t old = 0, made = 0;
    if (n == 0)
        return ST_OK;
    quarantined *entry = malloc((size_t)(q->n_entries + n) * sizeof(*entry));
    if (!entry)
        return FAIL(ST_NO_MEMORY, "no memory for %lld quarantined samples",
                    (long long)(q->n_entries + n));
    qsort(list, (size_t)n, sizeof(*list), by_sample_then_place);
    for (int64_t i = 0; i < n; i++) {
        while (old < q->n_entries && q->entry[old].sample <= list[i].sample)
            entry[made++] = q->entry[old++];
        if (made && entry[made - 1].sample == list[i].sample)
            continue; /* the first cause stands */
        char *cause = strdup(list[i].cause);
        if (!cause) {
            st = FAIL(ST_NO_MEMORY, "no memory for a cause");
            break; /* the entries that were there before all stay */
        }
        entry[made++] = (quarantined){list[i].sample, cause};
    }
    while (old < q->n_entries)
        entry[made++] = q->entry[old++];
    free(q->entry);
    free(q->json);
    q->json = NULL;
    q->capacity = q->n_entries + n;
    q->entry = entry;
    q->n_entries = made;
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

status quarantine_merge(quarantine *q, const json_value *list, int64_t n_samples,
                        const char *source)
{
    if (json_typeof(list) != JSON_ARRAY)
        return FAIL_IN(ST_PROTOCOL, source, "quarantine is %s; it must be an array of {id, cause}",
                       json_type_name(json_typeof(list)));
    const size_t n = json_count(list);
    if (n > (size_t)n_samples)
        return FAIL_IN(ST_PROTOCOL, source,
                       "the list has %zu quarantined samples, more than the %lld of the data set",
                       n, (long long)n_samples);
    for (size_t i = 0; i < n; i++)
        TRY(check_entry(json_item(list, i), n_samples, source));
    newcomer *add = malloc((n + 1) * sizeof(*add));
    if (!add)
        return FAIL(ST_NO_MEMORY, "no memory for %zu quarantined samples", n);
    for (size_t i = 0; i < n; i++) {
        const json_value *entry = json_item(list, i);
        add[i] = (newcomer){json_int(json_find(entry, "id"), -1), (int64_t)i,
                            json_text(json_find(entry, "cause"), "")};
    }
    const status st = merge_newcomers(q, add, (int64_t)n);
    free(add);
    return st;
}
