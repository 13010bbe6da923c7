/* SPDX-License-Identifier: Apache-2.0 */
/* row_feed.h: hands rows from the rank that receives them to the ranks that share them
 * (parallel/row_broadcast.h), as they were checked and decompressed there. Every message is 17
 * numbers (u64, little-endian), followed by bytes:
 *
 *   number 0    the message's kind
 *   number 1    how many bytes follow the numbers
 *   number 2..  15 numbers whose meaning depends on the kind
 *
 *   WELCOME  bytes: the stream's WELCOME, which is JSON, and a final zero
 *   ROW      numbers: tokens, documents, items, patches, video patches, weights (0 or 1);
 *            the lengths of cursor, quarantine and references with their final zeros; from the
 *            row's frame its number, images, block bytes, image bytes and digest (2 numbers).
 *            Bytes: the tensors in the order of row_tensors, then the three texts
 *   LAST     number: the status with which the stream ended. Bytes: its text and a final zero
 *
 * When you add a field to a row, add it to row_feed_send, recv_row and this table. */
#ifndef TESSERA_TRAINER_INPUT_ROW_FEED_H
#define TESSERA_TRAINER_INPUT_ROW_FEED_H

#include "proto/row/batch.h"
#include "proto/row/frame.h"
#include "trainer/parallel/row_broadcast.h"

/* The receiving rank's side. Each returns ST_STOPPED once the broadcast is interrupted. */
WARN_UNUSED status row_feed_welcome(row_broadcast *feed, const char *welcome);
WARN_UNUSED status row_feed_send(row_broadcast *feed, const row *packed, const frame *head);
/* No more rows will come. `how` is how the stream ended: ST_END, or a failure, whose text is taken
 * from status_last. */
WARN_UNUSED status row_feed_last(row_broadcast *feed, status how);

/* The other ranks' side: awaits WELCOME, on the heap. If the receiving rank failed instead, returns
 * that failure, with the rank's number in the text. */
WARN_UNUSED status row_feed_await(row_broadcast *feed, char **out_welcome);
/* The next row; its arrays are in the arena, and *out_bytes is the size of its message. ST_END and
 * failures are those of the receiving rank; the text of a failure names the rank. */
WARN_UNUSED status row_feed_next(row_broadcast *feed, arena *memory, row *out, frame *out_head,
                                 int64_t *out_bytes);

/* The size of a row's message in bytes. */
int64_t row_feed_bytes(const row *packed);

#endif
