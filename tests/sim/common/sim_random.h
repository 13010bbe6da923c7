/* SPDX-License-Identifier: Apache-2.0 */
/* sim_random.h: the random numbers of a simulated schedule. One seed decides all of them, on every
 * machine and at every optimisation level, so nothing here uses floating point or addresses.
 *
 * The generator is xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number
 * generators", 2018), whose state is filled by splitmix64. A schedule draws each kind of choice
 * from a generator of its own (sim_random_split), so that one more fault of a kind does not change
 * the delays of everything else. */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_RANDOM_H
#define TESSERA_TESTS_SIM_COMMON_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_random {
    uint64_t word[4];
} sim_random;

static inline uint64_t sim_random_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static inline sim_random sim_random_of(uint64_t seed)
{
    sim_random made;
    for (int i = 0; i < 4; i++) {
        seed += UINT64_C(0x9e3779b97f4a7c15);
        made.word[i] = sim_random_mix(seed);
    }
    return made;
}

static inline uint64_t sim_random_rotate(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

static inline uint64_t sim_random_u64(sim_random *from)
{
    uint64_t *const word = from->word;
    const uint64_t drawn = sim_random_rotate(word[1] * 5, 7) * 9, shifted = word[1] << 17;
    word[2] ^= word[0];
    word[3] ^= word[1];
    word[1] ^= word[2];
    word[0] ^= word[3];
    word[2] ^= shifted;
    word[3] = sim_random_rotate(word[3], 45);
    return drawn;
}

/* A generator for one purpose, which does not depend on what was drawn from `from` before as long
 * as it is split off first. */
static inline sim_random sim_random_split(const sim_random *from, uint64_t purpose)
{
    return sim_random_of(sim_random_mix(from->word[0] ^ sim_random_mix(purpose + 1)));
}

/* Uniform in [0, count); count must be above 0. */
static inline uint64_t sim_random_below(sim_random *from, uint64_t count)
{
    const uint64_t least = -count % count; /* draws below it would make small values likelier */
    uint64_t drawn = sim_random_u64(from);
    while (drawn < least)
        drawn = sim_random_u64(from);
    return drawn % count;
}

/* Uniform in [least, most], both included. */
static inline int64_t sim_random_between(sim_random *from, int64_t least, int64_t most)
{
    return least + (int64_t)sim_random_below(from, (uint64_t)(most - least) + 1);
}

/* True `times` times out of `of`. */
static inline bool sim_random_chance(sim_random *from, uint64_t times, uint64_t of)
{
    return sim_random_below(from, of) < times;
}

/* A duration with a long tail: uniform up to `typical` three times out of four, else up to twice
 * that, and so on, at most 256 times that. */
static inline int64_t sim_random_tail(sim_random *from, int64_t least, int64_t typical)
{
    int doubled = 0;
    while (doubled < 8 && sim_random_chance(from, 1, 4))
        doubled++;
    return least + (int64_t)sim_random_below(from, ((uint64_t)typical << doubled) + 1);
}

#endif
