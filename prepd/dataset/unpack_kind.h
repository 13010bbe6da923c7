/* unpack_kind.h: inside of unpack: what a compression does. One decoder per file that is open. */
#ifndef TESSERA_PREPD_DATASET_UNPACK_KIND_H
#define TESSERA_PREPD_DATASET_UNPACK_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { UNPACK_WINDOW = 32768 }; /* deflate looks back so far */

/* Where unpacking can begin. */
typedef struct unpack_restart {
    int64_t unpacked, packed; /* offsets; of deflate blocks the byte after the last whole one */
    int bits;                 /* of the byte before `packed` that still belong to us; gzip only */
    bool fresh;               /* a member or frame begins: nothing before it matters */
    uint8_t *window;          /* [UNPACK_WINDOW] else: what came before; heap */
} unpack_restart;

typedef struct unpack_decoder unpack_decoder;

typedef struct unpack_kind {
    WARN_UNUSED status (*begin)(unpack_decoder **out);
    void (*end)(unpack_decoder **d);
    /* Starts at a restart point; the input that follows is from its `packed` on. before: the byte
     * before it, whose upper `bits` are used. */
    WARN_UNUSED status (*restart)(unpack_decoder *d, const unpack_restart *at, uint8_t before);
    /* Takes from in [*in_n] and gives to out [*out_n]; both written with what was taken and given.
     * *out_border: stands where it can begin again (fills *at but for the offsets and the window).
     * May stop early there. Damage: ST_BAD_INPUT. */
    WARN_UNUSED status (*step)(unpack_decoder *d, const uint8_t *in, size_t *in_n, uint8_t *out,
                               size_t *out_n, bool *out_border, unpack_restart *at);
    /* True between members (frames): the file may end here. */
    bool (*may_end)(const unpack_decoder *d);
} unpack_kind;

/* What a first reading found, to be kept, and given back to another start instead of that reading:
 * ST_BAD_INPUT where it cannot be of this file. Windows are copied. */
typedef struct unpack unpack;
const unpack_restart *unpack_restarts(const unpack *u);
WARN_UNUSED status unpack_adopt(unpack *u, const unpack_restart *points, int64_t n, int64_t total);
void unpack_forget(unpack *u); /* as if it had just been opened */

extern const unpack_kind unpack_gzip;    /* unpack_gzip.c, by zlib */
extern const unpack_kind unpack_deflate; /* the same file: bare, one stream, as zip has it */
extern const unpack_kind unpack_zstd;    /* unpack_zstd.c */

#endif
