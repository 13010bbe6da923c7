/* SPDX-License-Identifier: Apache-2.0 */
/* resample_avx2.c: the wide kernels with two lanes. The file is compiled for AVX2, and its code
 * runs only if the processor has it. */
#include "prepd/sample/resample.h"

#if defined(__AVX2__)
#include <immintrin.h>
#include <string.h>

enum { LANES = 2 };
typedef __m256i vector;

static inline vector load_vector(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

static inline void store_vector(uint8_t *at, vector lanes)
{
    _mm256_storeu_si256((__m256i *)at, lanes);
}

static inline vector all_32(int32_t pairs)
{
    return _mm256_set1_epi32(pairs);
}

#define in_each_lane(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

static inline vector load_lanes(const uint8_t *in, const int32_t *pixel)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)(in + (size_t)pixel[0] * 3));
    const __m128i high = _mm_loadu_si128((const __m128i *)(in + (size_t)pixel[1] * 3));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

static inline vector shuffle_bytes(vector lanes, vector from)
{
    return _mm256_shuffle_epi8(lanes, from);
}

static inline vector add_products(vector sum, vector left, vector right)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(left, right));
}

static inline vector shift_32(vector lanes, int bits)
{
    return _mm256_sra_epi32(lanes, _mm_cvtsi32_si128(bits));
}

static inline vector unpack_low(vector left, vector right)
{
    return _mm256_unpacklo_epi8(left, right);
}

static inline vector unpack_high(vector left, vector right)
{
    return _mm256_unpackhi_epi8(left, right);
}

static inline vector pack_to_16(vector left, vector right)
{
    return _mm256_packs_epi32(left, right);
}

static inline vector pack_to_bytes(vector left, vector right)
{
    return _mm256_packus_epi16(left, right);
}

/* Stores two pixels of three bytes, clamped, and writes nothing after them. */
static inline void store_pixels(uint8_t *out, vector rgb0)
{
    const vector bytes = pack_to_bytes(pack_to_16(rgb0, rgb0), all_32(0));
    const uint32_t first = (uint32_t)_mm256_cvtsi256_si32(bytes);
    const uint32_t second = (uint32_t)_mm256_extract_epi32(bytes, 4);
    const uint32_t low = first | second << 24;
    const uint16_t high = (uint16_t)(second >> 8);
    memcpy(out, &low, sizeof(low));
    memcpy(out + sizeof(low), &high, sizeof(high));
}

#include "prepd/sample/resample_wide.h"

const resample_wide resample_avx2 = {LANES, wide_width, wide_height};
#else
const resample_wide resample_avx2 = {0, NULL, NULL};
#endif
