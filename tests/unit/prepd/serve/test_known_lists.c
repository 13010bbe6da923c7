/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of known_lists.c: whose rows are blank by what a HELLO names, lists of HELLOs of
 * 2026-11-28, lists of other data, and what a million bad samples cost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "tests/harness.h"
#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/serve/still_world.h"

enum { SAMPLES = 50, CONSUMERS = 64, MILLION = 1000000 };
static const int64_t MIB = 1 << 20;

static char logged[4096];

static bool speaks(void *shell, int level)
{
    (void)shell, (void)level;
    return true;
}

static void keep_line(void *shell, int level, const char *line)
{
    (void)shell, (void)level;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", line);
}

/* A daemon, and consumers that it does not list yet. */
typedef struct scene {
    conf options;
    dispatch *state;
    consumer_seat *consumer; /* [CONSUMERS] */
} scene;

static void set_up(scene *all, int64_t buffer_bytes)
{
    const index_sample text = {20, 4, NULL};
    *all = (scene){.options = conf_defaults()};
    all->options.prepd_buffer_bytes = buffer_bytes;
    assert_non_null(all->state = calloc(1, sizeof *all->state));
    assert_non_null(all->consumer = calloc(CONSUMERS, sizeof *all->consumer));
    all->state->options = &all->options;
    all->state->outside = still_world();
    all->state->outside.logs = speaks;
    all->state->outside.log = keep_line;
    logged[0] = 0;
    source *train = &all->state->train;
    *train = (source){.of = all->state, .name = "train"};
    assert_ok(index_new(SAMPLES, 0, &train->index));
    for (int64_t i = 0; i < SAMPLES; i++)
        assert_ok(index_put_sample(train->index, i, &text));
    assert_ok(index_seal(train->index));
    for (int i = 0; i < CONSUMERS; i++)
        all->consumer[i] = (consumer_seat){.src = train, .stream = "train"};
}

static void tear_down(scene *all)
{
    for (int i = 0; i < CONSUMERS; i++)
        known_leave(&all->consumer[i]);
    assert_null(all->state->known); /* the daemon keeps no list */
    bad_samples_done(&all->state->train.bad);
    index_free(&all->state->train.index);
    free(all->consumer);
    free(all->state);
}

static void name_it(consumer_seat *consumer, const char *key, const char *run)
{
    snprintf(consumer->peer.key, sizeof consumer->peer.key, "%s", key);
    snprintf(consumer->run, sizeof consumer->run, "%s", run);
}

/* Takes the lists of a HELLO. */
static status take(scene *all, int who, const char *said_hello)
{
    json_value *said = NULL, *parsed = NULL;
    const json_value *cursor;
    assert_ok(json_parse(said_hello, strlen(said_hello), "peer", &said));
    assert_ok(hello_cursor(said, &parsed, &cursor));
    const status st = known_take(all->state, &all->consumer[who], said, cursor, "peer");
    json_free(&parsed);
    json_free(&said);
    return st;
}

static bool is_blank(const scene *all, int who, int64_t id)
{
    return blank_cause(&all->consumer[who], id) != NULL;
}

static void test_known__blanks_rows_of_its_key_and_run_alone(void **state)
{
    (void)state;
    static const char three[] = "{\"quarantine\":{\"count\":1,\"ids\":\"D\"}}",
                      four[] = "{\"quarantine\":{\"count\":1,\"ids\":\"E\"}}";
    scene all;
    set_up(&all, 1000 * MIB);
    name_it(&all.consumer[0], "key", "run");
    name_it(&all.consumer[1], "key", "run");
    name_it(&all.consumer[2], "other", "run");
    name_it(&all.consumer[3], "key", "another");
    name_it(&all.consumer[4], "key", "");
    name_it(&all.consumer[5], "", "run");
    name_it(&all.consumer[8], "key", "run"); /* it brings nothing */
    assert_ok(take(&all, 0, three));
    for (int i = 1; i < 8; i++)
        assert_ok(take(&all, i, four)); /* 6 and 7 are connections without names */
    assert_ok(take(&all, 8, "{\"quarantine\":null}"));
    for (int i = 0; i < 9; i++) {
        assert_int_equal(is_blank(&all, i, 3), i < 2);
        assert_int_equal(is_blank(&all, i, 4), i < 8);
    }
    assert_ptr_equal(all.consumer[0].known, all.consumer[1].known);
    assert_ptr_equal(all.consumer[6].known, all.consumer[7].known); /* the same samples */
    assert_ok(take(&all, 9, three));
    assert_true(is_blank(&all, 9, 3) && !is_blank(&all, 9, 4) && !is_blank(&all, 7, 3));
    assert_int_equal(all.state->train.bad.n, 0);
    /* What this daemon finds counts for all, with its cause. */
    quarantine_sample(all.state, &all.state->train, 4, "truncated");
    quarantine_sample(all.state, &all.state->train, 9, "no picture");
    assert_string_equal(blank_cause(&all.consumer[1], 4), "truncated");
    assert_string_equal(blank_cause(&all.consumer[8], 9), "no picture");
    assert_int_equal(known_count(&all.consumer[0]), 3);
    assert_int_equal(known_count(&all.consumer[8]), 2);
    known_leave(&all.consumer[0]);
    assert_true(is_blank(&all, 1, 3)); /* as long as one of the run is here */
    tear_down(&all);
}

/* HELLOs of the programs of 2026-11-28: with a list, with one in the cursor, which is an object or
 * a text, and with both. */
static void test_known__lists_of_earlier_programs(void **state)
{
    (void)state;
    static const char *const golden[] = {
        "{\"version\":3,\"program\":\"trainer 0.1.0\",\"stream\":\"train\",\"options\":null,"
        "\"cursor\":{\"stream\":\"train\",\"row\":9,\"step\":2,\"epoch\":0,\"window\":0,\"begin\":"
        "{\"epoch\":0,\"row\":0},\"plan\":2,\"index\":\"%s\",\"quarantine\":[]},\"quarantine\":[{"
        "\"id\":7,\"cause\":\"cut \\\"short\\\"\",\"row\":2},{\"id\":3,\"cause\":\"\"}],"
        "\"start_row\":0,\"rank\":0,\"ranks\":1,\"credit_bytes\":1000,\"rows_later\":true,"
        "\"prefixes\":true}",
        "{\"version\":3,\"stream\":\"train\",\"cursor\":{\"row\":9,\"index\":\"%s\",\"quarantine\":"
        "[{"
        "\"id\":3,\"cause\":\"x\"},{\"id\":7,\"cause\":\"x\"}]}}",
        "{\"version\":3,\"stream\":\"train\",\"cursor\":\"{\\\"row\\\":9,\\\"index\\\":\\\"%s\\\","
        "\\\"quarantine\\\":[{\\\"id\\\":3,\\\"cause\\\":\\\"x\\\"}]}\",\"quarantine\":[{\"id\":7,"
        "\"cause\":\"c\"}]}",
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        char said_hello[1024], index[HASH_TEXT];
        scene all;
        set_up(&all, 1000 * MIB);
        hash_print(index_digest(all.state->train.index), index);
        snprintf(said_hello, sizeof said_hello, golden[i], index);
        assert_ok(take(&all, 0, said_hello));
        assert_ok(known_check(&all.consumer[0], "peer"));
        assert_int_equal(all.consumer[0].known->bad.n, 2);
        assert_true(is_blank(&all, 0, 3) && is_blank(&all, 0, 7));
        tear_down(&all);
    }
}

static void test_known__what_is_no_list_of_this_data_is_refused(void **state)
{
    (void)state;
    static const char foreign[] = "{\"quarantine\":{\"index\":\"0123456789abcdef0123456789abcdef\","
                                  "\"count\":1,\"ids\":\"D\"}}",
                      outside_it[] = "{\"quarantine\":[{\"id\":50,\"cause\":\"c\"}]}",
                      full[] = "{\"quarantine\":{\"count\":2000001,\"ids\":\"D\"}}";
    scene all;
    set_up(&all, 1000 * MIB);
    assert_ok(take(&all, 0, foreign));
    assert_fails(ST_CONFIG, known_check(&all.consumer[0], "peer"), "raise data.generation");
    assert_non_null(strstr(status_text(), "0123456789abcdef0123456789abcdef"));
    assert_ok(take(&all, 1, outside_it));
    assert_fails(ST_PROTOCOL, known_check(&all.consumer[1], "peer"), "outside the 50 samples");
    assert_fails(ST_PROTOCOL, take(&all, 2, full), "raise data.generation");
    assert_fails(ST_PROTOCOL, take(&all, 2, "{\"quarantine\":7}"), "must be an object");
    assert_ok(known_check(&all.consumer[2], "peer"));
    tear_down(&all);
}

/* A HELLO that names `count` samples, from the first one that is `step` above 0. */
static char *hello_of(int64_t count, int64_t step)
{
    bad_samples list = {0};
    char *text, *said_hello;
    for (int64_t i = 1; i <= count; i++)
        assert_ok(bad_samples_add(&list, i * step, NULL, NULL));
    assert_ok(bad_samples_write(&list, &text));
    const size_t size = strlen(text) + 64;
    assert_non_null(said_hello = malloc(size));
    snprintf(said_hello, size, "{\"quarantine\":%s}", text);
    bad_samples_done(&list);
    free(text);
    return said_hello;
}

/* The ranks of a run bring a million each, of which the last ones differ a little. */
static void test_known__a_million_of_64_consumers_is_one_copy(void **state)
{
    (void)state;
    scene all;
    char *said_hello = hello_of(MILLION, 20);
    assert_true(strlen(said_hello) < 3000000);
    set_up(&all, 64 * MIB); /* an eighth of it is room for one list */
    const int64_t begin = clock_ns();
    for (int i = 0; i < CONSUMERS; i++) {
        name_it(&all.consumer[i], "key", "run");
        assert_ok(take(&all, i, said_hello));
        all.consumer[i].next = all.state->consumer_seats;
        all.state->consumer_seats = &all.consumer[i];
    }
    print_message("64 HELLOs of %.2f MB: %.1f ms each\n", (double)strlen(said_hello) / 1e6,
                  (double)(clock_ns() - begin) * 1e-6 / CONSUMERS);
    const known_list *one = all.state->known;
    assert_true(!one->next && one->users == CONSUMERS && one->bad.n == MILLION);
    assert_true(one->bad.capacity * (int64_t)sizeof *one->bad.id <= 16 * MIB);
    const int64_t looked = clock_ns();
    int64_t blank = 0;
    for (int64_t i = 0; i < MILLION; i++)
        blank += is_blank(&all, (int)(i % CONSUMERS), 7 * i % (20 * MILLION));
    print_message("a look: %.0f ns\n", (double)(clock_ns() - looked) / MILLION);
    assert_true(blank > 0);
    /* Another run has its own copy, for which there is no room. */
    all.state->consumer_seats = NULL;
    consumer_seat stranger = {.src = &all.state->train, .stream = "train"};
    all.consumer[0].next = NULL;
    known_leave(&all.consumer[0]);
    all.consumer[0] = stranger;
    assert_fails(ST_UNAVAILABLE, take(&all, 0, said_hello), "prepd.buffer_bytes");
    free(said_hello);
    tear_down(&all);
}

static void test_known__a_list_that_is_nearly_full_is_named_once(void **state)
{
    (void)state;
    scene all;
    char *said_hello = hello_of(BAD_SAMPLES_WARN - 1, 1);
    set_up(&all, 1000 * MIB);
    assert_ok(take(&all, 0, said_hello));
    assert_string_equal(logged, "");
    quarantine_sample(all.state, &all.state->train, 2, "truncated");
    assert_non_null(strstr(logged, "the quarantine is nearly full section=train bad=1600000"));
    assert_non_null(strstr(logged, "raise data.generation"));
    logged[0] = 0;
    quarantine_sample(all.state, &all.state->train, 3, "truncated");
    assert_null(strstr(logged, "nearly full"));
    free(said_hello);
    tear_down(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known__blanks_rows_of_its_key_and_run_alone),
        cmocka_unit_test(test_known__lists_of_earlier_programs),
        cmocka_unit_test(test_known__what_is_no_list_of_this_data_is_refused),
        cmocka_unit_test(test_known__a_million_of_64_consumers_is_one_copy),
        cmocka_unit_test(test_known__a_list_that_is_nearly_full_is_named_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
