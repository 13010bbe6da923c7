/* Which machines get no work because their workers broke the protocol, and for how long. */
#include "prepd/serve/breaches.h"

#include <stdio.h>

#include "tests/harness.h"

static const int64_t S = 1000000000;

static void test_breaches__the_first_are_forgiven_then_pauses_double(void **state)
{
    (void)state;
    breaches b = {0};
    int64_t now = 5 * S;
    for (int i = 0; i < FREE_BREACHES; i++) {
        breach_note(&b, "10.0.0.1", now);
        assert_false(breach_is_held(&b, "10.0.0.1", now));
    }
    for (int64_t hold = 1; hold <= 32; hold *= 2) {
        breach_note(&b, "10.0.0.1", now);
        assert_true(breach_is_held(&b, "10.0.0.1", now + hold * S - 1));
        assert_false(breach_is_held(&b, "10.0.0.1", now + hold * S));
        now += hold * S;
    }
    for (int i = 0; i < 1000; i++)
        breach_note(&b, "10.0.0.1", now);
    assert_true(breach_is_held(&b, "10.0.0.1", now + 60 * S - 1));
    assert_false(breach_is_held(&b, "10.0.0.1", now + 60 * S)); /* never for good */
    assert_false(breach_is_held(&b, "10.0.0.2", now));
}

static void test_breaches__rows_make_good(void **state)
{
    (void)state;
    breaches b = {0};
    for (int i = 0; i < 2 * FREE_BREACHES; i++)
        breach_note(&b, "", 0);
    assert_true(breach_is_held(&b, "", 0));
    for (int i = 0; i < 2 * FREE_BREACHES; i++)
        breach_made_good(&b, "");
    assert_false(breach_is_held(&b, "", 0));
    for (int i = 0; i < FREE_BREACHES; i++) {
        breach_note(&b, "", S);
        assert_false(breach_is_held(&b, "", S));
        breach_made_good(&b, "10.0.0.1"); /* not of this one */
    }
}

/* More addresses than places: the one that is held longest stays known. */
static void test_breaches__a_crowd_drives_out_no_one_that_is_held(void **state)
{
    (void)state;
    breaches b = {0};
    for (int i = 0; i < FREE_BREACHES + 5; i++)
        breach_note(&b, "10.0.0.1", 0);
    for (int i = 0; i < 3 * BREACHERS; i++) {
        char host[16];
        snprintf(host, sizeof host, "10.0.1.%d", i);
        breach_note(&b, host, S);
    }
    assert_true(breach_is_held(&b, "10.0.0.1", 2 * S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_breaches__the_first_are_forgiven_then_pauses_double),
        cmocka_unit_test(test_breaches__rows_make_good),
        cmocka_unit_test(test_breaches__a_crowd_drives_out_no_one_that_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
