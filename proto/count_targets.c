/* count_targets.c: row_count_targets of batch.h. Every row of a stream is counted, and of a row of
 * texts that would be most of what its tag costs, so where there is AVX2 it is done with it. */
#include "proto/batch.h"

static int32_t count_plain(const int32_t *labels, int32_t count)
{
    int32_t found = 0;
    for (int32_t i = 0; i < count; i++)
        found += labels[i] != NO_LABEL;
    return found;
}

#if defined(__x86_64__)
#include <immintrin.h>

enum { LANES = 8 };

/* Adds up lanes of which each is minus what it has counted. */
__attribute__((target("avx2"))) static inline int32_t sum_of(__m256i lanes)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 1));
    return -_mm_cvtsi128_si32(four);
}

/* As count_plain, of LANES labels or more: counts those that are NO_LABEL. The last eight are
 * looked at once more, without those of them that have been counted. */
__attribute__((target("avx2"))) static int32_t count_avx2(const int32_t *labels, int32_t count)
{
    const __m256i none = _mm256_set1_epi32(NO_LABEL),
                  lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i even = _mm256_setzero_si256(), odd = even;
    int32_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        const __m256i *at = (const __m256i *)(labels + i);
        even = _mm256_add_epi32(even, _mm256_cmpeq_epi32(_mm256_loadu_si256(at), none));
        odd = _mm256_add_epi32(odd, _mm256_cmpeq_epi32(_mm256_loadu_si256(at + 1), none));
        even = _mm256_add_epi32(even, _mm256_cmpeq_epi32(_mm256_loadu_si256(at + 2), none));
        odd = _mm256_add_epi32(odd, _mm256_cmpeq_epi32(_mm256_loadu_si256(at + 3), none));
    }
    for (; i + LANES <= count; i += LANES) {
        const __m256i one = _mm256_loadu_si256((const __m256i *)(labels + i));
        even = _mm256_add_epi32(even, _mm256_cmpeq_epi32(one, none));
    }
    const int32_t from = count - LANES; /* the label in lane i - from is the first that is left */
    const __m256i last = _mm256_loadu_si256((const __m256i *)(labels + from)),
                  left = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(i - from - 1));
    odd = _mm256_add_epi32(odd, _mm256_and_si256(_mm256_cmpeq_epi32(last, none), left));
    return count - sum_of(_mm256_add_epi32(even, odd));
}
#endif

int64_t row_count_targets(const row *packed, int64_t doc, int64_t end)
{
    const int32_t from = packed->cu_seqlens[doc], count = packed->cu_seqlens[end] - from;
#if defined(__x86_64__)
    if (count >= LANES && __builtin_cpu_supports("avx2"))
        return count_avx2(packed->labels + from, count);
#endif
    return count_plain(packed->labels + from, count);
}
