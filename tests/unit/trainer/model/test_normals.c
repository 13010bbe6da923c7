/* SPDX-License-Identifier: Apache-2.0 */
/* test_normals.c: normal values drawn many at once are the same bits as one by one, on a processor
 * that has AVX2 as on any other. Letters: u, v the two uniform values of a normal one. */
#include <string.h>

#include "tests/harness.h"
#include "trainer/model/params/normals.h"

enum { MOST = 3 * NORMALS_BATCH + 5 };

static void check_run(rng_key key, uint64_t first, int64_t count)
{
    double all[MOST + 1] = {0};
    normals_draw(key, first, count, all);
    for (int64_t i = 0; i < count; i++) {
        const double one = rng_normal(key, first + (uint64_t)i);
        assert_memory_equal(&all[i], &one, sizeof one);
    }
    assert_true(all[count] == 0.0);
}

static void test_normals__are_those_drawn_one_by_one(void **state)
{
    (void)state;
    static const uint64_t firsts[] = {0,
                                      1,
                                      (UINT64_C(1) << 32) - 300,
                                      (UINT64_C(1) << 32) - 1,
                                      (UINT64_C(1) << 40) + 7,
                                      UINT64_MAX - MOST};
    static const int64_t counts[] = {0, 1, NORMALS_BATCH - 1, NORMALS_BATCH, MOST};
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++)
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++)
            check_run(rng_key_make(harness_seed() + i, "normals"), firsts[i], counts[j]);
}

/* So do the uniform values that they are made of, where the counter passes 2^32. */
static void test_normals__avx2_gives_the_same_words(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2"))
        skip();
    assert_non_null(normals_uniform_avx2);
    const rng_key key = {{UINT32_C(0xFFFFFFFF), UINT32_C(0x9E3779B9)}};
    double u[NORMALS_BATCH], v[NORMALS_BATCH];
    const uint64_t first = (UINT64_C(1) << 32) - NORMALS_BATCH / 2;
    normals_uniform_avx2(key, first, u, v);
    for (uint64_t i = 0; i < NORMALS_BATCH; i++) {
        const uint64_t at = first + i;
        const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), 0, 0};
        uint32_t word[4];
        rng_block(key, counter, word);
        const uint64_t radius = (uint64_t)word[0] | (uint64_t)word[1] << 32;
        const uint64_t turn = (uint64_t)word[2] | (uint64_t)word[3] << 32;
        assert_true(u[i] == 1.0 - (double)(radius >> 11) * 0x1.0p-53);
        assert_true(v[i] == (double)(turn >> 11) * 0x1.0p-53);
    }
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normals__are_those_drawn_one_by_one),
        cmocka_unit_test(test_normals__avx2_gives_the_same_words),
    };
    return cmocka_run_group_tests_name("normals", tests, NULL, NULL);
}
