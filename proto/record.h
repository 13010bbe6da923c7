/* record.h: a stream in a file, which can be replayed without ZeroMQ or prepd.
 *
 * The file holds the messages as they crossed the wire, except that each distinct image part is
 * kept once and rows refer to it by its XXH3-128 hash. An index at the end makes every row
 * reachable; its offset is in the last 32 bytes. A file that was cut short has no such end and is
 * refused, with the byte where it stops. wire.md has the byte tables, record_format.h the same as
 * constants. */
#ifndef TESSERA_PROTO_RECORD_H
#define TESSERA_PROTO_RECORD_H

#include "proto/wire.h"

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
void record_abandon(record_writer **writer);

/* Opens a recording and checks its head, index and tail; rows are checked as they are read.
 * ST_NO_INPUT if there is no such file, ST_BAD_INPUT if it is not a whole recording. */
WARN_UNUSED status record_open(const char *path, record_reader **out);
void record_close(record_reader **reader);
/* The WELCOME JSON; it lives as long as the reader. */
const char *record_welcome(const record_reader *reader);
/* Whether the rows have tags (tag.h), so that they are checked against what was ordered. Those of a
 * recording of version 1 have none. */
bool record_has_tags(const record_reader *reader);
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

#endif
