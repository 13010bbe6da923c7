/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h: a file of texts, plain or compressed, which is read forward once and then anywhere.
 *
 * Its first bytes tell what kind it is: gzip (with any number of members), zstd (with any number of
 * frames), or else plain. The first reading, forward, notes restart points: places of the unpacked
 * bytes at which unpacking can begin again. A plain file can be entered anywhere. Gzip can be
 * entered at members and about every 8 MiB between two deflate blocks, given the 32 KiB before that
 * place; zstd at frames, so that a file of one frame can only be entered at its beginning.
 *
 * The last 32 MiB unpacked are kept, and reading ahead of them continues where unpacking stands.
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

/* What a kind of compression implements for unpack.c, and how restart points are
 * kept from one start to the next. Each open file has its own decoder. */

enum { UNPACK_WINDOW = 32768 }; /* how far back deflate may refer (RFC 1951) */

/* A place at which unpacking can begin. */
typedef struct unpack_restart {
    int64_t unpacked; /* its offset in the unpacked bytes */
    int64_t packed;   /* the offset of the next whole byte of the compressed file */
    int bits;        /* how many bits of the byte before `packed` are still to be read; gzip only */
    bool fresh;      /* a member or a frame begins here, so that nothing before it matters */
    uint8_t *window; /* [UNPACK_WINDOW] the unpacked bytes before it; NULL if fresh; heap */
} unpack_restart;

typedef struct unpack_decoder unpack_decoder;

typedef struct unpack_kind {
    WARN_UNUSED status (*begin)(unpack_decoder **out);
    void (*end)(unpack_decoder **decoder); /* frees it; *decoder may be NULL */
    /* Starts at a restart point; the next input is that from its `packed` on. `before` is the byte
     * before that, of which the upper `bits` are used. */
    WARN_UNUSED status (*restart)(unpack_decoder *decoder, const unpack_restart *at,
                                  uint8_t before);
    /* Unpacks from in[*in_n] to out[*out_n], and writes to both how much it took and gave. If it
     * now stands where unpacking can begin again, it sets *out_border and fills in *at, except for
     * the offsets and the window; it may stop early in order to do so. ST_BAD_INPUT for damage. */
    WARN_UNUSED status (*step)(unpack_decoder *decoder, const uint8_t *in, size_t *in_n,
                               uint8_t *out, size_t *out_n, bool *out_border, unpack_restart *at);
    /* Whether the file may end here, which is so between members or frames. */
    bool (*may_end)(const unpack_decoder *decoder);
} unpack_kind;

/* What a first reading found, for keeping it. */
typedef struct unpack unpack;
const unpack_restart *unpack_restarts(const unpack *file); /* [unpack_points] */
/* Gives a file, just opened, restart points and an unpacked size that an earlier start found,
 * instead of a first reading. Windows are copied. ST_BAD_INPUT if they cannot be those of this
 * file. */
WARN_UNUSED status unpack_adopt(unpack *file, const unpack_restart *points, int64_t count,
                                int64_t total);
void unpack_forget(unpack *file); /* takes them back, as if the file had just been opened */

extern const unpack_kind unpack_gzip;    /* unpack_gzip.c, with zlib */
extern const unpack_kind unpack_deflate; /* the same file: one bare stream, as in zip files; it
                                          * cannot be restarted */
extern const unpack_kind unpack_zstd;    /* unpack_zstd.c */

#endif
