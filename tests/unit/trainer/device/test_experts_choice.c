/* SPDX-License-Identifier: Apache-2.0 */
/* test_experts_choice.c: which kernel of the experts' products each wish gets on each GPU. */
#include "tests/harness.h"

#include <string.h>

#include "common/conf/conf.h"
#include "trainer/device/choices.h"

static void test_experts_choice__follows_the_gpu_and_the_wish(void **state)
{
    (void)state;
    const struct {
        int wanted, sm;
        bool hopper;
    } cases[] = {{EXPERTS_AUTO, 90, true},      {EXPERTS_HOPPER, 90, true},
                 {EXPERTS_PORTABLE, 90, false}, {EXPERTS_AUTO, 80, false},
                 {EXPERTS_PORTABLE, 80, false}, {EXPERTS_AUTO, 100, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool hopper = !cases[i].hopper;
        assert_ok(experts_choose(cases[i].wanted, cases[i].sm, &hopper));
        assert_int_equal(hopper, cases[i].hopper);
    }
}

static void test_experts_choice__refuses_hopper_elsewhere(void **state)
{
    (void)state;
    bool hopper = false;
    assert_fails(ST_UNAVAILABLE, experts_choose(EXPERTS_HOPPER, 89, &hopper),
                 "compute capability 8.9");
    assert_fails(ST_UNAVAILABLE, experts_choose(EXPERTS_HOPPER, 100, &hopper),
                 "compute capability 10.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_choice__follows_the_gpu_and_the_wish),
        cmocka_unit_test(test_experts_choice__refuses_hopper_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
