/* lines.h: the lines of a file, plain or compressed, with their places. */
#ifndef TESSERA_PREPD_DATASET_LINES_H
#define TESSERA_PREPD_DATASET_LINES_H

#include "common/base/span.h"
#include "prepd/dataset/unpack.h"

typedef struct line_place {
    int64_t offset; /* of its first byte in the unpacked file */
    int64_t line;   /* from 1 */
} line_place;

/* line: without its end, borrowed during the call; a byte-order mark at the file's beginning is
 * left out. data NULL: longer than `most` bytes, skipped. */
typedef status (*line_each)(void *user, span line, const line_place *at);

/* From where unpack_next stands, which is the beginning, to the end. Another status than ST_OK from
 * `each` ends the reading and is returned. Memory: the longest line, at most `most` and a buffer.
 */
WARN_UNUSED status lines_each(unpack *u, int64_t most, line_each each, void *user);

#endif
