/* SPDX-License-Identifier: Apache-2.0 */
/* zstd_frames.c: zstd for row blocks and image parts, with two contexts to compress: one for blocks
 * at level 1, one for filtered pixels that codes bytes by frequency alone. */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_getFrameHeader, ZSTD_c_literalCompressionMode */
#include "proto/message/zstd_frames.h"

#include <stdlib.h>
#include <zstd.h>

enum {
    LEVEL = 1,
    ENTROPY_LEVEL = -131072, /* the match finder takes such long steps that it finds nothing */
    WINDOW_LOG_MAX = 27,
};

struct zstd_frames {
    ZSTD_CCtx *block, *entropy;
    ZSTD_DCtx *open;
    uint8_t *out; /* [capacity] the last compressed frame */
    size_t capacity;
};

static status zstd_failed(const char *what, size_t code)
{
    return FAIL(ST_INTERNAL, "zstd: %s: %s", what, ZSTD_getErrorName(code));
}

static status set_parameter(ZSTD_CCtx *context, ZSTD_cParameter which, int value)
{
    size_t code = ZSTD_CCtx_setParameter(context, which, value);
    return ZSTD_isError(code) ? zstd_failed("setting a parameter", code) : ST_OK;
}

static status set_up(zstd_frames *contexts)
{
    if (!contexts->block || !contexts->entropy || !contexts->open)
        return FAIL(ST_NO_MEMORY, "no memory for zstd");
    TRY(set_parameter(contexts->block, ZSTD_c_compressionLevel, LEVEL));
    TRY(set_parameter(contexts->block, ZSTD_c_checksumFlag, 1));
    /* This parameter is experimental; a libzstd without it compresses at the ordinary level. */
    int level = ENTROPY_LEVEL;
    if (ZSTD_isError(ZSTD_CCtx_setParameter(contexts->entropy, ZSTD_c_literalCompressionMode,
                                            (int)ZSTD_ps_enable)))
        level = LEVEL;
    TRY(set_parameter(contexts->entropy, ZSTD_c_compressionLevel, level));
    size_t code = ZSTD_DCtx_setParameter(contexts->open, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
    return ZSTD_isError(code) ? zstd_failed("setting the window limit", code) : ST_OK;
}

status zstd_frames_new(zstd_frames **out)
{
    zstd_frames *contexts = calloc(1, sizeof *contexts);
    if (!contexts)
        return FAIL(ST_NO_MEMORY, "no memory for zstd");
    contexts->block = ZSTD_createCCtx();
    contexts->entropy = ZSTD_createCCtx();
    contexts->open = ZSTD_createDCtx();
    status st = set_up(contexts);
    if (st == ST_OK)
        *out = contexts;
    else
        zstd_frames_free(&contexts);
    return st;
}

void zstd_frames_free(zstd_frames **held)
{
    if (!held || !*held)
        return;
    ZSTD_freeCCtx((*held)->block);
    ZSTD_freeCCtx((*held)->entropy);
    ZSTD_freeDCtx((*held)->open);
    free((*held)->out);
    free(*held);
    *held = NULL;
}

status zstd_frames_compress(zstd_frames *contexts, span in, int entropy_only, span *out)
{
    size_t bound = ZSTD_compressBound(in.size);
    if (bound > contexts->capacity) {
        uint8_t *grown = realloc(contexts->out, bound);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory to compress %zu bytes", in.size);
        contexts->out = grown;
        contexts->capacity = bound;
    }
    size_t size = ZSTD_compress2(entropy_only ? contexts->entropy : contexts->block, contexts->out,
                                 contexts->capacity, in.data, in.size);
    if (ZSTD_isError(size))
        return zstd_failed("compressing", size);
    *out = span_of(contexts->out, size);
    return ST_OK;
}

status zstd_frames_check(span in, uint64_t size, const char *peer, const char *what)
{
    ZSTD_frameHeader header;
    size_t code = ZSTD_getFrameHeader(&header, in.data, in.size);
    if (code != 0 || header.frameType != ZSTD_frame)
        return FAIL_IN(ST_PROTOCOL, peer, "%s: its %zu bytes do not begin a zstd frame", what,
                       in.size);
    if (header.frameContentSize != size)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "%s: the zstd frame declares %lld bytes, but the header %llu", what,
                       header.frameContentSize == ZSTD_CONTENTSIZE_UNKNOWN
                           ? -1LL
                           : (long long)header.frameContentSize,
                       (unsigned long long)size);
    /* The window of a single-segment frame is its content, whose memory is taken anyway. */
    if (header.windowSize > (1ULL << WINDOW_LOG_MAX) && header.windowSize > header.frameContentSize)
        return FAIL_IN(ST_PROTOCOL, peer,
                       "%s: the zstd window has %llu bytes, expected at most 2^%d", what,
                       (unsigned long long)header.windowSize, WINDOW_LOG_MAX);
    if (header.dictID != 0)
        return FAIL_IN(ST_PROTOCOL, peer, "%s: the zstd frame needs dictionary %u, expected none",
                       what, header.dictID);
    if (ZSTD_findFrameCompressedSize(in.data, in.size) != in.size)
        return FAIL_IN(ST_PROTOCOL, peer, "%s: its %zu bytes are not exactly one whole zstd frame",
                       what, in.size);
    return ST_OK;
}

status zstd_frames_open(zstd_frames *contexts, span in, uint8_t *out, uint64_t size,
                        const char *peer, const char *what)
{
    size_t got = ZSTD_decompressDCtx(contexts->open, out, size, in.data, in.size);
    if (ZSTD_isError(got))
        return FAIL_IN(ST_PROTOCOL, peer, "%s: zstd: %s", what, ZSTD_getErrorName(got));
    if (got != size)
        return FAIL_IN(ST_PROTOCOL, peer, "%s: zstd returned %zu bytes, expected %llu", what, got,
                       (unsigned long long)size);
    return ST_OK;
}
