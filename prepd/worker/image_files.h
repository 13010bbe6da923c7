/* image_files.h: image files under a data root, opened by relative path and never outside it.
 *
 * ST_NO_INPUT: it is not there, or may not be read. ST_BAD_INPUT: it is another than it should be.
 * ST_IO (ST_NO_MEMORY): this machine's trouble (a disk, a mount, descriptors), tried again for a
 * while (time_limit_wait); it says nothing of the file. */
#ifndef TESSERA_PREPD_WORKER_IMAGE_FILES_H
#define TESSERA_PREPD_WORKER_IMAGE_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/span.h"
#include "common/base/status.h"

/* root/path into out; refuses an absolute path and one that climbs with "..". */
WARN_UNUSED status file_resolve(const char *root, const char *path, char *out, size_t size);

/* After a failed open or read: true where it is to be tried again; waits if that needs time. */
bool file_again(int error);
/* The failure that an errno stands for; offset -1: not at a byte. */
WARN_UNUSED status file_fail(int error, const char *full, int64_t offset, const char *what);

/* The whole file in the arena. ST_BAD_INPUT if it is no regular file, empty or larger than
 * max_bytes; ST_NO_INPUT if it is not there, or, where want_bytes >= 0, is of another size than the
 * index recorded. */
WARN_UNUSED status file_read(const char *full, int64_t max_bytes, int64_t want_bytes, arena *a,
                             span *out);

/* A piece of a file in the arena. out_mtime_ns: of the file, given even if the piece is refused.
 * ST_NO_INPUT if the file ends before it, ST_BAD_INPUT if it is empty or larger than max_bytes. */
WARN_UNUSED status file_read_piece(const char *full, int64_t offset, int64_t bytes,
                                   int64_t max_bytes, arena *a, span *out, int64_t *out_mtime_ns);

/* What is refused by size: a piece of bytes at offset, or offset -1: the whole file. */
WARN_UNUSED status file_check(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                              int64_t file_bytes);

/* Open for reading: a piece of bytes at offset, or offset -1: the whole file, of `bytes` bytes
 * unless that is -1. Refuses as the two above. */
WARN_UNUSED status file_open(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                             int *out_fd, int64_t *out_bytes, int64_t *out_mtime_ns);

/* A file for its header; size and time are given even if its bytes cannot be had. */
typedef struct file_view {
    span bytes;
    int64_t file_bytes, mtime_ns; /* of a piece: its own bytes */
} file_view;

/* Up to max_start of its first bytes in the arena; the rest as file_open. */
WARN_UNUSED status file_start(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                              int64_t max_start, arena *a, file_view *out);
/* All of it, mapped. */
WARN_UNUSED status file_map(const char *full, int64_t max_bytes, file_view *out);
void file_unmap(file_view *v);

#endif
