/* Tests of quarantine.h: the list of bad samples keeps the first cause of each, travels in cursors,
 * and two lists can be joined. */
#include "prepd/serve/core/quarantine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

static void test_quarantine__keeps_the_first_cause_in_order_of_samples(void **state)
{
    (void)state;
    quarantine list;
    bool fresh;
    const char *json;
    quarantine_init(&list);
    assert_ok(quarantine_json(&list, &json));
    assert_string_equal(json, "[]");
    for (int64_t i = 99; i >= 0; i--)
        assert_ok(quarantine_add(&list, i * 3, "truncated", &fresh));
    assert_true(fresh);
    assert_ok(quarantine_add(&list, 30, "other", &fresh));
    assert_false(fresh);
    assert_string_equal(quarantine_find(&list, 30), "truncated");
    assert_null(quarantine_find(&list, 31));
    assert_int_equal(list.n_entries, 100);
    for (int64_t i = 0; i < 100; i++)
        assert_int_equal(list.entry[i].sample, i * 3);
    quarantine_done(&list);
}

static void test_quarantine__is_restored_from_a_cursor(void **state)
{
    (void)state;
    quarantine first, second;
    bool fresh;
    const char *json;
    json_value *list = NULL;
    quarantine_init(&first);
    quarantine_init(&second);
    assert_ok(quarantine_add(&first, 5, "says \"no\"", &fresh));
    assert_ok(quarantine_add(&first, 2, "empty", &fresh));
    assert_ok(quarantine_json(&first, &json));
    assert_ok(json_parse(json, strlen(json), "cursor", &list));
    assert_fails(ST_PROTOCOL, quarantine_merge(&second, list, 5, "cursor"),
                 "outside the 5 samples");
    assert_int_equal(second.n_entries, 0); /* a list is taken whole or not at all */
    assert_fails(ST_PROTOCOL, quarantine_merge(&second, list, 1, "cursor"),
                 "2 quarantined samples, more than the 1");
    assert_ok(quarantine_merge(&second, list, 6, "cursor"));
    assert_string_equal(quarantine_find(&second, 5), "says \"no\"");
    json_free(&list);
    quarantine_done(&first);
    quarantine_done(&second);
}

/* A list may be unsorted, name a sample twice, or name one that is known. The result is sorted, and
 * the first cause of each sample is kept. */
static void test_quarantine__lists_are_joined(void **state)
{
    (void)state;
    enum { ENTRIES = 200000 }; /* inserting them one by one in falling order would take minutes */
    quarantine first, second;
    bool fresh;
    const char *json;
    json_value *list = NULL;
    json_writer writer;
    char *text;
    size_t size;
    quarantine_init(&first);
    quarantine_init(&second);
    assert_ok(quarantine_add(&first, 7, "was here", &fresh));
    assert_ok(quarantine_json(&first, &json));
    json_writer_init(&writer);
    json_begin_array(&writer);
    for (int64_t i = ENTRIES - 1; i >= 1; i--) {
        json_begin_object(&writer);
        json_put_key_int(&writer, "id", i == ENTRIES - 1 ? 9 : i);
        json_put_key_cstr(&writer, "cause", i == ENTRIES - 1 ? "told first" : "told");
        json_end_object(&writer);
    }
    json_end_array(&writer);
    assert_ok(json_writer_take(&writer, &text, &size));
    json_writer_done(&writer);
    assert_ok(json_parse(text, size, "cursor", &list));
    free(text);
    assert_ok(quarantine_merge(&first, list, ENTRIES, "cursor"));
    assert_int_equal(first.n_entries, ENTRIES - 2); /* 1 to ENTRIES - 2, 7 among them */
    for (int64_t i = 0; i < first.n_entries; i++)
        assert_int_equal(first.entry[i].sample, i + 1);
    assert_string_equal(quarantine_find(&first, 7), "was here");
    assert_string_equal(quarantine_find(&first, 9), "told first");
    assert_string_equal(quarantine_find(&first, 8), "told");
    assert_ok(quarantine_json(&first, &json));
    assert_true(strlen(json) > (size_t)ENTRIES * 10); /* the text is made again */
    assert_ok(quarantine_add(&second, 3, "own", &fresh));
    assert_ok(quarantine_copy(&second, &first));
    assert_int_equal(second.n_entries, first.n_entries);
    assert_string_equal(quarantine_find(&second, 3), "own");
    assert_ok(quarantine_add(&second, 0, "more", &fresh));
    assert_true(fresh && second.entry[0].sample == 0);
    json_free(&list);
    quarantine_done(&first);
    quarantine_done(&second);
}

static void test_quarantine__causes_are_short(void **state)
{
    (void)state;
    quarantine first, second;
    bool fresh;
    const char *json;
    json_value *list = NULL;
    char cause[600], text[700];
    quarantine_init(&first);
    quarantine_init(&second);
    memset(cause, 'x', sizeof(cause) - 1);
    cause[sizeof(cause) - 1] = 0;
    /* a character that lies across the limit is left out whole */
    memcpy(cause + 511, "\xc3\xa9", 2);
    assert_ok(quarantine_add(&first, 0, cause, &fresh));
    assert_int_equal(strlen(quarantine_find(&first, 0)), 511);
    assert_ok(quarantine_json(&first, &json));
    assert_ok(json_parse(json, strlen(json), "cursor", &list));
    assert_ok(quarantine_merge(&second, list, 1, "cursor")); /* our own text is accepted */
    json_free(&list);
    quarantine_done(&second);
    quarantine_init(&second);
    snprintf(text, sizeof(text), "[{\"id\":1,\"cause\":\"ok\"},{\"id\":0,\"cause\":\"%s\"}]",
             cause);
    assert_ok(json_parse(text, strlen(text), "cursor", &list));
    assert_fails(ST_PROTOCOL, quarantine_merge(&second, list, 2, "cursor"), "599 bytes");
    assert_int_equal(second.n_entries, 0);
    json_free(&list);
    quarantine_done(&first);
    quarantine_done(&second);
}

/* All ranks of a run bring the same list. One whose HELLO waits while a worker finds one of these
 * samples bad must not have another cause in its cursors than the others. */
static void test_seats_quarantine__is_told_to_who_has_been_welcomed(void **state)
{
    (void)state;
    static dispatch daemon;
    static consumer_seat waits, reads;
    daemon = (dispatch){.outside = still_world(), .consumer_seats = &waits};
    daemon.train = (source){.of = &daemon, .name = "train"};
    waits = (consumer_seat){.src = &daemon.train, .next = &reads};
    reads = (consumer_seat){.src = &daemon.train, .welcomed = true};
    seats_quarantine(&daemon, &daemon.train, 1, "truncated");
    assert_null(quarantine_find(&waits.bad, 1));
    assert_string_equal(quarantine_find(&reads.bad, 1), "truncated");
    assert_string_equal(quarantine_find(&daemon.train.bad, 1), "truncated");
    assert_int_equal(daemon.counts.quarantined, 1);
    quarantine_done(&reads.bad);
    quarantine_done(&daemon.train.bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quarantine__keeps_the_first_cause_in_order_of_samples),
        cmocka_unit_test(test_quarantine__is_restored_from_a_cursor),
        cmocka_unit_test(test_quarantine__lists_are_joined),
        cmocka_unit_test(test_quarantine__causes_are_short),
        cmocka_unit_test(test_seats_quarantine__is_told_to_who_has_been_welcomed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
