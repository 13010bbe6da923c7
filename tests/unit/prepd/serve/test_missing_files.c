/* SPDX-License-Identifier: Apache-2.0 */
/* Test of worker_answers.c: a remote worker that misses a file which the daemon has; and failures
 * that are told for nobody. */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/decisions/core_decisions.h"
#include "tests/harness.h"
#include "tests/sim/prepd/expected.h"
#include "tests/unit/prepd/serve/still_world.h"

static sight see_it(void *shell, const source *section, const char *file, int64_t *out_size)
{
    (void)shell, (void)file;
    index_image image;
    index_image_get(section->index, 0, &image);
    *out_size = image.file_bytes;
    return SIGHT_THERE;
}

static void stat_it(void *shell, const source *section, int64_t image, int64_t *out_bytes,
                    int64_t *out_mtime_ns)
{
    index_image record;
    (void)shell;
    index_image_get(section->index, image, &record);
    *out_bytes = record.file_bytes;
    *out_mtime_ns = record.mtime_ns;
}

static status tell_failed(dispatch *state, worker_seat *worker, const char *text)
{
    json_value *said = NULL;
    assert_ok(json_parse(text, strlen(text), "text", &said));
    const status st = answer_failed(state, worker, &(frame){.row = worker->work->number}, said, "");
    json_free(&said);
    return st;
}

/* The daemon has the file, so it is the worker's copy that is not whole: nothing is tried, and a
 * decider makes the row. Where the file is gone here too, a decider tries the sample. */
static void test_answer_failed__a_missing_file_tries_nothing(void **unused)
{
    (void)unused;
    for (int here = 0; here < 2; here++) {
        static dispatch state;
        static consumer_seat consumer;
        const sim_data_rules rules = {.n_pictures = 1, .n_samples = 2, .longest_text = 10};
        account of = {.number = 1, .window = 1};
        worker_seat worker = {.number = 1, .host = "b", .proved = true, .fresh = true, .of = &of};
        static const char text[] =
            "{\"samples\":[{\"id\":0,\"cause\":\"no such file\",\"missing\":\"0.jpg\"}]}";
        lease *leased = NULL;
        sim_data data;
        sim_data_init(&data, &rules, harness_seed());
        state = (dispatch){.outside = still_world(), .seats = &worker, .n_seats = 1};
        if (here)
            state.outside.look_at = see_it;
        state.outside.stat_image = stat_it;
        state.train = (source){.of = &state, .data = &data.base, .index = reference_index(&data)};
        consumer.src = &state.train;
        arena_init(&state.scratch, 0);
        lease_book_init(&state.book, 2);
        assert_ok(
            lease_new(&state.book, LEASE_ROW, &consumer, 0, (const int64_t[]){0, 1}, 2, &leased));
        worker.work = leased;
        assert_ok(tell_failed(&state, &worker, text));
        assert_ptr_equal(state.book.lost, leased);
        assert_int_equal(worker.missing_files, here);
        assert_true(lease_needs_decider(leased) == here);
        assert_true((leased->failures == NULL) == here);
        assert_int_equal(state.train.bad.n, 0);
        lease_free(&leased);
        arena_done(&state.scratch);
        index_free(&state.train.index);
        sim_data_done(&data);
    }
}

static void stat_in_trouble(void *shell, const source *section, int64_t image, int64_t *out_bytes,
                            int64_t *out_mtime_ns)
{
    (void)shell, (void)section, (void)image;
    *out_bytes = -1;
    *out_mtime_ns = 0;
}

/* The index has the size of a picture that ends its workers. While the daemon cannot find it out,
 * the picture is tried again, and the next death is enough. */
static void test_index_build_poison__waits_for_the_size(void **unused)
{
    (void)unused;
    static dispatch state;
    const sim_data_rules rules = {.n_pictures = 2, .n_samples = 2, .longest_text = 10};
    lease *leased = NULL;
    int64_t poison = LEASE_NO_ITEM;
    index_image record;
    sim_data data;
    sim_data_init(&data, &rules, harness_seed());
    state = (dispatch){.outside = still_world()};
    state.outside.stat_image = stat_in_trouble;
    state.train = (source){.of = &state, .data = &data.base};
    assert_ok(index_new(2, 2, &state.train.index));
    state.train.build.left = state.train.build.images_left = 2;
    lease_book_init(&state.book, 3);
    assert_ok(
        lease_new(&state.book, LEASE_IMAGES, &state.train, 0, (const int64_t[]){0, 1}, 2, &leased));
    assert_ok(index_build_poison(&state, leased, 1, "signal 11"));
    assert_int_equal(state.train.build.left, 2);
    assert_int_equal(lease_solo_item(leased), 1);
    state.outside.stat_image = still_world().stat_image;
    assert_int_equal(lease_lost(&state.book, leased, LOSS_CRASH, &poison), LEASE_POISON);
    assert_int_equal(poison, 1);
    assert_ok(index_build_poison(&state, leased, poison, "signal 11"));
    assert_int_equal(state.train.build.left, 1);
    assert_false(lease_has(leased, 1));
    index_image_get(state.train.index, 1, &record);
    assert_string_equal(record.cause, "signal 11");
    lease_free(&leased);
    index_free(&state.train.index);
    sim_data_done(&data);
}

/* The consumer of a row has left while the row is made. What no honest worker says is a
 * breach then too. If it ended the lease, the worker would be given its next one while it may
 * still be at this one, and its death would count against that. */
static void test_answer_failed__a_breach_for_nobody_is_a_breach(void **unused)
{
    (void)unused;
    static dispatch state;
    account of = {.number = 1, .window = 1};
    worker_seat worker = {.number = 1, .proved = true, .of = &of};
    static const char *const dishonest[] = {"{\"samples\":[{\"id\":7,\"cause\":\"x\"}]}",
                                            "{\"samples\":[{\"id\":0}]}", "{\"samples\":[]}", "{}"};
    lease *leased = NULL;
    state = (dispatch){.outside = still_world(), .seats = &worker, .n_seats = 1};
    lease_book_init(&state.book, 2);
    assert_ok(lease_new(&state.book, LEASE_ROW, NULL, 0, (const int64_t[]){0, 1}, 2, &leased));
    worker.work = leased;
    for (size_t i = 0; i < sizeof dishonest / sizeof *dishonest; i++) {
        assert_true(tell_failed(&state, &worker, dishonest[i]) != ST_OK);
        assert_ptr_equal(worker.work, leased);
    }
    assert_ok(tell_failed(&state, &worker, "{\"samples\":[{\"id\":1,\"cause\":\"x\"}]}"));
    assert_null(worker.work);
    assert_null(state.book.lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer_failed__a_breach_for_nobody_is_a_breach),
        cmocka_unit_test(test_index_build_poison__waits_for_the_size),
        cmocka_unit_test(test_answer_failed__a_missing_file_tries_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
