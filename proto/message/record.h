/* SPDX-License-Identifier: Apache-2.0 */
/* record.h: a stream in a file, which can be replayed without ZeroMQ or prepd.
 *
 * The file holds the messages as they crossed the wire, except that each distinct image part is
 * kept once and rows refer to it by its XXH3-128 hash. An index at the end makes every row
 * reachable; its offset is in the last 32 bytes. A file that was cut short has no such end and is
 * refused, with the byte where it stops. wire.md has the byte tables. */
#ifndef TESSERA_PROTO_MESSAGE_RECORD_H
#define TESSERA_PROTO_MESSAGE_RECORD_H

#include "common/base/hash.h"
#include "proto/row/frame.h"
#include "proto/message/wire_msg.h"

typedef struct record_writer record_writer;
typedef struct record_reader record_reader;

/* Begins a recording that is to become `path`. welcome is the WELCOME JSON of the recorded stream.
 * The file has no name until record_finish, so a recording that breaks off, even by SIGKILL, leaves
 * nothing; on a file system that has no unnamed files (O_TMPFILE) it is called path.tmp meanwhile.
 */
WARN_UNUSED status record_create(const char *path, const char *welcome, record_writer **out);
/* Appends a ROW message. ST_BAD_INPUT if it is not one. */
WARN_UNUSED status record_add(record_writer *writer, const wire_msg *message);
/* Writes the index, syncs the file and renames it to its path. The writer is freed either way; on
 * failure the temporary file is gone too. */
WARN_UNUSED status record_finish(record_writer **writer);
/* Gives a recording up: frees the writer and removes the temporary file. */
void record_abandon(record_writer **recording);

/* Opens a recording and checks its head, index and tail; rows are checked as they are read.
 * ST_NO_INPUT if there is no such file, ST_BAD_INPUT if it is not a whole recording. */
WARN_UNUSED status record_open(const char *path, record_reader **out);
void record_close(record_reader **reader);
/* The WELCOME JSON; it lives as long as the reader. */
const char *record_welcome(const record_reader *reader);
/* How many rows there are. */
uint64_t record_rows(const record_reader *reader);
/* Reads header and block of the i-th row into message, without its images. */
WARN_UNUSED status record_read_block(const record_reader *reader, uint64_t index,
                                     wire_msg *message);
/* The header of the i-th row alone. Its hash is not checked, only its form. ST_END after the last
 * row. */
WARN_UNUSED status record_head(const record_reader *reader, uint64_t index, frame *out);
/* Copies the i-th recorded message into message. ST_END after the last row. */
WARN_UNUSED status record_read(const record_reader *reader, uint64_t index, wire_msg *message);

/* --- offsets and sizes within a file; private to record_*.c. wire.md has the same as byte tables.
 *
 *   head | WELCOME JSON | chunk | chunk | ... | index of rows | index of images | tail
 *
 * The head, every chunk and the indexes begin at multiples of 8, filled up with zeros. A chunk
 * holds one image part or one row; the images of a row stand before it. */

enum {
    RECORD_MAGIC = 0x52525354, /* "TSRR" */
    RECORD_TAIL = 0x45525354,  /* "TSRE" */
    RECORD_VERSION = 2,
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
