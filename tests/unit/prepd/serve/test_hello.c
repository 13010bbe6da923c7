/* Tests of what a daemon that serves some of the ranks answers to HELLO. */
#include <stdio.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"
#include "prepd/serve/core/hello.h"
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
    consumer_message(daemon, &peer, message);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello__another_daemons_rank_is_refused),
        cmocka_unit_test(test_hello__ranks_of_the_list_are_served),
        cmocka_unit_test(test_hello__held_out_rows_are_for_every_rank),
        cmocka_unit_test(test_hello__a_commands_daemon_serves_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
