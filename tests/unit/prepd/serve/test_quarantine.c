/* Tests of quarantine.h: the list of bad samples keeps the first cause of each, travels in cursors,
 * and two lists can be joined. */
#include "prepd/serve/quarantine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static void test_quarantine__keeps_the_first_cause_in_order_of_samples(void **state)
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
    assert_int_equal(q.n_entries, 100);
    for (int64_t i = 0; i < 100; i++)
        assert_int_equal(q.entry[i].sample, i * 3);
    quarantine_done(&q);
}

static void test_quarantine__is_restored_from_a_cursor(void **state)
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
    assert_int_equal(b.n_entries, 0); /* a list is taken whole or not at all */
    assert_fails(ST_PROTOCOL, quarantine_merge(&b, list, 1, "cursor"),
                 "2 quarantined samples, more than the 1");
    assert_ok(quarantine_merge(&b, list, 6, "cursor"));
    assert_string_equal(quarantine_find(&b, 5), "says \"no\"");
    json_free(&list);
    quarantine_done(&a);
    quarantine_done(&b);
}

/* A list may be unsorted, name a sample twice, or name one that is known. The result is sorted, and
 * the first cause of each sample is kept. */
static void test_quarantine__lists_are_joined(void **state)
{
    (void)state;
    enum { N = 200000 }; /* inserting them one by one in falling order would take minutes */
    quarantine a, b;
    bool fresh;
    const char *json;
    json_value *list = NULL;
    json_writer w;
    char *text;
    size_t size;
    quarantine_init(&a);
    quarantine_init(&b);
    assert_ok(quarantine_add(&a, 7, "was here", &fresh));
    assert_ok(quarantine_json(&a, &json));
    json_writer_init(&w);
    json_begin_array(&w);
    for (int64_t i = N - 1; i >= 1; i--) {
        json_begin_object(&w);
        json_put_key_int(&w, "id", i == N - 1 ? 9 : i);
        json_put_key_cstr(&w, "cause", i == N - 1 ? "told first" : "told");
        json_end_object(&w);
    }
    json_end_array(&w);
    assert_ok(json_writer_take(&w, &text, &size));
    json_writer_done(&w);
    assert_ok(json_parse(text, size, "cursor", &list));
    free(text);
    assert_ok(quarantine_merge(&a, list, N, "cursor"));
    assert_int_equal(a.n_entries, N - 2); /* 1 to N - 2, 7 among them */
    for (int64_t i = 0; i < a.n_entries; i++)
        assert_int_equal(a.entry[i].sample, i + 1);
    assert_string_equal(quarantine_find(&a, 7), "was here");
    assert_string_equal(quarantine_find(&a, 9), "told first");
    assert_string_equal(quarantine_find(&a, 8), "told");
    assert_ok(quarantine_json(&a, &json));
    assert_true(strlen(json) > (size_t)N * 10); /* the text is made again */
    assert_ok(quarantine_add(&b, 3, "own", &fresh));
    assert_ok(quarantine_copy(&b, &a));
    assert_int_equal(b.n_entries, a.n_entries);
    assert_string_equal(quarantine_find(&b, 3), "own");
    assert_ok(quarantine_add(&b, 0, "more", &fresh));
    assert_true(fresh && b.entry[0].sample == 0);
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
    /* a character that lies across the limit is left out whole */
    memcpy(cause + 511, "\xc3\xa9", 2);
    assert_ok(quarantine_add(&a, 0, cause, &fresh));
    assert_int_equal(strlen(quarantine_find(&a, 0)), 511);
    assert_ok(quarantine_json(&a, &json));
    assert_ok(json_parse(json, strlen(json), "cursor", &list));
    assert_ok(quarantine_merge(&b, list, 1, "cursor")); /* our own text is accepted */
    json_free(&list);
    quarantine_done(&b);
    quarantine_init(&b);
    snprintf(text, sizeof(text), "[{\"id\":1,\"cause\":\"ok\"},{\"id\":0,\"cause\":\"%s\"}]",
             cause);
    assert_ok(json_parse(text, strlen(text), "cursor", &list));
    assert_fails(ST_PROTOCOL, quarantine_merge(&b, list, 2, "cursor"), "599 bytes");
    assert_int_equal(b.n_entries, 0);
    json_free(&list);
    quarantine_done(&a);
    quarantine_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quarantine__keeps_the_first_cause_in_order_of_samples),
        cmocka_unit_test(test_quarantine__is_restored_from_a_cursor),
        cmocka_unit_test(test_quarantine__lists_are_joined),
        cmocka_unit_test(test_quarantine__causes_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
