/* SPDX-License-Identifier: Apache-2.0 */
/* lines.c: splits what unpack_next gives at line ends. A line inside one buffer is handed out where
 * it lies; one that straddles buffers is joined first. */
#include "prepd/dataset/records.h"

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

static status extend_line(joining *line, const uint8_t *more, size_t bytes, int64_t most)
{
    if (line->too_long || (int64_t)(line->count + bytes) > most) {
        line->too_long = true;
        return ST_OK;
    }
    if (line->count + bytes > line->capacity) {
        size_t capacity = 2 * (line->count + bytes);
        uint8_t *grown = (uint8_t *)realloc(line->bytes, capacity);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for a line of %zu bytes", capacity);
        line->bytes = grown;
        line->capacity = capacity;
    }
    memcpy(line->bytes + line->count, more, bytes);
    line->count += bytes;
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

static status read_lines(unpack *file, int64_t most, uint8_t *buffer, joining *line, line_each each,
                         void *user)
{
    line_place at = {0, 1};
    int64_t base = 0; /* offset of the buffer in the unpacked file */
    size_t count;
    for (;; base += (int64_t)count) {
        TRY(unpack_next(file, buffer, READ_BYTES, &count));
        if (count == 0)
            break;
        for (size_t from = 0; from < count;) {
            const uint8_t *end = (const uint8_t *)memchr(buffer + from, '\n', count - from);
            const size_t stop = end ? (size_t)(end - buffer) : count;
            const bool whole = end && line->count == 0 && !line->too_long;
            if (!whole)
                TRY(extend_line(line, buffer + from, stop - from, most));
            if (!end)
                break;
            TRY(hand_out(whole            ? span_of(buffer + from, stop - from)
                         : line->too_long ? span_of(NULL, 0)
                                          : span_of(line->bytes, line->count),
                         at, most, each, user));
            from = stop + 1;
            at = (line_place){base + (int64_t)from, at.line + 1};
            line->count = 0;
            line->too_long = false;
        }
    }
    if (line->count || line->too_long) /* the last line may have no line end */
        TRY(hand_out(line->too_long ? span_of(NULL, 0) : span_of(line->bytes, line->count), at,
                     most, each, user));
    return ST_OK;
}

status lines_each(unpack *file, int64_t most, line_each each, void *user)
{
    joining line = {0};
    uint8_t *buffer = (uint8_t *)malloc(READ_BYTES);
    status st = buffer ? read_lines(file, most, buffer, &line, each, user)
                       : FAIL(ST_NO_MEMORY, "no memory for a read buffer");
    free(line.bytes);
    free(buffer);
    return st;
}
