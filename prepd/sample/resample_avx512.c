/* SPDX-License-Identifier: Apache-2.0 */
/* resample_avx512.c: the wide kernels with four lanes, in which one instruction multiplies and
 * adds. The file is compiled for AVX-512 with BW, VL and VNNI, and its code runs only if the
 * processor has them. */
#include "prepd/sample/resample.h"

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#include <string.h>

enum { LANES = 4 };
typedef __m512i vector;

static inline vector load_vector(const void *from)
{
    return _mm512_loadu_si512(from);
}

static inline void store_vector(uint8_t *at, vector lanes)
{
    _mm512_storeu_si512(at, lanes);
}

static inline vector all_32(int32_t pairs)
{
    return _mm512_set1_epi32(pairs);
}

#define in_each_lane(...) _mm512_broadcast_i32x4(_mm_setr_epi8(__VA_ARGS__))

static inline vector load_lanes(const uint8_t *in, const int32_t *pixel)
{
    __m128i lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = _mm_loadu_si128((const __m128i *)(in + (size_t)pixel[i] * 3));
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(lane[0]), lane[1], 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(lane[2]), lane[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

static inline vector shuffle_bytes(vector lanes, vector from)
{
    return _mm512_shuffle_epi8(lanes, from);
}

static inline vector add_products(vector sum, vector left, vector right)
{
    return _mm512_dpwssd_epi32(sum, left, right);
}

static inline vector shift_32(vector lanes, int bits)
{
    return _mm512_sra_epi32(lanes, _mm_cvtsi32_si128(bits));
}

static inline vector unpack_low(vector left, vector right)
{
    return _mm512_unpacklo_epi8(left, right);
}

static inline vector unpack_high(vector left, vector right)
{
    return _mm512_unpackhi_epi8(left, right);
}

static inline vector pack_to_16(vector left, vector right)
{
    return _mm512_packs_epi32(left, right);
}

static inline vector pack_to_bytes(vector left, vector right)
{
    return _mm512_packus_epi16(left, right);
}

/* Stores four pixels of three bytes, clamped, and writes nothing after them. */
static inline void store_pixels(uint8_t *out, vector rgb0)
{
    const __m128i squeeze = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_max_epi32(rgb0, all_32(0)));
    const __m128i rgb = _mm_shuffle_epi8(bytes, squeeze);
    const uint32_t last = (uint32_t)_mm_extract_epi32(rgb, 2);
    _mm_storel_epi64((__m128i *)out, rgb);
    memcpy(out + 8, &last, sizeof(last));
}

#include "prepd/sample/resample_wide.h"

const resample_wide resample_avx512 = {LANES, wide_width, wide_height};
#else
const resample_wide resample_avx512 = {0, NULL, NULL};
#endif
