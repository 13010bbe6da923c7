/* tag_scan.c: see tag_scan.h. */
#include "proto/tag_scan.h"

#include <string.h>

/* Where the reading is. The last byte of a tag is '}', at which every run of digits ends. */
typedef struct scan {
    const char *at, *end;
    char *to; /* where the next text goes */
    const row *packed;
} scan;

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Whether these bytes come next; then it goes on after them. */
ALWAYS_INLINE bool take_bytes(scan *of, const char *bytes, size_t size)
{
    if ((size_t)(of->end - of->at) < size || memcmp(of->at, bytes, size) != 0)
        return false;
    of->at += size;
    return true;
}
#define TAKE(of, literal) take_bytes(of, literal, sizeof(literal) - 1)

/* Reads a whole number of at most 18 digits. */
ALWAYS_INLINE bool take_number(scan *of, int64_t *out)
{
    enum { MOST_DIGITS = 18 };
    const char *at = of->at;
    if (at == of->end)
        return false;
    const bool minus = *at == '-';
    const char *first = at += minus;
    uint64_t value = 0;
    for (unsigned digit; (digit = (unsigned)(unsigned char)*at - '0') <= 9; at++)
        value = value * 10 + digit;
    if (at == first || at - first > MOST_DIGITS || (*first == '0' && at - first > 1))
        return false;
    of->at = at;
    *out = minus ? -(int64_t)value : (int64_t)value;
    return true;
}

/* Reads the rest of a text and the quote that ends it. */
static bool take_text(scan *of, const char **out)
{
    char *to = of->to;
    const char *at = of->at;
    *out = to;
    for (; at < of->end && *at != '"'; at++) {
        if (*at == '\\') {
            at++; /* another byte comes, for the last one is '}' */
            if (*at != '"' && *at != '\\')
                return false;
        } else if ((signed char)*at < ' ') { /* also whatever is not ASCII */
            return false;
        }
        *to++ = *at;
    }
    if (at == of->end)
        return false;
    *to++ = 0;
    of->to = to;
    of->at = at + 1;
    return true;
}

/* A number of the row. */
typedef int64_t (*row_number)(const row *packed, int64_t index);

/* Compares a list, up to the bracket that ends it. A null is not compared. */
ALWAYS_INLINE bool take_list(scan *of, int64_t count, row_number number)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t told;
        if (i > 0 && !TAKE(of, ","))
            return false;
        if (TAKE(of, "null"))
            continue;
        if (!take_number(of, &told) || told != number(of->packed, i))
            return false;
    }
    return TAKE(of, "]");
}

ALWAYS_INLINE int64_t id_at(const row *packed, int64_t doc)
{
    return (int64_t)packed->doc_sample_id[doc];
}

ALWAYS_INLINE int64_t part_at(const row *packed, int64_t doc)
{
    return packed->doc_part[doc];
}

ALWAYS_INLINE int64_t no_prefix(const row *packed, int64_t doc)
{
    (void)packed, (void)doc;
    return -1;
}

ALWAYS_INLINE int64_t prefix_at(const row *packed, int64_t doc)
{
    return packed->doc_prefix[doc];
}

ALWAYS_INLINE int64_t length_at(const row *packed, int64_t doc)
{
    return packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc];
}

ALWAYS_INLINE int64_t targets_at(const row *packed, int64_t doc)
{
    return row_count_targets(packed, doc);
}

ALWAYS_INLINE int64_t grid_at(const row *packed, int64_t index)
{
    return packed->grid_thw[index];
}

static bool take_lists(scan *of)
{
    const row *packed = of->packed;
    const int64_t n_docs = packed->n_docs;
    return TAKE(of, ",\"ids\":[") && take_list(of, n_docs, id_at) && TAKE(of, ",\"parts\":[") &&
           take_list(of, n_docs, part_at) && TAKE(of, ",\"prefixes\":[") &&
           (packed->doc_prefix ? take_list(of, n_docs, prefix_at)
                               : take_list(of, n_docs, no_prefix)) &&
           TAKE(of, ",\"lengths\":[") && take_list(of, n_docs, length_at) &&
           TAKE(of, ",\"targets\":[") && take_list(of, n_docs, targets_at) &&
           TAKE(of, ",\"grids\":[") && take_list(of, 3 * packed->n_items, grid_at);
}

bool tag_scan(span tag, uint64_t number, const row *packed, char *to, tag_texts *out)
{
    const char *text = (const char *)tag.data;
    scan of = {text, text + tag.size, to, packed};
    int64_t told;
    if (tag.size == 0 || text[tag.size - 1] != '}')
        return false;
    out->references = "";
    return TAKE(&of, "{\"row\":") && take_number(&of, &told) && (uint64_t)told == number &&
           TAKE(&of, ",\"worker\":\"") && take_text(&of, &out->worker) && take_lists(&of) &&
           TAKE(&of, ",\"cursor\":\"") && take_text(&of, &out->cursor) &&
           TAKE(&of, ",\"quarantine\":\"") && take_text(&of, &out->quarantine) &&
           (!TAKE(&of, ",\"references\":\"") || take_text(&of, &out->references)) &&
           TAKE(&of, "}") && of.at == of.end;
}
