/* filter_avx2.c: the filter with AVX2. A vector of 32 bytes holds two rows of a plane, the upper
 * one in the low lane. The file is compiled for AVX2 and runs only on processors that have it. */
#include "proto/filter_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

enum { ROWS = 2, BYTES = ROWS * FILTER_SIDE };

static inline __m256i load_bytes(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

static inline void store_bytes(uint8_t *at, __m256i lanes)
{
    _mm256_storeu_si256((__m256i *)at, lanes);
}

/* Takes differences along x, then along y. *before holds the differences along x of the two rows
 * above. */
static inline __m256i predicted(__m256i lanes, __m256i *before)
{
    const __m256i along_x = _mm256_sub_epi8(lanes, _mm256_slli_si256(lanes, 1));
    /* Low lane: the last row above; high lane: the first row of this pair. */
    const __m256i above = _mm256_permute2x128_si256(*before, along_x, 0x21);
    *before = along_x;
    return _mm256_sub_epi8(along_x, above);
}

/* Sums along y, then along x, the latter in four steps that each double the distance. *sum holds,
 * in both lanes, the sums along y of the row above. */
static inline __m256i restored(__m256i lanes, __m256i *sum)
{
    const __m256i low_in_high = _mm256_permute2x128_si256(lanes, lanes, 0x08);
    lanes = _mm256_add_epi8(_mm256_add_epi8(lanes, low_in_high), *sum);
    *sum = _mm256_permute2x128_si256(lanes, lanes, 0x11);
    lanes = _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 1));
    lanes = _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 2));
    lanes = _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 4));
    return _mm256_add_epi8(lanes, _mm256_slli_si256(lanes, 8));
}

static void apply_avx2(const uint8_t *in, int64_t channel, uint8_t *out)
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

static void undo_avx2(const uint8_t *in, int64_t channel, uint8_t *out)
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
#else
const filter_kernels filter_avx2 = {0, 0};
#endif
