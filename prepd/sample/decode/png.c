/* SPDX-License-Identifier: Apache-2.0 */
/* png.c: walks over the chunks of a PNG file. */
#include "prepd/sample/decode/png.h"

#include <string.h>
#include <zlib.h>

enum {
    SIGNATURE = 8,
    FRAME = 12
}; /* a chunk is a length (4), a type (4), its data and a CRC (4) */

/* Gives the chunk at *at (0: the first one) and moves *at past it. Returns false at the end of the
 * file. After a chunk that is not whole there is no other. */
static bool png_next(span bytes, uint64_t *at, png_chunk *out)
{
    const uint64_t here = *at ? *at : SIGNATURE;
    if (!span_holds(bytes, here, FRAME))
        return false;
    const uint8_t *from = bytes.data + here;
    const uint64_t size =
        (uint64_t)from[0] << 24 | (uint64_t)from[1] << 16 | (uint64_t)from[2] << 8 | from[3];
    const bool whole = span_holds(bytes, here, FRAME + size);
    *out = (png_chunk){from + 4, span_of(from + 8, whole ? (size_t)size : 0), whole};
    *at = whole ? here + FRAME + size : bytes.size;
    return true;
}

static bool is_type(const png_chunk *chunk, const char *type)
{
    return memcmp(chunk->type, type, 4) == 0;
}

static bool has(span bytes, const char *type, span *out)
{
    png_chunk chunk;
    for (uint64_t at = 0; png_next(bytes, &at, &chunk) && chunk.whole;) {
        *out = chunk.data;
        if (is_type(&chunk, type))
            return true;
    }
    return false;
}

span png_find(span bytes, const char *type)
{
    span data;
    return has(bytes, type, &data) ? data : span_of(NULL, 0);
}

/* These fields of IHDR stand after the signature (8), a length (4), "IHDR" (4) and the sides (8).
 */
enum { DEPTH_AT = 24, COLOUR_AT = 25, GREY = 0, TRUECOLOUR = 2 };

static int colour_type(span bytes)
{
    return span_holds(bytes, COLOUR_AT, 1) ? bytes.data[COLOUR_AT] : -1;
}

bool png_is_grey(span bytes)
{
    return colour_type(bytes) == GREY;
}

bool png_has_colours_alone(span bytes)
{
    return colour_type(bytes) == GREY || colour_type(bytes) == TRUECOLOUR;
}

bool png_key(span bytes, uint8_t out[3])
{
    const bool grey = png_is_grey(bytes);
    const span trns = png_find(bytes, "tRNS");
    if (!png_has_colours_alone(bytes) || trns.size < (grey ? 2 : 6))
        return false;
    for (int i = 0; i < 3; i++)
        out[i] = trns.data[grey ? 1 : 2 * i + 1];
    if (grey && bytes.data[DEPTH_AT] == 1)
        memset(out, trns.data[0] || trns.data[1] ? 255 : 0, 3);
    return true;
}

bool png_reaches_pixels(span bytes)
{
    png_chunk chunk;
    for (uint64_t at = 0; png_next(bytes, &at, &chunk);)
        if (is_type(&chunk, "IDAT"))
            return true;
    return false;
}

bool png_ends(span bytes)
{
    span end;
    return has(bytes, "IEND", &end);
}

/* Measures the texts of a PNG (png.h). This is the only door to zlib for pictures. */

/* What follows the first `count` texts, each of which ends with a NUL; empty if one of them does
 * not end.
 */
static span after_texts(span data, int count)
{
    for (; count > 0; count--) {
        const uint8_t *end = data.size ? memchr(data.data, 0, data.size) : NULL;
        if (!end)
            return span_of(NULL, 0);
        data = span_of(end + 1, data.size - (size_t)(end + 1 - data.data));
    }
    return data;
}

static span after_bytes(span data, size_t count)
{
    return data.size > count ? span_of(data.data + count, data.size - count) : span_of(NULL, 0);
}

/* The text of a chunk, and whether it is still compressed; empty for other chunks. */
static span text_of(const png_chunk *chunk, bool *out_compressed)
{
    *out_compressed = false;
    if (memcmp(chunk->type, "tEXt", 4) == 0)
        return after_texts(chunk->data, 1);
    if (memcmp(chunk->type, "zTXt", 4) == 0) { /* after a keyword and a method */
        *out_compressed = true;
        return after_bytes(after_texts(chunk->data, 1), 1);
    }
    if (memcmp(chunk->type, "iTXt", 4) != 0)
        return span_of(NULL, 0);
    const span flags = after_texts(chunk->data, 1); /* then method, language, keyword */
    *out_compressed = flags.size > 0 && flags.data[0] != 0;
    return after_texts(after_bytes(flags, 2), 2);
}

/* How many bytes a text inflates to, as far as it is not damaged. Counting stops soon after
 * PNG_TEXT_BYTES. */
static status inflated_bytes(span compressed, size_t *out)
{
    uint8_t buffer[16 * 1024];
    int code = Z_OK;
    z_stream zlib = {.next_in = (uint8_t *)(uintptr_t)compressed.data,
                     .avail_in = (uInt)compressed.size};
    if (inflateInit(&zlib) != Z_OK)
        return FAIL(ST_NO_MEMORY, "no memory to inflate a text of a png");
    *out = 0;
    while (code == Z_OK && *out <= PNG_TEXT_BYTES) {
        zlib.next_out = buffer;
        zlib.avail_out = sizeof buffer;
        code = inflate(&zlib, Z_NO_FLUSH);
        *out += sizeof buffer - zlib.avail_out;
    }
    inflateEnd(&zlib);
    return ST_OK;
}

status png_check_texts(span bytes, const char *file)
{
    png_chunk chunk;
    size_t all = 0;
    for (uint64_t at = 0; png_next(bytes, &at, &chunk);) {
        bool compressed;
        const span text = text_of(&chunk, &compressed);
        size_t size = text.size;
        if (compressed)
            TRY(inflated_bytes(text, &size));
        if (compressed && size > PNG_TEXT_BYTES)
            return FAIL_IN(ST_BAD_INPUT, file, "a text of the png is longer than %d bytes",
                           PNG_TEXT_BYTES);
        all += size;
        if (all > PNG_TEXTS_BYTES)
            return FAIL_IN(ST_BAD_INPUT, file,
                           "the texts of the png together are longer than %d bytes",
                           PNG_TEXTS_BYTES);
    }
    return ST_OK;
}
