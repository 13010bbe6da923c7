/* record.h: a stream in a file, replayed without ZeroMQ or prepd.
 *
 * Magic, version, then the frames as they crossed the wire; each distinct image part is kept once
 * and referred to by its XXH3-128; an index at the end makes any row reachable, its offset is in
 * the last 32 bytes. A file cut short is refused with the byte where it ends. Byte tables in
 * proto/README.md. */
#ifndef TESSERA_PROTO_RECORD_H
#define TESSERA_PROTO_RECORD_H

#include "proto/wire.h"

typedef struct record_writer record_writer;
typedef struct record_reader record_reader;

/* welcome: the WELCOME JSON of the recorded stream. The file has no name until record_finish
 * (path.tmp, where a file system has no such files), so a recording that is broken off leaves
 * nothing. */
WARN_UNUSED status record_create(const char *path, const char *welcome, record_writer **out);
WARN_UNUSED status record_add(record_writer *w, const wire_msg *m);
/* fsync, rename; the writer is gone afterwards, the temporary file too if it failed. */
WARN_UNUSED status record_finish(record_writer **w);
void record_abandon(record_writer **w); /* removes the temporary file */

WARN_UNUSED status record_open(const char *path, record_reader **out);
void record_close(record_reader **r);
const char *record_welcome(const record_reader *r);
uint64_t record_rows(const record_reader *r);
/* The i-th row's header and block, without its images. */
WARN_UNUSED status record_read_block(const record_reader *r, uint64_t i, wire_msg *m);
/* The i-th row's header alone; nothing of it is checked but its form. */
WARN_UNUSED status record_head(const record_reader *r, uint64_t i, frame *out);
/* The i-th recorded message, its bytes copied into m. ST_END past the last. */
WARN_UNUSED status record_read(const record_reader *r, uint64_t i, wire_msg *m);

#endif
