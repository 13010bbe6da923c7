/* SPDX-License-Identifier: Apache-2.0 */
/* rng.h: random numbers as a pure function of (key, counter), by the generator Philox 4x32-10
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
 *
 * There is no state, so a value does not depend on what was drawn before, nor on the number of
 * workers, threads or ranks; a run that resumes draws what it would have drawn. */
#ifndef TESSERA_COMMON_BASE_RNG_H
#define TESSERA_COMMON_BASE_RNG_H

#include <stdint.h>

/* A generator of its own for each purpose. */
typedef struct rng_key {
    uint32_t word[2];
} rng_key;

/* The key of a seed and a purpose, such as "order" or "weights/NAME". Different purposes give
 * unrelated numbers. */
rng_key rng_key_make(uint64_t seed, const char *purpose);

/* The generator itself: 128 random bits for a 128-bit counter. Tested against the published known
 * answers. */
void rng_block(rng_key key, const uint32_t counter[4], uint32_t out[4]);

/* 64 random bits. */
uint64_t rng_u64(rng_key key, uint64_t counter);
/* Uniform in [0, count), without bias; `count` must be above 0. */
uint64_t rng_below(rng_key key, uint64_t counter, uint64_t count);
/* Uniform in [0, 1) with 53 bits. */
double rng_uniform(rng_key key, uint64_t counter);
/* Standard normal: mean 0, variance 1 (Box-Muller, from the bits of one counter). */
double rng_normal(rng_key key, uint64_t counter);

/* Where a random permutation of [0, count) puts `index`, which is below `count`. The permutation is
 * computed for one index at a time and never stored: a Feistel network permutes the next power of 4
 * that is at least `count`, and is applied again until the value falls below `count`. It is a
 * bijection for every key. */
uint64_t rng_permute(rng_key key, uint64_t count, uint64_t index);

#endif
