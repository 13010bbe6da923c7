/* SPDX-License-Identifier: Apache-2.0 */
/* rng.c: see rng.h. */
#include "common/base/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/philox.h"
#include "common/base/span.h"

/* The last word of the counter says what a block is drawn for, so that drawing and permuting under
 * one key do not share blocks. (The third word is the attempt of rng_below.) */
enum { USE_DRAW = 0, USE_PERMUTE = 1 };

enum { FEISTEL_ROUNDS = 8 };

void rng_block(rng_key key, const uint32_t counter[4], uint32_t out[4])
{
    philox_draw(key.word[0], key.word[1], counter[0], counter[1], counter[2], counter[3], out);
}

rng_key rng_key_make(uint64_t seed, const char *purpose)
{
    hash128 seed_bytes = {{0}};
    store_u64(seed_bytes.bytes, seed);
    hash128 digest = hash_chain(seed_bytes, hash_bytes(purpose, strlen(purpose)));
    rng_key key = {{load_u32(digest.bytes), load_u32(digest.bytes + 4)}};
    return key;
}

static void draw_block(rng_key key, uint64_t counter, uint32_t attempt, uint32_t out[4])
{
    const uint32_t block[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), attempt, USE_DRAW};
    rng_block(key, block, out);
}

static uint64_t join_words(const uint32_t *drawn)
{
    return (uint64_t)drawn[0] | (uint64_t)drawn[1] << 32;
}

uint64_t rng_u64(rng_key key, uint64_t counter)
{
    uint32_t drawn[4];
    draw_block(key, counter, 0, drawn);
    return join_words(drawn);
}

uint64_t rng_below(rng_key key, uint64_t counter, uint64_t count)
{
    assert(count > 0);
    /* Lemire 2019, "Fast random integer generation in an interval": the high half of a random word
     * times `count`. Words whose low half falls below 2^64 mod `count` would make some values
     * likelier, so they are drawn again. */
    const uint64_t unfair = (0 - count) % count;
    for (uint32_t attempt = 0;; attempt++) {
        uint32_t drawn[4];
        draw_block(key, counter, attempt, drawn);
        unsigned __int128 product = (unsigned __int128)join_words(drawn) * count;
        if ((uint64_t)product >= unfair)
            return (uint64_t)(product >> 64);
    }
}

static double unit_interval(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1.0p-53;
}

double rng_uniform(rng_key key, uint64_t counter)
{
    return unit_interval(rng_u64(key, counter));
}

double rng_normal(rng_key key, uint64_t counter)
{
    uint32_t drawn[4];
    draw_block(key, counter, 0, drawn);
    double radius = sqrt(-2.0 * log(1.0 - unit_interval(join_words(drawn)))); /* 1 - x is never 0 */
    return radius * cos(2.0 * M_PI * unit_interval(join_words(drawn + 2)));
}

uint64_t rng_permute(rng_key key, uint64_t count, uint64_t index)
{
    assert(index < count);
    if (count == 1)
        return 0;
    int bits = 64 - __builtin_clzll(count - 1);
    int half = (bits + 1) / 2;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    /* The power of 4 is below 4 `count`, so the loop takes fewer than four rounds on average. It
     * ends, because the network is a bijection and its cycle through `index` comes back to `index`,
     * which is below count. */
    uint64_t value = index;
    do {
        uint64_t left = value >> half, right = value & mask;
        for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
            const uint32_t block[4] = {(uint32_t)right, (uint32_t)count,
                                       (uint32_t)(count >> 32) ^ round << 24, USE_PERMUTE};
            uint32_t drawn[4];
            rng_block(key, block, drawn);
            uint64_t next = left ^ (drawn[0] & mask);
            left = right;
            right = next;
        }
        value = left << half | right;
    } while (value >= count);
    return value;
}
