/* tag.c: holds a row against what the dispatcher ordered. */
#include "proto/tag.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json/json.h"
#include "proto/tag_scan.h"

enum { PLACE_TEXT = 512 };

/* Names the worker in the failure that the thread has noted. */
static status blame_worker(const json_value *tag)
{
    return status_context(ST_PROTOCOL, "the row made by worker %s is not what was ordered",
                          json_text(json_find(tag, "worker"), "-"));
}

/* Checks that a member has as many numbers as are told, and that they are those of the row. `at`
 * reads the row's. A null in the tag is not compared. */
typedef int64_t (*number_at)(const row *packed, int64_t index);

static status compare_numbers(const json_value *tag, const char *member, const row *packed,
                              int64_t count, number_at at)
{
    const json_value *list = json_find(tag, member);
    if ((int64_t)json_count(list) != count)
        return FAIL(ST_PROTOCOL, "it has %" PRId64 " %s, but %zu were ordered", count, member,
                    json_count(list));
    for (int64_t i = 0; i < count; i++) {
        const json_value *told = json_item(list, (size_t)i);
        if (json_typeof(told) == JSON_NULL)
            continue;
        const int64_t is = at(packed, i), was = json_int(told, INT64_MIN);
        if (is != was)
            return FAIL(ST_PROTOCOL, "%s [%" PRId64 "] is %" PRId64 ", but %" PRId64 " was ordered",
                        member, i, is, was);
    }
    return ST_OK;
}

static int64_t id_at(const row *packed, int64_t doc)
{
    return (int64_t)packed->doc_sample_id[doc];
}

static int64_t part_at(const row *packed, int64_t doc)
{
    return packed->doc_part[doc];
}

static int64_t prefix_at(const row *packed, int64_t doc)
{
    return packed->doc_prefix ? packed->doc_prefix[doc] : -1;
}

static int64_t length_at(const row *packed, int64_t doc)
{
    return packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc];
}

static int64_t targets_at(const row *packed, int64_t doc)
{
    return row_count_targets(packed, doc, doc + 1);
}

static int64_t grid_at(const row *packed, int64_t index)
{
    return packed->grid_thw[index];
}

static status compare_all(const json_value *tag, const frame *head, const row *packed)
{
    const struct {
        const char *member;
        int64_t count;
        number_at at;
    } list[] = {{"ids", packed->n_docs, id_at},          {"parts", packed->n_docs, part_at},
                {"prefixes", packed->n_docs, prefix_at}, {"lengths", packed->n_docs, length_at},
                {"targets", packed->n_docs, targets_at}, {"grids", 3 * packed->n_items, grid_at}};
    int64_t number;
    TRY(json_want_int(tag, "row", "tag", &number));
    if ((uint64_t)number != head->row)
        return FAIL(ST_PROTOCOL, "it has the number %" PRIu64 ", but %" PRId64 " was ordered",
                    head->row, number);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        TRY(compare_numbers(tag, list[i].member, packed, list[i].count, list[i].at));
    return ST_OK;
}

static status take_text(const json_value *tag, const char *member, arena *memory, const char **out)
{
    const char *text = json_text(json_find(tag, member), "");
    char *copy;
    TRY(arena_strndup(memory, text, strlen(text), &copy));
    *out = copy;
    return ST_OK;
}

static status take_texts(const json_value *tag, arena *memory, row *packed)
{
    TRY(take_text(tag, "cursor", memory, &packed->cursor));
    TRY(take_text(tag, "quarantine", memory, &packed->quarantine));
    TRY(take_text(tag, "references", memory, &packed->references));
    return take_text(tag, "worker", memory, &packed->worker);
}

/* Tries the fast reader. *out: whether it was enough. */
static status apply_scanned(span text, const frame *head, arena *memory, row *inout, bool *out)
{
    const arena_mark before = arena_save(memory);
    tag_texts texts;
    char *to;
    TRY(arena_alloc(memory, tag_texts_bytes(text), (void **)&to));
    *out = tag_scan(text, head->row, inout, to, &texts);
    if (!*out) {
        arena_release(memory, before);
        return ST_OK;
    }
    inout->worker = texts.worker;
    inout->cursor = texts.cursor;
    inout->quarantine = texts.quarantine;
    inout->references = texts.references;
    return ST_OK;
}

status tag_apply(span text, const frame *head, const char *peer, arena *memory, row *inout)
{
    bool done;
    TRY(apply_scanned(text, head, memory, inout, &done));
    if (done)
        return ST_OK;
    json_value *tag = NULL;
    char place[PLACE_TEXT];
    snprintf(place, sizeof place, "%s, tag of row %" PRIu64, peer, head->row);
    TRY(json_parse((const char *)text.data, text.size, place, &tag));
    status st = compare_all(tag, head, inout);
    if (st != ST_OK)
        st = blame_worker(tag);
    if (st == ST_OK)
        st = take_texts(tag, memory, inout);
    json_free(&tag);
    return st;
}
