/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of filter.h: the plane filter equals its formula, undoing it gives the input back, and the
 * vector code gives the bytes of the plain C code. Letters: x, y a place in the patch. */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/harness.h"

#include "proto/message/filter.h"

enum { SIDE = FILTER_SIDE, PLANE = FILTER_PLANE, CHANNELS = 3 };
enum { N_PATCHES = 9, ROUNDS = 20 };

static void each_frame(void (*way)(const uint8_t *, int64_t, uint8_t *), const uint8_t *in,
                       int frames, uint8_t *out)
{
    for (int i = 0; i < N_PATCHES * frames; i++) {
        int at = (i / frames * CHANNELS * frames + i % frames) * PLANE;
        way(in + at, (int64_t)frames * PLANE, out + at);
    }
}

/* The place of (channel, frame, y, x) in a patch. */
static int column(int frames, int channel, int frame, int y, int x)
{
    return ((channel * frames + frame) * SIDE + y) * SIDE + x;
}

static int without_green(const uint8_t *patch, int frames, int channel, int frame, int y, int x)
{
    if (y < 0 || x < 0)
        return 0;
    int value = patch[column(frames, channel, frame, y, x)];
    return channel == 1 ? value : value - patch[column(frames, 1, frame, y, x)];
}

static uint8_t by_formula(const uint8_t *patch, int frames, int channel, int frame, int y, int x)
{
    return (uint8_t)(without_green(patch, frames, channel, frame, y, x) -
                     without_green(patch, frames, channel, frame, y, x - 1) -
                     without_green(patch, frames, channel, frame, y - 1, x) +
                     without_green(patch, frames, channel, frame, y - 1, x - 1));
}

static void test_filter_plane__equals_its_formula_and_can_be_undone(void **state)
{
    (void)state;
    enum { MOST = N_PATCHES * 2 * CHANNELS * PLANE };
    static uint8_t in[MOST], out[MOST], plain[MOST], back[MOST];
    rng_key key = rng_key_make(harness_seed(), "filter");
    for (int round = 0; round < ROUNDS; round++) {
        int frames = 1 + round % 2, size = N_PATCHES * frames * CHANNELS * PLANE;
        for (int i = 0; i < size; i++)
            in[i] = (uint8_t)rng_u64(key, (uint64_t)round * MOST + (uint64_t)i);
        filter_plane_apply(in, N_PATCHES, frames, out);
        each_frame(filter_plain.apply, in, frames, plain);
        assert_memory_equal(out, plain, (size_t)size);
        for (int patch = 0; patch < N_PATCHES; patch++) {
            int at = patch * frames * CHANNELS * PLANE;
            for (int i = 0; i < CHANNELS * frames * PLANE; i++) {
                int channel = i / (frames * PLANE), frame = i / PLANE % frames, y = i / SIDE % SIDE;
                assert_int_equal(out[at + i],
                                 by_formula(in + at, frames, channel, frame, y, i % SIDE));
            }
        }
        filter_plane_undo(out, N_PATCHES, frames, back);
        assert_memory_equal(in, back, (size_t)size);
        memset(back, 0, (size_t)size);
        each_frame(filter_plain.undo, out, frames, back);
        assert_memory_equal(in, back, (size_t)size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filter_plane__equals_its_formula_and_can_be_undone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
