/* SPDX-License-Identifier: Apache-2.0 */
/* poison_module.c: an image module in front of the real one ($TESSERA_REAL_IMAGE_MODULE). A file
 * whose bytes contain a mark kills the worker that decodes it, as a bug in a decoder would. It is
 * also a video module in front of $TESSERA_REAL_VIDEO_MODULE, with another fingerprint, as of
 * another version. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prepd/worker/media/image_load.h"

static const image_api *real;

static int holds_mark(span bytes, const char *mark)
{
    return memmem(bytes.data, bytes.size, mark, strlen(mark)) != NULL;
}

static status init(const char *program)
{
    const char *path = getenv("TESSERA_REAL_IMAGE_MODULE");
    void *module = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    real = module ? dlsym(module, IMAGE_API_SYMBOL) : NULL;
    if (!real)
        return FAIL(ST_UNAVAILABLE, "cannot load the real image module: %s", dlerror());
    return real->init(program);
}

static void close_module(void)
{
    real->done();
}

/* Takes as long as the environment says, as a slow disk would. */
static void take_time(const char *name)
{
    if (getenv(name))
        usleep((useconds_t)atoi(getenv(name)) * 1000);
}

static status header(span bytes, const char *file, const conf *limits, image_info *out)
{
    if (holds_mark(bytes, "POISON:header"))
        abort();
    return real->header(bytes, file, limits, out);
}

static bool header_of_start(span start, const conf *limits, image_info *out)
{
    if (holds_mark(start, "POISON:header"))
        abort();
    take_time("POISON_SLOW_HEADER_MS");
    return real->header_of_start(start, limits, out);
}

static void fault(void)
{
    volatile char *volatile nowhere = NULL;
    *nowhere = 0;
}

/* Takes and uses memory until there is no more, like a decoder that needs more and more. */
static status exhaust_memory(const char *file)
{
    enum { PIECE_BYTES = 1 << 20 };
    char *volatile piece;
    while ((piece = malloc(PIECE_BYTES)))
        memset(piece, 1, PIECE_BYTES);
    return FAIL_IN(ST_NO_MEMORY, file, "no memory to decode");
}

/* Leaks a little memory for each picture. */
static void leak(void)
{
    enum { LOST_BYTES = 256 << 10, PAGE_BYTES = 4096 };
    volatile char *lost = malloc(LOST_BYTES); /* volatile, so that the compiler keeps the writes */
    for (int i = 0; lost && i < LOST_BYTES; i += PAGE_BYTES)
        lost[i] = 1;
}

static status decode_poisoned(span bytes, const char *file, const conf *limits,
                              const image_rows *rows, arena *memory, image *out)
{
    if (holds_mark(bytes, "POISON:abort"))
        abort();
    if (holds_mark(bytes, "POISON:fault"))
        fault();
    if (holds_mark(bytes, "POISON:exit"))
        exit(0);
    while (holds_mark(bytes, "POISON:hang"))
        pause();
    if (holds_mark(bytes, "POISON:grow"))
        return exhaust_memory(file);
    if (holds_mark(bytes, "POISON:leak"))
        leak();
    take_time("POISON_SLOW_MS");
    return real->decode(bytes, file, limits, rows, memory, out);
}

static status fingerprint(hash128 *out)
{
    return real->fingerprint(out);
}

static status write_png(const image *im, uint8_t **out, size_t *out_size)
{
    return real->write_png(im, out, out_size);
}

static status resize_vips(const image *in, int32_t height, int32_t width, arena *memory, image *out)
{
    return real->resize_vips(in, height, width, memory, out);
}

extern const image_api tessera_image_api;

const image_api tessera_image_api = {
    .version = IMAGE_API_VERSION,
    .init = init,
    .done = close_module,
    .header = header,
    .header_of_start = header_of_start,
    .decode = decode_poisoned,
    .fingerprint = fingerprint,
    .write_png = write_png,
    .resize_vips = resize_vips,
};

/* The video module */

static const video_api *real_video;

/* This call cannot return an error, so a missing module is noticed by the next one. */
static void video_init(void)
{
    const char *path = getenv("TESSERA_REAL_VIDEO_MODULE");
    void *module = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    real_video = module ? dlsym(module, VIDEO_API_SYMBOL) : NULL;
    if (real_video)
        real_video->init();
}

static status video_header_real(const video_bytes *bytes, const char *file, const conf *limits,
                                video_info *out)
{
    return real_video->header(bytes, file, limits, out);
}

static status video_decode_real(const video_bytes *bytes, const char *file, const conf *limits,
                                const int64_t *index, int64_t count, arena *memory, video_take take,
                                void *user)
{
    return real_video->decode(bytes, file, limits, index, count, memory, take, user);
}

static status video_fingerprint_other(hash128 *out)
{
    if (!real_video)
        return FAIL(ST_UNAVAILABLE, "cannot load the real video module: %s", dlerror());
    TRY(real_video->fingerprint(out));
    out->bytes[0] ^= 1;
    return ST_OK;
}

extern const video_api tessera_video_api;

const video_api tessera_video_api = {
    .version = VIDEO_API_VERSION,
    .init = video_init,
    .header = video_header_real,
    .decode = video_decode_real,
    .fingerprint = video_fingerprint_other,
};
