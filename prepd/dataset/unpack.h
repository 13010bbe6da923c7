/* unpack.h: a file of texts, plain or compressed, which is read forward once and then anywhere.
 *
 * Its first bytes tell what kind it is: gzip (with any number of members), zstd (with any number of
 * frames), or else plain. The first reading, forward, notes restart points: places of the unpacked
 * bytes at which unpacking can begin again. A plain file can be entered anywhere. Gzip can be
 * entered at members and about every 8 MiB between two deflate blocks, given the 32 KiB before that
 * place; zstd at frames, so that a file of one frame can only be entered at its beginning.
 *
 * The last 32 MiB unpacked are kept, and reading ahead of them goes on from where unpacking stands.
 * So the samples of one window, which lie close to each other, cost one unpacking. */
#ifndef TESSERA_PREPD_DATASET_UNPACK_H
#define TESSERA_PREPD_DATASET_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct unpack unpack;

/* ST_NO_INPUT if there is no such file. */
WARN_UNUSED status unpack_open(const char *path, unpack **out);
void unpack_close(unpack **file);

/* Gives the next bytes from the beginning, at most `size`; *out_n is 0 at the end. ST_BAD_INPUT,
 * with the file and the compressed byte, if the compressed bytes are damaged or stop early. */
WARN_UNUSED status unpack_next(unpack *file, void *to, size_t size, size_t *out_n);

/* Gives the first bytes, at most `size` and at most 1 MiB; fewer only if the file has no more. To
 * be called before the first unpack_next, which still begins at the beginning. */
WARN_UNUSED status unpack_peek(unpack *file, void *to, size_t size, size_t *out_n);

/* Reads `bytes` bytes of the unpacked file from `offset` on, once unpack_next has come to the end.
 * ST_BAD_INPUT if the file changed since it was opened, or has fewer bytes. */
WARN_UNUSED status unpack_at(unpack *file, int64_t offset, void *to, size_t bytes);

/* Closes the file and frees what was unpacked of it, but keeps the restart points. unpack_at opens
 * it again. */
void unpack_rest(unpack *file);

/* Whether any place can be entered directly, as in a plain file. */
bool unpack_random(const unpack *file);
/* The restart points, ascending; the first is at 0. A plain file has only that one. */
int64_t unpack_points(const unpack *file);
int64_t unpack_point(const unpack *file, int64_t index); /* its offset in the unpacked bytes */

/* The most bytes between two restart points, or between the last one and the end: what must be
 * unpacked to read one place, at worst. 0 for a plain file. To be called once unpack_next has come
 * to the end. */
int64_t unpack_longest(const unpack *file);

/* Size and time of change of the file when it was opened. */
void unpack_stamp(const unpack *file, int64_t *out_bytes, int64_t *out_mtime_ns);
/* How many bytes it unpacks to; -1 until the first reading has come to the end. */
int64_t unpack_total(const unpack *file);

#endif
