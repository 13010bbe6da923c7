/* SPDX-License-Identifier: Apache-2.0 */
/* patch_avx2.c: the cutters of patch.h for AVX2. They take two rows of a patch at a time,
 * one in each lane. The file is compiled for AVX2, and its code runs only if the processor has it.
 */
#include "prepd/sample/patch.h"

#if defined(__AVX2__)
#include <immintrin.h>

enum { SIDE = 16, PLANE = SIDE * SIDE };

/* 16 bytes of one row in the low lane and of the next row in the high one. */
static inline __m256i load_rows(const uint8_t *from, int64_t stride)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)from);
    const __m128i high = _mm_loadu_si128((const __m128i *)(from + stride));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

#define BOTH_LANES(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

/* Takes one channel out of 16 pixels, which are three vectors of 16 bytes. Channel c stands at
 * places 3k + c in the first, 3k + c - 16 in the second and 3k + c - 32 in the third: never at the
 * same place in two of them. So the three are blended into one vector that has all bytes of the
 * channel, which is then put in order. */
static inline __m256i channel(const __m256i lanes[3], __m256i is_second, __m256i is_third,
                              __m256i order)
{
    const __m256i some = _mm256_blendv_epi8(lanes[0], lanes[1], is_second);
    return _mm256_shuffle_epi8(_mm256_blendv_epi8(some, lanes[2], is_third), order);
}

static void cut_patch(const uint8_t *from, int64_t stride, uint8_t *to)
{
    /* The places that are 0, 1 and 2 modulo 3. */
    const __m256i m0 = BOTH_LANES(-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1);
    const __m256i m1 = BOTH_LANES(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0);
    const __m256i m2 = BOTH_LANES(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0);
    /* Pixel k of channel c lies at (3k + c) % 16. */
    const __m256i red = BOTH_LANES(0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13);
    const __m256i green = BOTH_LANES(1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14);
    const __m256i blue = BOTH_LANES(2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15);
    for (int i = 0; i < SIDE; i += 2, from += 2 * stride, to += 2 * SIDE) {
        const __m256i lanes[3] = {load_rows(from, stride), load_rows(from + 16, stride),
                                  load_rows(from + 32, stride)};
        _mm256_storeu_si256((__m256i *)to, channel(lanes, m2, m1, red));
        _mm256_storeu_si256((__m256i *)(to + PLANE), channel(lanes, m0, m2, green));
        _mm256_storeu_si256((__m256i *)(to + 2 * PLANE), channel(lanes, m1, m0, blue));
    }
}

typedef struct rgb16 {
    __m256i red, green, blue;
} rgb16;

/* Converts eight pixels of each row, given as 16-bit numbers, to RGB; 128 was subtracted from the
 * differences. The factors of patch.h are split so that the remainder fits 16 bits: 1.402 = 1 + 13173
 * / 2^15 and 1.772 = 2 - 7471 / 2^15 round as those of patch.h do for all 256 values, and 0.714 = 1 -
 * 18734 / 2^16 is exact. */
static inline rgb16 convert(__m256i luma, __m256i cb, __m256i cr)
{
    const __m256i factors = _mm256_set1_epi32((int)(18734u << 16 | (uint16_t)-22554));
    const __m256i half = _mm256_set1_epi32(1 << 15);
    const __m256i red = _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(13173));
    const __m256i blue = _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(-7471));
    const __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
    const __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
    const __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half), 16),
                                             _mm256_srai_epi32(_mm256_add_epi32(high, half), 16));
    return (rgb16){_mm256_add_epi16(_mm256_add_epi16(luma, cr), red),
                   _mm256_add_epi16(_mm256_sub_epi16(luma, cr), green),
                   _mm256_add_epi16(_mm256_add_epi16(luma, _mm256_add_epi16(cb, cb)), blue)};
}

static void cut_ycc(const uint8_t *const from[3], int64_t stride, uint8_t *to)
{
    const __m256i zero = _mm256_setzero_si256(), centre = _mm256_set1_epi16(128);
    for (int64_t i = 0; i < SIDE; i += 2, to += 2 * SIDE) {
        const __m256i luma = load_rows(from[0] + i * stride, stride);
        const __m256i cb = load_rows(from[1] + i * stride, stride);
        const __m256i cr = load_rows(from[2] + i * stride, stride);
        const rgb16 first = convert(_mm256_unpacklo_epi8(luma, zero),
                                    _mm256_sub_epi16(_mm256_unpacklo_epi8(cb, zero), centre),
                                    _mm256_sub_epi16(_mm256_unpacklo_epi8(cr, zero), centre));
        const rgb16 second = convert(_mm256_unpackhi_epi8(luma, zero),
                                     _mm256_sub_epi16(_mm256_unpackhi_epi8(cb, zero), centre),
                                     _mm256_sub_epi16(_mm256_unpackhi_epi8(cr, zero), centre));
        _mm256_storeu_si256((__m256i *)to, _mm256_packus_epi16(first.red, second.red));
        _mm256_storeu_si256((__m256i *)(to + PLANE),
                            _mm256_packus_epi16(first.green, second.green));
        _mm256_storeu_si256((__m256i *)(to + 2 * PLANE),
                            _mm256_packus_epi16(first.blue, second.blue));
    }
}

const patch_cutter patch_cut_avx2 = cut_patch;
const patch_ycc_cutter patch_cut_ycc_avx2 = cut_ycc;
#else
const patch_cutter patch_cut_avx2 = 0;
const patch_ycc_cutter patch_cut_ycc_avx2 = 0;
#endif
