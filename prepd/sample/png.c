/* png.c: walks over the chunks of a PNG file. */
#include "prepd/sample/png.h"

#include <string.h>

enum {
    SIGNATURE = 8,
    FRAME = 12
}; /* a chunk is a length (4), a type (4), its data and a CRC (4) */

bool png_next(span bytes, uint64_t *at, png_chunk *out)
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

/* These fields of IHDR stand after the signature (8), a length (4),
 * "IHDR" (4) and the sides (8). */
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
