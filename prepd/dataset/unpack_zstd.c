/* unpack_zstd.c: zstd frames one after another; a stream can begin again at each. */
#include <stdlib.h>
#include <zstd.h>

#include "prepd/dataset/unpack_kind.h"

enum { WINDOW_LOG = 27 }; /* 128 MiB: what `zstd --long` makes; more is refused */

struct unpack_decoder {
    ZSTD_DCtx *z;
    bool at_frame; /* nothing of the next frame was read */
    bool any_frame;
};

static void zstd_end(unpack_decoder **d)
{
    if (!*d)
        return;
    ZSTD_freeDCtx((*d)->z);
    free(*d);
    *d = NULL;
}

static status zstd_begin(unpack_decoder **out)
{
    unpack_decoder *d = (unpack_decoder *)calloc(1, sizeof *d);
    if (d)
        d->z = ZSTD_createDCtx();
    if (!d || !d->z ||
        ZSTD_isError(ZSTD_DCtx_setParameter(d->z, ZSTD_d_windowLogMax, WINDOW_LOG))) {
        zstd_end(&d);
        return FAIL(ST_NO_MEMORY, "no memory for a zstd decoder");
    }
    *out = d;
    return ST_OK;
}

static status zstd_restart(unpack_decoder *d, const unpack_restart *at, uint8_t before)
{
    (void)before;
    ZSTD_DCtx_reset(d->z, ZSTD_reset_session_only);
    d->at_frame = true;
    d->any_frame = at->packed > 0;
    return ST_OK;
}

static status zstd_step(unpack_decoder *d, const uint8_t *in, size_t *in_n, uint8_t *out,
                        size_t *out_n, bool *out_border, unpack_restart *at)
{
    ZSTD_inBuffer from = {in, *in_n, 0};
    ZSTD_outBuffer to = {out, *out_n, 0};
    size_t code = ZSTD_decompressStream(d->z, &to, &from);
    *in_n = from.pos;
    *out_n = to.pos;
    *out_border = false;
    if (ZSTD_isError(code))
        return FAIL(ST_BAD_INPUT, "not zstd: %s", ZSTD_getErrorName(code));
    d->at_frame = code == 0 || (d->at_frame && from.pos == 0 && to.pos == 0);
    if (code == 0) {
        d->any_frame = true;
        *out_border = true;
        *at = (unpack_restart){.fresh = true};
    }
    return ST_OK;
}

static bool zstd_may_end(const unpack_decoder *d)
{
    return d->any_frame && d->at_frame;
}

const unpack_kind unpack_zstd = {
    .begin = zstd_begin,
    .end = zstd_end,
    .restart = zstd_restart,
    .step = zstd_step,
    .may_end = zstd_may_end,
};
