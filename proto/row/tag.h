/* SPDX-License-Identifier: Apache-2.0 */
/* tag.h: the last part of a ROW message: what the dispatcher says that the row is.
 *
 * Header, block and images are the work of a worker, which is believed in nothing that can be known
 * otherwise. The dispatcher knows from its plan which documents a row has, and where the stream
 * goes on after it. It says so in the tag, which it adds when it forwards the row, and a receiver
 * refuses a row that is another. What is left to a worker is the ids of a text's tokens, the labels
 * among them, and pixels.
 *
 * A tag is JSON (wire.md lists its members). */
#ifndef TESSERA_PROTO_ROW_TAG_H
#define TESSERA_PROTO_ROW_TAG_H

#include "common/base/arena.h"
#include "proto/row/batch.h"
#include "proto/row/frame.h"

/* Compares a decoded row, which has passed row_check, with the tag of its message, and takes the
 * row's metadata from there: cursor, quarantine, references, worker. Their texts live in memory.
 * ST_PROTOCOL names the worker and what differs. */
WARN_UNUSED status tag_apply(span tag, const frame *head, const char *peer, arena *memory,
                             row *inout);

/* The texts of a tag, each ended by a NUL, "" where there is none. */
typedef struct tag_texts {
    const char *worker, *cursor, *quarantine, *references;
} tag_texts;

/* The bytes that the texts of a tag take at most: each is shorter than it is written. */
static inline size_t tag_texts_bytes(span tag)
{
    return tag.size + 4;
}

/* The fast reader of tag_apply; private to proto. True: the tag says that the row, which has passed
 * row_check, is what it is, and has this number. The texts are written to `to` [tag_texts_bytes].
 * False: the tag has to be parsed. */
bool tag_scan(span tag, uint64_t number, const row *packed, char *to, tag_texts *out);

#endif
