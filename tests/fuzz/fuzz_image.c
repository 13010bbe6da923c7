/* Any bytes as a picture: refused, or of the size that its header said. What is fuzzed is our part
 * (which format, which way up, chunks, limits) and, not instrumented, the loaders that it leaves
 * open. */
#include <string.h>

#include "prepd/sample/image.h"
#include "prepd/sample/orient.h"
#include "prepd/sample/sniff.h"
#include "tests/fuzz/fuzz.h"

/* The readers of orientations on their own: behind a loader few damaged ones reach them. */
static void look_for_orientation(span bytes)
{
    char *text = malloc(bytes.size + 1);
    FUZZ_HOLDS(text);
    if (bytes.size)
        memcpy(text, bytes.data, bytes.size);
    text[bytes.size] = 0;
    const int found[] = {orient_from_exif(bytes), orient_from_xmp(bytes),
                         orient_from_raw_profile(text),
                         orient_from_exif(sniff_png_chunk(bytes, "eXIf"))};
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        FUZZ_HOLDS(found[i] >= 0 && found[i] <= 8);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool started;
    static const conf limits = {.image_input_pixels = 1 << 16, .image_file_bytes = 1 << 20};
    const span bytes = span_of(data ? data : (const uint8_t *)"", size);
    image_info info;
    image im;
    arena a;
    if (!started)
        FUZZ_HOLDS(image_library_init("fuzz") == ST_OK);
    started = true;
    look_for_orientation(bytes);
    if (image_header(bytes, "fuzz", &limits, &info) != ST_OK)
        return 0;
    FUZZ_HOLDS(info.width > 0 && info.height > 0 &&
               (int64_t)info.width * info.height <= limits.image_input_pixels);
    arena_init(&a, 0);
    if (image_decode(bytes, "fuzz", &limits, &a, &im) == ST_OK) {
        volatile uint8_t sum = 0; /* all of it is there to be read */
        FUZZ_HOLDS(im.width == info.width && im.height == info.height);
        for (int64_t i = 0; i < 3 * (int64_t)im.width * im.height; i++)
            sum = (uint8_t)(sum + im.rgb[i]);
    }
    arena_done(&a);
    return 0;
}
