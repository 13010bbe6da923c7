/* test_receive.c: the thread that receives rows, reading a recording: rows come in order, their
 * slots may be given back late, the end is reported, closing works while rows wait, and damage
 * reaches the caller as an error with its text. ThreadSanitizer runs it too. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/record.h"
#include "trainer/input/receive.h"

enum { ROWS = 23, TOKENS = 40 };

/* Row i: one text document whose token ids are all 100 + i. */
static void make_row(int i, arena *a, row *r)
{
    memset(r, 0, sizeof *r);
    r->n_tokens = TOKENS;
    r->n_docs = 1;
    assert_ok(row_alloc(r, a, 0));
    r->cu_seqlens[1] = TOKENS;
    for (int t = 0; t < TOKENS; t++) {
        r->input_ids[t] = 100 + i;
        for (int axis = 0; axis < 3; axis++)
            r->position_ids[axis * TOKENS + t] = t;
        if (t >= TOKENS / 2)
            r->labels[t] = 100 + i;
    }
    r->doc_sample_id[0] = (uint64_t)i;
    r->cursor = "{}";
    r->quarantine = "[]";
}

static char *make_recording(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rows.rec", folder);
    record_writer *w;
    codec *c;
    wire_msg *m;
    arena a;
    arena_init(&a, 0);
    assert_ok(record_create(path, "{\"seq_len\":64}", &w));
    assert_ok(codec_new(&c));
    assert_ok(wire_msg_new(&m));
    for (int i = 0; i < ROWS; i++) {
        row r;
        arena_reset(&a);
        make_row(i, &a, &r);
        wire_msg_clear(m);
        assert_ok(codec_encode(c, &r, (uint64_t)i, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, m));
        assert_ok(record_add(w, m));
    }
    assert_ok(record_finish(&w));
    wire_msg_free(&m);
    codec_free(&c);
    arena_done(&a);
    return strdup(path);
}

typedef struct fixture {
    char *folder, *path;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->folder = harness_temp();
    f->path = make_recording(f->folder);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    harness_remove(&f->folder);
    free(f->path);
    free(f);
    return 0;
}

static void test_receive__rows_in_order_then_end(void **state)
{
    fixture *f = *state;
    for (int slots = 1; slots <= 4; slots += 3) {
        receiver *r;
        receiver_options o = {.replay.path = f->path, .replay.loops = 2, .slots = slots};
        assert_ok(receiver_open(&o, &r));
        assert_non_null(strstr(receiver_welcome(r), "seq_len"));
        int64_t waited = 0;
        for (int i = 0; i < 2 * ROWS; i++) {
            received got;
            assert_ok(receiver_next(r, &got, &waited));
            assert_int_equal(got.row.input_ids[0], 100 + i % ROWS);
            if (i % 5 == 0)
                usleep(500); /* a slow step */
            assert_int_equal(got.row.input_ids[TOKENS - 1], 100 + i % ROWS);
            receiver_give_back(r, &got);
        }
        received got;
        assert_int_equal(receiver_next(r, &got, &waited), ST_END);
        receiver_close(&r);
    }
}

static void test_receive__rows_held_together_stay_intact(void **state)
{
    fixture *f = *state;
    receiver *r;
    receiver_options o = {.replay.path = f->path, .replay.loops = 1, .slots = 4};
    assert_ok(receiver_open(&o, &r));
    received got[4];
    int64_t waited = 0;
    for (int i = 0; i < 4; i++)
        assert_ok(receiver_next(r, &got[i], &waited));
    usleep(5000); /* the thread must not write into slots that are held */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(got[i].row.input_ids[7], 100 + i);
        receiver_give_back(r, &got[i]);
    }
    receiver_close(&r);
}

static void test_receive__stops_while_rows_wait(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 20; i++) {
        receiver *r;
        receiver_options o = {.replay.path = f->path, .replay.loops = 0, .slots = 2};
        assert_ok(receiver_open(&o, &r));
        if (i % 2)
            usleep(300);
        receiver_close(&r);
    }
}

static void test_receive__damage_reaches_the_step(void **state)
{
    fixture *f = *state;
    FILE *file = fopen(f->path, "r+b");
    assert_non_null(file);
    fseek(file, 400, SEEK_SET);
    for (int i = 0; i < 64; i++)
        fputc(0x5a, file);
    fclose(file);
    receiver *r = NULL;
    receiver_options o = {.replay.path = f->path, .replay.loops = 1, .slots = 2};
    status st = receiver_open(&o, &r);
    int64_t waited = 0;
    for (int i = 0; i < ROWS && st == ST_OK; i++) {
        received got;
        st = receiver_next(r, &got, &waited);
        if (st == ST_OK)
            receiver_give_back(r, &got);
    }
    assert_int_not_equal(st, ST_OK);
    assert_int_not_equal(st, ST_END);
    assert_true(strlen(status_text()) > 10);
    receiver_close(&r);
}

/* A resumed run skips the rows that it had already, also across the loops of a recording. Until it
 * has received a row there is no cursor. */
static void test_receive__goes_on_after_the_rows_taken(void **state)
{
    fixture *f = *state;
    const uint64_t skips[] = {0, 5, ROWS - 1, ROWS, ROWS + 3, 2 * ROWS};
    for (size_t k = 0; k < sizeof skips / sizeof *skips; k++) {
        receiver *r = NULL;
        receiver_options o = {
            .replay.path = f->path, .replay.loops = 2, .replay.skip = skips[k], .slots = 3};
        assert_ok(receiver_open(&o, &r));
        assert_string_equal(receiver_cursor(r), "");
        int64_t waited = 0;
        uint64_t at = skips[k];
        for (; at < 2 * ROWS; at++) {
            received got;
            assert_ok(receiver_next(r, &got, &waited));
            assert_int_equal(got.row.doc_sample_id[0], at % ROWS);
            receiver_give_back(r, &got);
            assert_string_equal(receiver_cursor(r), "{}");
        }
        received none;
        assert_int_equal(receiver_next(r, &none, &waited), ST_END);
        receiver_close(&r);
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
