/* SPDX-License-Identifier: Apache-2.0 */
/* orient.c: reads a TIFF directory, which is what an EXIF block is, as Pillow does, and searches
 * XMP for a text. */
#include "prepd/sample/decode/orient.h"

enum {
    ORIENTATION_TAG = 0x0112,
    ENTRY_BYTES = 12, /* tag 2, type 2, count 4, value or offset 4 */
    INLINE_BYTES = 4, /* a longer value stands at an offset */
    UPRIGHT = 1,
    PROFILE_BYTES = 4096, /* read of a raw profile, whose first directory is near its beginning */
};

/* The types of an entry, with their numbers in TIFF, and the bytes of one value. */
typedef enum tiff_type {
    TYPE_BYTE = 1,
    TYPE_ASCII,
    TYPE_SHORT,
    TYPE_LONG,
    TYPE_RATIONAL,
    TYPE_SIGNED_BYTE,
    TYPE_UNDEFINED,
    TYPE_SIGNED_SHORT,
    TYPE_SIGNED_LONG,
    TYPE_SIGNED_RATIONAL,
    TYPE_FLOAT,
    TYPE_DOUBLE,
    TYPE_IFD,
    TYPE_LONG8 = 16,
    N_TYPES
} tiff_type;

static const uint8_t type_bytes[N_TYPES] = {
    [TYPE_BYTE] = 1,        [TYPE_ASCII] = 1,
    [TYPE_SHORT] = 2,       [TYPE_LONG] = 4,
    [TYPE_RATIONAL] = 8,    [TYPE_SIGNED_BYTE] = 1,
    [TYPE_UNDEFINED] = 1,   [TYPE_SIGNED_SHORT] = 2,
    [TYPE_SIGNED_LONG] = 4, [TYPE_SIGNED_RATIONAL] = 8,
    [TYPE_FLOAT] = 4,       [TYPE_DOUBLE] = 8,
    [TYPE_IFD] = 4,         [TYPE_LONG8] = 8,
};

typedef struct tiff {
    span bytes;
    bool big_endian;
} tiff;

static uint32_t tiff_u16(const tiff *tags, size_t at)
{
    const uint8_t *from = tags->bytes.data + at;
    return tags->big_endian ? (uint32_t)from[0] << 8 | from[1] : load_u16(from);
}

static uint32_t tiff_u32(const tiff *tags, size_t at)
{
    return tags->big_endian ? tiff_u16(tags, at) << 16 | tiff_u16(tags, at + 2)
                            : load_u32(tags->bytes.data + at);
}

static uint64_t tiff_u64(const tiff *tags, size_t at)
{
    const uint64_t first = tiff_u32(tags, at), second = tiff_u32(tags, at + 4);
    return tags->big_endian ? first << 32 | second : second << 32 | first;
}

/* The number at `at`; 0 for types that hold no number (bytes and texts). */
static double number_of(const tiff *tags, uint32_t type, size_t at)
{
    uint32_t bits;
    uint64_t long_bits;
    float real;
    double long_real;
    switch (type) {
    case TYPE_SIGNED_BYTE:
        return tags->bytes.data[at];
    case TYPE_SHORT:
    case TYPE_SIGNED_SHORT:
        return tiff_u16(tags, at);
    case TYPE_LONG:
    case TYPE_SIGNED_LONG:
    case TYPE_IFD:
        return tiff_u32(tags, at);
    case TYPE_LONG8:
        return (double)tiff_u64(tags, at);
    case TYPE_RATIONAL:
    case TYPE_SIGNED_RATIONAL:
        return (double)(int32_t)tiff_u32(tags, at) / (double)(int32_t)tiff_u32(tags, at + 4);
    case TYPE_FLOAT:
        bits = tiff_u32(tags, at);
        memcpy(&real, &bits, sizeof real);
        return real;
    case TYPE_DOUBLE:
        long_bits = tiff_u64(tags, at);
        memcpy(&long_real, &long_bits, sizeof long_real);
        return long_real;
    default:
        return 0;
    }
}

/* Upright unless the value is a whole number from 1 to 8. */
static int orientation_of(double value)
{
    for (int i = 1; i <= 8; i++)
        if (value == i)
            return i;
    return UPRIGHT;
}

/* Walks over a directory as Pillow does. The last entry of a tag counts, and the first of its
 * values. An entry of unknown type or without values is skipped; one that lies outside the block
 * ends the walk. */
static int walk(const tiff *tags, size_t directory)
{
    int found = 0;
    const uint32_t n_entries = tiff_u16(tags, directory);
    for (uint32_t i = 0; i < n_entries; i++) {
        const size_t at = directory + 2 + (size_t)i * ENTRY_BYTES;
        if (!span_holds(tags->bytes, at, ENTRY_BYTES))
            break;
        const uint32_t type = tiff_u16(tags, at + 2);
        if (type >= N_TYPES || type_bytes[type] == 0)
            continue;
        const uint64_t size = (uint64_t)tiff_u32(tags, at + 4) * type_bytes[type];
        const size_t value = size > INLINE_BYTES ? tiff_u32(tags, at + 8) : at + 8;
        if (size > INLINE_BYTES && !span_holds(tags->bytes, value, size))
            break;
        if (tiff_u16(tags, at) == ORIENTATION_TAG && size > 0)
            found = orientation_of(number_of(tags, type, value));
    }
    return found;
}

int orient_from_exif(span exif)
{
    if (exif.size >= 6 && memcmp(exif.data, "Exif\0\0", 6) == 0)
        exif = span_of(exif.data + 6, exif.size - 6);
    if (exif.size < 8)
        return 0;
    tiff tags = {exif, false};
    if (memcmp(exif.data, "MM\0*", 4) == 0)
        tags.big_endian = true;
    else if (memcmp(exif.data, "II*\0", 4) != 0)
        return 0;
    const size_t directory = tiff_u32(&tags, 4);
    return span_holds(exif, directory, 2) ? walk(&tags, directory) : 0;
}

static int hex_digit(char letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter = (char)(letter | 0x20);
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

int orient_from_raw_profile(const char *text)
{
    for (int line = 0; line < 3; line++) {
        text = strchr(text, '\n');
        if (!text)
            return 0;
        text++;
    }
    uint8_t exif[PROFILE_BYTES];
    size_t count = 0;
    while (count < sizeof exif && *text) {
        if (*text == '\n') {
            text++;
            continue;
        }
        const int high = hex_digit(text[0]), low = high < 0 ? -1 : hex_digit(text[1]);
        if (low < 0)
            break;
        exif[count++] = (uint8_t)(high << 4 | low);
        text += 2;
    }
    return orient_from_exif(span_of(exif, count));
}

int orient_from_xmp(span xmp)
{
    static const char key[] = "tiff:Orientation";
    const size_t count = sizeof key - 1;
    for (size_t at = 0; span_holds(xmp, at, count + 2); at++) {
        if (memcmp(xmp.data + at, key, count) != 0)
            continue;
        const uint8_t *from = xmp.data + at + count, *end = xmp.data + xmp.size;
        if (*from == '>')
            from++;
        else if (from[0] == '=' && from[1] == '"')
            from += 2;
        else
            continue;
        if (from < end && *from >= '0' && *from <= '9')
            return *from >= '1' && *from <= '8' ? *from - '0' : 1;
    }
    return 0;
}

void orient_apply(int orientation, const uint8_t *in, int32_t height, int32_t width, uint8_t *out)
{
    const int64_t long_width = width, long_height = height, last = long_width * long_height - 1;
    /* Pixel (i, j) of the result is pixel origin + i * down + j * right of the input. */
    int64_t origin = 0, right = 1, down = long_width;
    switch (orientation) {
    case 2:
        origin = long_width - 1, right = -1, down = long_width;
        break;
    case 3:
        origin = last, right = -1, down = -long_width;
        break;
    case 4:
        origin = long_width * (long_height - 1), right = 1, down = -long_width;
        break;
    case 5:
        origin = 0, right = long_width, down = 1;
        break;
    case 6:
        origin = long_width * (long_height - 1), right = -long_width, down = 1;
        break;
    case 7:
        origin = last, right = -long_width, down = -1;
        break;
    case 8:
        origin = long_width - 1, right = long_width, down = -1;
        break;
    default:
        break;
    }
    const int64_t out_width = orient_swaps_sides(orientation) ? long_height : long_width;
    const int64_t out_height = orient_swaps_sides(orientation) ? long_width : long_height;
    for (int64_t i = 0; i < out_height; i++) {
        for (int64_t j = 0; j < out_width; j++, out += 3) {
            const uint8_t *at = in + (origin + i * down + j * right) * 3;
            out[0] = at[0];
            out[1] = at[1];
            out[2] = at[2];
        }
    }
}
