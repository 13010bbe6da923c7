/* SPDX-License-Identifier: Apache-2.0 */
/* philox.h: the generator of rng.h as a function that every compiler can inline: Philox 4x32-10
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). It compiles as C, as C++
 * and for a GPU, and gives the same bits everywhere.
 *
 * Letters: a, b, c, d the four words of the counter, as Philox mixes them. */
#ifndef TESSERA_COMMON_BASE_PHILOX_H
#define TESSERA_COMMON_BASE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FN static __host__ __device__ __forceinline__
#else
#define PHILOX_FN static inline
#endif

/* The multipliers and the key increments of section 3.3. */
#define PHILOX_M0 UINT32_C(0xD2511F53)
#define PHILOX_M1 UINT32_C(0xCD9E8D57)
#define PHILOX_W0 UINT32_C(0x9E3779B9)
#define PHILOX_W1 UINT32_C(0xBB67AE85)
enum { PHILOX_ROUNDS = 10 };

/* out [4]: 128 random bits for the counter (a, b, c, d) under the key (k0, k1). */
PHILOX_FN void philox_draw(uint32_t k0, uint32_t k1, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                           uint32_t *out)
{
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)PHILOX_M0 * a, p1 = (uint64_t)PHILOX_M1 * c;
        a = (uint32_t)(p1 >> 32) ^ b ^ k0;
        b = (uint32_t)p1;
        c = (uint32_t)(p0 >> 32) ^ d ^ k1;
        d = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

#endif
