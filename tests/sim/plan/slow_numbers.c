/* SPDX-License-Identifier: Apache-2.0 */
/* slow_numbers.c: the random numbers of common/base/rng.h, computed once more: Philox 4x32-10
 * (Salmon et al., SC'11) and a Feistel network over it. Only the hash is that of the tree. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "tests/sim/plan/slow_parts.h"

typedef struct block {
    uint32_t word[4];
} block;

typedef struct key {
    uint32_t first, second;
} key;

static block philox(block counter, key with)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t low = UINT64_C(0xD2511F53) * counter.word[0],
                       high = UINT64_C(0xCD9E8D57) * counter.word[2];
        counter = (block){{(uint32_t)(high >> 32) ^ counter.word[1] ^ with.first, (uint32_t)high,
                           (uint32_t)(low >> 32) ^ counter.word[3] ^ with.second, (uint32_t)low}};
        with.first += 0x9E3779B9u;
        with.second += 0xBB67AE85u;
    }
    return counter;
}

static uint32_t word_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

/* The key of a seed and a purpose: a hash of both, each in 16 bytes. */
static key key_of(uint64_t seed, const char *purpose)
{
    uint8_t both[32] = {0};
    for (int i = 0; i < 8; i++)
        both[i] = (uint8_t)(seed >> 8 * i);
    const hash128 named = hash_bytes(purpose, strlen(purpose));
    memcpy(both + 16, named.bytes, 16);
    const hash128 made = hash_bytes(both, sizeof both);
    return (key){word_at(made.bytes), word_at(made.bytes + 4)};
}

uint64_t slow_draw(uint64_t seed, const char *purpose, uint64_t counter)
{
    const block from = {{(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0}},
                drawn = philox(from, key_of(seed, purpose));
    return (uint64_t)drawn.word[1] << 32 | drawn.word[0];
}

uint64_t slow_permute(uint64_t seed, const char *purpose, uint64_t count, uint64_t place)
{
    const key own = key_of(seed, purpose);
    uint64_t side = 1; /* the network permutes [0, side * side) */
    while (side * side < count)
        side *= 2;
    while (count > 1) {
        uint64_t left = place / side, right = place % side;
        for (uint32_t round = 0; round < 8; round++) {
            const block from = {
                {(uint32_t)right, (uint32_t)count, (uint32_t)(count >> 32) ^ round << 24, 1}};
            const uint64_t mixed = left ^ philox(from, own).word[0] % side;
            left = right;
            right = mixed;
        }
        place = left * side + right;
        if (place < count)
            break;
    }
    return place;
}
