/* SPDX-License-Identifier: Apache-2.0 */
/* test_receive.c: the thread that receives rows, reading a recording: rows come in order, their
 * slots may be given back late, the end is reported, closing works while rows wait, and damage
 * reaches the caller as an error with its text. ThreadSanitizer runs it too. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/message/record.h"
#include "trainer/input/receive.h"

enum { ROWS = 23, TOKENS = 40 };

/* Row number: one text document whose token ids are all 100 + number. */
static void make_row(int number, arena *memory, row *packed)
{
    memset(packed, 0, sizeof *packed);
    packed->n_tokens = TOKENS;
    packed->n_docs = 1;
    assert_ok(row_alloc(packed, memory, 0));
    packed->cu_seqlens[1] = TOKENS;
    for (int token = 0; token < TOKENS; token++) {
        packed->input_ids[token] = 100 + number;
        for (int axis = 0; axis < 3; axis++)
            packed->position_ids[axis * TOKENS + token] = token;
        if (token >= TOKENS / 2)
            packed->labels[token] = 100 + number;
    }
    packed->doc_sample_id[0] = (uint64_t)number;
    packed->cursor = "{}";
    packed->quarantine = "[]";
}

static char *make_recording(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rows.rec", folder);
    record_writer *recording;
    codec *coder;
    wire_msg *message;
    arena memory;
    arena_init(&memory, 0);
    assert_ok(record_create(path, "{\"seq_len\":64}", &recording));
    assert_ok(codec_new(&coder));
    assert_ok(wire_msg_new(&message));
    for (int i = 0; i < ROWS; i++) {
        row packed;
        arena_reset(&memory);
        make_row(i, &memory, &packed);
        wire_msg_clear(message);
        assert_ok(codec_encode(coder, &packed, (uint64_t)i, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE,
                               message));
        assert_ok(record_add(recording, message));
    }
    assert_ok(record_finish(&recording));
    wire_msg_free(&message);
    codec_free(&coder);
    arena_done(&memory);
    return strdup(path);
}

typedef struct fixture {
    char *folder, *path;
} fixture;

static int set_up(void **state)
{
    fixture *setup = calloc(1, sizeof *setup);
    setup->folder = harness_temp();
    setup->path = make_recording(setup->folder);
    *state = setup;
    return 0;
}

static int tear_down(void **state)
{
    fixture *setup = *state;
    harness_remove(&setup->folder);
    free(setup->path);
    free(setup);
    return 0;
}

static void test_receive__rows_in_order_then_end(void **state)
{
    fixture *setup = *state;
    for (int slots = 1; slots <= 4; slots += 3) {
        receiver *input;
        receiver_options options = {.replay.path = setup->path, .replay.loops = 2, .slots = slots};
        assert_ok(receiver_open(&options, &input));
        assert_non_null(strstr(receiver_welcome(input), "seq_len"));
        int64_t waited = 0;
        for (int i = 0; i < 2 * ROWS; i++) {
            received got;
            assert_ok(receiver_next(input, &got, &waited));
            assert_int_equal(got.row.input_ids[0], 100 + i % ROWS);
            if (i % 5 == 0)
                usleep(500); /* a slow step */
            assert_int_equal(got.row.input_ids[TOKENS - 1], 100 + i % ROWS);
            receiver_give_back(input, &got);
        }
        received got;
        assert_int_equal(receiver_next(input, &got, &waited), ST_END);
        receiver_close(&input);
    }
}

static void test_receive__rows_held_together_stay_intact(void **state)
{
    fixture *setup = *state;
    receiver *input;
    receiver_options options = {.replay.path = setup->path, .replay.loops = 1, .slots = 4};
    assert_ok(receiver_open(&options, &input));
    received got[4];
    int64_t waited = 0;
    for (int i = 0; i < 4; i++)
        assert_ok(receiver_next(input, &got[i], &waited));
    usleep(5000); /* the thread must not write into slots that are held */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(got[i].row.input_ids[7], 100 + i);
        receiver_give_back(input, &got[i]);
    }
    receiver_close(&input);
}

static void test_receive__stops_while_rows_wait(void **state)
{
    fixture *setup = *state;
    for (int i = 0; i < 20; i++) {
        receiver *input;
        receiver_options options = {.replay.path = setup->path, .replay.loops = 0, .slots = 2};
        assert_ok(receiver_open(&options, &input));
        if (i % 2)
            usleep(300);
        receiver_close(&input);
    }
}

static void test_receive__damage_reaches_the_step(void **state)
{
    fixture *setup = *state;
    FILE *file = fopen(setup->path, "r+b");
    assert_non_null(file);
    fseek(file, 400, SEEK_SET);
    for (int i = 0; i < 64; i++)
        fputc(0x5a, file);
    fclose(file);
    receiver *input = NULL;
    receiver_options options = {.replay.path = setup->path, .replay.loops = 1, .slots = 2};
    status st = receiver_open(&options, &input);
    int64_t waited = 0;
    for (int i = 0; i < ROWS && st == ST_OK; i++) {
        received got;
        st = receiver_next(input, &got, &waited);
        if (st == ST_OK)
            receiver_give_back(input, &got);
    }
    assert_int_not_equal(st, ST_OK);
    assert_int_not_equal(st, ST_END);
    assert_true(strlen(status_text()) > 10);
    receiver_close(&input);
}

/* A resumed run skips the rows that it had already, also across the loops of a recording. Until it
 * has received a row there is no cursor. */
static void test_receive__goes_on_after_the_rows_taken(void **state)
{
    fixture *setup = *state;
    const uint64_t skips[] = {0, 5, ROWS - 1, ROWS, ROWS + 3, 2 * ROWS};
    for (size_t k = 0; k < sizeof skips / sizeof *skips; k++) {
        receiver *input = NULL;
        receiver_options options = {
            .replay.path = setup->path, .replay.loops = 2, .replay.skip = skips[k], .slots = 3};
        assert_ok(receiver_open(&options, &input));
        assert_string_equal(receiver_cursor(input), "");
        int64_t waited = 0;
        uint64_t at = skips[k];
        for (; at < 2 * ROWS; at++) {
            received got;
            assert_ok(receiver_next(input, &got, &waited));
            assert_int_equal(got.row.doc_sample_id[0], at % ROWS);
            receiver_give_back(input, &got);
            assert_string_equal(receiver_cursor(input), "{}");
        }
        received none;
        assert_int_equal(receiver_next(input, &none, &waited), ST_END);
        receiver_close(&input);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_receive__rows_in_order_then_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_receive__rows_held_together_stay_intact, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_receive__stops_while_rows_wait, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_receive__damage_reaches_the_step, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_receive__goes_on_after_the_rows_taken, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
