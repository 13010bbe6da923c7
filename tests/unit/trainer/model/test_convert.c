/* SPDX-License-Identifier: Apache-2.0 */
/* test_convert.c: number types of files. Every half-precision value converts to double and back
 * unchanged, and doubles round to the nearest half, ties to even. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/model/dims/convert.h"

static void round_trip(st_dtype dtype)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits, back = 0;
        double value;
        convert_to_double(&value, &half, dtype, 1);
        convert_from_double(&back, dtype, &value, 1);
        if (isnan(value))
            continue;
        assert_int_equal(back, half);
    }
}

static void test_convert__halves_round_trip(void **state)
{
    (void)state;
    round_trip(DT_BF16);
    round_trip(DT_F16);
}

static uint16_t half_of(double value, st_dtype dtype)
{
    uint16_t half;
    convert_from_double(&half, dtype, &value, 1);
    return half;
}

static void test_convert__rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(half_of(1.1, DT_BF16), 0x3f8d);                   /* 1.1015625 */
    assert_int_equal(half_of(1 + 1.0 / 256, DT_BF16), 0x3f80);         /* a tie, to even */
    assert_int_equal(half_of(1 + 3.0 / 256, DT_BF16), 0x3f82);         /* a tie, to even */
    assert_int_equal(half_of(1 + 1.0 / 256 + 1e-12, DT_BF16), 0x3f81); /* just above a tie */
    assert_int_equal(half_of(1e39, DT_BF16), 0x7f80);
    assert_int_equal(half_of(65519.99, DT_F16), 0x7bff);
    assert_int_equal(half_of(65520, DT_F16), 0x7c00);
    assert_int_equal(half_of(1 + 1.0 / 2048, DT_F16), 0x3c00);
    assert_int_equal(half_of(ldexp(1, -25), DT_F16), 0);   /* a tie between 0 and the smallest */
    assert_int_equal(half_of(ldexp(1.5, -25), DT_F16), 1); /* smallest subnormal */
    assert_int_equal(half_of(ldexp(2047.5, -25), DT_F16), 0x0400); /* the smallest normal */
    assert_true(isnan(NAN) && (half_of(NAN, DT_BF16) & 0x7fff) > 0x7f80);
    assert_true((half_of(NAN, DT_F16) & 0x7fff) > 0x7c00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert__halves_round_trip),
        cmocka_unit_test(test_convert__rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
