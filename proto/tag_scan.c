/* tag_scan.c: see tag_scan.h.
 *
 * What a tag must say is known from the row, so its numbers are not read: they are written as the
 * dispatcher writes them, and the texts are compared. */
#include "proto/tag_scan.h"

#include <string.h>

/* Where the reading is. The last byte of a tag is '}', at which every text is left. */
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

/* Numbers are written as words of digits, the first the lowest, four of them or seven, and a comma.
 * The longest text of a number has 20 bytes; with its comma, and with what is written after it and
 * not kept, it takes up to 28. */
enum { FOUR = 10000, SEVEN = 10000000, NUMBER_BYTES = 28 };
#define FOUR_ZEROS  UINT64_C(0x2c30303030) /* and a comma */
#define SEVEN_ZEROS UINT64_C(0x2c30303030303030)

/* The digits of a number below 10^4 in the order of its text, 0 to 9 a byte. It is split into pairs
 * and then into single ones: each line has x / n | x % n << bits. */
ALWAYS_INLINE uint32_t four_digits(uint32_t number)
{
    const uint32_t hundreds = number * 5243 >> 19;
    const uint32_t pairs = (number << 16) - hundreds * ((100 << 16) - 1);
    const uint32_t tens = (pairs * 103 >> 10) & 0x000f000f;
    return (pairs << 8) - tens * ((10 << 8) - 1);
}

/* The same of a number below 10^7. */
ALWAYS_INLINE uint64_t seven_digits(uint32_t number)
{
    return (four_digits(number / FOUR) | (uint64_t)four_digits(number % FOUR) << 32) >> 8;
}

/* Writes `count` digits, of which the first zeros are left out, and a comma. Returns where they
 * end; what is after that, to the end of the word, is written too. */
ALWAYS_INLINE char *put_digits(char *to, uint64_t digits, int count, uint64_t zeros)
{
    const int left_out = __builtin_ctzll(digits | UINT64_C(1) << 8 * (count - 1)) & ~7;
    store_u64((uint8_t *)to, (digits | zeros) >> left_out);
    return to + count + 1 - left_out / 8;
}

/* Writes a number below 10^7 and a comma, as put_digits. */
ALWAYS_INLINE char *put_small(char *to, uint32_t number)
{
    if (number < FOUR)
        return put_digits(to, four_digits(number), 4, FOUR_ZEROS);
    return put_digits(to, seven_digits(number), 7, SEVEN_ZEROS);
}

static char *put_large(char *to, uint64_t number)
{
    if (number < SEVEN)
        return put_small(to, (uint32_t)number);
    to = put_large(to, number / SEVEN) - 1;
    store_u64((uint8_t *)to, seven_digits((uint32_t)(number % SEVEN)) | SEVEN_ZEROS);
    return to + 8;
}

/* Writes a number as JSON has it, and a comma, into NUMBER_BYTES. Returns where they end. */
ALWAYS_INLINE char *put_number(char *to, int64_t number)
{
    if ((uint64_t)number < SEVEN)
        return put_small(to, (uint32_t)number);
    if (number >= 0)
        return put_large(to, (uint64_t)number);
    *to = '-';
    return put_large(to + 1, -(uint64_t)number);
}

/* Bytes that are not simply copied: a quote and a backslash, what is no printable ASCII, and '}',
 * at which every text is looked at closer, since a tag ends with it. */
static const bool is_special[256] = {
    [0 ... ' ' - 1] = true, ['"'] = true, ['\\'] = true, ['}'] = true, [127 ... 255] = true};

/* Reads the rest of a text and the quote that ends it. */
static bool take_text(scan *of, const char **out)
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

/* A number of the row. */
typedef int64_t (*row_number)(const row *packed, int64_t index);

/* Compares a list, up to the bracket that ends it, as many numbers at once as the text holds. */
ALWAYS_INLINE bool take_list(scan *of, int64_t count, row_number number)
{
    enum { MANY = 64 };
    char text[MANY * NUMBER_BYTES];
    const row packed = *of->packed; /* of which writing changes nothing, as the compiler sees too */
    for (int64_t i = 0; i < count;) {
        const int64_t end = count - i < MANY ? count : i + MANY;
        char *to = text;
        for (; i < end; i++)
            to = put_number(to, number(&packed, i));
        if (!take_bytes(of, text, (size_t)(to - text) - (end == count)))
            return false;
    }
    return TAKE(of, "]");
}

/* Compares one number. */
static bool take_number(scan *of, int64_t number)
{
    char text[NUMBER_BYTES];
    return take_bytes(of, text, (size_t)(put_number(text, number) - text) - 1);
}

ALWAYS_INLINE int64_t id_at(const row *packed, int64_t doc)
{
    return (int64_t)packed->doc_sample_id[doc];
}

ALWAYS_INLINE int64_t part_at(const row *packed, int64_t doc)
{
    return packed->doc_part[doc];
}

ALWAYS_INLINE int64_t prefix_at(const row *packed, int64_t doc)
{
    return packed->doc_prefix[doc];
}

ALWAYS_INLINE int64_t length_at(const row *packed, int64_t doc)
{
    return packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc];
}

ALWAYS_INLINE int64_t grid_at(const row *packed, int64_t index)
{
    return packed->grid_thw[index];
}

ALWAYS_INLINE int64_t most_targets_at(const row *packed, int64_t doc)
{
    return length_at(packed, doc) - 1;
}

/* ALIKE numbers, as a list has them. */
enum { ALIKE = 64 };
#define TIMES_8(text) text text text text text text text text
static const char many_zeros[] = TIMES_8(TIMES_8("0,")), many_nones[] = TIMES_8(TIMES_8("-1,"));

/* Compares a list of which all numbers are the same one. */
static bool take_alike(scan *of, int64_t count, const char *many, size_t each)
{
    for (; count > ALIKE; count -= ALIKE)
        if (!take_bytes(of, many, ALIKE * each))
            return false;
    return (count == 0 || take_bytes(of, many, (size_t)count * each - 1)) && TAKE(of, "]");
}

static bool take_parts(scan *of)
{
    const row *packed = of->packed;
    int32_t any = 0;
    for (int64_t doc = 0; doc < packed->n_docs; doc++)
        any |= packed->doc_part[doc];
    return any ? take_list(of, packed->n_docs, part_at)
               : take_alike(of, packed->n_docs, many_zeros, 2);
}

static bool take_prefixes(scan *of)
{
    return of->packed->doc_prefix ? take_list(of, of->packed->n_docs, prefix_at)
                                  : take_alike(of, of->packed->n_docs, many_nones, 3);
}

/* Whether all tokens but the first of each document are targets. The first is none, so no document
 * has more, and all can be counted together. */
static bool are_all_targets(const row *packed)
{
    return row_count_targets(packed, 0, packed->n_docs) == packed->n_tokens - packed->n_docs;
}

/* Compares how many targets each document has, where that is told. */
static bool take_each_targets(scan *of)
{
    const row *packed = of->packed;
    for (int64_t doc = 0; doc < packed->n_docs; doc++)
        if ((doc > 0 && !TAKE(of, ",")) ||
            (!TAKE(of, "null") && !take_number(of, row_count_targets(packed, doc, doc + 1))))
            return false;
    return TAKE(of, "]");
}

/* The same. Plain texts are said to have as many targets as they can. */
static bool take_targets(scan *of)
{
    const scan before = *of;
    if (take_list(of, of->packed->n_docs, most_targets_at))
        return are_all_targets(of->packed);
    *of = before;
    return take_each_targets(of);
}

static bool take_lists(scan *of)
{
    const row *packed = of->packed;
    return TAKE(of, ",\"ids\":[") && take_list(of, packed->n_docs, id_at) &&
           TAKE(of, ",\"parts\":[") && take_parts(of) && TAKE(of, ",\"prefixes\":[") &&
           take_prefixes(of) && TAKE(of, ",\"lengths\":[") &&
           take_list(of, packed->n_docs, length_at) && TAKE(of, ",\"targets\":[") &&
           take_targets(of) && TAKE(of, ",\"grids\":[") &&
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
           TAKE(&of, ",\"worker\":\"") && take_text(&of, &out->worker) && take_lists(&of) &&
           TAKE(&of, ",\"cursor\":\"") && take_text(&of, &out->cursor) &&
           TAKE(&of, ",\"quarantine\":\"") && take_text(&of, &out->quarantine) &&
           (!TAKE(&of, ",\"references\":\"") || take_text(&of, &out->references)) &&
           TAKE(&of, "}") && of.at == of.end;
}
