/* Tests of decisions.c: lists of bad samples become one, whatever their order, and the one of the
 * lowest row stands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/decisions.h"
#include "tests/harness.h"

static const char *const lists[] = {
    "[{\"id\":7,\"cause\":\"cut\",\"row\":30},{\"id\":2,\"cause\":\"late\"}]",
    "[{\"id\":2,\"cause\":\"crash\"},{\"id\":9,\"cause\":\"empty\",\"row\":4}]",
    "[{\"id\":7,\"cause\":\"short\",\"row\":12},{\"id\":9,\"cause\":\"a lower word\"}]",
};
enum { LISTS = sizeof lists / sizeof *lists };
static const char UNION[] =
    "[{\"id\":2,\"cause\":\"crash\"},{\"id\":7,\"cause\":\"short\",\"row\":12},"
    "{\"id\":9,\"cause\":\"empty\",\"row\":4}]";

static void read_list(decisions *inout, const char *text)
{
    assert_ok(decisions_read(inout, text, DECISION_ROW_UNKNOWN, "list"));
}

static void expect_text(const decisions *list, const char *wanted)
{
    char *text;
    assert_ok(decisions_write(list, &text));
    assert_string_equal(text, wanted);
    free(text);
}

static void test_decisions__order_and_repetition_change_nothing(void **state)
{
    (void)state;
    for (int order = 0; order < LISTS * LISTS * LISTS; order++) {
        decisions list = {0};
        const int place[] = {order % LISTS, order / LISTS % LISTS, order / LISTS / LISTS};
        for (int i = 0; i < LISTS; i++)
            read_list(&list, lists[place[i]]);
        for (int i = 0; i < LISTS; i++) /* each is there once at least */
            read_list(&list, lists[i]);
        expect_text(&list, UNION);
        read_list(&list, UNION); /* and a union can be read again */
        expect_text(&list, UNION);
        decisions_done(&list);
    }
}

/* A list of many samples in falling order, of which each is there twice. */
static void test_decisions__long_lists(void **state)
{
    (void)state;
    enum { SAMPLES = 5000, ROOM = 64 * 2 * SAMPLES };
    char *text = (char *)malloc(ROOM);
    assert_non_null(text);
    int size = snprintf(text, ROOM, "[");
    for (int i = 0; i < 2 * SAMPLES; i++)
        size +=
            snprintf(text + size, (size_t)(ROOM - size), "%s{\"id\":%d,\"cause\":\"c\",\"row\":%d}",
                     i ? "," : "", 3 * (SAMPLES - i % SAMPLES), i);
    snprintf(text + size, (size_t)(ROOM - size), "]");
    decisions list = {0};
    read_list(&list, text);
    assert_int_equal(list.n_entries, SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        assert_int_equal(list.entry[i].sample, 3 * (i + 1));
        assert_int_equal(list.entry[i].row, SAMPLES - i - 1); /* the lower of the two */
    }
    decisions_done(&list);
    free(text);
}

static void test_decisions__rows_and_cursors(void **state)
{
    (void)state;
    static const char cursor[] =
        "{\"stream\":\"train\",\"row\":8,\"quarantine\":[{\"id\":3,\"cause\":\"b\"},"
        "{\"id\":4,\"cause\":\"a\"}],\"index\":\"0f\",\"weights\":{\"x\":0.1}}";
    decisions list = {0};
    char *cut;
    /* A row's tag does not repeat the row's number. */
    assert_ok(decisions_read(&list, "[{\"id\":3,\"cause\":\"z\",\"name\":\"n\"}]", 5, "row 5"));
    assert_ok(decisions_read_cursor(&list, cursor, "cursor"));
    assert_ok(decisions_read_cursor(&list, "", "cursor"));
    assert_ok(decisions_read(&list, "", 6, "row 6"));
    assert_ok(decisions_read_cursor(&list, "{\"row\":1}", "an early cursor"));
    expect_text(&list, "[{\"id\":3,\"cause\":\"z\",\"row\":5},{\"id\":4,\"cause\":\"a\"}]");
    assert_ok(decisions_cut_cursor(cursor, "cursor", &cut));
    assert_string_equal(cut, "{\"stream\":\"train\",\"row\":8,\"index\":\"0f\","
                             "\"weights\":{\"x\":0.1},\"quarantine\":[]}");
    free(cut);
    decisions_done(&list);
}

static void test_decisions__only_news_is_told(void **state)
{
    (void)state;
    decisions known = {0}, heard = {0};
    char *text;
    read_list(&known, UNION);
    read_list(&heard, lists[0]); /* a higher row, and a cause that does not stand */
    assert_ok(decisions_write_news(&known, &heard, &text));
    assert_null(text);
    read_list(&heard, "[{\"id\":9,\"cause\":\"earlier\",\"row\":3},{\"id\":11,\"cause\":\"new\"}]");
    assert_ok(decisions_write_news(&known, &heard, &text));
    assert_string_equal(text, "[{\"id\":9,\"cause\":\"earlier\",\"row\":3},"
                              "{\"id\":11,\"cause\":\"new\"}]");
    free(text);
    decisions_done(&known);
    decisions_done(&heard);
}

static void test_decisions__what_is_no_list_changes_nothing(void **state)
{
    (void)state;
    static const char *const bad[] = {"{}",
                                      "[1]",
                                      "[{\"id\":1}]",
                                      "[{\"cause\":\"c\"}]",
                                      "[{\"id\":\"1\",\"cause\":\"c\"}]",
                                      "[{\"id\":-1,\"cause\":\"c\"}]",
                                      "[{\"id\":1,\"cause\":\"c\",\"row\":-2}]",
                                      "[{\"id\":1,\"cause\":\"c\",\"row\":\"2\"}]",
                                      "[{\"id\":1,\"cause\":\"c\"},{\"id\":2,\"cause\":3}]",
                                      "["};
    decisions list = {0};
    read_list(&list, UNION);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(ST_BAD_INPUT, decisions_read(&list, bad[i], 0, "a list"), "a list");
    assert_fails(ST_BAD_INPUT, decisions_read_cursor(&list, "{\"quarantine\":{}}", "it"),
                 "an array");
    assert_fails(ST_BAD_INPUT, decisions_read_cursor(&list, "[{\"id\":1}]", "it"), "an object");
    expect_text(&list, UNION);
    decisions_done(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decisions__order_and_repetition_change_nothing),
        cmocka_unit_test(test_decisions__long_lists),
        cmocka_unit_test(test_decisions__rows_and_cursors),
        cmocka_unit_test(test_decisions__only_news_is_told),
        cmocka_unit_test(test_decisions__what_is_no_list_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
