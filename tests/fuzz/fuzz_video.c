/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_video.c: any bytes as a video file. It must be refused or give frames. The target is video.c
 * and, without instrumentation, the parts of FFmpeg that it allows. */
#include "prepd/sample/decode/video.h"
#include "tests/fuzz/fuzz.h"

static status touch_frame(void *user, int64_t nth, const image *frame)
{
    volatile uint8_t *sum = user;
    for (int64_t i = 0; i < (int64_t)frame->width * frame->height * 3; i += 64)
        *sum = (uint8_t)(*sum + frame->rgb[i] + nth);
    return ST_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int64_t index[] = {0, 2, 5};
    static bool started;
    const conf limits = {.image_input_pixels = 1 << 18, .video_input_frames = 100};
    const video_bytes bytes = {.memory = span_of(data ? data : (const uint8_t *)"", size),
                               .fd = -1,
                               .size = (int64_t)size};
    video_info info;
    uint8_t sum = 0;
    arena memory;
    if (!started)
        video_library_init();
    started = true;
    arena_init(&memory, 0);
    if (video_header(&bytes, "fuzz", &limits, &info) == ST_OK) {
        const int64_t count = info.frames > 5 ? 3 : info.frames > 2 ? 2 : 1;
        const status st =
            video_decode(&bytes, "fuzz", &limits, index, count, &memory, touch_frame, &sum);
        (void)st; /* both success and failure are right */
    }
    arena_done(&memory);
    return 0;
}
