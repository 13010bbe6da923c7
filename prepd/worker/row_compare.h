/* SPDX-License-Identifier: Apache-2.0 */
/* row_compare.h: whether a row that another worker made holds what this worker has made.
 *
 * A row lease may have the member "compare": [n, ..], at most MOST_COMPARED numbers: that many
 * parts each, at the end of the lease's message, are rows that others have made of the same lease.
 * A row is its header, block and image parts (proto/message/codec.h), without a tag. The answer is the
 * member "same" of the message ON that comes before the row. */
#ifndef TESSERA_PREPD_WORKER_ROW_COMPARE_H
#define TESSERA_PREPD_WORKER_ROW_COMPARE_H

#include <stdbool.h>

#include "common/json/json.h"
#include "proto/message/codec.h"

enum { MOST_COMPARED = 2 };

/* Where the rows of a lease lie in its message. All zeros: there are none. */
typedef struct compared_rows {
    size_t first[MOST_COMPARED], n_parts[MOST_COMPARED];
    int count;
} compared_rows;

/* Reads the member "compare".
 * ST_PROTOCOL if the message has fewer parts, or there are more rows. */
WARN_UNUSED status row_compare_read(const json_value *lease, const wire_msg *message,
                                    compared_rows *out);

/* Compares row number `index` with `made`, whose items are set, and which `encoded` is the message
 * of: every tensor and every pixel, whatever its filter, compression and digest are. A row that
 * cannot be decoded differs. It is decoded into `memory`, which is as before afterwards, and only
 * if its header declares as many pixels as `encoded` does and a block that is not much larger.
 * Fails only for reasons of this process, such as ST_NO_MEMORY. */
WARN_UNUSED status row_compare(codec *coder, const row *made, const wire_msg *encoded,
                               const wire_msg *message, const compared_rows *rows, int index,
                               arena *memory, bool *out_same);

#endif
