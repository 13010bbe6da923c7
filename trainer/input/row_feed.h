/* row_feed.h: rows from the rank that receives them to those that share them
 * (parallel/row_broadcast.h), as they were checked and decompressed there. A message is u64
 * numbers, little-endian, then bytes:
 *
 *   kind, bytes behind the numbers, 15 numbers of its kind
 *
 * WELCOME  the stream's WELCOME, JSON, a zero behind it
 * ROW      tokens, documents, items, patches, video patches, weights (0 or 1), bytes of cursor,
 *          quarantine and references with their zeros; of its frame row, images, block bytes, image
 *          bytes, digest (2); bytes: tensors in the order of row_tensors, then the three texts
 * LAST     status of the stream's end; bytes: its text, a zero behind it
 */
#ifndef TESSERA_TRAINER_INPUT_ROW_FEED_H
#define TESSERA_TRAINER_INPUT_ROW_FEED_H

#include "proto/batch.h"
#include "proto/frame.h"
#include "trainer/parallel/row_broadcast.h"

/* The source's side; any of them ST_STOPPED once interrupted. */
WARN_UNUSED status row_feed_welcome(row_broadcast *f, const char *welcome);
WARN_UNUSED status row_feed_send(row_broadcast *f, const row *r, const frame *head);
/* No more rows: how the stream ended (ST_END, or the failure that status_last has). */
WARN_UNUSED status row_feed_last(row_broadcast *f, status how);

/* The other side's first message; heap. What the source failed with instead, naming its rank. */
WARN_UNUSED status row_feed_await(row_broadcast *f, char **out_welcome);
/* The next row, its arrays in a; *out_bytes: as it came. ST_END and failures as the source had
 * them, failures naming its rank. */
WARN_UNUSED status row_feed_next(row_broadcast *f, arena *a, row *out, frame *out_head,
                                 int64_t *out_bytes);

/* Bytes of a row's message. */
int64_t row_feed_bytes(const row *r);

#endif
