#include "prepd/serve/quarantine.h"

#include <stdlib.h>
#include <string.h>

void quarantine_init(quarantine *q)
{
    *q = (quarantine){0};
}

void quarantine_done(quarantine *q)
{
    for (int64_t i = 0; i < q->n; i++)
        free(q->entry[i].cause);
    free(q->entry);
    free(q->json);
    *q = (quarantine){0};
}

/* First entry not below the sample. */
static int64_t lower_bound(const quarantine *q, int64_t sample)
{
    int64_t low = 0, high = q->n;
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
    return at < q->n && q->entry[at].sample == sample ? q->entry[at].cause : NULL;
}

status quarantine_add(quarantine *q, int64_t sample, const char *cause, bool *out_new)
{
    int64_t at = lower_bound(q, sample);
    if (at < q->n && q->entry[at].sample == sample) {
        *out_new = false;
        return ST_OK;
    }
    if (q->n == q->capacity) {
        int64_t capacity = q->capacity ? 2 * q->capacity : 16;
        quarantined *entry = realloc(q->entry, (size_t)capacity * sizeof(*entry));
        if (!entry)
            return FAIL(ST_NO_MEMORY, "no memory for %lld quarantined samples",
                        (long long)capacity);
        q->entry = entry;
        q->capacity = capacity;
    }
    char *copy = strdup(cause);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for a cause");
    memmove(q->entry + at + 1, q->entry + at, (size_t)(q->n - at) * sizeof(*q->entry));
    q->entry[at] = (quarantined){sample, copy};
    q->n++;
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
        for (int64_t i = 0; i < q->n; i++) {
            json_begin_object(&w);
            json_put_key(&w, "id");
            json_put_int(&w, q->entry[i].sample);
            json_put_key(&w, "cause");
            json_put_cstr(&w, q->entry[i].cause);
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

status quarantine_merge(quarantine *q, const json_value *list, int64_t n_samples,
                        const char *source)
{
    if (json_typeof(list) != JSON_ARRAY)
        return FAIL_IN(ST_PROTOCOL, source, "quarantine is %s, expected an array of {id, cause}",
                       json_type_name(json_typeof(list)));
    for (size_t i = 0; i < json_count(list); i++) {
        int64_t id;
        const char *cause;
        bool fresh;
        TRY(json_want_int(json_item(list, i), "id", source, &id));
        TRY(json_want_text(json_item(list, i), "cause", source, &cause));
        if (id < 0 || id >= n_samples)
            return FAIL_IN(ST_PROTOCOL, source,
                           "quarantined sample %lld is outside the %lld samples of the data set",
                           (long long)id, (long long)n_samples);
        TRY(quarantine_add(q, id, cause, &fresh));
    }
    return ST_OK;
}
