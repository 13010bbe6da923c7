/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of record.h and of replaying with client.h: a recording gives back the same messages and
 * holds each picture once, ranks share its rows step by step, and damage to the file is found and
 * named. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "proto/session/client.h"
#include "proto/message/record.h"
#include "tests/folders_refuse.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

enum { ROWS = 6 };
static const char WELCOME[] = "{\"version\":1,\"stream\":\"train\"}";

typedef struct setting {
    char *folder, path[300];
    arena memory;
    codec *coder;
    wire_msg *message[ROWS];
    row rows[ROWS];
} setting;

/* Rows 0 and 3 are the same, so their images are recorded once; row 5 is empty. */
static void set_up(setting *setup)
{
    record_writer *recording = NULL;
    memset(setup, 0, sizeof *setup);
    setup->folder = harness_temp();
    snprintf(setup->path, sizeof setup->path, "%s/stream.rec", setup->folder);
    arena_init(&setup->memory, 0);
    assert_ok(codec_new(&setup->coder));
    assert_ok(record_create(setup->path, WELCOME, &recording));
    for (int i = 0; i < ROWS; i++) {
        row_make(&(row_recipe){.seed = (uint64_t)(i % 3 + 1),
                               .n_docs = i == ROWS - 1 ? 0 : 2,
                               .images = 2,
                               .videos = i % 3 == 1,
                               .noise = 1},
                 &setup->memory, &setup->rows[i]);
        assert_ok(wire_msg_new(&setup->message[i]));
        assert_ok(codec_encode(setup->coder, &setup->rows[i], (uint64_t)i + 100, IMAGE_FILTER_PLANE,
                               IMAGE_CODEC_ZSTD, setup->message[i]));
        assert_ok(record_add(recording, setup->message[i]));
    }
    /* no file of this name before the recording is whole */
    assert_int_equal(access(setup->path, F_OK), -1);
    assert_ok(record_finish(&recording));
    assert_null(recording);
}

static void tear_down(setting *setup)
{
    for (int i = 0; i < ROWS; i++)
        wire_msg_free(&setup->message[i]);
    codec_free(&setup->coder);
    arena_done(&setup->memory);
    harness_remove(&setup->folder);
}

static void assert_same_message(const wire_msg *first, const wire_msg *second)
{
    assert_int_equal(wire_msg_parts(first), wire_msg_parts(second));
    for (size_t i = 0; i < wire_msg_parts(first); i++) {
        span one = wire_msg_part(first, i), other = wire_msg_part(second, i);
        assert_int_equal(one.size, other.size);
        assert_memory_equal(one.data, other.data, one.size);
    }
}

static void test_record__gives_back_the_messages(void **state)
{
    (void)state;
    setting setup;
    record_reader *reader = NULL;
    wire_msg *message = NULL;
    struct stat info;
    size_t total = 0;
    set_up(&setup);
    assert_ok(wire_msg_new(&message));
    assert_ok(record_open(setup.path, &reader));
    assert_int_equal(record_rows(reader), ROWS);
    assert_string_equal(record_welcome(reader), WELCOME);
    for (int i = ROWS - 1; i >= 0; i--) {
        assert_ok(record_read(reader, (uint64_t)i, message));
        assert_same_message(setup.message[i], message);
        total += wire_msg_bytes(message);
    }
    assert_int_equal(record_read(reader, ROWS, message), ST_END);
    frame head;
    assert_ok(record_head(reader, ROWS - 1, &head));
    assert_int_equal(head.kind, KIND_ROW);
    assert_fails(ST_END, record_head(reader, ROWS, &head), "there is no row");
    assert_int_equal(stat(setup.path, &info), 0);
    assert_true((size_t)info.st_size < total * 3 / 4); /* images of rows 3 and 4 are not repeated */
    record_close(&reader);
    wire_msg_free(&message);
    tear_down(&setup);
}

/* Records these messages of the setting and replays them. Returns how many rows come before *out,
 * the status that ends it. */
static int rows_played(const setting *setup, const int *list, int count, status *out)
{
    char path[300];
    record_writer *recording = NULL;
    client *consumer = NULL;
    wire_msg *message = NULL;
    int played = 0;
    snprintf(path, sizeof path, "%s.again", setup->path);
    assert_ok(wire_msg_new(&message));
    assert_ok(record_create(path, WELCOME, &recording));
    for (int i = 0; i < count; i++)
        assert_ok(record_add(recording, setup->message[list[i]]));
    assert_ok(record_finish(&recording));
    assert_ok(client_replay(&(replay_options){.path = path, .loops = 1}, &consumer));
    while ((*out = client_next_raw(consumer, message, NULL)) == ST_OK)
        played++;
    client_close(&consumer);
    wire_msg_free(&message);
    return played;
}

static void test_client_replay__rows_out_of_order(void **state)
{
    (void)state;
    setting setup;
    status st;
    set_up(&setup);
    assert_int_equal(rows_played(&setup, (int[]){0, 1, 2, 0, 1, 2}, 6, &st), 6); /* two rounds */
    assert_int_equal(st, ST_END);
    assert_int_equal(rows_played(&setup, (int[]){0, 2, 1}, 3, &st), 1);
    assert_fails(ST_BAD_INPUT, st, "row 102 comes after row 100 where row 101 was expected");
    assert_int_equal(rows_played(&setup, (int[]){2, 3, 3}, 3, &st), 2);
    assert_fails(ST_BAD_INPUT, st, "row 103 comes after row 103");
    tear_down(&setup);
}

static void test_client_replay__loops(void **state)
{
    (void)state;
    setting setup;
    client *consumer = NULL;
    arena memory;
    wire_msg *raw = NULL;
    set_up(&setup);
    arena_init(&memory, 0);
    assert_ok(wire_msg_new(&raw));
    assert_ok(client_replay(&(replay_options){.path = setup.path, .loops = 2}, &consumer));
    assert_string_equal(client_welcome(consumer), WELCOME);
    for (int i = 0; i < 2 * ROWS; i++) {
        row packed;
        frame head;
        arena_reset(&memory);
        assert_ok(client_next(consumer, &memory, &packed, &head, raw));
        assert_int_equal(head.row, 100 + i % ROWS);
        rows_assert_equal(&setup.rows[i % ROWS], &packed);
        assert_same_message(setup.message[i % ROWS], raw);
    }
    row packed;
    assert_int_equal(client_next(consumer, &memory, &packed, NULL, NULL), ST_END);
    assert_int_equal(client_next(consumer, &memory, &packed, NULL, NULL), ST_END);
    client_close(&consumer);
    assert_ok(client_replay(&(replay_options){.path = setup.path}, &consumer)); /* without end */
    for (int i = 0; i < 5 * ROWS; i++)
        assert_ok(client_next_raw(consumer, raw, NULL));
    client_close(&consumer);
    wire_msg_free(&raw);
    arena_done(&memory);
    tear_down(&setup);
}

/* Together the ranks get every row of every step once, in every round through the file, and each
 * can go on from the end of any step. */
static void test_client_replay__ranks_share_every_step(void **state)
{
    (void)state;
    enum { STEP = 4, LOOPS = 2, ALL = ROWS * LOOPS, RANKS = 2 };
    setting setup;
    arena memory;
    wire_msg *raw = NULL;
    int seen[ALL] = {0};
    set_up(&setup);
    arena_init(&memory, 0);
    assert_ok(wire_msg_new(&raw));
    for (int rank = 0; rank < RANKS; rank++)
        for (uint64_t skip = 0; skip <= ALL; skip += STEP) {
            replay_options options = {.path = setup.path,
                                      .loops = LOOPS,
                                      .skip = skip,
                                      .rank = rank,
                                      .ranks = RANKS,
                                      .step_rows = STEP};
            client *consumer = NULL;
            int64_t cost[STEP];
            int rank_of[STEP];
            assert_ok(client_replay(&options, &consumer));
            for (uint64_t i = skip; i < ALL; i++) {
                for (uint64_t k = 0; i % STEP == 0 && k < STEP; k++) {
                    const row *packed = &setup.rows[(i + k) % ROWS];
                    row_measure measure = {packed->n_tokens,
                                           packed->n_patches + packed->n_video_patches, 0};
                    for (int64_t doc = 0; doc < packed->n_docs; doc++)
                        measure.squares +=
                            (int64_t)(packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc]) *
                            (packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc]);
                    cost[k] = assign_cost(&measure);
                }
                assert_ok(assign_rows(cost, STEP, RANKS, rank_of));
                if (rank_of[i % STEP] != rank)
                    continue;
                row packed;
                frame head;
                arena_reset(&memory);
                assert_ok(client_next(consumer, &memory, &packed, &head, NULL));
                assert_int_equal(head.row, 100 + i % ROWS);
                seen[i] += skip == 0;
            }
            row packed;
            assert_int_equal(client_next(consumer, &memory, &packed, NULL, NULL), ST_END);
            client_close(&consumer);
        }
    for (int i = 0; i < ALL; i++)
        assert_int_equal(seen[i], 1);
    wire_msg_free(&raw);
    arena_done(&memory);
    tear_down(&setup);
}

static void test_client_replay__every_rank_needs_a_row_of_a_step(void **state)
{
    (void)state;
    setting setup;
    client *consumer = NULL;
    set_up(&setup);
    const replay_options options = {.path = setup.path, .rank = 2, .ranks = 3, .step_rows = 2};
    /* with no number of rounds, rank 2 would search for ever */
    assert_int_equal(client_replay(&options, &consumer), ST_CONFIG);
    assert_null(consumer);
    tear_down(&setup);
}

/* Rows after the last whole step are given to no rank, however many rows are skipped first. */
static void test_client_replay__gives_only_whole_steps(void **state)
{
    (void)state;
    enum { STEP = 4 };
    static const struct {
        uint64_t skip;
        int taken, left;
    } cases[] = {{0, STEP, ROWS - STEP}, {2, STEP, 0}, {3, 0, ROWS - 3}, {ROWS, 0, 0}};
    setting setup;
    arena memory;
    set_up(&setup);
    arena_init(&memory, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int rank = 0; rank < ranks; rank++) {
                replay_options options = {.path = setup.path,
                                          .loops = 1,
                                          .skip = cases[i].skip,
                                          .rank = rank,
                                          .ranks = ranks,
                                          .step_rows = STEP};
                client *consumer = NULL;
                int count = 0;
                row packed;
                assert_ok(client_replay(&options, &consumer));
                assert_int_equal(client_left_over(consumer), cases[i].left);
                for (status st;
                     (st = client_next(consumer, &memory, &packed, NULL, NULL)) != ST_END; count++)
                    assert_ok(st);
                assert_int_equal(count, cases[i].taken / ranks);
                client_close(&consumer);
            }
    client *consumer = NULL;
    replay_options options = {.path = setup.path, .loops = 1, .step_rows = ROWS + 1};
    assert_fails(ST_BAD_INPUT, client_replay(&options, &consumer), "a step takes 7");
    arena_done(&memory);
    tear_down(&setup);
}

static uint8_t *read_record_file(const char *path, size_t *out_size)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &info), 0);
    uint8_t *bytes = malloc((size_t)info.st_size);
    assert_non_null(bytes);
    *out_size = fread(bytes, 1, (size_t)info.st_size, file);
    fclose(file);
    return bytes;
}

static void write_record_file(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void test_record_open__cut_short(void **state)
{
    (void)state;
    setting setup;
    size_t size;
    set_up(&setup);
    uint8_t *bytes = read_record_file(setup.path, &size);
    rng_key key = rng_key_make(harness_seed(), "cut");
    for (uint64_t i = 0; i < 100; i++) {
        record_reader *reader = NULL;
        char end[40];
        size_t cut = i < 64 ? size - 1 - i : rng_below(key, i, size);
        write_record_file(setup.path, bytes, cut);
        assert_int_equal(record_open(setup.path, &reader), ST_BAD_INPUT);
        if (cut > 200) {
            snprintf(end, sizeof end, "byte %zu", cut);
            assert_non_null(strstr(status_text(), end));
            assert_non_null(strstr(status_text(), "cut short"));
        }
    }
    free(bytes);
    tear_down(&setup);
}

/* One bit is changed anywhere in the file: it is refused, or, in padding, makes no difference. */
static void test_record__damaged(void **state)
{
    (void)state;
    setting setup;
    size_t size;
    wire_msg *message = NULL;
    int noticed = 0;
    set_up(&setup);
    assert_ok(wire_msg_new(&message));
    uint8_t *bytes = read_record_file(setup.path, &size);
    rng_key key = rng_key_make(harness_seed(), "damage");
    enum { TRIES = 300 };
    for (uint64_t i = 0; i < TRIES; i++) {
        record_reader *reader = NULL;
        uint64_t bit = i < 32 * 8 ? (size - 32) * 8 + i : rng_below(key, i, size * 8);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_record_file(setup.path, bytes, size);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        status st = record_open(setup.path, &reader);
        for (uint64_t k = 0; k < ROWS && st == ST_OK; k++) {
            st = record_read(reader, k, message);
            if (st == ST_OK)
                assert_same_message(setup.message[k], message);
        }
        assert_true(st == ST_OK || st == ST_BAD_INPUT);
        noticed += st != ST_OK;
        record_close(&reader);
    }
    print_message("%d of %d noticed\n", noticed, TRIES);
    assert_true(noticed > TRIES * 9 / 10);
    free(bytes);
    wire_msg_free(&message);
    tear_down(&setup);
}

static void test_record__refuses_other_files(void **state)
{
    (void)state;
    setting setup;
    record_reader *reader = NULL;
    record_writer *recording = NULL;
    client *consumer = NULL;
    size_t size;
    set_up(&setup);
    uint8_t *bytes = read_record_file(setup.path, &size);
    bytes[4] = 9;
    write_record_file(setup.path, bytes, size);
    assert_fails(ST_BAD_INPUT, record_open(setup.path, &reader), "version 9");
    assert_non_null(strstr(status_text(), "reads version 2"));
    write_record_file(setup.path, bytes, 0);
    assert_fails(ST_BAD_INPUT, record_open(setup.path, &reader), "TSRR");
    write_record_file(setup.path,
                      (const uint8_t *)"{\"not\": \"a recording, but JSON of some length\"}", 48);
    assert_fails(ST_BAD_INPUT,
                 client_replay(&(replay_options){.path = setup.path, .loops = 1}, &consumer),
                 setup.path);
    assert_fails(ST_NO_INPUT, record_open("/nowhere/at/all", &reader), "/nowhere/at/all");
    assert_fails(ST_CANT_CREATE, record_create("/nowhere/at/all", WELCOME, &recording),
                 "/nowhere/at/all");
    unlink(setup.path);
    assert_ok(
        record_create(setup.path, WELCOME, &recording)); /* after record_abandon no file is left */
    record_abandon(&recording);
    assert_int_equal(rmdir(setup.folder), 0);
    assert_int_equal(mkdir(setup.folder, 0700), 0);
    free(bytes);
    tear_down(&setup);
}

/* A process that is killed cannot clean up, so the file has no name until it is whole (where
 * O_TMPFILE is supported). */
static void test_record__a_killed_writer_leaves_no_file(void **state)
{
    (void)state;
    setting setup;
    record_writer *recording = NULL;
    set_up(&setup);
    unlink(setup.path);
    const int fd = open(setup.folder, O_TMPFILE | O_WRONLY, 0600);
    assert_true(fd >= 0 || errno == EOPNOTSUPP);
    if (fd >= 0) {
        close(fd);
        const pid_t child = fork();
        if (child == 0) {
            if (record_create(setup.path, WELCOME, &recording) == ST_OK &&
                record_add(recording, setup.message[0]) == ST_OK)
                raise(SIGKILL);
            _exit(1);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how));
        assert_int_equal(rmdir(setup.folder), 0); /* it is empty */
        assert_int_equal(mkdir(setup.folder, 0700), 0);
    }
    tear_down(&setup);
}

static void test_record_finish__accepts_a_folder_that_cannot_be_synced(void **state)
{
    (void)state;
    setting setup;
    folders_refuse = true;
    set_up(&setup);
    folders_refuse = false;
    tear_down(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record__gives_back_the_messages),
        cmocka_unit_test(test_client_replay__rows_out_of_order),
        cmocka_unit_test(test_client_replay__loops),
        cmocka_unit_test(test_client_replay__ranks_share_every_step),
        cmocka_unit_test(test_client_replay__every_rank_needs_a_row_of_a_step),
        cmocka_unit_test(test_client_replay__gives_only_whole_steps),
        cmocka_unit_test(test_record_open__cut_short),
        cmocka_unit_test(test_record__damaged),
        cmocka_unit_test(test_record__refuses_other_files),
        cmocka_unit_test(test_record__a_killed_writer_leaves_no_file),
        cmocka_unit_test(test_record_finish__accepts_a_folder_that_cannot_be_synced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
