/* unpack_kind.h: what a kind of compression implements for unpack.c, and how restart points are
 * kept from one start to the next. Each open file has a decoder of its own. */
#ifndef TESSERA_PREPD_DATASET_UNPACK_KIND_H
#define TESSERA_PREPD_DATASET_UNPACK_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

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
