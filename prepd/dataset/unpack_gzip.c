/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_gzip.c: gzip with zlib. Unpacking can begin again at every member, and between two deflate
 * blocks if the 32 KiB before and the bits of a shared byte are known (the method of zlib's
 * examples/zran.c, by Mark Adler). */
#include <stdlib.h>
#include <zlib.h>

#include "prepd/dataset/unpack.h"

enum {
    GZIP_MEMBER = 15 + 16, /* zlib's windowBits: 32 KiB, with a gzip header */
    RAW_DEFLATE = -15,     /* the same without a header */
    TRAILER_BYTES = 8,     /* checksum and size, which zlib does not read in a raw stream */
    BLOCK_END = 128,       /* bits of z_stream.data_type after inflate with Z_BLOCK */
    LAST_BLOCK = 64,
    UNUSED_BITS = 7,
};

struct unpack_decoder {
    z_stream zlib;
    bool open;
    bool raw;        /* it began inside a member, whose trailer is then skipped */
    int trailer;     /* bytes of the trailer that are still to be skipped */
    bool at_member;  /* nothing of the next member was read yet */
    bool any_member; /* a member has ended well, so what follows may be padding */
};

static status gzip_begin(unpack_decoder **out)
{
    unpack_decoder *decoder = (unpack_decoder *)calloc(1, sizeof *decoder);
    if (!decoder)
        return FAIL(ST_NO_MEMORY, "no memory for a gzip decoder");
    *out = decoder;
    return ST_OK;
}

static void gzip_close(unpack_decoder *decoder)
{
    if (decoder->open)
        inflateEnd(&decoder->zlib);
    decoder->open = false;
}

static void gzip_end(unpack_decoder **decoder)
{
    if (!*decoder)
        return;
    gzip_close(*decoder);
    free(*decoder);
    *decoder = NULL;
}

static status gzip_open(unpack_decoder *decoder, int bits)
{
    gzip_close(decoder);
    decoder->zlib = (z_stream){0};
    if (inflateInit2(&decoder->zlib, bits) != Z_OK)
        return FAIL(ST_NO_MEMORY, "no memory for a gzip decoder");
    decoder->open = true;
    decoder->raw = bits == RAW_DEFLATE;
    decoder->at_member = !decoder->raw;
    return ST_OK;
}

static status gzip_restart(unpack_decoder *decoder, const unpack_restart *at, uint8_t before)
{
    decoder->trailer = 0;
    decoder->any_member = at->packed > 0 && at->fresh;
    TRY(gzip_open(decoder, at->fresh ? GZIP_MEMBER : RAW_DEFLATE));
    if (at->fresh)
        return ST_OK;
    if (at->bits && inflatePrime(&decoder->zlib, at->bits, before >> (8 - at->bits)) != Z_OK)
        return FAIL(ST_INTERNAL, "zlib refuses %d bits of a shared byte", at->bits);
    if (inflateSetDictionary(&decoder->zlib, at->window, UNPACK_WINDOW) != Z_OK)
        return FAIL(ST_INTERNAL, "zlib refuses the window of a restart point");
    return ST_OK;
}

/* Between members: skips the trailer of a raw stream and zero bytes that pad the file, then opens
 * the next member if there is one. */
static status open_next_member(unpack_decoder *decoder, const uint8_t *in, size_t in_n,
                               size_t *out_taken)
{
    size_t at = 0;
    while (decoder->trailer && at < in_n) {
        at++;
        decoder->trailer--;
    }
    while (!decoder->trailer && decoder->any_member && at < in_n && in[at] == 0)
        at++;
    *out_taken = at;
    return at == in_n ? ST_OK : gzip_open(decoder, GZIP_MEMBER);
}

static status gzip_step(unpack_decoder *decoder, const uint8_t *in, size_t *in_n, uint8_t *out,
                        size_t *out_n, bool *out_border, unpack_restart *at)
{
    size_t skipped = 0;
    *out_border = false;
    if (!decoder->open) {
        TRY(open_next_member(decoder, in, *in_n, &skipped));
        *in_n = skipped;
        *out_n = 0;
        *out_border = decoder->open;
        *at = (unpack_restart){.fresh = true};
        return ST_OK;
    }
    decoder->zlib.next_in = (Bytef *)(uintptr_t)in;
    decoder->zlib.avail_in = *in_n > INT32_MAX ? INT32_MAX : (uInt)*in_n;
    decoder->zlib.next_out = out;
    decoder->zlib.avail_out = *out_n > INT32_MAX ? INT32_MAX : (uInt)*out_n;
    int code = inflate(&decoder->zlib, Z_BLOCK);
    *in_n = (size_t)(decoder->zlib.next_in - in);
    *out_n = (size_t)(decoder->zlib.next_out - out);
    decoder->at_member &= *in_n == 0;
    if (code == Z_STREAM_END) {
        decoder->trailer = decoder->raw ? TRAILER_BYTES : 0;
        decoder->any_member = true;
        gzip_close(decoder);
        return ST_OK;
    }
    if (code == Z_NEED_DICT || (code != Z_OK && code != Z_BUF_ERROR))
        return FAIL(code == Z_MEM_ERROR ? ST_NO_MEMORY : ST_BAD_INPUT,
                    "the gzip data are damaged: %s",
                    decoder->zlib.msg ? decoder->zlib.msg : zError(code));
    if ((decoder->zlib.data_type & BLOCK_END) && !(decoder->zlib.data_type & LAST_BLOCK)) {
        *out_border = true;
        *at = (unpack_restart){.bits = decoder->zlib.data_type & UNUSED_BITS};
    }
    return ST_OK;
}

static bool gzip_may_end(const unpack_decoder *decoder)
{
    return decoder->any_member && decoder->trailer == 0 && (!decoder->open || decoder->at_member);
}

const unpack_kind unpack_gzip = {
    .begin = gzip_begin,
    .end = gzip_end,
    .restart = gzip_restart,
    .step = gzip_step,
    .may_end = gzip_may_end,
};

static status deflate_begin(unpack_decoder **out)
{
    TRY(gzip_begin(out));
    status st = gzip_open(*out, RAW_DEFLATE);
    if (st != ST_OK)
        gzip_end(out);
    return st;
}

static bool deflate_may_end(const unpack_decoder *decoder)
{
    return decoder->any_member;
}

const unpack_kind unpack_deflate = {
    .begin = deflate_begin,
    .end = gzip_end,
    .step = gzip_step,
    .may_end = deflate_may_end,
};
