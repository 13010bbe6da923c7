/* Tests of breaches.h: which machines get no work because their workers broke the protocol, and for
 * how long. */
#include "prepd/serve/core/breaches.h"

#include <stdio.h>

#include "tests/harness.h"

static const int64_t SECOND = 1000000000;

static void test_breaches__first_ones_are_forgiven_then_holds_double(void **state)
{
    (void)state;
    breaches list = {0};
    int64_t now = 5 * SECOND;
    for (int i = 0; i < FREE_BREACHES; i++) {
        breach_note(&list, "10.0.0.1", now);
        assert_false(breach_is_held(&list, "10.0.0.1", now));
    }
    for (int64_t hold = 1; hold <= 32; hold *= 2) {
        breach_note(&list, "10.0.0.1", now);
        assert_true(breach_is_held(&list, "10.0.0.1", now + hold * SECOND - 1));
        assert_false(breach_is_held(&list, "10.0.0.1", now + hold * SECOND));
        now += hold * SECOND;
    }
    for (int i = 0; i < 1000; i++)
        breach_note(&list, "10.0.0.1", now);
    assert_true(breach_is_held(&list, "10.0.0.1", now + 60 * SECOND - 1));
    assert_false(breach_is_held(&list, "10.0.0.1", now + 60 * SECOND)); /* a hold always ends */
    assert_false(breach_is_held(&list, "10.0.0.2", now));
}

static void test_breaches__rows_make_up_for_breaches(void **state)
{
    (void)state;
    breaches list = {0};
    for (int i = 0; i < 2 * FREE_BREACHES; i++)
        breach_note(&list, "", 0);
    assert_true(breach_is_held(&list, "", 0));
    for (int i = 0; i < 2 * FREE_BREACHES; i++)
        breach_made_good(&list, "");
    assert_false(breach_is_held(&list, "", 0));
    for (int i = 0; i < FREE_BREACHES; i++) {
        breach_note(&list, "", SECOND);
        assert_false(breach_is_held(&list, "", SECOND));
        breach_made_good(&list, "10.0.0.1"); /* another address does not make up for this one */
    }
}

/* With more addresses than places, the one whose hold ends last keeps its place. */
static void test_breaches__a_crowd_does_not_displace_a_held_address(void **state)
{
    (void)state;
    breaches list = {0};
    for (int i = 0; i < FREE_BREACHES + 5; i++)
        breach_note(&list, "10.0.0.1", 0);
    for (int i = 0; i < 3 * BREACHERS; i++) {
        char host[16];
        snprintf(host, sizeof host, "10.0.1.%d", i);
        breach_note(&list, host, SECOND);
    }
    assert_true(breach_is_held(&list, "10.0.0.1", 2 * SECOND));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_breaches__first_ones_are_forgiven_then_holds_double),
        cmocka_unit_test(test_breaches__rows_make_up_for_breaches),
        cmocka_unit_test(test_breaches__a_crowd_does_not_displace_a_held_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
