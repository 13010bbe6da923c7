/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_image.c: any bytes as a picture. It must be refused, or have the size that its header gave;
 * and decoding it in bands must give the same as decoding it at once, also when it is refused. The
 * target is our own part (format, orientation, chunks, limits) and, without instrumentation, the
 * loaders of the libraries that we use. Letters: x, y a place in the picture. */
#include <string.h>

#include "prepd/sample/decode/image.h"
#include "prepd/sample/decode/orient.h"
#include "prepd/sample/decode/png.h"
#include "prepd/sample/patch.h"
#include "tests/fuzz/fuzz.h"

/* Calls the readers of orientations directly, because few damaged blocks get past a loader. */
static void look_for_orientation(span bytes)
{
    char *text = malloc(bytes.size + 1);
    FUZZ_HOLDS(text);
    if (bytes.size)
        memcpy(text, bytes.data, bytes.size);
    text[bytes.size] = 0;
    const int found[] = {orient_from_exif(bytes), orient_from_xmp(bytes),
                         orient_from_raw_profile(text), orient_from_exif(png_find(bytes, "eXIf"))};
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        FUZZ_HOLDS(found[i] >= 0 && found[i] <= 8);
    free(text);
}

typedef struct banded {
    uint8_t *rgb; /* [height, width, 3] */
    int32_t width, band, next;
} banded;

static void take_band(void *user, const uint8_t *rgb, int32_t y)
{
    banded *bands = user;
    FUZZ_HOLDS(y == bands->next);
    memcpy(bands->rgb + (size_t)y * (size_t)bands->width * 3, rgb,
           (size_t)bands->band * (size_t)bands->width * 3);
    bands->next += bands->band;
}

static void take_planes(void *user, const uint8_t *const planes[3], int64_t stride, int32_t y)
{
    banded *bands = user;
    FUZZ_HOLDS(y == bands->next);
    for (int32_t line = 0; line < bands->band; line++)
        for (int32_t x = 0; x < bands->width; x++) {
            const int64_t at = line * stride + x;
            ycc_to_rgb(planes[0][at], planes[1][at], planes[2][at],
                       bands->rgb + ((int64_t)(y + line) * bands->width + x) * 3);
        }
    bands->next += bands->band;
}

/* `whole` is NULL if decoding at once failed, and st is the status it gave. */
static void compare_bands(span bytes, const conf *limits, const image_info *info, status st,
                          const image *whole, arena *memory)
{
    const size_t size = (size_t)info->width * (size_t)info->height * 3;
    const struct {
        int32_t band;
        bool planes;
    } ways[] = {{1, false}, {32, false}, {32, true}, {info->height, true}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const arena_mark mark = arena_save(memory);
        banded bands = {.width = info->width, .band = ways[i].band};
        const image_rows rows = {.height = info->height,
                                 .width = info->width,
                                 .band = bands.band,
                                 .take = take_band,
                                 .take_ycc = ways[i].planes ? take_planes : NULL,
                                 .user = &bands};
        image im;
        if (info->height % bands.band != 0)
            continue;
        FUZZ_HOLDS(arena_alloc(memory, size, (void **)&bands.rgb) == ST_OK);
        FUZZ_HOLDS(image_decode_rows(bytes, "fuzz", limits, &rows, memory, &im) == st);
        if (whole) {
            FUZZ_HOLDS(im.width == whole->width && im.height == whole->height);
            FUZZ_HOLDS(im.rgb || bands.next == info->height);
            FUZZ_HOLDS(memcmp(im.rgb ? im.rgb : bands.rgb, whole->rgb, size) == 0);
        }
        arena_release(memory, mark);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool started;
    static const conf limits = {.image_input_pixels = 1 << 16, .image_file_bytes = 1 << 20};
    const span bytes = span_of(data ? data : (const uint8_t *)"", size);
    image_info info;
    image im;
    arena memory;
    if (!started)
        FUZZ_HOLDS(image_library_init("fuzz") == ST_OK);
    started = true;
    look_for_orientation(bytes);
    if (image_header(bytes, "fuzz", &limits, &info) != ST_OK)
        return 0;
    FUZZ_HOLDS(info.width > 0 && info.height > 0 &&
               (int64_t)info.width * info.height <= limits.image_input_pixels);
    arena_init(&memory, 0);
    const status st = image_decode(bytes, "fuzz", &limits, &memory, &im);
    if (st == ST_OK)
        FUZZ_HOLDS(im.width == info.width && im.height == info.height);
    compare_bands(bytes, &limits, &info, st, st == ST_OK ? &im : NULL, &memory);
    arena_done(&memory);
    return 0;
}
