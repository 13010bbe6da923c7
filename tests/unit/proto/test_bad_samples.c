/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of bad_samples.c: lists are sorted and have each sample once, ids become the text that
 * wire.md gives as an example and come back, lists of earlier programs are read, and what is no
 * list changes nothing. */
#include "proto/row/bad_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static const char INDEX[] = "0123456789abcdef0123456789abcdef",
                  OTHER[] = "ffffffffffffffffffffffffffffffff";

static void read_list(bad_samples *list, const char *text)
{
    assert_ok(bad_samples_read_text(list, text, "list"));
}

static void expect_text(const bad_samples *list, const char *wanted)
{
    char *text;
    assert_ok(bad_samples_write(list, &text));
    assert_string_equal(text, wanted);
    free(text);
}

static void test_add__keeps_the_first_cause_in_order_of_samples(void **state)
{
    (void)state;
    bad_samples list = {0};
    bool fresh;
    for (int64_t i = 99; i >= 0; i--)
        assert_ok(bad_samples_add(&list, i * 3, i % 2 ? "truncated" : NULL, &fresh));
    assert_true(fresh);
    assert_ok(bad_samples_add(&list, 33, "other", &fresh));
    assert_false(fresh);
    assert_string_equal(bad_samples_find(&list, 33), "truncated");
    assert_string_equal(bad_samples_find(&list, 30), "");
    assert_null(bad_samples_find(&list, 31));
    assert_null(bad_samples_find(&list, 298));
    assert_int_equal(list.n, 100);
    for (int64_t i = 0; i < 100; i++)
        assert_int_equal(list.id[i], i * 3);
    bad_samples_done(&list);
}

static void test_add__long_causes_are_cut_between_two_characters(void **state)
{
    (void)state;
    char cause[600] = {0};
    bad_samples list = {0};
    memset(cause, 'x', 511);
    strcat(cause, "\xc3\xa9"); /* the second byte of this character would be number 513 */
    assert_ok(bad_samples_add(&list, 0, cause, NULL));
    assert_int_equal(strlen(bad_samples_find(&list, 0)), 511);
    bad_samples_done(&list);
}

static void test_write__ids_are_the_text_of_the_page(void **state)
{
    (void)state;
    bad_samples list = {0}, back = {0};
    static const int64_t id[] = {7, 38, 39, 71, 1095, 33863, INT64_C(1) << 59};
    expect_text(&list, "");
    for (size_t i = 0; i < 6; i++)
        assert_ok(bad_samples_add(&list, id[i], "why", NULL));
    strcpy(list.index, INDEX);
    static const char wanted[] =
        "{\"index\":\"0123456789abcdef0123456789abcdef\",\"count\":6,\"ids\":\"HfBgBggBgggB\"}";
    expect_text(&list, wanted);
    read_list(&back, wanted);
    expect_text(&back, wanted);
    assert_ok(bad_samples_add(&list, id[6], NULL, NULL));
    char *text;
    assert_ok(bad_samples_write(&list, &text));
    bad_samples_done(&back);
    read_list(&back, text);
    assert_int_equal(back.n, 7);
    assert_memory_equal(back.id, id, sizeof id);
    free(text);
    bad_samples_done(&list);
    bad_samples_done(&back);
}

/* The form of earlier programs: in any order, with what is not read any more. */
static void test_read__lists_of_earlier_programs(void **state)
{
    (void)state;
    bad_samples list = {0};
    read_list(&list, "[{\"id\":7,\"cause\":\"cut\",\"row\":30},{\"id\":2,\"cause\":\"late\","
                     "\"name\":\"n\"},{\"id\":7,\"cause\":\"short\"}]");
    expect_text(&list, "{\"count\":2,\"ids\":\"CF\"}");
    json_value *cursor = NULL;
    static const char text[] =
        "{\"stream\":\"train\",\"row\":8,\"index\":\"0123456789abcdef0123456789abcdef\","
        "\"weights\":{\"x\":0.1},\"quarantine\":[{\"id\":3,\"cause\":\"b\"}]}";
    assert_ok(json_parse(text, strlen(text), "cursor", &cursor));
    assert_ok(bad_samples_read_cursor(&list, cursor, "cursor"));
    expect_text(&list, "{\"index\":\"0123456789abcdef0123456789abcdef\",\"count\":3,"
                       "\"ids\":\"CBE\"}");
    json_writer writer;
    char *cut;
    json_writer_init(&writer);
    bad_samples_put_cursor(cursor, &writer);
    assert_ok(json_writer_take(&writer, &cut, NULL));
    assert_string_equal(cut, "{\"stream\":\"train\",\"row\":8,\"index\":"
                             "\"0123456789abcdef0123456789abcdef\",\"weights\":{\"x\":0.1}}");
    free(cut);
    json_writer_done(&writer);
    json_free(&cursor);
    bad_samples_done(&list);
}

/* Lists of all kinds of overlap, of which each is merged into each. */
static void test_merge__order_and_repetition_change_nothing(void **state)
{
    (void)state;
    enum { LISTS = 64 };
    for (int first = 0; first < LISTS; first++)
        for (int second = 0; second < LISTS; second++) {
            bad_samples list = {0}, from = {0};
            int64_t wanted = 0;
            for (int64_t i = 0; i < 6; i++) {
                if (first >> i & 1)
                    assert_ok(bad_samples_add(&list, i, i % 2 ? "why" : NULL, NULL));
                if (second >> i & 1)
                    assert_ok(bad_samples_add(&from, i, "not kept", NULL));
                wanted += (first | second) >> i & 1;
            }
            assert_int_equal(bad_samples_count_new(&list, &from), wanted - list.n);
            assert_ok(bad_samples_merge(&list, &from));
            assert_int_equal(list.n, wanted);
            for (int64_t i = 0; i < 6; i++) {
                const char *cause = bad_samples_find(&list, i);
                assert_true(!cause == !((first | second) >> i & 1));
                if (cause)
                    assert_string_equal(cause, (first >> i & 1) && i % 2 ? "why" : "");
            }
            assert_ok(bad_samples_merge(&list, &from));
            assert_int_equal(list.n, wanted);
            bad_samples_done(&list);
            bad_samples_done(&from);
        }
}

static void test_merge__lists_of_different_data(void **state)
{
    (void)state;
    bad_samples list = {0}, from = {0};
    strcpy(list.index, INDEX);
    strcpy(from.index, OTHER);
    assert_ok(bad_samples_add(&from, 1, NULL, NULL));
    assert_fails(ST_BAD_INPUT, bad_samples_merge(&list, &from), "of different data");
    assert_int_equal(list.n, 0);
    bad_samples_done(&list);
    assert_ok(bad_samples_merge(&list, &from));
    assert_string_equal(list.index, OTHER);
    bad_samples_done(&list);
    bad_samples_done(&from);
}

static void test_read__what_is_no_list_changes_nothing(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "7",
        "\"CF\"",
        "{}",
        "{\"count\":1}",
        "{\"ids\":\"B\"}",
        "{\"count\":2,\"ids\":\"B\"}",
        "{\"count\":1,\"ids\":\"BB\"}",
        "{\"count\":-1,\"ids\":\"\"}",
        "{\"count\":2000001,\"ids\":\"B\"}",
        "{\"count\":2,\"ids\":\"BA\"}", /* the same id again */
        "{\"count\":1,\"ids\":\"gA\"}", /* a longer form of 0 */
        "{\"count\":1,\"ids\":\"g\"}",  /* it ends within a number */
        "{\"count\":1,\"ids\":\"B=\"}",
        "{\"count\":1,\"ids\":\"ggggggggggggB\"}", /* 2^60 */
        "{\"count\":1,\"ids\":\"B\",\"index\":\"x\"}",
        "[{\"id\":1}]",
        "[{\"id\":-1,\"cause\":\"c\"}]",
        "[{\"id\":\"1\",\"cause\":\"c\"}]",
        "[7]",
        "[",
    };
    bad_samples list = {0};
    read_list(&list, "{\"count\":1,\"ids\":\"B\"}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (bad_samples_read_text(&list, bad[i], "a list") != ST_BAD_INPUT)
            fail_msg("%s is read", bad[i]);
        assert_non_null(strstr(status_text(), "a list"));
    }
    expect_text(&list, "{\"count\":1,\"ids\":\"B\"}");
    bad_samples_done(&list);
}

/* One in twenty of 40 million samples is bad: the most that a list may have. */
static void test_write__two_million_fit_a_hello(void **state)
{
    (void)state;
    bad_samples list = {0}, back = {0};
    uint64_t drawn = harness_seed();
    int64_t id = 0;
    for (int64_t i = 0; i < BAD_SAMPLES_MOST; i++) {
        drawn = drawn * UINT64_C(6364136223846793005) + 1442695040888963407;
        id += 1 + (int64_t)(drawn >> 33) % 39;
        assert_ok(bad_samples_add(&list, id, NULL, NULL));
    }
    assert_fails(ST_BAD_INPUT, bad_samples_add(&list, id + 1, NULL, NULL), "raise data.generation");
    char *text;
    assert_ok(bad_samples_write(&list, &text));
    print_message("2,000,000 ids: %.2f MB of text\n", (double)strlen(text) / 1e6);
    assert_true(strlen(text) < 6000000);
    read_list(&back, text);
    assert_int_equal(back.n, list.n);
    assert_memory_equal(back.id, list.id, (size_t)list.n * sizeof *list.id);
    free(text);
    bad_samples_done(&list);
    bad_samples_done(&back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add__keeps_the_first_cause_in_order_of_samples),
        cmocka_unit_test(test_add__long_causes_are_cut_between_two_characters),
        cmocka_unit_test(test_write__ids_are_the_text_of_the_page),
        cmocka_unit_test(test_read__lists_of_earlier_programs),
        cmocka_unit_test(test_merge__order_and_repetition_change_nothing),
        cmocka_unit_test(test_merge__lists_of_different_data),
        cmocka_unit_test(test_read__what_is_no_list_changes_nothing),
        cmocka_unit_test(test_write__two_million_fit_a_hello),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
