/* SPDX-License-Identifier: Apache-2.0 */
/* image.c: decodes pictures with libvips, which reads them line by line; plain JPEGs do not go
 * through it (image_jpeg.h). How bytes become RGB follows Pillow and is decided here,
 * because libvips' own conversion of colours and its orientation differ from Pillow's in rare
 * cases. */
#include "prepd/sample/decode/image.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vips/vips.h>

#include "prepd/sample/decode/image_jpeg.h"
#include "prepd/sample/decode/orient.h"
#include "prepd/sample/decode/picture_format.h"
#include "prepd/sample/decode/png.h"

enum {
    FULL_BAND = 8,    /* lines of builtin_full_jpeg at a time */
    STRIP_LINES = 16, /* decoded at once: at least the tile height of libvips' sequential loaders */
};

/* The last warning of the library, because libpng gives the cause of a failure only there; and the
 * first one that concerns the pixels of a PNG. One of each per process, as the library itself is
 * one per process. */
static char last_warning[256], pixel_warning[256];

static void keep_warning(const gchar *domain, GLogLevelFlags level, const gchar *message,
                         gpointer user)
{
    (void)domain;
    (void)level;
    (void)user;
    snprintf(last_warning, sizeof last_warning, "%s", message ? message : "");
    if (strncmp(last_warning, "IDAT: ", 6) == 0 && !pixel_warning[0])
        memcpy(pixel_warning, last_warning, sizeof pixel_warning);
}

status image_library_init(const char *program)
{
    /* This comes before vips_init, which may already warn. A warning is not a failure: Pillow
     * accepts the files that cause them. */
    g_log_set_handler("VIPS", G_LOG_LEVEL_WARNING | G_LOG_LEVEL_INFO | G_LOG_LEVEL_DEBUG,
                      keep_warning, NULL);
    if (vips_init(program))
        return FAIL(ST_OS, "libvips cannot be initialised: %s", vips_error_buffer());
    vips_concurrency_set(1);
    vips_cache_set_max(0);
    vips_cache_set_max_mem(0);
    vips_cache_set_max_files(0);
    vips_block_untrusted_set(TRUE);
    vips_operation_block_set("VipsForeignLoad", TRUE);
#define PICTURE_FORMAT(id, loader, operation, ...)                                                 \
    vips_operation_block_set("VipsForeignLoad" #operation, FALSE);
#include "prepd/dataset/picture_formats.def"
    return ST_OK;
}

void image_library_done(void)
{
    vips_shutdown();
}

/* Libvips keeps one error text per process, which grows until it is cleared. */
static void forget_errors(void)
{
    vips_error_clear();
    last_warning[0] = pixel_warning[0] = 0;
}

/* Fails with the words of libvips, put on one line. */
static status fail_vips(const char *file, const char *format, const char *what)
{
    char text[512];
    const char *from = vips_error_buffer();
    snprintf(text, sizeof text, "%s", *from ? from : last_warning);
    size_t length = strlen(text);
    while (length > 0 && text[length - 1] == '\n')
        text[--length] = 0;
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\n')
            text[i] = ';';
    forget_errors();
    /* That a process is short of memory says nothing about the file. A file that always needs too
     * much is found because it kills fresh workers too. */
    const status code = strcasestr(text, "memory") ? ST_NO_MEMORY : ST_BAD_INPUT;
    return FAIL_IN(code, file, "the %s %s: %s", format, what,
                   length ? text : "no reason was given");
}

/* A file whose header was read and whose pixels were not. */
typedef struct opened {
    VipsImage *pixels; /* owned; it reads the caller's bytes as long as it lives */
    const char *format;
    int orientation;
    bool clip_16_bit; /* 16-bit grey, which Pillow clips to a byte; of all else it keeps the high
                         byte */
    enum { ALPHA_NONE, ALPHA_BAND, ALPHA_KEY } alpha; /* where the alpha is that is laid on white */
    uint8_t key[3]; /* with ALPHA_KEY, the colour that is transparent */
} opened;

static void opened_close(opened *file)
{
    if (file->pixels)
        g_object_unref(file->pixels);
    file->pixels = NULL;
    forget_errors();
}

static span metadata(VipsImage *im, const char *name)
{
    const void *data = NULL;
    size_t size = 0;
    if (vips_image_get_typeof(im, name) == 0 || vips_image_get_blob(im, name, &data, &size))
        return span_of(NULL, 0);
    return span_of(data, size);
}

static void *find_raw_profile(VipsImage *im, const char *name, GValue *value, void *user)
{
    static const char key[] = "Raw profile type exif";
    const size_t length = strlen(name);
    if (length < sizeof key - 1 || strcmp(name + length - (sizeof key - 1), key) != 0 ||
        !G_VALUE_HOLDS(value, VIPS_TYPE_REF_STRING))
        return NULL;
    return vips_image_get_string(im, name, (const char **)user) == 0 ? im : NULL;
}

/* As in Pillow, EXIF decides; if it has no orientation, the XMP packet does. */
static int find_orientation(VipsImage *im, picture_format format, span bytes)
{
    const char *profile = NULL;
    const bool png = format == PICTURE_PNG;
    const span exif = png ? png_find(bytes, "eXIf") : metadata(im, VIPS_META_EXIF_NAME);
    int orientation;
    if (png && !exif.size && vips_image_map(im, find_raw_profile, &profile))
        orientation = orient_from_raw_profile(profile);
    else
        orientation = orient_from_exif(exif);
    if (orientation == 0)
        orientation = orient_from_xmp(metadata(im, VIPS_META_XMP_NAME));
    return orientation >= 1 && orientation <= 8 ? orientation : 1;
}

static VipsImage *load_picture(picture_format format, span bytes)
{
    VipsImage *im = NULL;
    void *data = (void *)(uintptr_t)bytes.data; /* libvips takes no const pointer, but only reads */
    int failed = 1;
    switch (format) {
#define PICTURE_FORMAT(id, loader, ...)                                                            \
    case PICTURE_##id:                                                                             \
        failed =                                                                                   \
            vips_##loader##load_buffer(data, bytes.size, &im, "access", VIPS_ACCESS_SEQUENTIAL,    \
                                       "fail_on", VIPS_FAIL_ON_ERROR, NULL);                       \
        break;
#include "prepd/dataset/picture_formats.def"
    case PICTURE_OTHER: /* open_bytes refuses it */
        break;
    }
    return failed ? NULL : im;
}

static status refuse_format(span bytes, const char *file, const char *name)
{
    char read[PICTURE_FORMATS_TEXT];
    picture_formats_list(read);
    if (name)
        return FAIL_IN(ST_BAD_INPUT, file, "this is %s; only %s are read", name, read);
    const uint8_t *head = bytes.data;
    return FAIL_IN(
        ST_BAD_INPUT, file,
        "this is not a picture: its first bytes are %02x %02x %02x %02x; only %s are read", head[0],
        bytes.size > 1 ? head[1] : 0, bytes.size > 2 ? head[2] : 0, bytes.size > 3 ? head[3] : 0,
        read);
}

static void find_alpha(span bytes, picture_format format, opened *file)
{
    const int bands = vips_image_get_bands(file->pixels);
    if (format == PICTURE_PNG && png_has_colours_alone(bytes))
        file->alpha = png_key(bytes, file->key) ? ALPHA_KEY : ALPHA_NONE;
    else if (format != PICTURE_JPEG && bands % 2 == 0)
        file->alpha = ALPHA_BAND;
}

/* On success the caller closes *picture. */
static status open_bytes(span bytes, const char *file, const conf *limits, opened *picture)
{
    *picture = (opened){0};
    if (bytes.size == 0)
        return FAIL_IN(ST_BAD_INPUT, file, "the file is empty");
    if (bytes.size > (uint64_t)limits->image_file_bytes)
        return FAIL_IN(ST_BAD_INPUT, file,
                       "the file has %zu bytes, more than image.file_bytes %" PRId64 " allows",
                       bytes.size, limits->image_file_bytes);
    const picture_format format = picture_format_of(bytes, &picture->format);
    if (format == PICTURE_OTHER)
        return refuse_format(bytes, file, picture->format);

    if (format == PICTURE_PNG && !png_reaches_pixels(bytes))
        return FAIL_IN(ST_BAD_INPUT, file,
                       "the png header cannot be read: the file ends before its pixels");
    if (format == PICTURE_PNG)
        TRY(png_check_texts(bytes, file));
    forget_errors();
    picture->pixels = load_picture(format, bytes);
    if (!picture->pixels)
        return fail_vips(file, picture->format, "header cannot be read");
    status st = ST_OK;
    const int64_t width = vips_image_get_width(picture->pixels);
    const int64_t height = vips_image_get_height(picture->pixels);
    if (width * height > limits->image_input_pixels)
        st = FAIL_IN(ST_BAD_INPUT, file,
                     "the picture has %" PRId64 " x %" PRId64
                     " pixels, more than image.input_pixels %" PRId64 " allows",
                     width, height, limits->image_input_pixels);
    if (st != ST_OK) {
        opened_close(picture);
        return st;
    }
    picture->orientation = find_orientation(picture->pixels, format, bytes);
    picture->clip_16_bit = format == PICTURE_PNG && png_is_grey(bytes);
    if (limits->image_transparency == TRANSPARENCY_5_23)
        find_alpha(bytes, format, picture);
    return ST_OK;
}

/* Whether image_jpeg.h may be tried first. */
static bool past_libvips(span bytes, const conf *limits, const char **out_format)
{
    return limits->image_decoder == DECODER_AUTO &&
           picture_format_of(bytes, out_format) == PICTURE_JPEG;
}

bool image_header_of_start(span start, const conf *limits, image_info *out)
{
    return past_libvips(start, limits, &out->format) &&
           image_jpeg_header(start, limits, &out->width, &out->height);
}

status image_header(span bytes, const char *file, const conf *limits, image_info *out)
{
    opened picture;
    if (image_header_of_start(bytes, limits, out))
        return ST_OK;
    TRY(open_bytes(bytes, file, limits, &picture));
    const int width = vips_image_get_width(picture.pixels),
              height = vips_image_get_height(picture.pixels);
    const bool swap = orient_swaps_sides(picture.orientation);
    *out = (image_info){swap ? height : width, swap ? width : height, picture.format};
    opened_close(&picture);
    return ST_OK;
}

/* a * b / 255, rounded as Pillow's MULDIV255 does. Letters: a, b the factors. */
static inline uint8_t mul_div_255(uint32_t a, uint32_t b)
{
    const uint32_t product = a * b + 128;
    return (uint8_t)(((product >> 8) + product) >> 8);
}

/* CMYK to RGB. The inks are the right way round here, because libvips, like Pillow, inverts what a
 * JPEG stores. */
static void cmyk_line(const uint8_t *in, int64_t bytes, uint8_t *rgb)
{
    for (int64_t i = 0; i < bytes; i++, in += 4, rgb += 3) {
        const uint8_t light = (uint8_t)(255 - in[3]);
        for (int j = 0; j < 3; j++)
            rgb[j] = (uint8_t)(light - mul_div_255(in[j], light));
    }
}

static void byte_line(const uint8_t *in, int64_t bytes, int bands, uint8_t *rgb)
{
    if (bands == 3) {
        memcpy(rgb, in, (size_t)bytes * 3);
        return;
    }
    const int green = bands >= 3 ? 1 : 0, blue = bands >= 3 ? 2 : 0;
    for (int64_t i = 0; i < bytes; i++, in += bands, rgb += 3) {
        rgb[0] = in[0];
        rgb[1] = in[green];
        rgb[2] = in[blue];
    }
}

static void short_line(const uint16_t *in, int64_t count, int bands, bool clip, uint8_t *rgb)
{
    const int green = bands >= 3 ? 1 : 0, blue = bands >= 3 ? 2 : 0;
    for (int64_t i = 0; i < count; i++, in += bands, rgb += 3) {
        const uint16_t samples[3] = {in[0], in[green], in[blue]};
        for (int j = 0; j < 3; j++)
            rgb[j] = (uint8_t)(clip ? (samples[j] > 255 ? 255 : samples[j]) : samples[j] >> 8);
    }
}

static void convert_line(const opened *file, const void *in, int64_t width, uint8_t *rgb)
{
    const int bands = vips_image_get_bands(file->pixels);
    if (vips_image_get_format(file->pixels) == VIPS_FORMAT_USHORT)
        short_line(in, width, bands, file->clip_16_bit, rgb);
    else if (vips_image_get_interpretation(file->pixels) == VIPS_INTERPRETATION_CMYK)
        cmyk_line(in, width, rgb);
    else
        byte_line(in, width, bands, rgb);
}

static uint8_t alpha_at(const opened *file, const void *in, int64_t index, const uint8_t *rgb)
{
    const int64_t bands = vips_image_get_bands(file->pixels), at = (index + 1) * bands - 1;
    if (file->alpha == ALPHA_KEY)
        return memcmp(rgb, file->key, 3) == 0 ? 0 : 255;
    return vips_image_get_format(file->pixels) == VIPS_FORMAT_USHORT
               ? (uint8_t)(((const uint16_t *)in)[at] >> 8)
               : ((const uint8_t *)in)[at];
}

/* Lays colours on white: (colour * alpha + 255 * (255 - alpha)) / 255, rounded. */
static void whiten_line(const opened *file, const void *in, int64_t width, uint8_t *rgb)
{
    for (int64_t i = 0; i < width; i++, rgb += 3) {
        const uint32_t alpha = alpha_at(file, in, i, rgb);
        for (int j = 0; alpha < 255 && j < 3; j++)
            rgb[j] = (uint8_t)((2 * (rgb[j] * alpha + 255 * (255 - alpha)) + 255) / 510);
    }
}

/* Reads all pixels, not yet turned, to rgb [height, width, 3]. Strips go directly from libvips'
 * region to the result, so that the picture exists only once. */
static status read_pixels(const opened *picture, const char *file, uint8_t *rgb)
{
    const int width = vips_image_get_width(picture->pixels),
              height = vips_image_get_height(picture->pixels);
    const VipsBandFormat type = vips_image_get_format(picture->pixels);
    const int bands = vips_image_get_bands(picture->pixels);
    if ((type != VIPS_FORMAT_UCHAR && type != VIPS_FORMAT_USHORT) || bands < 1 || bands > 4)
        return FAIL_IN(ST_BAD_INPUT, file, "a %s with %d channels of the type %s is not supported",
                       picture->format, bands, vips_enum_nick(VIPS_TYPE_BAND_FORMAT, (int)type));
    VipsRegion *region = vips_region_new(picture->pixels);
    if (!region)
        return fail_vips(file, picture->format, "cannot be decoded");
    status st = ST_OK;
    for (int i = 0; i < height && st == ST_OK; i += STRIP_LINES) {
        const int lines = height - i < STRIP_LINES ? height - i : STRIP_LINES;
        const VipsRect strip = {0, i, width, lines};
        if (vips_region_prepare(region, &strip)) {
            st = fail_vips(file, picture->format, "is truncated or damaged");
            break;
        }
        for (int line = i; line < i + lines; line++) {
            uint8_t *to = rgb + (size_t)line * (size_t)width * 3;
            convert_line(picture, VIPS_REGION_ADDR(region, 0, line), width, to);
            if (picture->alpha != ALPHA_NONE)
                whiten_line(picture, VIPS_REGION_ADDR(region, 0, line), width, to);
        }
    }
    g_object_unref(region);
    return st;
}

/* What the library said of damage while it decoded the picture; *out is NULL if it said nothing.
 * libvips puts the warnings of libjpeg into its error text even if it succeeds. */
static status find_damage(span bytes, picture_format format, arena *memory, const char **out)
{
    static const char jpeg[] = "VipsJpeg: ";
    const char *errors = strstr(vips_error_buffer(), jpeg);
    const char *from = errors ? errors + sizeof jpeg - 1 : pixel_warning;
    char *copy = NULL;
    if (*from)
        TRY(arena_strndup(memory, from, strcspn(from, "\n"), &copy));
    *out = copy;
    return copy || format != PICTURE_JPEG ? ST_OK : image_jpeg_end(bytes, memory, out);
}

static status refuse_damaged(const char *file, const char *format, const char *warning)
{
    return FAIL_IN(ST_BAD_INPUT, file, "the %s is damaged, and data.damaged is refuse: %s", format,
                   warning);
}

static status decode_vips(span bytes, const char *file, const conf *limits, arena *memory,
                          image *out)
{
    opened picture;
    TRY(open_bytes(bytes, file, limits, &picture));
    status st = ST_OK;
    const int32_t width = vips_image_get_width(picture.pixels);
    const int32_t height = vips_image_get_height(picture.pixels);
    const size_t size = (size_t)width * (size_t)height * 3;
    const bool turn = picture.orientation > 1, swap = orient_swaps_sides(picture.orientation);
    image im = {swap ? height : width, swap ? width : height, NULL, NULL};
    const arena_mark start = arena_save(memory);
    TRY_OR(done, arena_alloc(memory, size, (void **)&im.rgb));
    const arena_mark mark = arena_save(memory);
    uint8_t *read = im.rgb;
    if (turn)
        TRY_OR(done, arena_alloc(memory, size, (void **)&read));
    TRY_OR(done, read_pixels(&picture, file, read));
    if (picture_format_of(bytes, &picture.format) == PICTURE_PNG && !png_ends(bytes)) {
        st = FAIL_IN(ST_BAD_INPUT, file, "the png is truncated or damaged: it has no end chunk");
        goto done;
    }
    if (turn) {
        orient_apply(picture.orientation, read, height, width, im.rgb);
        arena_release(memory, mark);
    }
    TRY_OR(done,
           find_damage(bytes, picture_format_of(bytes, &picture.format), memory, &im.warning));
    *out = im;
done:
    if (st != ST_OK)
        arena_release(memory, start);
    opened_close(&picture);
    return st;
}

status image_decode(span bytes, const char *file, const conf *limits, arena *memory, image *out)
{
    return image_decode_rows(bytes, file, limits, NULL, memory, out);
}

/* Decodes with libvips; a JPEG that libvips refuses only because of its many warnings is not a
 * failure. */
static status decode_by_vips(span bytes, const char *file, const conf *limits, arena *memory,
                             image *out)
{
    const char *name;
    bool done = false;
    const status st = decode_vips(bytes, file, limits, memory, out);
    if (st != ST_BAD_INPUT || picture_format_of(bytes, &name) != PICTURE_JPEG)
        return st;
    const status_note note = *status_last();
    TRY(image_jpeg_decode_damaged(bytes, limits, memory, out, &done));
    status_clear();
    if (done)
        return ST_OK;
    status_set(&note);
    return st;
}

status image_decode_rows(span bytes, const char *file, const conf *limits, const image_rows *rows,
                         arena *memory, image *out)
{
    const char *name = NULL;
    bool done = false;
    image im;
    if (past_libvips(bytes, limits, &name))
        TRY(image_jpeg_decode(bytes, limits, rows, memory, &im, &done));
    if (!done)
        TRY(decode_by_vips(bytes, file, limits, memory, &im));
    if (im.warning && limits->data_damaged == DAMAGED_REFUSE) {
        (void)picture_format_of(bytes, &name);
        return refuse_damaged(file, name, im.warning);
    }
    *out = im;
    return ST_OK;
}

/* Wraps a picture for libvips, without a copy; NULL on failure. */
static VipsImage *borrow(const image *im)
{
    VipsImage *raw = vips_image_new_from_memory(im->rgb, (size_t)im->width * (size_t)im->height * 3,
                                                im->width, im->height, 3, VIPS_FORMAT_UCHAR);
    VipsImage *rgb = NULL;
    if (!raw || vips_copy(raw, &rgb, "interpretation", VIPS_INTERPRETATION_sRGB, NULL))
        rgb = NULL;
    if (raw)
        g_object_unref(raw);
    return rgb;
}

/* Gives a copy of what libvips made, so that the caller can use free(). Frees data. */
static status hand_over(void *data, size_t size, uint8_t **out, size_t *out_size)
{
    uint8_t *copy = malloc(size);
    if (copy) {
        memcpy(copy, data, size);
        *out = copy;
        *out_size = size;
    }
    g_free(data);
    return copy ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a picture of %zu bytes", size);
}

status image_write_png(const image *im, uint8_t **out, size_t *out_size)
{
    void *data = NULL;
    size_t size = 0;
    forget_errors();
    VipsImage *rgb = borrow(im);
    const bool failed = !rgb || vips_pngsave_buffer(rgb, &data, &size, NULL);
    if (rgb)
        g_object_unref(rgb);
    return failed ? fail_vips("picture in memory", "png", "cannot be written")
                  : hand_over(data, size, out, out_size);
}

status image_write_jpeg(const image *im, int quality, uint8_t **out, size_t *out_size)
{
    void *data = NULL;
    size_t size = 0;
    forget_errors();
    VipsImage *rgb = borrow(im);
    const bool failed =
        !rgb || vips_jpegsave_buffer(rgb, &data, &size, "Q", quality, "strip", TRUE, NULL);
    if (rgb)
        g_object_unref(rgb);
    return failed ? fail_vips("picture in memory", "jpeg", "cannot be written")
                  : hand_over(data, size, out, out_size);
}

status image_resize_vips(const image *in, int32_t height, int32_t width, arena *memory, image *out)
{
    status st = ST_OK;
    VipsImage *resized = NULL;
    void *data = NULL;
    size_t size = 0;
    image im = {width, height, NULL};
    forget_errors();
    VipsImage *rgb = borrow(in);
    if (!rgb || vips_resize(rgb, &resized, (double)width / in->width, "vscale",
                            (double)height / in->height, "kernel", VIPS_KERNEL_CUBIC, NULL)) {
        st = fail_vips("picture in memory", "picture", "cannot be resized");
        goto done;
    }
    if (vips_image_get_width(resized) != width || vips_image_get_height(resized) != height ||
        vips_image_get_bands(resized) != 3 || vips_image_get_format(resized) != VIPS_FORMAT_UCHAR) {
        st = FAIL(ST_BAD_INPUT, "libvips resized a picture to %d x %d, expected %d x %d",
                  vips_image_get_width(resized), vips_image_get_height(resized), width, height);
        goto done;
    }
    data = vips_image_write_to_memory(resized, &size);
    if (!data) {
        st = fail_vips("picture in memory", "picture", "cannot be resized");
        goto done;
    }
    TRY_OR(done, arena_alloc(memory, size, (void **)&im.rgb));
    memcpy(im.rgb, data, size);
    *out = im;
done:
    g_free(data);
    if (resized)
        g_object_unref(resized);
    if (rgb)
        g_object_unref(rgb);
    return st;
}
