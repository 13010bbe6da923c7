/* rng.h: randomness that can be sought: every value is a function of (key, counter), so nothing
 * depends on who drew before. Philox 4x32-10 (Salmon et al. 2011, SC'11). */
#ifndef TESSERA_COMMON_BASE_RNG_H
#define TESSERA_COMMON_BASE_RNG_H

#include <stdint.h>

/* One key per purpose: rng_key_make(seed, "order"), rng_key_make(seed, "weights/NAME"). */
typedef struct rng_key {
    uint32_t word[2];
} rng_key;

rng_key rng_key_make(uint64_t seed, const char *purpose);

/* The bare generator: 128 bits for a 128-bit counter (the published known answers are tested). */
void rng_block(rng_key key, const uint32_t counter[4], uint32_t out[4]);

/* 64 random bits number `counter` under the key. */
uint64_t rng_u64(rng_key key, uint64_t counter);
/* Uniform in [0, n), without bias; n > 0. */
uint64_t rng_below(rng_key key, uint64_t counter, uint64_t n);
/* Uniform in [0, 1) with 53 bits. */
double rng_uniform(rng_key key, uint64_t counter);
/* Standard normal (Box-Muller on the words of one counter). */
double rng_normal(rng_key key, uint64_t counter);

/* A keyed permutation of [0, n): where index i goes, computed, not stored (Feistel network on the
 * next even power of two, walking until the value falls below n). Bijective for every key. */
uint64_t rng_permute(rng_key key, uint64_t n, uint64_t i);

#endif
