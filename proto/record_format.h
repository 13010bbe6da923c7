/* record_format.h: offsets and sizes within a recording. Private to record_write.c and
 * record_read.c; wire.md has the same as byte tables.
 *
 *   head | WELCOME JSON | chunk | chunk | ... | index of rows | index of images | tail
 *
 * The head, every chunk and the indexes begin at multiples of 8, filled up with zeros. A chunk
 * holds one image part or one row; the images of a row stand before it. */
#ifndef TESSERA_PROTO_RECORD_FORMAT_H
#define TESSERA_PROTO_RECORD_FORMAT_H

#include "common/base/hash.h"
#include "proto/frame.h"

enum {
    RECORD_MAGIC = 0x52525354, /* "TSRR" */
    RECORD_TAIL = 0x45525354,  /* "TSRE" */
    RECORD_VERSION = 2,
    RECORD_OLDEST = 1, /* its rows have no tags */
    RECORD_ALIGN = 8,

    HEAD_BYTES = 32,
    HEAD_AT_MAGIC = 0,   /* u32 */
    HEAD_AT_VERSION = 4, /* u16, followed by u16 zero */
    HEAD_AT_WELCOME = 8, /* u64, size of the WELCOME JSON that follows the head */
    HEAD_AT_HASH = 16,   /* XXH3-128 of that JSON */

    CHUNK_BYTES = 32,
    CHUNK_AT_TYPE = 0,  /* u32, followed by u32 zero */
    CHUNK_AT_SIZE = 8,  /* u64, size of the payload that follows */
    CHUNK_AT_HASH = 16, /* XXH3-128 of the payload */

    /* The payload of a row: message header, u64 size of the block, block, one hash per image, and
     * to its end the tag (tag.h), which may be missing */
    ROW_AT_BLOCK_SIZE = FRAME_BYTES,
    ROW_AT_BLOCK = FRAME_BYTES + 8,
    ROW_IMAGE_BYTES = 16,

    INDEX_ROW_BYTES = 8,    /* u64, offset of the row's chunk */
    INDEX_IMAGE_BYTES = 24, /* hash, u64 offset of its chunk; sorted by hash */

    TAIL_BYTES = 32,
    TAIL_AT_INDEX = 0,   /* u64, offset of the index of rows */
    TAIL_AT_ROWS = 8,    /* u64 */
    TAIL_AT_IMAGES = 16, /* u32 */
    TAIL_AT_CHECK = 20,  /* first 8 bytes of XXH3-128 over both indexes and bytes 0 to 19 */
    TAIL_AT_MAGIC = 28,  /* u32 */
    TAIL_CHECK_BYTES = 8,
};

typedef enum chunk_type { CHUNK_IMAGE = 1, CHUNK_ROW = 2 } chunk_type;

#endif
