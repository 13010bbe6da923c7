/* The list of samples that cost themselves only. */
#include "prepd/serve/quarantine.h"

#include <stdio.h>
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
    assert_int_equal(b.n, 0); /* all or none */
    assert_fails(ST_PROTOCOL, quarantine_merge(&b, list, 1, "cursor"), "2 quarantined of the 1");
    assert_ok(quarantine_merge(&b, list, 6, "cursor"));
    assert_string_equal(quarantine_find(&b, 5), "says \"no\"");
    json_free(&list);
    quarantine_done(&a);
    quarantine_done(&b);
}

static void test_quarantine__causes_are_short(void **state)
{
    (void)state;
    quarantine a, b;
    bool fresh;
    const char *json;
    json_value *list = NULL;
    char cause[600], text[700];
    quarantine_init(&a);
    quarantine_init(&b);
    memset(cause, 'x', sizeof(cause) - 1);
    cause[sizeof(cause) - 1] = 0;
    memcpy(cause + 511, "\xc3\xa9", 2); /* lies across the limit: left out whole */
    assert_ok(quarantine_add(&a, 0, cause, &fresh));
    assert_int_equal(strlen(quarantine_find(&a, 0)), 511);
    assert_ok(quarantine_json(&a, &json));
    assert_ok(json_parse(json, strlen(json), "cursor", &list));
    assert_ok(quarantine_merge(&b, list, 1, "cursor")); /* what we made comes back */
    json_free(&list);
    quarantine_done(&b);
    quarantine_init(&b);
    snprintf(text, sizeof(text), "[{\"id\":1,\"cause\":\"ok\"},{\"id\":0,\"cause\":\"%s\"}]",
             cause);
    assert_ok(json_parse(text, strlen(text), "cursor", &list));
    assert_fails(ST_PROTOCOL, quarantine_merge(&b, list, 2, "cursor"), "599 bytes");
    assert_int_equal(b.n, 0);
    json_free(&list);
    quarantine_done(&a);
    quarantine_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quarantine__first_cause_stands_and_order_is_by_sample),
        cmocka_unit_test(test_quarantine__comes_back_with_the_cursor),
        cmocka_unit_test(test_quarantine__causes_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
