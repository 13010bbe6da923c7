/* patch_avx2.c: compiled for AVX2, run only where the processor has it. */
#include "prepd/sample/patch_cutter.h"

#if defined(__AVX2__)
#include <immintrin.h>

enum { SIDE = 16, PLANE = SIDE * SIDE };

/* 16 bytes of one row in the low lane, of the next in the high one. */
static inline __m256i load_rows(const uint8_t *p, int64_t stride)
{
    const __m128i a = _mm_loadu_si128((const __m128i *)p);
    const __m128i b = _mm_loadu_si128((const __m128i *)(p + stride));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

#define BOTH_LANES(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

/* 16 pixels are three vectors of 16 bytes. In the first, channel c stands at places 3k + c, in the
 * second at 3k + c - 16, in the third at 3k + c - 32: never the same place in two of them. So the
 * three are blended into one vector that has all of the channel's bytes, and that is put in order.
 */
static inline __m256i channel(const __m256i v[3], __m256i is_second, __m256i is_third,
                              __m256i order)
{
    const __m256i some = _mm256_blendv_epi8(v[0], v[1], is_second);
    return _mm256_shuffle_epi8(_mm256_blendv_epi8(some, v[2], is_third), order);
}

static void cut(const uint8_t *from, int64_t stride, uint8_t *to)
{
    /* Places that are 0, 1 and 2 modulo 3. */
    const __m256i m0 = BOTH_LANES(-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1);
    const __m256i m1 = BOTH_LANES(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0);
    const __m256i m2 = BOTH_LANES(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0);
    /* Pixel k of channel c lies at (3k + c) % 16. */
    const __m256i red = BOTH_LANES(0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13);
    const __m256i green = BOTH_LANES(1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14);
    const __m256i blue = BOTH_LANES(2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15);
    for (int y = 0; y < SIDE; y += 2, from += 2 * stride, to += 2 * SIDE) {
        const __m256i v[3] = {load_rows(from, stride), load_rows(from + 16, stride),
                              load_rows(from + 32, stride)};
        _mm256_storeu_si256((__m256i *)to, channel(v, m2, m1, red));
        _mm256_storeu_si256((__m256i *)(to + PLANE), channel(v, m0, m2, green));
        _mm256_storeu_si256((__m256i *)(to + 2 * PLANE), channel(v, m1, m0, blue));
    }
}

const patch_cutter patch_cut_avx2 = cut;
#else
const patch_cutter patch_cut_avx2 = 0;
#endif
