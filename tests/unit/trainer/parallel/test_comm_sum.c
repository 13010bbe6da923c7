/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_sum.c: sums over ranks in bf16 are made in float and rounded once, to even. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/parallel/comm/comm_sum.h"

static void expect_sum(const uint16_t *values, int peers, comm_reduction reduction, uint16_t want)
{
    const void *from[4];
    uint16_t got;
    for (int rank = 0; rank < peers; rank++)
        from[rank] = &values[rank];
    assert_ok(comm_sum(&got, from, peers, 1, DT_BF16, reduction));
    assert_int_equal(got, want);
}

static void test_comm_sum__bf16_is_rounded_once(void **state)
{
    (void)state;
    enum { ONE = 0x3f80, EPS = 0x3b80 /* 2^-8: half a step above 1 */, NEXT = 0x3f81 };
    expect_sum((uint16_t[]){ONE, EPS}, 2, COMM_SUM, ONE);             /* ties round to even */
    expect_sum((uint16_t[]){ONE, EPS, EPS}, 3, COMM_SUM, NEXT);       /* small terms are not lost */
    expect_sum((uint16_t[]){NEXT, EPS}, 2, COMM_SUM, NEXT + 1);       /* to even, upwards */
    expect_sum((uint16_t[]){ONE, 0xbf80, EPS, 0}, 4, COMM_SUM, EPS);  /* 1 - 1 + eps */
    expect_sum((uint16_t[]){0x7f80, ONE}, 2, COMM_SUM, 0x7f80);       /* infinity stays */
    expect_sum((uint16_t[]){ONE, 0x7fc1, NEXT}, 3, COMM_SUM, 0x7fc1); /* so does a NaN */
    expect_sum((uint16_t[]){ONE, NEXT, 0xbf80}, 3, COMM_MAX, NEXT);
    expect_sum((uint16_t[]){ONE, 0x7fc0, NEXT}, 3, COMM_MAX, 0x7fc0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_comm_sum__bf16_is_rounded_once)};
    return cmocka_run_group_tests_name("comm_sum", tests, NULL, NULL);
}
