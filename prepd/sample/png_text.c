/* png_text.c: measures the texts of a PNG (png.h). This is the only door to zlib for pictures. */
#include <string.h>
#include <zlib.h>

#include "prepd/sample/png.h"

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
