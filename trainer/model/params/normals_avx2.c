/* SPDX-License-Identifier: Apache-2.0 */
/* normals_avx2.c: the generator of normals.h, Philox 4x32-10 as in common/base/rng.c, on AVX2.
 * Compiled for processors that have it, called only there.
 *
 * Letters: i one of the vectors; a, b, c, d the four words of a counter. Each word lies in the
 * lower half of a 64-bit lane, and the upper half may hold anything: a multiplication reads lower
 * halves only, and so does the end. */

#include "trainer/model/params/normals.h"

#if defined(__AVX2__)
#include <immintrin.h>

enum { ROUNDS = 10, LANES = 4, VECTORS = 4 }; /* vectors: as many multiply while one waits */

typedef struct words {
    __m256i a[VECTORS], b[VECTORS], c[VECTORS], d[VECTORS];
} words;

static inline void mix(words *x, int i, __m256i k0, __m256i k1)
{
    const __m256i p0 = _mm256_mul_epu32(x->a[i], _mm256_set1_epi64x(0xD2511F53));
    const __m256i p1 = _mm256_mul_epu32(x->c[i], _mm256_set1_epi64x(0xCD9E8D57));
    x->a[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x->b[i]), k0);
    x->b[i] = p1;
    x->c[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), x->d[i]), k1);
    x->d[i] = p0;
}

/* The 53 bits of a uniform value, from two words. */
static inline __m256i bits_of(__m256i low, __m256i high)
{
    const __m256i lower = _mm256_set1_epi64x(0xFFFFFFFF);
    const __m256i both = _mm256_or_si256(_mm256_and_si256(low, lower), _mm256_slli_epi64(high, 32));
    return _mm256_srli_epi64(both, 11);
}

static void uniform(rng_key key, uint64_t first, double *u, double *v)
{
    for (int at = 0; at < NORMALS_BATCH; at += LANES * VECTORS) {
        words x;
        uint32_t k0 = key.word[0], k1 = key.word[1];
        for (int i = 0; i < VECTORS; i++) {
            const uint64_t from = first + (uint64_t)(at + LANES * i);
            x.a[i] = _mm256_add_epi64(_mm256_set1_epi64x((long long)from),
                                      _mm256_setr_epi64x(0, 1, 2, 3));
            x.b[i] = _mm256_srli_epi64(x.a[i], 32);
            x.c[i] = x.d[i] = _mm256_setzero_si256();
        }
        for (int round = 0; round < ROUNDS; round++) {
            const __m256i of0 = _mm256_set1_epi64x(k0), of1 = _mm256_set1_epi64x(k1);
            mix(&x, 0, of0, of1);
            mix(&x, 1, of0, of1);
            mix(&x, 2, of0, of1);
            mix(&x, 3, of0, of1);
            k0 += 0x9E3779B9;
            k1 += 0xBB67AE85;
        }
        for (int i = 0; i < VECTORS; i++) {
            int64_t radius[LANES], turn[LANES];
            _mm256_storeu_si256((__m256i *)radius, bits_of(x.a[i], x.b[i]));
            _mm256_storeu_si256((__m256i *)turn, bits_of(x.c[i], x.d[i]));
            for (int lane = 0; lane < LANES; lane++) {
                u[at + LANES * i + lane] = 1.0 - (double)radius[lane] * 0x1.0p-53;
                v[at + LANES * i + lane] = (double)turn[lane] * 0x1.0p-53;
            }
        }
    }
}

normals_uniform *const normals_uniform_avx2 = uniform;
#else
normals_uniform *const normals_uniform_avx2 = 0;
#endif
