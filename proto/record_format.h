/* record_format.h: where things stand in a recording. Private to record_write.c and record_read.c.
 *
 * head | welcome | chunk ... | rows index | images index | tail, each but the tail begun at a
 * multiple of 8. */
#ifndef TESSERA_PROTO_RECORD_FORMAT_H
#define TESSERA_PROTO_RECORD_FORMAT_H

#include "common/base/hash.h"
#include "proto/frame.h"

enum {
    RECORD_MAGIC = 0x52525354, /* "TSRR" */
    RECORD_TAIL = 0x45525354,  /* "TSRE" */
    RECORD_VERSION = 1,
    RECORD_ALIGN = 8,

    HEAD_BYTES = 32,
    HEAD_AT_MAGIC = 0,   /* u32 */
    HEAD_AT_VERSION = 4, /* u16, then u16 zero */
    HEAD_AT_WELCOME = 8, /* u64 bytes of the WELCOME JSON that follows */
    HEAD_AT_HASH = 16,   /* XXH3-128 of it */

    CHUNK_BYTES = 32,
    CHUNK_AT_TYPE = 0,  /* u32, then u32 zero */
    CHUNK_AT_SIZE = 8,  /* u64 bytes that follow */
    CHUNK_AT_HASH = 16, /* XXH3-128 of them */

    /* Payload of a row chunk: message header, u64 size of the block, block, hashes of the images */
    ROW_AT_BLOCK_SIZE = FRAME_BYTES,
    ROW_AT_BLOCK = FRAME_BYTES + 8,
    ROW_IMAGE_BYTES = 16,

    INDEX_ROW_BYTES = 8,    /* u64 offset of the chunk */
    INDEX_IMAGE_BYTES = 24, /* hash, u64 offset; in rising order of hash */

    TAIL_BYTES = 32,
    TAIL_AT_INDEX = 0,   /* u64 offset of the rows index */
    TAIL_AT_ROWS = 8,    /* u64 */
    TAIL_AT_IMAGES = 16, /* u32 */
    TAIL_AT_CHECK = 20,  /* first 8 bytes of XXH3-128 over both indexes, then bytes 0 to 19 here */
    TAIL_AT_MAGIC = 28,  /* u32 */
    TAIL_CHECK_BYTES = 8,
};

typedef enum chunk_type { CHUNK_IMAGE = 1, CHUNK_ROW = 2 } chunk_type;

#endif
