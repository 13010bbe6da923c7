/* unpack_gzip.c: gzip by zlib. A stream can begin again between two deflate
 * blocks, given the 32 KiB before and the bits of a shared byte (after Mark Adler's published
 * description of random access to gzip), and at every member. */
#include <stdlib.h>
#include <zlib.h>

#include "prepd/dataset/unpack_kind.h"

enum {
    GZIP_MEMBER = 15 + 16, /* windowBits of zlib: 32 KiB, with a gzip head */
    RAW_DEFLATE = -15,     /* without */
    TRAILER_BYTES = 8,     /* checksum and size, which a raw stream does not read by itself */
    BLOCK_END = 128,       /* bits of z_stream.data_type after Z_BLOCK */
    LAST_BLOCK = 64,
    UNUSED_BITS = 7,
};

struct unpack_decoder {
    z_stream z;
    bool open;
    bool raw;        /* began inside a member: its trailer is skipped unread */
    int trailer;     /* bytes of it to skip */
    bool at_member;  /* nothing of the next member was read */
    bool any_member; /* one has ended well: what follows may be padding */
};

static status gzip_begin(unpack_decoder **out)
{
    unpack_decoder *d = (unpack_decoder *)calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "no memory for a gzip decoder");
    *out = d;
    return ST_OK;
}

static void gzip_close(unpack_decoder *d)
{
    if (d->open)
        inflateEnd(&d->z);
    d->open = false;
}

static void gzip_end(unpack_decoder **d)
{
    if (!*d)
        return;
    gzip_close(*d);
    free(*d);
    *d = NULL;
}

static status gzip_open(unpack_decoder *d, int bits)
{
    gzip_close(d);
    d->z = (z_stream){0};
    if (inflateInit2(&d->z, bits) != Z_OK)
        return FAIL(ST_NO_MEMORY, "no memory for a gzip decoder");
    d->open = true;
    d->raw = bits == RAW_DEFLATE;
    d->at_member = !d->raw;
    return ST_OK;
}

static status gzip_restart(unpack_decoder *d, const unpack_restart *at, uint8_t before)
{
    d->trailer = 0;
    d->any_member = at->packed > 0 && at->fresh;
    TRY(gzip_open(d, at->fresh ? GZIP_MEMBER : RAW_DEFLATE));
    if (at->fresh)
        return ST_OK;
    if (at->bits && inflatePrime(&d->z, at->bits, before >> (8 - at->bits)) != Z_OK)
        return FAIL(ST_INTERNAL, "zlib does not take %d bits", at->bits);
    if (inflateSetDictionary(&d->z, at->window, UNPACK_WINDOW) != Z_OK)
        return FAIL(ST_INTERNAL, "zlib does not take a window");
    return ST_OK;
}

/* Between members: skips a raw stream's trailer and zero bytes that pad the file. */
static status open_next_member(unpack_decoder *d, const uint8_t *in, size_t n, size_t *out_taken)
{
    size_t at = 0;
    while (d->trailer && at < n) {
        at++;
        d->trailer--;
    }
    while (!d->trailer && d->any_member && at < n && in[at] == 0)
        at++;
    *out_taken = at;
    return at == n ? ST_OK : gzip_open(d, GZIP_MEMBER);
}

static status gzip_step(unpack_decoder *d, const uint8_t *in, size_t *in_n, uint8_t *out,
                        size_t *out_n, bool *out_border, unpack_restart *at)
{
    size_t skipped = 0;
    *out_border = false;
    if (!d->open) {
        TRY(open_next_member(d, in, *in_n, &skipped));
        *in_n = skipped;
        *out_n = 0;
        *out_border = d->open;
        *at = (unpack_restart){.fresh = true};
        return ST_OK;
    }
    d->z.next_in = (Bytef *)(uintptr_t)in;
    d->z.avail_in = *in_n > INT32_MAX ? INT32_MAX : (uInt)*in_n;
    d->z.next_out = out;
    d->z.avail_out = *out_n > INT32_MAX ? INT32_MAX : (uInt)*out_n;
    int code = inflate(&d->z, Z_BLOCK);
    *in_n = (size_t)(d->z.next_in - in);
    *out_n = (size_t)(d->z.next_out - out);
    d->at_member &= *in_n == 0;
    if (code == Z_STREAM_END) {
        d->trailer = d->raw ? TRAILER_BYTES : 0;
        d->any_member = true;
        gzip_close(d);
        return ST_OK;
    }
    if (code == Z_NEED_DICT || (code != Z_OK && code != Z_BUF_ERROR))
        return FAIL(code == Z_MEM_ERROR ? ST_NO_MEMORY : ST_BAD_INPUT, "not gzip: %s",
                    d->z.msg ? d->z.msg : zError(code));
    if ((d->z.data_type & BLOCK_END) && !(d->z.data_type & LAST_BLOCK)) {
        *out_border = true;
        *at = (unpack_restart){.bits = d->z.data_type & UNUSED_BITS};
    }
    return ST_OK;
}

static bool gzip_may_end(const unpack_decoder *d)
{
    return d->any_member && d->trailer == 0 && (!d->open || d->at_member);
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

static bool deflate_may_end(const unpack_decoder *d)
{
    return d->any_member;
}

const unpack_kind unpack_deflate = {
    .begin = deflate_begin,
    .end = gzip_end,
    .step = gzip_step,
    .may_end = deflate_may_end,
};
