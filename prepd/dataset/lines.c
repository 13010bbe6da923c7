/* lines.c: splits what unpack_next gives at line ends. A line inside one buffer is handed out where
 * it lies; one that straddles buffers is joined first. */
#include "prepd/dataset/lines.h"

#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 256 * 1024 };
/* The byte order mark in UTF-8, which some editors write at the beginning of a file. */
static const uint8_t MARK[] = {0xef, 0xbb, 0xbf};

bool line_is_blank(span line)
{
    for (size_t i = 0; i < line.size; i++)
        if (line.data[i] != ' ' && line.data[i] != '\t' && line.data[i] != '\r')
            return false;
    return true;
}

/* Where a line that straddles buffers is joined. */
typedef struct joining {
    uint8_t *bytes;
    size_t count, capacity;
    bool too_long;
} joining;

static status extend_line(joining *j, const uint8_t *more, size_t n, int64_t most)
{
    if (j->too_long || (int64_t)(j->count + n) > most) {
        j->too_long = true;
        return ST_OK;
    }
    if (j->count + n > j->capacity) {
        size_t capacity = 2 * (j->count + n);
        uint8_t *grown = (uint8_t *)realloc(j->bytes, capacity);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for a line of %zu bytes", capacity);
        j->bytes = grown;
        j->capacity = capacity;
    }
    memcpy(j->bytes + j->count, more, n);
    j->count += n;
    return ST_OK;
}

static status hand_out(span line, line_place at, int64_t most, line_each each, void *user)
{
    if (line.data && at.offset == 0 && line.size >= sizeof MARK &&
        memcmp(line.data, MARK, sizeof MARK) == 0) {
        line = span_of(line.data + sizeof MARK, line.size - sizeof MARK);
        at.offset = sizeof MARK;
    }
    if ((int64_t)line.size > most)
        line = span_of(NULL, 0);
    return each(user, line, &at);
}

static status read_lines(unpack *file, int64_t most, uint8_t *buffer, joining *j, line_each each,
                         void *user)
{
    line_place at = {0, 1};
    int64_t base = 0; /* offset of the buffer in the unpacked file */
    size_t n;
    for (;; base += (int64_t)n) {
        TRY(unpack_next(file, buffer, READ_BYTES, &n));
        if (n == 0)
            break;
        for (size_t from = 0; from < n;) {
            const uint8_t *end = (const uint8_t *)memchr(buffer + from, '\n', n - from);
            const size_t stop = end ? (size_t)(end - buffer) : n;
            const bool whole = end && j->count == 0 && !j->too_long;
            if (!whole)
                TRY(extend_line(j, buffer + from, stop - from, most));
            if (!end)
                break;
            TRY(hand_out(whole         ? span_of(buffer + from, stop - from)
                         : j->too_long ? span_of(NULL, 0)
                                       : span_of(j->bytes, j->count),
                         at, most, each, user));
            from = stop + 1;
            at = (line_place){base + (int64_t)from, at.line + 1};
            j->count = 0;
            j->too_long = false;
        }
    }
    if (j->count || j->too_long) /* the last line may have no line end */
        TRY(hand_out(j->too_long ? span_of(NULL, 0) : span_of(j->bytes, j->count), at, most, each,
                     user));
    return ST_OK;
}

status lines_each(unpack *file, int64_t most, line_each each, void *user)
{
    joining j = {0};
    uint8_t *buffer = (uint8_t *)malloc(READ_BYTES);
    status st = buffer ? read_lines(file, most, buffer, &j, each, user)
                       : FAIL(ST_NO_MEMORY, "no memory for a read buffer");
    free(j.bytes);
    free(buffer);
    return st;
}
