/* The list of samples that cost themselves only. */
#include "prepd/serve/quarantine.h"

#include <string.h>

#include "tests/harness.h"

static void test_quarantine__first_cause_stands_and_order_is_by_sample(void **state)
{
    (void)state;
    quarantine q;
    bool fresh;
    const char *json;
    quarantine_init(&q);
    assert_ok(quarantine_json(&q, &json));
    assert_string_equal(json, "[]");
    for (int64_t i = 99; i >= 0; i--)
        assert_ok(quarantine_add(&q, i * 3, "truncated", &fresh));
    assert_true(fresh);
    assert_ok(quarantine_add(&q, 30, "other", &fresh));
    assert_false(fresh);
    assert_string_equal(quarantine_find(&q, 30), "truncated");
    assert_null(quarantine_find(&q, 31));
    assert_int_equal(q.n, 100);
    for (int64_t i = 0; i < 100; i++)
        assert_int_equal(q.entry[i].sample, i * 3);
    quarantine_done(&q);
}

static void test_quarantine__comes_back_with_the_cursor(void **state)
{
    (void)state;
    quarantine a, b;
    bool fresh;
    const char *json;
    json_value *list = NULL;
    quarantine_init(&a);
    quarantine_init(&b);
    assert_ok(quarantine_add(&a, 5, "says \"no\"", &fresh));
    assert_ok(quarantine_add(&a, 2, "empty", &fresh));
    assert_ok(quarantine_json(&a, &json));
    assert_ok(json_parse(json, strlen(json), "cursor", &list));
    assert_fails(ST_PROTOCOL, quarantine_merge(&b, list, 5, "cursor"), "outside the 5 samples");
    assert_ok(quarantine_merge(&b, list, 6, "cursor"));
    assert_string_equal(quarantine_find(&b, 5), "says \"no\"");
    json_free(&list);
    quarantine_done(&a);
    quarantine_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quarantine__first_cause_stands_and_order_is_by_sample),
        cmocka_unit_test(test_quarantine__comes_back_with_the_cursor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
