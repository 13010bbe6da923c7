/* SPDX-License-Identifier: Apache-2.0 */
/* image_jpeg.c: the plain path through libjpeg. Any error or warning leaves libjpeg by longjmp, and
 * the file goes to libvips instead. Lines are read as RGB, or as planes if a taker wants them
 * (image_rows.take_ycc). */
#include "prepd/sample/decode/image_jpeg.h"

#include <jerror.h>
#include <jpeglib.h>
#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs it */
#include <string.h>

#include "prepd/sample/decode/orient.h"

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

static void leave_decoder(j_common_ptr jpeg)
{
    decoder *stack = (decoder *)jpeg->client_data;
    longjmp(stack->left, 1);
}

/* Receives libjpeg's messages. A negative level is a warning; others only trace what it does. */
static void record_message(j_common_ptr jpeg, int level)
{
    decoder *stack = (decoder *)jpeg->client_data;
    if (level >= 0)
        return;
    if (stack->keeps_warnings && !stack->warning[0])
        stack->errors.format_message(jpeg, stack->warning);
    if (!stack->keeps_warnings || (!stack->at_end && jpeg->err->msg_code == JWRN_JPEG_EOF))
        leave_decoder(
            jpeg); /* also for a file that ends before its last line, which is never accepted */
}

static void say_nothing(j_common_ptr jpeg)
{
    (void)jpeg;
}

static bool match_marker(const struct jpeg_marker_struct *marker, const char *with)
{
    const size_t length = strlen(with);
    return marker->data_length > length && memcmp(marker->data, with, length) == 0;
}

/* As find_orientation of image.c: EXIF decides, or else XMP. Returns false if there are several
 * blocks of a kind, because then it would matter which of them libvips takes. */
static bool find_orientation(decoder *stack)
{
    span exif = {0}, xmp = {0};
    for (const struct jpeg_marker_struct *marker = stack->jpeg.marker_list; marker;
         marker = marker->next) {
        span *kind = match_marker(marker, "Exif")   ? &exif
                     : match_marker(marker, "http") ? &xmp
                                                    : NULL;
        if (kind && kind->data)
            return false;
        if (kind)
            *kind = span_of(marker->data, marker->data_length);
    }
    int orientation = orient_from_exif(exif);
    if (orientation == 0)
        orientation = orient_from_xmp(xmp);
    stack->orientation = orientation >= 1 && orientation <= 8 ? orientation : 1;
    return true;
}

static bool is_plain(decoder *stack)
{
    struct jpeg_decompress_struct *jpeg = &stack->jpeg;
    return !jpeg->progressive_mode && !jpeg->arith_code && !jpeg_has_multiple_scans(jpeg) &&
           jpeg->data_precision == 8 && jpeg->num_components == 3 &&
           jpeg->jpeg_color_space == JCS_YCbCr &&
           (int64_t)jpeg->image_width * jpeg->image_height <= stack->limits->image_input_pixels &&
           find_orientation(stack);
}

static bool read_lines(decoder *stack)
{
    struct jpeg_decompress_struct *jpeg = &stack->jpeg;
    const size_t stride = (size_t)jpeg->output_width * 3;
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW line[LINES];
        const JDIMENSION at = jpeg->output_scanline % stack->kept;
        const JDIMENSION lines = stack->kept - at < LINES ? stack->kept - at : LINES;
        for (size_t i = 0; i < lines; i++)
            line[i] = stack->read + (at + i) * stride;
        if (jpeg_read_scanlines(jpeg, line, lines) == 0)
            return false;
        if (stack->rows && jpeg->output_scanline % stack->kept == 0)
            stack->rows->take(stack->rows->user, stack->read,
                              (int32_t)(jpeg->output_scanline - stack->kept));
    }
    return true;
}

/* Bytes of a row of a plane, which has whole blocks. */
static size_t plane_stride(const decoder *stack)
{
    return ((size_t)stack->jpeg.image_width + DCTSIZE - 1) / DCTSIZE * DCTSIZE;
}

static bool read_planes(decoder *stack)
{
    struct jpeg_decompress_struct *jpeg = &stack->jpeg;
    const size_t stride = plane_stride(stack), bytes = stride * stack->kept;
    const uint8_t *const planes[] = {stack->read, stack->read + bytes, stack->read + 2 * bytes};
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW line[3][DCTSIZE];
        JSAMPARRAY blocks[] = {line[0], line[1], line[2]};
        const JDIMENSION at = jpeg->output_scanline % stack->kept;
        for (size_t k = 0; k < 3; k++)
            for (size_t i = 0; i < DCTSIZE; i++)
                line[k][i] = stack->read + k * bytes + (at + i) * stride;
        if (jpeg_read_raw_data(jpeg, blocks, DCTSIZE) == 0)
            return false;
        if (jpeg->output_scanline % stack->kept == 0)
            stack->rows->take_ycc(stack->rows->user, planes, (int64_t)stride,
                                  (int32_t)(jpeg->output_scanline - stack->kept));
    }
    return true;
}

/* Whether all three planes are stored at full size and the taker wants them. */
static bool full_planes(const decoder *stack)
{
    for (int i = 0; i < 3; i++)
        if (stack->jpeg.comp_info[i].h_samp_factor != 1 ||
            stack->jpeg.comp_info[i].v_samp_factor != 1)
            return false;
    return stack->rows->take_ycc && stack->rows->band % DCTSIZE == 0;
}

static void prepare_decoder(decoder *stack)
{
    stack->jpeg.err = jpeg_std_error(&stack->errors);
    stack->errors.error_exit = leave_decoder;
    stack->errors.emit_message = record_message;
    stack->errors.output_message = say_nothing;
    stack->jpeg.client_data = stack;
}

/* Everything that may leave through leave_decoder is in the functions with setjmp below. What they
 * change lies in *stack, which is the caller's, so no local variable is clobbered. */
static bool read_header(decoder *stack)
{
    if (setjmp(stack->left))
        return false;
    jpeg_create_decompress(&stack->jpeg);
    jpeg_save_markers(&stack->jpeg, JPEG_APP0 + 1, MARKER_BYTES);
    jpeg_mem_src(&stack->jpeg, stack->bytes.data, stack->bytes.size);
    return jpeg_read_header(&stack->jpeg, TRUE) == JPEG_HEADER_OK && is_plain(stack);
}

static bool read_picture(decoder *stack)
{
    if (setjmp(stack->left))
        return false;
    if (stack->rows &&
        (stack->orientation > 1 || (int64_t)stack->jpeg.image_width != stack->rows->width ||
         (int64_t)stack->jpeg.image_height != stack->rows->height))
        stack->rows = NULL;
    stack->planes = stack->rows && full_planes(stack);
    stack->jpeg.raw_data_out = stack->planes;
    jpeg_start_decompress(&stack->jpeg);
    if (stack->jpeg.output_components != 3)
        return false;
    stack->kept = stack->rows ? (JDIMENSION)stack->rows->band : stack->jpeg.output_height;
    const size_t stride = stack->planes ? plane_stride(stack) : stack->jpeg.output_width;
    stack->st = arena_alloc(stack->memory, stride * stack->kept * 3, (void **)&stack->read);
    return stack->st == ST_OK && (stack->planes ? read_planes(stack) : read_lines(stack));
}

/* Reads up to the end marker. What goes wrong after the last line changes no pixel, so it is only a
 * warning. */
static void read_end(decoder *stack)
{
    stack->keeps_warnings = stack->at_end = true;
    if (setjmp(stack->left) == 0)
        jpeg_finish_decompress(&stack->jpeg);
}

/* Decodes every line at an eighth of the size and throws it away. */
static void read_small(decoder *stack)
{
    struct jpeg_decompress_struct *jpeg = &stack->jpeg;
    if (setjmp(stack->left))
        return;
    jpeg->scale_num = 1;
    jpeg->scale_denom = DCTSIZE;
    jpeg->out_color_space = jpeg->jpeg_color_space;
    jpeg_start_decompress(jpeg);
    JSAMPARRAY line =
        jpeg->mem->alloc_sarray((j_common_ptr)jpeg, JPOOL_IMAGE,
                                jpeg->output_width * (JDIMENSION)jpeg->output_components, 1);
    while (jpeg->output_scanline < jpeg->output_height)
        if (jpeg_read_scanlines(jpeg, line, 1) == 0)
            return;
    read_end(stack);
}

static bool open_sequential(decoder *stack)
{
    if (setjmp(stack->left))
        return false;
    jpeg_create_decompress(&stack->jpeg);
    jpeg_mem_src(&stack->jpeg, stack->bytes.data, stack->bytes.size);
    return jpeg_read_header(&stack->jpeg, TRUE) == JPEG_HEADER_OK &&
           !jpeg_has_multiple_scans(&stack->jpeg);
}

static status keep_warning(const decoder *stack, arena *memory, const char **out)
{
    char *copy = NULL;
    if (stack->warning[0])
        TRY(arena_strndup(memory, stack->warning, strlen(stack->warning), &copy));
    *out = copy;
    return ST_OK;
}

status image_jpeg_end(span bytes, arena *memory, const char **out)
{
    decoder stack = {.bytes = bytes, .keeps_warnings = true};
    prepare_decoder(&stack);
    if (open_sequential(&stack))
        read_small(&stack);
    jpeg_destroy_decompress(&stack.jpeg);
    return keep_warning(&stack, memory, out);
}

bool image_jpeg_header(span bytes, const conf *limits, int32_t *out_width, int32_t *out_height)
{
    decoder stack = {.bytes = bytes, .limits = limits};
    if (bytes.size > (uint64_t)limits->image_file_bytes)
        return false;
    prepare_decoder(&stack);
    const bool plain = read_header(&stack);
    if (plain) {
        const bool swap = orient_swaps_sides(stack.orientation);
        *out_width = (int32_t)(swap ? stack.jpeg.image_height : stack.jpeg.image_width);
        *out_height = (int32_t)(swap ? stack.jpeg.image_width : stack.jpeg.image_height);
    }
    jpeg_destroy_decompress(&stack.jpeg);
    return plain;
}

/* Turns what was read upright. */
static status take_picture(decoder *stack, int32_t height, int32_t width, image *out)
{
    const bool swap = orient_swaps_sides(stack->orientation);
    image im = {swap ? height : width, swap ? width : height, stack->rows ? NULL : stack->read,
                NULL};
    if (stack->orientation > 1) {
        TRY(arena_alloc(stack->memory, (size_t)width * (size_t)height * 3, (void **)&im.rgb));
        orient_apply(stack->orientation, stack->read, height, width, im.rgb);
    }
    TRY(keep_warning(stack, stack->memory, &im.warning));
    *out = im;
    return ST_OK;
}

static status decode_jpeg(decoder *stack, image *out, bool *out_done)
{
    const arena_mark start = arena_save(stack->memory);
    *out_done = false;
    if (stack->bytes.size > (uint64_t)stack->limits->image_file_bytes)
        return ST_OK;
    prepare_decoder(stack);
    const bool done = read_header(stack) && read_picture(stack);
    if (done)
        read_end(stack);
    const int32_t width = (int32_t)stack->jpeg.output_width,
                  height = (int32_t)stack->jpeg.output_height;
    jpeg_destroy_decompress(&stack->jpeg);
    const status st = done ? take_picture(stack, height, width, out) : stack->st;
    *out_done = done && st == ST_OK;
    if (!*out_done)
        arena_release(stack->memory, start);
    return st;
}

status image_jpeg_decode(span bytes, const conf *limits, const image_rows *rows, arena *memory,
                         image *out, bool *out_done)
{
    decoder stack = {.bytes = bytes, .limits = limits, .rows = rows, .memory = memory};
    return decode_jpeg(&stack, out, out_done);
}

status image_jpeg_decode_damaged(span bytes, const conf *limits, arena *memory, image *out,
                                 bool *out_done)
{
    decoder stack = {.bytes = bytes, .limits = limits, .memory = memory, .keeps_warnings = true};
    return decode_jpeg(&stack, out, out_done);
}
