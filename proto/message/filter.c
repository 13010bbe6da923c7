/* SPDX-License-Identifier: Apache-2.0 */
/* filter.c: the filter in plain C and with AVX2, and the choice between them. */
#include "proto/message/filter.h"

#include <stddef.h>

enum { SIDE = FILTER_SIDE, PLANE = FILTER_PLANE, CHANNELS = 3 };

/* Filters one plane of a patch. green is NULL for the green plane itself. */
static void apply_plane(const uint8_t *in, const uint8_t *green, uint8_t *out)
{
    uint8_t above[SIDE] = {0}; /* the differences along x of the row above */
    for (int j = 0; j < SIDE; j++) {
        uint8_t left = 0;
        for (int k = 0; k < SIDE; k++) {
            const int i = j * SIDE + k;
            const uint8_t value = (uint8_t)(in[i] - (green ? green[i] : 0));
            const uint8_t difference = (uint8_t)(value - left);
            out[i] = (uint8_t)(difference - above[k]);
            left = value;
            above[k] = difference;
        }
    }
}

/* The reverse. green is the restored green plane, or NULL for the green plane itself. */
static void undo_plane(const uint8_t *in, const uint8_t *green, uint8_t *out)
{
    uint8_t sum[SIDE] = {0}; /* running sums along y */
    for (int j = 0; j < SIDE; j++) {
        uint8_t value = 0;
        for (int k = 0; k < SIDE; k++) {
            const int i = j * SIDE + k;
            sum[k] = (uint8_t)(sum[k] + in[i]);
            value = (uint8_t)(value + sum[k]);
            out[i] = (uint8_t)(value + (green ? green[i] : 0));
        }
    }
}

static void apply_plain(const uint8_t *in, int64_t channel, uint8_t *out)
{
    const uint8_t *green = in + channel;
    apply_plane(in, green, out);
    apply_plane(green, 0, out + channel);
    apply_plane(in + 2 * channel, green, out + 2 * channel);
}

static void undo_plain(const uint8_t *in, int64_t channel, uint8_t *out)
{
    const uint8_t *green = out + channel;
    undo_plane(in + channel, 0, out + channel);
    undo_plane(in, green, out);
    undo_plane(in + 2 * channel, green, out + 2 * channel);
}

const filter_kernels filter_plain = {apply_plain, undo_plain};

/* --- AVX2: a vector of 32 bytes has two rows of a plane, the upper one in the low lane --- */

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

enum { ROWS = 2, BYTES = ROWS * FILTER_SIDE };

AVX2 static inline __m256i load_bytes(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

AVX2 static inline void store_bytes(uint8_t *at, __m256i lanes)
{
    _mm256_storeu_si256((__m256i *)at, lanes);
}

/* Takes differences along x, then along y. *before holds the differences along x of the two rows
 * above. */
AVX2 static inline __m256i predicted(__m256i lanes, __m256i *before)
{
    const __m256i along_x = _mm256_sub_epi8(lanes, _mm256_slli_si256(lanes, 1));
    /* Low lane: the last row above; high lane: the first row of this pair. */
    const __m256i above = _mm256_permute2x128_si256(*before, along_x, 0x21);
    *before = along_x;
    return _mm256_sub_epi8(along_x, above);
}

/* Sums along y, then along x, the latter in four steps that each double the distance. *sum holds,
 * in both lanes, the sums along y of the row above. */
AVX2 static inline __m256i restored(__m256i lanes, __m256i *sum)
{
    const __m256i low_in_high = _mm256_permute2x128_si256(lanes, lanes, 0x08);
    lanes = _mm256_add_epi8(_mm256_add_epi8(lanes, low_in_high), *sum);
    *sum = _mm256_permute2x128_si256(lanes, lanes, 0x11);
    lanes = _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 1));
    lanes = _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 2));
    lanes = _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 4));
    return _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 8));
}

AVX2 static void apply_avx2(const uint8_t *in, int64_t channel, uint8_t *out)
{
    __m256i red = _mm256_setzero_si256(), green = red, blue = red;
    for (int i = 0; i < FILTER_PLANE; i += BYTES) {
        const __m256i greens = load_bytes(in + channel + i);
        const __m256i reds = _mm256_sub_epi8(load_bytes(in + i), greens);
        const __m256i blues = _mm256_sub_epi8(load_bytes(in + 2 * channel + i), greens);
        store_bytes(out + i, predicted(reds, &red));
        store_bytes(out + channel + i, predicted(greens, &green));
        store_bytes(out + 2 * channel + i, predicted(blues, &blue));
    }
}

AVX2 static void undo_avx2(const uint8_t *in, int64_t channel, uint8_t *out)
{
    __m256i red = _mm256_setzero_si256(), green = red, blue = red;
    for (int i = 0; i < FILTER_PLANE; i += BYTES) {
        const __m256i greens = restored(load_bytes(in + channel + i), &green);
        const __m256i reds = restored(load_bytes(in + i), &red);
        const __m256i blues = restored(load_bytes(in + 2 * channel + i), &blue);
        store_bytes(out + i, _mm256_add_epi8(reds, greens));
        store_bytes(out + channel + i, greens);
        store_bytes(out + 2 * channel + i, _mm256_add_epi8(blues, greens));
    }
}

const filter_kernels filter_avx2 = {apply_avx2, undo_avx2};

static const filter_kernels *filter_kernels_here(void)
{
    return __builtin_cpu_supports("avx2") ? &filter_avx2 : &filter_plain;
}
#else
const filter_kernels filter_avx2 = {0, 0};

static const filter_kernels *filter_kernels_here(void)
{
    return &filter_plain;
}
#endif

/* Calls `each` for every frame of every patch. */
static void every_frame(void (*each)(const uint8_t *, int64_t, uint8_t *), const uint8_t *in,
                        int64_t n_patches, int n_frames, uint8_t *out)
{
    const int64_t channel = (int64_t)n_frames * PLANE;
    for (int64_t i = 0; i < n_patches; i++)
        for (int frame = 0; frame < n_frames; frame++) {
            const int64_t at = i * CHANNELS * channel + (int64_t)frame * PLANE;
            each(in + at, channel, out + at);
        }
}

void filter_plane_apply(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out)
{
    every_frame(filter_kernels_here()->apply, in, n_patches, n_frames, out);
}

void filter_plane_undo(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out)
{
    every_frame(filter_kernels_here()->undo, in, n_patches, n_frames, out);
}
