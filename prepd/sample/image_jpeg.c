/* image_jpeg.c: the plain path through libjpeg. Any error or warning leaves libjpeg by longjmp, and
 * the file goes to libvips instead. Lines are read as RGB, or as planes if a taker wants them
 * (image_rows.take_ycc). */
#include "prepd/sample/image_jpeg.h"

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs it */
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "prepd/sample/orient.h"

enum {
    LINES = 16,           /* asked of libjpeg at once: two rows of subsampled blocks */
    MARKER_BYTES = 65533, /* the most bytes of a marker: keep all of them */
};

/* The state of one decoding. libjpeg knows only the first member; callbacks find the rest through
 * client_data. */
typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf left; /* where leave_decoder jumps to */
    span bytes;
    const conf *limits;
    arena *memory;
    const image_rows *rows; /* NULL: all lines are kept */
    bool planes;            /* colours are not converted; rows->take_ycc takes the planes */
    uint8_t *read;          /* [kept, width, 3] as stored, or with planes [3, kept, stride] */
    JDIMENSION kept;        /* lines: all, or one band that the next overwrites */
    int orientation;
    bool keeps_warnings; /* keep the first warning; else a warning leaves the decoder */
    bool at_end;         /* all lines were read */
    char warning[JMSG_LENGTH_MAX];
    status st;
} decoder;

static void leave_decoder(j_common_ptr j)
{
    decoder *d = (decoder *)j->client_data;
    longjmp(d->left, 1);
}

/* Receives libjpeg's messages. A negative level is a warning; others only trace what it does. */
static void record_message(j_common_ptr j, int level)
{
    decoder *d = (decoder *)j->client_data;
    if (level >= 0)
        return;
    if (d->keeps_warnings && !d->warning[0])
        d->errors.format_message(j, d->warning);
    if (!d->keeps_warnings || (!d->at_end && j->err->msg_code == JWRN_JPEG_EOF))
        leave_decoder(
            j); /* also for a file that ends before its last line, which is never accepted */
}

static void say_nothing(j_common_ptr j)
{
    (void)j;
}

static bool match_marker(const struct jpeg_marker_struct *m, const char *with)
{
    const size_t n = strlen(with);
    return m->data_length > n && memcmp(m->data, with, n) == 0;
}

/* As find_orientation of image.c: EXIF decides, or else XMP. Returns false if there are several
 * blocks of a kind, because then it would matter which of them libvips takes. */
static bool find_orientation(decoder *d)
{
    span exif = {0}, xmp = {0};
    for (const struct jpeg_marker_struct *m = d->jpeg.marker_list; m; m = m->next) {
        span *kind = match_marker(m, "Exif") ? &exif : match_marker(m, "http") ? &xmp : NULL;
        if (kind && kind->data)
            return false;
        if (kind)
            *kind = span_of(m->data, m->data_length);
    }
    int orientation = orient_from_exif(exif);
    if (orientation == 0)
        orientation = orient_from_xmp(xmp);
    d->orientation = orientation >= 1 && orientation <= 8 ? orientation : 1;
    return true;
}

static bool is_plain(decoder *d)
{
    struct jpeg_decompress_struct *j = &d->jpeg;
    return !j->progressive_mode && !j->arith_code && !jpeg_has_multiple_scans(j) &&
           j->data_precision == 8 && j->num_components == 3 && j->jpeg_color_space == JCS_YCbCr &&
           (int64_t)j->image_width * j->image_height <= d->limits->image_input_pixels &&
           find_orientation(d);
}

static bool read_lines(decoder *d)
{
    struct jpeg_decompress_struct *j = &d->jpeg;
    const size_t stride = (size_t)j->output_width * 3;
    while (j->output_scanline < j->output_height) {
        JSAMPROW line[LINES];
        const JDIMENSION at = j->output_scanline % d->kept;
        const JDIMENSION n = d->kept - at < LINES ? d->kept - at : LINES;
        for (size_t i = 0; i < n; i++)
            line[i] = d->read + (at + i) * stride;
        if (jpeg_read_scanlines(j, line, n) == 0)
            return false;
        if (d->rows && j->output_scanline % d->kept == 0)
            d->rows->take(d->rows->user, d->read, (int32_t)(j->output_scanline - d->kept));
    }
    return true;
}

/* Bytes of a row of a plane, which has whole blocks. */
static size_t plane_stride(const decoder *d)
{
    return ((size_t)d->jpeg.image_width + DCTSIZE - 1) / DCTSIZE * DCTSIZE;
}

static bool read_planes(decoder *d)
{
    struct jpeg_decompress_struct *j = &d->jpeg;
    const size_t stride = plane_stride(d), bytes = stride * d->kept;
    const uint8_t *const planes[] = {d->read, d->read + bytes, d->read + 2 * bytes};
    while (j->output_scanline < j->output_height) {
        JSAMPROW line[3][DCTSIZE];
        JSAMPARRAY blocks[] = {line[0], line[1], line[2]};
        const JDIMENSION at = j->output_scanline % d->kept;
        for (size_t c = 0; c < 3; c++)
            for (size_t i = 0; i < DCTSIZE; i++)
                line[c][i] = d->read + c * bytes + (at + i) * stride;
        if (jpeg_read_raw_data(j, blocks, DCTSIZE) == 0)
            return false;
        if (j->output_scanline % d->kept == 0)
            d->rows->take_ycc(d->rows->user, planes, (int64_t)stride,
                              (int32_t)(j->output_scanline - d->kept));
    }
    return true;
}

/* Whether all three planes are stored at full size and the taker wants them. */
static bool full_planes(const decoder *d)
{
    for (int c = 0; c < 3; c++)
        if (d->jpeg.comp_info[c].h_samp_factor != 1 || d->jpeg.comp_info[c].v_samp_factor != 1)
            return false;
    return d->rows->take_ycc && d->rows->band % DCTSIZE == 0;
}

static void prepare_decoder(decoder *d)
{
    d->jpeg.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = leave_decoder;
    d->errors.emit_message = record_message;
    d->errors.output_message = say_nothing;
    d->jpeg.client_data = d;
}

/* Everything that may leave through leave_decoder is in the functions with setjmp below. What they
 * change lies in *d, which is the caller's, so no local variable is clobbered. */
static bool read_header(decoder *d)
{
    if (setjmp(d->left))
        return false;
    jpeg_create_decompress(&d->jpeg);
    jpeg_save_markers(&d->jpeg, JPEG_APP0 + 1, MARKER_BYTES);
    jpeg_mem_src(&d->jpeg, d->bytes.data, d->bytes.size);
    return jpeg_read_header(&d->jpeg, TRUE) == JPEG_HEADER_OK && is_plain(d);
}

static bool read_picture(decoder *d)
{
    if (setjmp(d->left))
        return false;
    if (d->rows && (d->orientation > 1 || (int64_t)d->jpeg.image_width != d->rows->width ||
                    (int64_t)d->jpeg.image_height != d->rows->height))
        d->rows = NULL;
    d->planes = d->rows && full_planes(d);
    d->jpeg.raw_data_out = d->planes;
    jpeg_start_decompress(&d->jpeg);
    if (d->jpeg.output_components != 3)
        return false;
    d->kept = d->rows ? (JDIMENSION)d->rows->band : d->jpeg.output_height;
    const size_t stride = d->planes ? plane_stride(d) : d->jpeg.output_width;
    d->st = arena_alloc(d->memory, stride * d->kept * 3, (void **)&d->read);
    return d->st == ST_OK && (d->planes ? read_planes(d) : read_lines(d));
}

/* Reads up to the end marker. What goes wrong after the last line changes no pixel, so it is only a
 * warning. */
static void read_end(decoder *d)
{
    d->keeps_warnings = d->at_end = true;
    if (setjmp(d->left) == 0)
        jpeg_finish_decompress(&d->jpeg);
}

/* Decodes every line at an eighth of the size and throws it away. */
static void read_small(decoder *d)
{
    struct jpeg_decompress_struct *j = &d->jpeg;
    if (setjmp(d->left))
        return;
    j->scale_num = 1;
    j->scale_denom = DCTSIZE;
    j->out_color_space = j->jpeg_color_space;
    jpeg_start_decompress(j);
    JSAMPARRAY line = j->mem->alloc_sarray((j_common_ptr)j, JPOOL_IMAGE,
                                           j->output_width * (JDIMENSION)j->output_components, 1);
    while (j->output_scanline < j->output_height)
        if (jpeg_read_scanlines(j, line, 1) == 0)
            return;
    read_end(d);
}

static bool open_sequential(decoder *d)
{
    if (setjmp(d->left))
        return false;
    jpeg_create_decompress(&d->jpeg);
    jpeg_mem_src(&d->jpeg, d->bytes.data, d->bytes.size);
    return jpeg_read_header(&d->jpeg, TRUE) == JPEG_HEADER_OK && !jpeg_has_multiple_scans(&d->jpeg);
}

static status keep_warning(const decoder *d, arena *memory, const char **out)
{
    char *copy = NULL;
    if (d->warning[0])
        TRY(arena_strndup(memory, d->warning, strlen(d->warning), &copy));
    *out = copy;
    return ST_OK;
}

status image_jpeg_end(span bytes, arena *memory, const char **out)
{
    decoder d = {.bytes = bytes, .keeps_warnings = true};
    prepare_decoder(&d);
    if (open_sequential(&d))
        read_small(&d);
    jpeg_destroy_decompress(&d.jpeg);
    return keep_warning(&d, memory, out);
}

bool image_jpeg_header(span bytes, const conf *limits, int32_t *out_width, int32_t *out_height)
{
    decoder d = {.bytes = bytes, .limits = limits};
    if (bytes.size > (uint64_t)limits->image_file_bytes)
        return false;
    prepare_decoder(&d);
    const bool plain = read_header(&d);
    if (plain) {
        const bool swap = orient_swaps_sides(d.orientation);
        *out_width = (int32_t)(swap ? d.jpeg.image_height : d.jpeg.image_width);
        *out_height = (int32_t)(swap ? d.jpeg.image_width : d.jpeg.image_height);
    }
    jpeg_destroy_decompress(&d.jpeg);
    return plain;
}

/* Turns what was read upright. */
static status take_picture(decoder *d, int32_t height, int32_t width, image *out)
{
    const bool swap = orient_swaps_sides(d->orientation);
    image im = {swap ? height : width, swap ? width : height, d->rows ? NULL : d->read, NULL};
    if (d->orientation > 1) {
        TRY(arena_alloc(d->memory, (size_t)width * (size_t)height * 3, (void **)&im.rgb));
        orient_apply(d->orientation, d->read, height, width, im.rgb);
    }
    TRY(keep_warning(d, d->memory, &im.warning));
    *out = im;
    return ST_OK;
}

static status decode_jpeg(decoder *d, image *out, bool *out_done)
{
    const arena_mark start = arena_save(d->memory);
    *out_done = false;
    if (d->bytes.size > (uint64_t)d->limits->image_file_bytes)
        return ST_OK;
    prepare_decoder(d);
    const bool done = read_header(d) && read_picture(d);
    if (done)
        read_end(d);
    const int32_t width = (int32_t)d->jpeg.output_width, height = (int32_t)d->jpeg.output_height;
    jpeg_destroy_decompress(&d->jpeg);
    const status st = done ? take_picture(d, height, width, out) : d->st;
    *out_done = done && st == ST_OK;
    if (!*out_done)
        arena_release(d->memory, start);
    return st;
}

status image_jpeg_decode(span bytes, const conf *limits, const image_rows *rows, arena *memory,
                         image *out, bool *out_done)
{
    decoder d = {.bytes = bytes, .limits = limits, .rows = rows, .memory = memory};
    return decode_jpeg(&d, out, out_done);
}

status image_jpeg_decode_damaged(span bytes, const conf *limits, arena *memory, image *out,
                                 bool *out_done)
{
    decoder d = {.bytes = bytes, .limits = limits, .memory = memory, .keeps_warnings = true};
    return decode_jpeg(&d, out, out_done);
}
