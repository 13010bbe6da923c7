/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_zstd.c: zstd frames, one after another. Unpacking can begin again at each frame. */
#include <stdlib.h>
#include <zstd.h>

#include "prepd/dataset/unpack.h"

enum { WINDOW_LOG = 27 }; /* 128 MiB, which `zstd --long` uses; a file that needs more is refused */

struct unpack_decoder {
    ZSTD_DCtx *zstd;
    bool at_frame; /* nothing of the next frame was read yet */
    bool any_frame;
};

static void zstd_end(unpack_decoder **decoder)
{
    if (!*decoder)
        return;
    ZSTD_freeDCtx((*decoder)->zstd);
    free(*decoder);
    *decoder = NULL;
}

static status zstd_begin(unpack_decoder **out)
{
    unpack_decoder *decoder = (unpack_decoder *)calloc(1, sizeof *decoder);
    if (decoder)
        decoder->zstd = ZSTD_createDCtx();
    if (!decoder || !decoder->zstd ||
        ZSTD_isError(ZSTD_DCtx_setParameter(decoder->zstd, ZSTD_d_windowLogMax, WINDOW_LOG))) {
        zstd_end(&decoder);
        return FAIL(ST_NO_MEMORY, "no memory for a zstd decoder");
    }
    *out = decoder;
    return ST_OK;
}

static status zstd_restart(unpack_decoder *decoder, const unpack_restart *at, uint8_t before)
{
    (void)before;
    ZSTD_DCtx_reset(decoder->zstd, ZSTD_reset_session_only);
    decoder->at_frame = true;
    decoder->any_frame = at->packed > 0;
    return ST_OK;
}

static status zstd_step(unpack_decoder *decoder, const uint8_t *in, size_t *in_n, uint8_t *out,
                        size_t *out_n, bool *out_border, unpack_restart *at)
{
    ZSTD_inBuffer from = {in, *in_n, 0};
    ZSTD_outBuffer to = {out, *out_n, 0};
    size_t code = ZSTD_decompressStream(decoder->zstd, &to, &from);
    *in_n = from.pos;
    *out_n = to.pos;
    *out_border = false;
    if (ZSTD_isError(code))
        return FAIL(ST_BAD_INPUT, "the zstd data are damaged: %s", ZSTD_getErrorName(code));
    decoder->at_frame = code == 0 || (decoder->at_frame && from.pos == 0 && to.pos == 0);
    if (code == 0) {
        decoder->any_frame = true;
        *out_border = true;
        *at = (unpack_restart){.fresh = true};
    }
    return ST_OK;
}

static bool zstd_may_end(const unpack_decoder *decoder)
{
    return decoder->any_frame && decoder->at_frame;
}

const unpack_kind unpack_zstd = {
    .begin = zstd_begin,
    .end = zstd_end,
    .restart = zstd_restart,
    .step = zstd_step,
    .may_end = zstd_may_end,
};
