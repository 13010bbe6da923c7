/* SPDX-License-Identifier: Apache-2.0 */
/* index_records.c: reads the records that a worker sends for a lease of the index. All of a message
 * are read and checked before the first one counts. */
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"

/* A record as a decider told it. */
typedef struct told {
    index_image image;
    index_sample text;
    index_beginning begins; /* only where the index has beginnings */
} told;

static status read_size(const source *section, const json_value *result, const char *from,
                        index_image *image)
{
    int64_t width = 0, height = 0;
    TRY(json_want_int(result, "width", from, &width));
    TRY(json_want_int(result, "height", from, &height));
    image->frames = json_int(json_find(result, "frames"), 0);
    image->fps = json_real(json_find(result, "fps"), 0);
    const int64_t most = image->frames ? INT32_MAX : section->options.image_input_pixels;
    if (width < 1 || height < 1 || width > INT32_MAX || height > INT32_MAX || width > most / height)
        return FAIL_IN(ST_PROTOCOL, from,
                       "the worker reported an impossible image of %lld x %lld pixels",
                       (long long)width, (long long)height);
    image->width = (int32_t)width;
    image->height = (int32_t)height;
    return ST_OK;
}

/* elsewhere: the worker is remote. Its copy of the file may have another modification time, so the
 * dispatcher's is taken, which is what the next start will compare with. */
static status read_image(const source *section, int64_t item, const json_value *result,
                         bool elsewhere, const char *from, told *out)
{
    index_image image = {.cause = json_text(json_find(result, "cause"), NULL)};
    TRY(json_want_int(result, "bytes", from, &image.file_bytes));
    TRY(json_want_int(result, "mtime", from, &image.mtime_ns));
    if (elsewhere && image.mtime_ns) {
        int64_t bytes, mtime_ns;
        section->of->outside.stat_image(section->of->outside.shell, section, item, &bytes,
                                        &mtime_ns);
        if (bytes >= 0)
            image.mtime_ns = mtime_ns;
    }
    if (!image.cause)
        TRY(read_size(section, result, from, &image));
    out->image = image;
    return ST_OK;
}

/* Whether the text that an item is compared with has been refused. */
static bool is_predecessor_refused(const source *section, int64_t before)
{
    index_sample record;
    if (!index_has_sample(section->index, before))
        return false;
    index_sample_get(section->index, before, &record);
    return record.cause != NULL;
}

/* Reads how the sample begins into value [3]: agrees, head, first label. A predecessor that was
 * refused while the worker compared with it counts as absent, as it does for workers after it. */
static status read_beginning(const source *section, int64_t item, const json_value *result,
                             int64_t tokens, const char *from, int64_t *value, told *out)
{
    const int64_t back = predecessors_back(section->build.before, item);
    TRY(json_want_int(result, "agrees", from, &value[0]));
    TRY(json_want_int(result, "head", from, &value[1]));
    TRY(json_want_int(result, "first_label", from, &value[2]));
    if (value[0] < 0 || value[0] > (back ? tokens : 0) || value[1] < 0 || value[1] >= tokens ||
        value[2] < 1 || value[2] >= tokens)
        return FAIL_IN(ST_PROTOCOL, from,
                       "the worker reported an impossible beginning of a text of %lld tokens: %lld "
                       "in common with another, %lld before the last image, and the first label at "
                       "%lld",
                       (long long)tokens, (long long)value[0], (long long)value[1],
                       (long long)value[2]);
    if (is_predecessor_refused(section, item - back))
        value[0] = 0;
    out->begins = (index_beginning){back, (int32_t)value[0], (int32_t)value[1], (int32_t)value[2]};
    return ST_OK;
}

static status read_text(const source *section, int64_t item, const json_value *result,
                        const char *from, told *out)
{
    const bool begins = index_has_beginnings(section->index);
    int64_t tokens = 0, targets = 0, beginning[3] = {0};
    out->begins = (index_beginning){0};
    index_sample record = {.cause = json_text(json_find(result, "cause"), NULL)};
    if (!record.cause) {
        TRY(json_want_int(result, "tokens", from, &tokens));
        TRY(json_want_int(result, "targets", from, &targets));
        if (tokens < 1 || targets < 0 || targets > tokens || tokens > INT32_MAX)
            return FAIL_IN(
                ST_PROTOCOL, from,
                "the worker reported an impossible text of %lld tokens with %lld targets",
                (long long)tokens, (long long)targets);
        record.text_tokens = (int32_t)tokens;
        record.targets = (int32_t)targets;
        if (begins)
            TRY(read_beginning(section, item, result, tokens, from, beginning, out));
    }
    out->text = record;
    return ST_OK;
}

/* Reads the records of item [count] into out [count]. */
static status read_all(const lease *leased, const int64_t *item, int64_t count,
                       const json_value *records, bool elsewhere, const char *from, told *out)
{
    const json_value *list;
    TRY(json_want_array(records, "records", from, &list));
    if ((int64_t)json_count(list) != count)
        return FAIL_IN(ST_PROTOCOL, from, "the worker sent %zu records for a lease of %lld items",
                       json_count(list), (long long)count);
    for (int64_t k = 0; k < count; k++) {
        const json_value *result = json_item(list, (size_t)k);
        if (leased->kind == LEASE_IMAGES)
            TRY(read_image(leased->owner, item[k], result, elsewhere, from, &out[k]));
        else
            TRY(read_text(leased->owner, item[k], result, from, &out[k]));
    }
    return ST_OK;
}

static status put_all(const lease *leased, const int64_t *item, const told *change, int64_t count)
{
    source *section = leased->owner;
    for (int64_t k = 0; k < count; k++) {
        if (leased->kind == LEASE_IMAGES)
            TRY(index_put_image(section->index, item[k], &change[k].image));
        else
            TRY(index_put_sample(section->index, item[k], &change[k].text));
        if (leased->kind == LEASE_TEXTS && index_has_beginnings(section->index))
            TRY(index_put_beginning(section->index, item[k], &change[k].begins));
        section->build.left--;
        section->build.images_left -= leased->kind == LEASE_IMAGES;
    }
    return ST_OK;
}

status index_build_take(lease *leased, const json_value *records, const worker_seat *worker,
                        const char *from)
{
    const int64_t solo = lease_solo_item(leased),
                  count = solo != LEASE_NO_ITEM ? 1 : leased->n_items;
    const int64_t *item = solo != LEASE_NO_ITEM ? leased->untried : leased->item;
    told change[INDEX_LEASE_ITEMS];
    const status st = read_all(leased, item, count, records, !worker->local, from, change);
    if (st == ST_BAD_INPUT) { /* it is the message that is bad, not the data set */
        status_note why = *status_last();
        why.code = ST_PROTOCOL;
        status_set(&why);
        return ST_PROTOCOL;
    }
    TRY(st);
    TRY(put_all(leased, item, change, count));
    if (solo != LEASE_NO_ITEM)
        lease_drop_item(leased, solo);
    else
        leased->n_items = 0;
    return index_build_finish(leased->owner);
}
