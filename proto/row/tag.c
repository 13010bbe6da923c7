/* SPDX-License-Identifier: Apache-2.0 */
/* tag.c: holds a row against what the dispatcher ordered. */
#include "proto/row/tag.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json/json.h"

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

/* --- the fast reader ---
 *
 * A row of texts is opened in a tenth of a millisecond, of which a parsed tag would be a twelfth.
 * So a tag is first read as the dispatcher writes it: with these members, in this order and without
 * spaces, and with texts of ASCII. Nothing is built of it. Whatever is written otherwise, or
 * differs from the row, is left to the reader that parses the whole tag and says what is wrong. */

/* Where the reading is. The last byte of a tag is '}', at which every text and number is left. */
typedef struct scan {
    const char *at, *end;
    char *to; /* where the next text goes */
    const row *packed;
} scan;

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Whether these bytes come next; then it continues after them. */
ALWAYS_INLINE bool take_bytes(scan *of, const char *bytes, size_t size)
{
    if ((size_t)(of->end - of->at) < size || memcmp(of->at, bytes, size) != 0)
        return false;
    of->at += size;
    return true;
}
#define TAKE(of, literal) take_bytes(of, literal, sizeof(literal) - 1)

/* Whether this number comes next, as JSON has it. */
ALWAYS_INLINE bool take_number(scan *of, int64_t number)
{
    enum { MOST_DIGITS = 19 }; /* more may not fit */
    const bool is_negative = *of->at == '-';
    const char *first = of->at + is_negative, *at = first;
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        value = 10 * value + (uint64_t)(*at - '0');
    of->at = at;
    return at > first && at - first <= MOST_DIGITS && (*first != '0' || at == first + 1) &&
           is_negative == (number < 0) &&
           value == (is_negative ? -(uint64_t)number : (uint64_t)number);
}

/* Bytes that are not simply copied: a quote and a backslash, what is no printable ASCII, and '}',
 * at which every text is looked at closer, since a tag ends with it. */
static const bool is_special[256] = {
    [0 ... ' ' - 1] = true, ['"'] = true, ['\\'] = true, ['}'] = true, [127 ... 255] = true};

/* Reads the rest of a text and the quote that ends it. */
static bool scan_text(scan *of, const char **out)
{
    char *to = of->to;
    const unsigned char *at = (const unsigned char *)of->at,
                        *last = (const unsigned char *)of->end - 1;
    *out = to;
    for (;; *to++ = (char)*at++) {
        for (; !is_special[*at]; *to++ = (char)*at++)
            ;
        if (*at == '"')
            break;
        if (at == last || *at < ' ' || *at > 127)
            return false;
        if (*at == '\\' && *++at != '"' && *at != '\\') /* a byte comes after it: the last is '}' */
            return false;
    }
    *to++ = 0;
    of->to = to;
    of->at = (const char *)at + 1;
    return true;
}

/* Compares a list, up to the bracket that ends it. */
ALWAYS_INLINE bool take_list(scan *of, int64_t count, number_at at)
{
    const row packed = *of->packed; /* of which nothing here changes, as the compiler sees too */
    for (int64_t i = 0; i < count; i++)
        if ((i > 0 && !TAKE(of, ",")) || !take_number(of, at(&packed, i)))
            return false;
    return TAKE(of, "]");
}

/* Compares how many targets each document has, where that is said. */
static bool take_targets(scan *of)
{
    for (int64_t doc = 0; doc < of->packed->n_docs; doc++)
        if ((doc > 0 && !TAKE(of, ",")) ||
            (!TAKE(of, "null") && !take_number(of, targets_at(of->packed, doc))))
            return false;
    return TAKE(of, "]");
}

static bool take_lists(scan *of)
{
    const row *packed = of->packed;
    return TAKE(of, ",\"ids\":[") && take_list(of, packed->n_docs, id_at) &&
           TAKE(of, ",\"parts\":[") && take_list(of, packed->n_docs, part_at) &&
           TAKE(of, ",\"prefixes\":[") && take_list(of, packed->n_docs, prefix_at) &&
           TAKE(of, ",\"lengths\":[") && take_list(of, packed->n_docs, length_at) &&
           TAKE(of, ",\"targets\":[") && take_targets(of) && TAKE(of, ",\"grids\":[") &&
           take_list(of, 3 * packed->n_items, grid_at);
}

bool tag_scan(span tag, uint64_t number, const row *packed, char *to, tag_texts *out)
{
    const char *text = (const char *)tag.data;
    scan of = {text, text + tag.size, to, packed};
    if (tag.size == 0 || text[tag.size - 1] != '}')
        return false;
    out->references = "";
    return TAKE(&of, "{\"row\":") && take_number(&of, (int64_t)number) &&
           TAKE(&of, ",\"worker\":\"") && scan_text(&of, &out->worker) && take_lists(&of) &&
           TAKE(&of, ",\"cursor\":\"") && scan_text(&of, &out->cursor) &&
           TAKE(&of, ",\"quarantine\":\"") && scan_text(&of, &out->quarantine) &&
           (!TAKE(&of, ",\"references\":\"") || scan_text(&of, &out->references)) &&
           TAKE(&of, "}") && of.at == of.end;
}

status tag_apply(span text, const frame *head, const char *peer, arena *memory, row *inout)
{
    const arena_mark before = arena_save(memory);
    json_value *tag = NULL;
    char place[PLACE_TEXT], *to;
    tag_texts texts;
    TRY(arena_alloc(memory, tag_texts_bytes(text), (void **)&to));
    if (tag_scan(text, head->row, inout, to, &texts)) {
        inout->worker = texts.worker;
        inout->cursor = texts.cursor;
        inout->quarantine = texts.quarantine;
        inout->references = texts.references;
        return ST_OK;
    }
    arena_release(memory, before);
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
