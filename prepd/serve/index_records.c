/* index_records.c: reads the records that a worker sends for a lease of the index. All of a message
 * are read and checked before the first one counts. */
#include <string.h>

#include "prepd/serve/dispatch_state.h"

/* A record as a worker told it, and a hash by which two workers' records are compared. */
typedef struct told {
    index_image image;
    index_sample text;
    uint64_t facts;
} told;

static uint64_t facts_of(const int64_t *value, size_t n)
{
    const hash128 h = hash_bytes(value, n * sizeof(*value));
    uint64_t out;
    memcpy(&out, h.bytes, sizeof(out));
    return out;
}

/* The hash of a record with a cause. Two workers that found the same file bad may say so in
 * different words, so the cause is not part of it. */
static uint64_t facts_of_bad(void)
{
    return facts_of(&(int64_t){-1}, 1);
}

static status read_size(const source *section, const json_value *r, const char *from,
                        index_image *x)
{
    int64_t width = 0, height = 0;
    TRY(json_want_int(r, "width", from, &width));
    TRY(json_want_int(r, "height", from, &height));
    x->frames = json_int(json_find(r, "frames"), 0);
    x->fps = json_real(json_find(r, "fps"), 0);
    const int64_t most = x->frames ? INT32_MAX : section->options.image_input_pixels;
    if (width < 1 || height < 1 || width > INT32_MAX || height > INT32_MAX || width > most / height)
        return FAIL_IN(ST_PROTOCOL, from,
                       "the worker told an impossible image of %lld x %lld pixels",
                       (long long)width, (long long)height);
    x->width = (int32_t)width;
    x->height = (int32_t)height;
    return ST_OK;
}

/* elsewhere: the worker is remote. Its copy of the file may have another modification time, so the
 * dispatcher's is taken, which is what the next start will compare with. */
static status read_image(const source *section, int64_t j, const json_value *r, bool elsewhere,
                         const char *from, told *out)
{
    index_image x = {.cause = json_text(json_find(r, "cause"), NULL)};
    TRY(json_want_int(r, "bytes", from, &x.file_bytes));
    TRY(json_want_int(r, "mtime", from, &x.mtime_ns));
    if (elsewhere && x.mtime_ns) {
        int64_t bytes;
        dataset_image_stat(section->data, j, &bytes, &x.mtime_ns);
    }
    if (!x.cause)
        TRY(read_size(section, r, from, &x));
    int64_t facts[] = {x.file_bytes, x.width, x.height, x.frames, 0};
    memcpy(&facts[4], &x.fps, sizeof(x.fps));
    out->image = x;
    out->facts = x.cause ? facts_of_bad() : facts_of(facts, sizeof(facts) / sizeof(*facts));
    return ST_OK;
}

static status read_text(const json_value *r, const char *from, told *out)
{
    int64_t tokens = 0, targets = 0;
    index_sample x = {.cause = json_text(json_find(r, "cause"), NULL)};
    if (!x.cause) {
        TRY(json_want_int(r, "tokens", from, &tokens));
        TRY(json_want_int(r, "targets", from, &targets));
        if (tokens < 1 || targets < 0 || targets > tokens || tokens > INT32_MAX)
            return FAIL_IN(ST_PROTOCOL, from,
                           "the worker told an impossible text of %lld tokens with %lld targets",
                           (long long)tokens, (long long)targets);
        x.text_tokens = (int32_t)tokens;
        x.targets = (int32_t)targets;
    }
    out->text = x;
    out->facts = x.cause ? facts_of_bad() : facts_of((int64_t[]){tokens, targets}, 2);
    return ST_OK;
}

/* Reads the records of item [n] into out [n]. */
static status read_all(const lease *l, const int64_t *item, int64_t n, const json_value *records,
                       bool elsewhere, const char *from, told *out)
{
    const json_value *list;
    TRY(json_want_array(records, "records", from, &list));
    if ((int64_t)json_count(list) != n)
        return FAIL_IN(ST_PROTOCOL, from, "the worker sent %zu records for a lease of %lld items",
                       json_count(list), (long long)n);
    for (int64_t k = 0; k < n; k++) {
        const json_value *r = json_item(list, (size_t)k);
        if (l->kind == LEASE_IMAGES)
            TRY(read_image(l->owner, item[k], r, elsewhere, from, &out[k]));
        else
            TRY(read_text(r, from, &out[k]));
    }
    return ST_OK;
}

/* Puts the records that count into the index. */
static status put_settled(dispatch *d, lease *l, const int64_t *item, const told *t, int64_t n,
                          const worker_seat *worker, const char *from)
{
    source *section = l->owner;
    bool settled[INDEX_LEASE_ITEMS];
    uint64_t facts[INDEX_LEASE_ITEMS];
    for (int64_t k = 0; k < n; k++)
        facts[k] = t[k].facts;
    TRY(claims_settle(d, l, item, facts, n, worker, from, settled));
    for (int64_t k = 0; k < n; k++) {
        if (!settled[k])
            continue;
        if (l->kind == LEASE_IMAGES)
            TRY(index_put_image(section->index, item[k], &t[k].image));
        else
            TRY(index_put_sample(section->index, item[k], &t[k].text));
        section->build.left--;
        section->build.images_left -= l->kind == LEASE_IMAGES;
    }
    return ST_OK;
}

status index_build_take(dispatch *d, lease *l, const json_value *records, const worker_seat *worker,
                        const char *from)
{
    const int64_t solo = lease_solo_item(l), n = solo >= 0 ? 1 : l->n_items;
    const int64_t *item = solo >= 0 ? l->untried : l->item;
    told t[INDEX_LEASE_ITEMS];
    const status st = read_all(l, item, n, records, !worker->local, from, t);
    if (st == ST_BAD_INPUT) { /* it is the message that is bad, not the data set */
        status_note why = *status_last();
        why.code = ST_PROTOCOL;
        status_set(&why);
        return ST_PROTOCOL;
    }
    TRY(st);
    TRY(put_settled(d, l, item, t, n, worker, from));
    if (solo >= 0)
        lease_drop_item(l, solo);
    else
        l->n_items = 0;
    return index_build_finish(l->owner);
}
