/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what is answered to HELLO: by a daemon that serves some of the ranks; and to two that
 * say that they are the same rank of a run. */
#include <stdio.h>
#include <string.h>

#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/state/hello.h"
#include "tests/harness.h"
#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/serve/still_world.h"

/* What the still world says to a consumer that may have its rows. */
static const char no_data[] = "there is no data here";

static char answer[2048];

static status keep_answer(void *shell, door at, const wire_peer *to, wire_msg *message)
{
    const span text = wire_msg_part(message, 1);
    (void)shell, (void)at, (void)to;
    snprintf(answer, sizeof answer, "%.*s", (int)text.size, (const char *)text.data);
    wire_msg_clear(message);
    return ST_OK;
}

/* What a daemon that serves these ranks answers to the HELLO of one of 32. */
static const char *greet(const char *ranks, bool for_command, const char *stream, int rank)
{
    conf options = conf_defaults();
    const daemon_place place = {.for_command = for_command};
    const wire_peer peer = {.id = {1}, .size = 1, .roles = ~0u};
    outside world = still_world();
    dispatch *daemon = NULL;
    wire_msg *message = NULL;
    char json[256];
    snprintf(json, sizeof json,
             "{\"version\":%d,\"stream\":\"%s\",\"rank\":%d,\"ranks\":32,\"credit_bytes\":1000}",
             SESSION_VERSION, stream, rank);
    world.send = keep_answer;
    options.prepd_ranks = ranks;
    options.training_global_batch_size = 32;
    answer[0] = 0;
    assert_ok(dispatch_new(&options, &place, &world, 0, &daemon));
    assert_ok(wire_json_message(KIND_HELLO, 0, json, strlen(json), NULL, &message));
    peer_message(daemon, DOOR_CONSUMERS, &peer, message);
    assert_int_equal(daemon->n_consumers, 0);
    wire_msg_free(&message);
    dispatch_free(&daemon);
    return answer;
}

static void assert_says(const char *said, const char *words)
{
    if (!strstr(said, words))
        fail_msg("it says \"%s\" and not \"%s\"", said, words);
}

static void test_hello__another_daemons_rank_is_refused(void **state)
{
    (void)state;
    const char *said = greet("0-7,16", false, "train", 9);
    assert_says(said, "serves the ranks 0-7,16 of the training stream (prepd.ranks)");
    assert_says(said, "the consumer is rank 9 of 32");
    assert_says(said, "\"code\":\"ST_CONFIG\"");
}

static void test_hello__ranks_of_the_list_are_served(void **state)
{
    (void)state;
    assert_says(greet("0-7,16", false, "train", 7), no_data);
    assert_says(greet("0-7,16", false, "train", 16), no_data);
    assert_says(greet("", false, "train", 31), no_data);
}

static void test_hello__held_out_rows_are_for_every_rank(void **state)
{
    (void)state;
    assert_says(greet("8-15", false, "eval", 0), no_data);
    assert_says(greet("8-15", false, "sample", 0), no_data);
}

/* prepd check, plan and others start a daemon with the same options and take the whole stream. */
static void test_hello__a_commands_daemon_serves_all(void **state)
{
    (void)state;
    assert_says(greet("8-15", true, "train", 0), no_data);
}

/* --- two that say the same --- */

static uint8_t gone; /* the connection that has ended; 0: none */

static status note_answer(void *shell, door at, const wire_peer *to, wire_msg *message)
{
    if (to->id[0] == gone)
        return FAIL(ST_UNAVAILABLE, "the peer has gone");
    return keep_answer(shell, at, to, message);
}

static status want_some(void *shell, source *section)
{
    (void)shell, (void)section;
    return ST_OK;
}

typedef struct crowd {
    conf options;
    dispatch *daemon;
} crowd;

static void crowd_open(crowd *here)
{
    const daemon_place place = {0};
    outside world = still_world();
    world.send = note_answer;
    world.want_section = want_some;
    gone = 0;
    here->options = conf_defaults();
    here->options.training_global_batch_size = 32;
    assert_ok(dispatch_new(&here->options, &place, &world, 0, &here->daemon));
}

static void crowd_close(crowd *here)
{
    while (here->daemon->consumer_seats)
        consumer_close(here->daemon, here->daemon->consumer_seats, NULL);
    dispatch_free(&here->daemon);
}

/* A consumer greets over this connection, with more members of HELLO. What it is told; "" if it may
 * stay. */
static const char *come(const crowd *here, int connection, const char *stream, int rank,
                        const char *more)
{
    const wire_peer peer = {.id = {(uint8_t)connection}, .size = 1, .roles = ~0u};
    char json[512];
    wire_msg *message = NULL;
    snprintf(json, sizeof json,
             "{\"version\":%d,\"stream\":\"%s\",\"rank\":%d,\"ranks\":32,\"credit_bytes\":1000%s}",
             SESSION_VERSION, stream, rank, more);
    answer[0] = 0;
    assert_ok(wire_json_message(KIND_HELLO, 0, json, strlen(json), NULL, &message));
    peer_message(here->daemon, DOOR_CONSUMERS, &peer, message);
    wire_msg_free(&message);
    if (!consumer_find(here->daemon, &peer))
        return answer;
    return "";
}

static bool is_here(const crowd *here, int connection)
{
    return consumer_find(here->daemon, &(wire_peer){.id = {(uint8_t)connection}, .size = 1});
}

static void test_twins__the_second_of_a_run_is_refused(void **state)
{
    (void)state;
    crowd here;
    crowd_open(&here);
    assert_string_equal(come(&here, 1, "train", 3, ",\"run\":\"a\",\"consumer\":\"one\""), "");
    const char *said = come(&here, 2, "train", 3, ",\"run\":\"a\",\"consumer\":\"two\"");
    assert_says(said, "\"code\":\"ST_CONFIG\"");
    assert_says(said, "reads stream train as rank 3 of run");
    assert_says(said, "a run id of its own");
    assert_says(come(&here, 2, "train", 3, ",\"run\":\"a\""), "ST_CONFIG");
    assert_true(is_here(&here, 1));
    assert_int_equal(here.daemon->n_consumers, 1);
    crowd_close(&here);
}

static void test_twins__others_are_nobodys_second(void **state)
{
    (void)state;
    crowd here;
    crowd_open(&here);
    assert_string_equal(come(&here, 1, "train", 3, ",\"run\":\"a\",\"consumer\":\"one\""), "");
    assert_string_equal(come(&here, 2, "train", 4, ",\"run\":\"a\",\"consumer\":\"two\""), "");
    assert_string_equal(come(&here, 3, "train", 3, ",\"run\":\"b\",\"consumer\":\"two\""), "");
    assert_string_equal(come(&here, 4, "eval", 3, ",\"run\":\"a\",\"consumer\":\"two\""), "");
    assert_string_equal(come(&here, 5, "train", 3, ""), "");
    assert_string_equal(come(&here, 6, "train", 3, ",\"run\":null,\"consumer\":\"one\""), "");
    assert_int_equal(here.daemon->n_consumers, 6);
    crowd_close(&here);
}

/* The first has gone, which shows only when something is sent to it. */
static void test_twins__the_place_of_one_that_has_gone_is_free(void **state)
{
    (void)state;
    crowd here;
    crowd_open(&here);
    assert_string_equal(come(&here, 1, "train", 3, ",\"run\":\"a\",\"consumer\":\"one\""), "");
    gone = 1;
    assert_string_equal(come(&here, 2, "train", 3, ",\"run\":\"a\",\"consumer\":\"two\""), "");
    assert_false(is_here(&here, 1));
    assert_int_equal(here.daemon->n_consumers, 1);
    crowd_close(&here);
}

/* A connection was cut, and here it still looks alive. The consumer gets in over another one. */
static void test_twins__who_comes_back_takes_its_own_place(void **state)
{
    (void)state;
    crowd here;
    crowd_open(&here);
    assert_string_equal(come(&here, 1, "train", 3, ",\"run\":\"a\",\"consumer\":\"one\""), "");
    assert_string_equal(come(&here, 2, "train", 3, ",\"run\":\"a\",\"consumer\":\"one\""), "");
    assert_says(answer, "has taken its place"); /* to the first, should it be there after all */
    assert_says(answer, "ST_CONFIG");
    assert_false(is_here(&here, 1));
    assert_int_equal(here.daemon->n_consumers, 1);
    crowd_close(&here);
}

static void test_hello__names_are_printable_and_short(void **state)
{
    (void)state;
    crowd here;
    char most[128];
    crowd_open(&here);
    snprintf(most, sizeof most, ",\"run\":\"%064d\"", 7);
    assert_string_equal(come(&here, 1, "train", 0, most), "");
    snprintf(most, sizeof most, ",\"run\":\"%065d\"", 7);
    assert_says(come(&here, 2, "train", 1, most), "HELLO's run must be a name of 1 to 64");
    assert_says(come(&here, 2, "train", 1, ",\"run\":\"\""), "ST_PROTOCOL");
    assert_says(come(&here, 2, "train", 1, ",\"run\":\"a b\""), "ST_PROTOCOL");
    assert_says(come(&here, 2, "train", 1, ",\"run\":\"a\\u0000b\""), "ST_PROTOCOL");
    assert_says(come(&here, 2, "train", 1, ",\"run\":7"), "expected a text");
    assert_says(come(&here, 2, "train", 1, ",\"consumer\":\"a\\nb\""), "HELLO's consumer");
    crowd_close(&here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello__another_daemons_rank_is_refused),
        cmocka_unit_test(test_hello__ranks_of_the_list_are_served),
        cmocka_unit_test(test_hello__held_out_rows_are_for_every_rank),
        cmocka_unit_test(test_hello__a_commands_daemon_serves_all),
        cmocka_unit_test(test_twins__the_second_of_a_run_is_refused),
        cmocka_unit_test(test_twins__others_are_nobodys_second),
        cmocka_unit_test(test_twins__the_place_of_one_that_has_gone_is_free),
        cmocka_unit_test(test_twins__who_comes_back_takes_its_own_place),
        cmocka_unit_test(test_hello__names_are_printable_and_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
