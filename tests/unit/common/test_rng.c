/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of rng.h: the generator gives the published values, numbers are uniform or normal as
 * promised, and rng_permute is a permutation for every size. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"

/* From the file kat_vectors of Random123, the authors' own test data: philox4x32 with 10 rounds. */
static void test_block__gives_the_published_values(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rng_key key = {{cases[i].key[0], cases[i].key[1]}};
        uint32_t out[4];
        rng_block(key, cases[i].counter, out);
        assert_memory_equal(out, cases[i].want, sizeof out);
    }
}

static void test_key__depends_on_seed_and_purpose(void **state)
{
    (void)state;
    rng_key first = rng_key_make(1, "order"), second = rng_key_make(2, "order"),
            key = rng_key_make(1, "drop");
    assert_memory_not_equal(&first, &second, sizeof first);
    assert_memory_not_equal(&first, &key, sizeof first);
    rng_key again = rng_key_make(1, "order");
    assert_memory_equal(&first, &again, sizeof first);
}

static void test_below__in_range_and_uniform(void **state)
{
    (void)state;
    rng_key key = rng_key_make(harness_seed(), "below");
    enum { BELOW = 7, DRAWS = 70000 };
    int count[BELOW] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint64_t value = rng_below(key, i, BELOW);
        assert_true(value < BELOW);
        count[value]++;
    }
    for (int i = 0; i < BELOW; i++) /* the standard deviation is about 93 */
        assert_in_range(count[i], DRAWS / BELOW - 600, DRAWS / BELOW + 600);
    assert_true(rng_below(key, 5, UINT64_C(1) << 63) < UINT64_C(1) << 63);
    assert_int_equal(rng_below(key, 9, 1), 0);
}

static void test_normal__mean_and_variance(void **state)
{
    (void)state;
    rng_key key = rng_key_make(harness_seed(), "normal");
    enum { DRAWS = 100000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double value = rng_normal(key, i), uniform = rng_uniform(key, i);
        assert_true(isfinite(value) && uniform >= 0 && uniform < 1);
        sum += value;
        squares += value * value;
    }
    assert_true(fabs(sum / DRAWS) < 0.02);
    assert_true(fabs(squares / DRAWS - 1) < 0.03);
}

static void test_permute__is_a_bijection(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 444, 1000, 4097};
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++) {
        uint64_t count = sizes[size];
        unsigned char *seen = (unsigned char *)calloc(count, 1);
        assert_non_null(seen);
        rng_key key = rng_key_make(harness_seed() + size, "permute");
        for (uint64_t i = 0; i < count; i++) {
            uint64_t at = rng_permute(key, count, i);
            assert_true(at < count);
            assert_int_equal(seen[at]++, 0);
        }
        free(seen);
    }
    rng_key key = rng_key_make(3, "permute");
    assert_true(rng_permute(key, UINT64_MAX, UINT64_MAX - 1) < UINT64_MAX);
}

static void test_permute__differs_by_key_and_mixes(void **state)
{
    (void)state;
    enum { NUMBERS = 1000 };
    rng_key first = rng_key_make(1, "epoch 0"), second = rng_key_make(1, "epoch 1");
    int fixed = 0, equal = 0, rising = 0;
    uint64_t before = 0;
    for (uint64_t i = 0; i < NUMBERS; i++) {
        uint64_t pa = rng_permute(first, NUMBERS, i);
        fixed += pa == i;
        equal += pa == rng_permute(second, NUMBERS, i);
        rising += pa > before;
        before = pa;
    }
    assert_in_range(fixed, 0, 10);
    assert_in_range(equal, 0, 10);
    assert_in_range(rising, NUMBERS / 2 - 100, NUMBERS / 2 + 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block__gives_the_published_values),
        cmocka_unit_test(test_key__depends_on_seed_and_purpose),
        cmocka_unit_test(test_below__in_range_and_uniform),
        cmocka_unit_test(test_normal__mean_and_variance),
        cmocka_unit_test(test_permute__is_a_bijection),
        cmocka_unit_test(test_permute__differs_by_key_and_mixes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
