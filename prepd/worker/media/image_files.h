/* SPDX-License-Identifier: Apache-2.0 */
/* image_files.h: reads image files by relative path under a data root, and never outside it.
 *
 * Failures tell whose fault it is:
 *   ST_NO_INPUT            the file is not there, may not be read, or is not the one indexed;
 *   ST_BAD_INPUT           the file is there but cannot be a picture (empty, too large, a folder);
 *   ST_IO, ST_NO_MEMORY    this machine failed (disk, mount, descriptors), after trying again for a
 *                          while (time_limit_wait); it says nothing about the file. */
#ifndef TESSERA_PREPD_WORKER_MEDIA_IMAGE_FILES_H
#define TESSERA_PREPD_WORKER_MEDIA_IMAGE_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/span.h"
#include "common/base/status.h"
#include "common/json/json.h"
#include "prepd/sample/decode/video.h"
#include "proto/wire/wire.h"

/* Writes root/path to out [size]. ST_BAD_INPUT for an absolute path, one with "..", or a long one.
 */
WARN_UNUSED status file_resolve(const char *root, const char *path, char *out, size_t size);

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

/* A file that is opened to read its header. Size and time are set even if its bytes cannot be read.
 */
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

/* The files that a lease names (prepd/serve/core/rows/payload.c), and their bytes.
 *
 * A file is read under a data root, or it came with the lease (data.ship). It may be a file of its
 * own, a piece of another file (of a tar or zip), or a folder of frames. */

typedef struct file_ref {
    const char *name;      /* for messages */
    const char *in;        /* path under the root: name itself, or the file that it is a piece of */
    int64_t at;            /* offset of a piece; -1 for a file of its own */
    int64_t bytes;         /* size; -1 if not known */
    int64_t height, width; /* of a picture, as indexed; -1 if not known */
    bool video;
    const json_value *frames;  /* the names of a folder's frames; NULL for a file */
    double fps;                /* frames per second of such a folder */
    const json_value *shipped; /* what came with the lease, one entry per file; NULL to read here */
    int64_t nth;               /* which entry of shipped this is */
    const wire_msg *parts;     /* the message that the lease came in */
} file_ref;

/* Reads one file entry of a lease. Borrows the lease and its message. */
WARN_UNUSED status ref_read(const json_value *value, const wire_msg *parts, file_ref *out);

/* Frame `index` of a folder as a separate file, whose path is written to path [size]. */
WARN_UNUSED status ref_frame(const file_ref *folder, int64_t index, char *path, size_t size,
                             file_ref *out);

/* Reads up to max_start of the first bytes, for the header; all bytes of a shipped file. */
WARN_UNUSED status ref_start(const file_ref *file, const char *root, int64_t max_bytes,
                             int64_t max_start, arena *memory, file_view *out);

/* The whole file, for its header: mapped, or read into the arena if it is a piece of another. Size
 * and time are set even if that fails. ref_unview ends the view. */
WARN_UNUSED status ref_view(const file_ref *file, const char *root, int64_t max_bytes,
                            arena *memory, file_view *out);
void ref_unview(const file_ref *file, file_view *view);

/* Reads the whole file into the arena; a shipped file is borrowed from its message. */
WARN_UNUSED status ref_load(const file_ref *file, const char *root, int64_t max_bytes,
                            arena *memory, span *out);

/* Opens a video, which is read while it is decoded; ref_close ends that. If the file exists, size
 * and time are set even if this fails. */
WARN_UNUSED status ref_open(const file_ref *file, const char *root, int64_t max_bytes,
                            video_bytes *out, int64_t *out_mtime_ns);
void ref_close(video_bytes *video);

/* a worker's own time limit on one item, past which SIGALRM ends it.
 *
 * The limit is counted in ticks of a timer. Ticks that fall due while the process is stopped arrive
 * as one, so a worker that someone stops for an hour is not taken for one that hangs. The parent
 * tells the two apart by how the process ended (proc_end_of). The time is measured in the worker,
 * so a slow connection does not count. Retries within an item wait within its limit. */

/* Sets the limit for items that begin from now on. Call it once in a process. */
WARN_UNUSED status time_limit_install(double seconds);
/* Begins an item. */
void time_limit_start(void);
/* Ends the time limit of the current item: nothing is in work until the next one begins. */
void time_limit_stop(void);

/* Waits before something is tried again: longer each time within an item, in all an eighth of the
 * limit, and at most a few seconds. False if that is used up or there is no limit. */
bool time_limit_wait(void);

#endif
