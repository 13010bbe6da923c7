/* unpack.h: a file of texts, plain or compressed, read forward once and then anywhere.
 *
 * The kind is told from the first bytes: gzip (any number of members), zstd (any number of frames),
 * else plain. The first reading, forward, keeps restart points: places of the unpacked bytes where
 * unpacking can begin again. A plain file can be entered anywhere; gzip about every 8 MiB (between
 * two deflate blocks, with the 32 KiB before it) and at members; zstd at frames, so that a file of
 * one frame is entered at its beginning alone. Reading near the last place goes on from there, and
 * the last 32 MiB unpacked are kept: samples of one window cost one unpacking. */
#ifndef TESSERA_PREPD_DATASET_UNPACK_H
#define TESSERA_PREPD_DATASET_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct unpack unpack;

/* ST_NO_INPUT if it is not there. */
WARN_UNUSED status unpack_open(const char *path, unpack **out);
void unpack_close(unpack **u);

/* The next bytes from the beginning, at most size; 0 at the end. Ends with ST_BAD_INPUT where the
 * compressed bytes are damaged or stop early; names the file and the compressed byte. */
WARN_UNUSED status unpack_next(unpack *u, void *to, size_t size, size_t *out_n);

/* Its first bytes, at most size (and at most a MiB); before the first unpack_next, which begins
 * there anyway. Fewer only where the file has no more. */
WARN_UNUSED status unpack_peek(unpack *u, void *to, size_t size, size_t *out_n);

/* n bytes of the unpacked file from offset on; after unpack_next has come to the end. ST_BAD_INPUT
 * if the file changed since it was opened, or ends before. */
WARN_UNUSED status unpack_at(unpack *u, int64_t offset, void *to, size_t n);

/* Gives back the file and what is kept of it, not the restart points; unpack_at opens it again. */
void unpack_rest(unpack *u);

/* Restart points, ascending, the first at 0; a plain file has that one alone, and any place will
 * do: unpack_random. */
bool unpack_random(const unpack *u);
int64_t unpack_points(const unpack *u);
int64_t unpack_point(const unpack *u, int64_t k); /* offset in the unpacked bytes */

/* The most bytes between two of them, or the last and the end: what reading one place may cost. 0
 * of a plain file; of another after unpack_next has come to the end. */
int64_t unpack_longest(const unpack *u);

/* Of the file as it was opened. */
void unpack_stamp(const unpack *u, int64_t *out_bytes, int64_t *out_mtime_ns);
int64_t
unpack_total(const unpack *u); /* unpacked bytes; -1 until the first reading came to the end */

#endif
