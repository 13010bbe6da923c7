/* Which loss counts as a leap. */
#include "tests/harness.h"

#include <math.h>

#include "trainer/report/spike.h"

static void test_spike__a_leap_is_told_and_forgotten(void **state)
{
    (void)state;
    spike s = {0};
    double mean;
    assert_false(spike_add(&s, 99.0, &mean)); /* nothing to compare with */
    s = (spike){0};
    for (int i = 0; i < 200; i++)
        assert_false(spike_add(&s, 2.0 + 0.1 * sin(i), &mean));
    assert_true(fabs(mean - 2.0) < 0.02);
    assert_true(spike_add(&s, 4.0, &mean));
    assert_true(spike_add(&s, 4.0, &mean)); /* the first one did not raise the mean */
    assert_false(spike_add(&s, 2.1, &mean));
    assert_false(spike_add(&s, 2.3, &mean)); /* far in deviations, less than a fifth */
    assert_false(spike_add(&s, NAN, &mean));
    assert_false(spike_add(&s, INFINITY, &mean));
}

static void test_spike__a_falling_loss_is_none(void **state)
{
    (void)state;
    spike s = {0};
    double mean;
    for (int i = 0; i < 300; i++)
        assert_false(spike_add(&s, 8.0 * exp(-i / 50.0) + 0.05 * (i % 3), &mean));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spike__a_leap_is_told_and_forgotten),
        cmocka_unit_test(test_spike__a_falling_loss_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
