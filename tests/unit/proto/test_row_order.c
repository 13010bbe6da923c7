/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of row_order.h and cursor.h: which rows a consumer must get in which order, as the only one
 * or as one of several ranks, and what a cursor may say. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/row/assign.h"
#include "proto/row/row_order.h"

static const char PEER[] = "ipc://daemon";

static status start_order(const char *welcome, uint64_t asked, int rank, int ranks, row_order *out)
{
    json_value *value = NULL;
    assert_ok(json_parse(welcome, strlen(welcome), "WELCOME", &value));
    status st = row_order_begin(value, PEER, asked, rank, ranks, out);
    json_free(&value);
    return st;
}

static void test_row_order__one_consumer_gets_every_row(void **state)
{
    (void)state;
    row_order order;
    assert_ok(start_order("{\"row\":40,\"global_batch_size\":4}", 40, 0, 1, &order));
    assert_ok(row_order_take(&order, PEER, 40));
    assert_ok(row_order_take(&order, PEER, 41));
    assert_fails(ST_PROTOCOL, row_order_take(&order, PEER, 43),
                 "row 43 came where row 42 was expected");
    assert_fails(ST_PROTOCOL, row_order_take(&order, PEER, 41),
                 "row 41 came where row 42 was expected");
    assert_ok(row_order_take(&order, PEER, 42));
    assert_fails(ST_PROTOCOL, start_order("{\"row\":0}", 40, 0, 1, &order),
                 "begins at row 0, but row 40 was asked for");
    /* this WELCOME does not say where the stream begins */
    assert_ok(start_order("{}", 5, 0, 1, &order));
    assert_ok(row_order_take(&order, PEER, 5));
}

static void test_row_order__a_recording_is_repeated(void **state)
{
    (void)state;
    row_order order;
    static const char welcome[] = "{\"row\":102,\"recording\":{\"first\":100,\"rows\":3}}";
    assert_ok(start_order(welcome, 102, 0, 1, &order));
    for (uint64_t i = 2; i < 11; i++)
        assert_ok(row_order_take(&order, PEER, 100 + i % 3));
    assert_fails(ST_PROTOCOL, row_order_take(&order, PEER, 103), "row 103 came where row 102");
    assert_fails(ST_PROTOCOL, row_order_take(&order, PEER, 100), "row 100 came where row 102");
    assert_fails(ST_PROTOCOL,
                 start_order("{\"recording\":{\"first\":1,\"rows\":0}}", 1, 0, 1, &order),
                 "which rows the recording has");
}

/* Ranks share steps of step_rows rows as assign_rows says, from row `first` on, which may lie
 * within a step; rounds is the length of a recording, or 0. Each rank must accept its own rows,
 * whatever they cost. */
static void take_steps(int ranks, uint64_t step_rows, uint64_t first, uint64_t rounds)
{
    enum { STEPS = 5, MOST = 32 };
    char welcome[128];
    row_order order[MOST];
    int64_t cost[MOST];
    int rank_of[MOST];
    snprintf(welcome, sizeof welcome,
             rounds
                 ? "{\"row\":%llu,\"global_batch_size\":%llu,\"recording\":{\"first\":7,\"rows\":"
                   "%llu}}"
                 : "{\"row\":%llu,\"global_batch_size\":%llu}",
             (unsigned long long)(first + (rounds ? 7 : 0)), (unsigned long long)step_rows,
             (unsigned long long)rounds);
    for (int rank = 0; rank < ranks; rank++)
        assert_ok(start_order(welcome, first + (rounds ? 7 : 0), rank, ranks, &order[rank]));
    for (uint64_t step = first / step_rows; step < first / step_rows + STEPS; step++) {
        for (uint64_t k = 0; k < step_rows; k++)
            cost[k] = (int64_t)((step * 31 + k * 17) % 11);
        assert_ok(assign_rows(cost, (int64_t)step_rows, ranks, rank_of));
        for (uint64_t k = 0; k < step_rows; k++) {
            const uint64_t row = step * step_rows + k;
            if (row >= first)
                assert_ok(
                    row_order_take(&order[rank_of[k]], PEER, rounds ? 7 + row % rounds : row));
        }
    }
}

static void test_row_order__ranks_get_their_share_of_every_step(void **state)
{
    (void)state;
    take_steps(2, 4, 0, 0);
    take_steps(3, 8, 0, 0); /* the ranks get 3, 3 and 2 rows */
    take_steps(3, 8, 21, 0);
    take_steps(4, 4, 8, 0);
    take_steps(2, 4, 0, 10); /* the recording is not a whole number of steps */
    take_steps(3, 8, 3, 16);
}

static void test_row_order__ranks_get_no_more_and_no_less(void **state)
{
    (void)state;
    row_order order;
    static const char welcome[] = "{\"row\":0,\"global_batch_size\":4}";
    assert_ok(start_order(welcome, 0, 1, 2, &order));
    assert_ok(row_order_take(&order, PEER, 1));
    assert_fails(ST_PROTOCOL, row_order_take(&order, PEER, 0), "row 0 came where row 2");
    assert_fails(
        ST_PROTOCOL, row_order_take(&order, PEER, 4),
        "row 4 of step 1 came where a row of step 0 from row 2 on was expected: rank 1 of 2 has "
        "got 1 of its 2 rows");
    assert_ok(row_order_take(&order, PEER, 2));
    assert_fails(ST_PROTOCOL, row_order_take(&order, PEER, 3),
                 "row 3 came where a row from 4 on was expected");
    assert_fails(ST_PROTOCOL, row_order_take(&order, PEER, 8), "row 8 of step 2 came");
    assert_ok(row_order_take(&order, PEER, 6));
    assert_fails(ST_PROTOCOL, start_order("{\"row\":0}", 4, 0, 2, &order), "row 4 was asked for");
    assert_fails(ST_PROTOCOL, start_order(welcome, 8, 0, 2, &order), "row 8 was asked for");
}

#define INDEX "\"index\":\"0123456789abcdef0123456789abcdef\""
#define REST  ",\"epoch\":1,\"begin\":{\"epoch\":1,\"row\":8}," INDEX "}"

static void test_cursor_read__accepts_what_prepd_writes(void **state)
{
    (void)state;
    int64_t row = -1;
    assert_ok(
        cursor_read("{\"stream\":\"train\",\"row\":12,\"step\":3" REST, "c", "train", 4, &row));
    assert_int_equal(row, 12);
    assert_ok(cursor_read("{\"stream\":\"eval\",\"row\":5,\"step\":1,\"epoch\":0,\"begin\":{"
                          "\"epoch\":0,\"row\":0}," INDEX "}",
                          "c", "eval", 4, &row));
    assert_int_equal(row, 5);
}

static void test_cursor_read__refuses_impossible_cursors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "there is no cursor"},
        {"null", "not an object"},
        {"[3]", "not an object"},
        {"{\"stream\":\"train\",\"row\":12,", "c:"},
        {"{}", "stream"},
        {"{\"stream\":\"eval\",\"row\":12,\"step\":3" REST, "to the eval stream"},
        {"{\"stream\":\"train\",\"row\":12,\"step\":3,\"epoch\":0,\"index\":\"f\"}",
         "not a digest"},
        {"{\"stream\":\"train\",\"step\":3" REST, "row"},
        {"{\"stream\":\"train\",\"row\":null,\"step\":3" REST, "row"},
        {"{\"stream\":\"train\",\"row\":-12,\"step\":-3" REST, "row is -12"},
        {"{\"stream\":\"train\",\"row\":1e300,\"step\":3" REST, "row"},
        {"{\"stream\":\"train\",\"row\":99999999999999999999,\"step\":3" REST, "row"},
        {"{\"stream\":\"train\",\"row\":0,\"step\":0" REST, "row 0"},
        {"{\"stream\":\"train\",\"row\":12,\"step\":4" REST, "row 12 of step 4"},
        {"{\"stream\":\"train\",\"row\":8,\"step\":2" REST, "epoch 1 begins at row 8"},
        {"{\"stream\":\"train\",\"row\":12,\"step\":3,\"epoch\":-1," INDEX "}", "epoch is -1"},
        {"{\"stream\":\"train\",\"row\":12,\"step\":3,\"epoch\":1," INDEX "}", "is missing"},
        {"{\"stream\":\"train\",\"row\":12,\"step\":3,\"epoch\":0,\"begin\":{\"epoch\":1,\"row\":8}"
         "," INDEX "}",
         "of epoch 0, but says that epoch 1"},
        {"{\"stream\":\"train\",\"row\":12,\"step\":3,\"epoch\":1,\"begin\":{\"epoch\":0,\"row\":8}"
         "," INDEX "}",
         "epoch 0 begins at row 8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t row;
        status st = cursor_read(bad[i].text, "c", "train", 4, &row);
        if (st != ST_BAD_INPUT || !strstr(status_text(), bad[i].words))
            fail_msg("%s: status %d: %s", bad[i].text, st, status_text());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_order__one_consumer_gets_every_row),
        cmocka_unit_test(test_row_order__a_recording_is_repeated),
        cmocka_unit_test(test_row_order__ranks_get_their_share_of_every_step),
        cmocka_unit_test(test_row_order__ranks_get_no_more_and_no_less),
        cmocka_unit_test(test_cursor_read__accepts_what_prepd_writes),
        cmocka_unit_test(test_cursor_read__refuses_impossible_cursors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
