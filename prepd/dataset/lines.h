/* lines.h: reads a file, plain or compressed, line by line, and says where each line lies. */
#ifndef TESSERA_PREPD_DATASET_LINES_H
#define TESSERA_PREPD_DATASET_LINES_H

#include <stdbool.h>

#include "common/base/span.h"
#include "prepd/dataset/unpack.h"

typedef struct line_place {
    int64_t offset; /* of its first byte in the unpacked file */
    int64_t line;   /* from 1 */
} line_place;

bool line_is_blank(span line); /* it has nothing but spaces, tabs and carriage returns */

/* Receives one line without its end, borrowed during the call. A byte order mark at the beginning
 * of the file is left out. If the line is longer than `most` bytes, its data is NULL. */
typedef status (*line_each)(void *user, span line, const line_place *at);

/* Calls `each` for every line of a file of which nothing has been read yet. Any status of `each`
 * but ST_OK ends the reading and is returned. Needs memory for a buffer and for the longest line,
 * at most `most` bytes. */
WARN_UNUSED status lines_each(unpack *file, int64_t most, line_each each, void *user);

#endif
