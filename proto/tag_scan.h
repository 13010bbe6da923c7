/* tag_scan.h: compares a row with its tag while reading the tag, without building anything of it.
 * Private to proto.
 *
 * A row of texts is opened in a tenth of a millisecond, of which a parsed tag would be a twelfth.
 * So a tag is first read as the dispatcher writes it: with these members, in this order and without
 * spaces, and with texts of ASCII. Whatever is written otherwise, or differs from the row, is left
 * to whoever parses the whole tag and says what is wrong. */
#ifndef TESSERA_PROTO_TAG_SCAN_H
#define TESSERA_PROTO_TAG_SCAN_H

#include <stdbool.h>

#include "common/base/span.h"
#include "proto/batch.h"

/* The texts of a tag, each ended by a NUL, "" where there is none. */
typedef struct tag_texts {
    const char *worker, *cursor, *quarantine, *references;
} tag_texts;

/* The bytes that the texts of a tag take at most: each is shorter than it is written. */
static inline size_t tag_texts_bytes(span tag)
{
    return tag.size + 4;
}

/* True: the tag says that the row, which has passed row_check, is what it is, and has this number.
 * The texts are written to `to` [tag_texts_bytes]. False: another reader has to look. */
bool tag_scan(span tag, uint64_t number, const row *packed, char *to, tag_texts *out);

#endif
