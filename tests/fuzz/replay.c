/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c: runs a fuzz target on its seeds (tests/fuzz/seeds/SEEDS), on each cut short at every
 * length, and on damaged copies of them. So every build tests what fuzzing once found, without
 * libFuzzer.
 *
 * $TESSERA_FUZZ_ROUNDS is the number of damaged copies of each seed (100), and $TESSERA_SEED picks
 * the damage. */
#include "tests/harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEED_MAX = 1 << 20, DEFAULT_ROUNDS = 100, MAX_DAMAGE = 8, CUTS = 1000 };

/* Copies the input to an allocation of exactly its size, so that a sanitizer notices a read past
 * the end. */
static void run_exact(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_damaged(const uint8_t *seed, size_t size, rng_key key, uint64_t round)
{
    uint8_t *data = malloc(size + MAX_DAMAGE);
    assert_non_null(data);
    memcpy(data, seed, size);
    uint64_t number = round * 64;
    for (uint64_t times = 1 + rng_below(key, number++, MAX_DAMAGE); times && size; times--) {
        size_t at = (size_t)rng_below(key, number++, size), hole;
        uint8_t byte = (uint8_t)rng_u64(key, number++);
        switch (rng_below(key, number++, 4)) {
        case 0: /* another byte */
            data[at] = byte;
            break;
        case 1: /* another bit */
            data[at] ^= (uint8_t)(1 << byte % 8);
            break;
        case 2: /* one more byte */
            memmove(data + at + 1, data + at, size - at);
            data[at] = byte;
            size++;
            break;
        default: /* some bytes fewer */
            hole = 1 + byte % 16;
            hole = hole < size - at ? hole : size - at;
            memmove(data + at, data + at + hole, size - at - hole);
            size -= hole;
        }
    }
    run_exact(data, size);
    free(data);
}

/* Runs a seed cut short at every length, or a long one at some thousand lengths. */
static void run_cut(const uint8_t *seed, size_t size)
{
    for (size_t cut = 0; cut < size; cut += 1 + size / CUTS)
        run_exact(seed, cut);
}

static void test_replay(void **state)
{
    (void)state;
    const char *source = getenv("TESSERA_SOURCE"), *text = getenv("TESSERA_FUZZ_ROUNDS");
    uint64_t rounds = text ? strtoull(text, NULL, 10) : DEFAULT_ROUNDS;
    rng_key key = rng_key_make(harness_seed(), SEEDS);
    char folder[4096], path[8192];
    snprintf(folder, sizeof folder, "%s/tests/fuzz/seeds/%s", source ? source : ".", SEEDS);
    DIR *dir = opendir(folder);
    if (!dir)
        fail_msg("no folder %s", folder);
    uint8_t *seed = malloc(SEED_MAX);
    assert_non_null(seed);
    int n_seeds = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t size = fread(seed, 1, SEED_MAX, file);
        fclose(file);
        run_exact(seed, size);
        run_cut(seed, size);
        for (uint64_t i = 0; i < rounds; i++)
            run_damaged(seed, size, key, i);
        n_seeds++;
    }
    free(seed);
    closedir(dir);
    assert_true(n_seeds > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
