/* image_files.h: reads image files by relative path under a data root, and never outside it.
 *
 * Failures tell whose fault it is:
 *   ST_NO_INPUT            the file is not there, may not be read, or is not the one indexed;
 *   ST_BAD_INPUT           the file is there but cannot be a picture (empty, too large, a folder);
 *   ST_IO, ST_NO_MEMORY    this machine failed (disk, mount, descriptors), after trying again for a
 *                          while (time_limit_wait); it says nothing about the file. */
#ifndef TESSERA_PREPD_WORKER_IMAGE_FILES_H
#define TESSERA_PREPD_WORKER_IMAGE_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/span.h"
#include "common/base/status.h"

/* Writes root/path to out [size].
 * ST_BAD_INPUT for an absolute path, one with "..", or a long one. */
WARN_UNUSED status file_resolve(const char *root, const char *path, char *out, size_t size);

/* After a failed open or read with this errno: true if it is to be tried again, after waiting if
 * that may help. */
bool file_again(int error);
/* The failure that an errno stands for. what is "opened" or "read"; offset is the byte, or -1. */
WARN_UNUSED status file_fail(int error, const char *full, int64_t offset, const char *what);

/* Reads a whole file into the arena. ST_BAD_INPUT if it is not a regular file, is empty or larger
 * than max_bytes; ST_NO_INPUT if it is not there or has another size than want_bytes, which the
 * index recorded (-1 if it did not). */
WARN_UNUSED status file_read(const char *full, int64_t max_bytes, int64_t want_bytes, arena *memory,
                             span *out);

/* Reads `bytes` bytes at `offset` of a file into the arena. *out_mtime_ns is the file's time, set
 * even if the piece is refused. ST_NO_INPUT if the file ends before the piece does, ST_BAD_INPUT if
 * the piece is empty or larger than max_bytes. */
WARN_UNUSED status file_read_piece(const char *full, int64_t offset, int64_t bytes,
                                   int64_t max_bytes, arena *memory, span *out,
                                   int64_t *out_mtime_ns);

/* Makes the refusals by size of file_open for a file that has file_bytes bytes. */
WARN_UNUSED status file_check(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                              int64_t file_bytes);

/* Opens a file for reading a piece of `bytes` bytes at `offset`; or, with offset -1, the whole
 * file, which must have `bytes` bytes unless that is -1. Refuses what file_read and file_read_piece
 * refuse. *out_bytes is the size of the piece or file. */
WARN_UNUSED status file_open(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                             int *out_fd, int64_t *out_bytes, int64_t *out_mtime_ns);

/* A file that is opened to read its header.
 * Size and time are set even if its bytes cannot be read. */
typedef struct file_view {
    span bytes;
    int64_t file_bytes, mtime_ns; /* size of the piece or file, and the file's time */
} file_view;

/* Reads up to max_start of the first bytes into the arena; otherwise like file_open. */
WARN_UNUSED status file_start(const char *full, int64_t offset, int64_t bytes, int64_t max_bytes,
                              int64_t max_start, arena *memory, file_view *out);
/* Maps a whole file. */
WARN_UNUSED status file_map(const char *full, int64_t max_bytes, file_view *out);
void file_unmap(file_view *view);

#endif
