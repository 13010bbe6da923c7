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
#include "proto/client.h"
#include "proto/record.h"
#include "tests/folders_refuse.h"
#include "tests/harness.h"
#include "tests/unit/proto/seeded_rows.h"

enum { ROWS = 6 };
static const char WELCOME[] = "{\"version\":1,\"stream\":\"train\"}";

typedef struct setting {
    char *folder, path[300];
    arena a;
    codec *c;
    wire_msg *m[ROWS];
    row rows[ROWS];
} setting;

/* Rows 0 and 3 are the same, so their images are recorded once; row 5 is empty. */
static void set_up(setting *s)
{
    record_writer *w = NULL;
    memset(s, 0, sizeof *s);
    s->folder = harness_temp();
    snprintf(s->path, sizeof s->path, "%s/stream.rec", s->folder);
    arena_init(&s->a, 0);
    assert_ok(codec_new(&s->c));
    assert_ok(record_create(s->path, WELCOME, &w));
    for (int i = 0; i < ROWS; i++) {
        row_make(&(row_recipe){.seed = (uint64_t)(i % 3 + 1),
                               .n_docs = i == ROWS - 1 ? 0 : 2,
                               .images = 2,
                               .videos = i % 3 == 1,
                               .noise = 1},
                 &s->a, &s->rows[i]);
        assert_ok(wire_msg_new(&s->m[i]));
        assert_ok(codec_encode(s->c, &s->rows[i], (uint64_t)i + 100, IMAGE_FILTER_PLANE,
                               IMAGE_CODEC_ZSTD, s->m[i]));
        assert_ok(record_add(w, s->m[i]));
    }
    /* no file of this name before the recording is whole */
    assert_int_equal(access(s->path, F_OK), -1);
    assert_ok(record_finish(&w));
    assert_null(w);
}

static void tear_down(setting *s)
{
    for (int i = 0; i < ROWS; i++)
        wire_msg_free(&s->m[i]);
    codec_free(&s->c);
    arena_done(&s->a);
    harness_remove(&s->folder);
}

static void assert_same_message(const wire_msg *a, const wire_msg *b)
{
    assert_int_equal(wire_msg_parts(a), wire_msg_parts(b));
    for (size_t i = 0; i < wire_msg_parts(a); i++) {
        span x = wire_msg_part(a, i), y = wire_msg_part(b, i);
        assert_int_equal(x.size, y.size);
        assert_memory_equal(x.data, y.data, x.size);
    }
}

static void test_record__gives_back_the_messages(void **state)
{
    (void)state;
    setting s;
    record_reader *r = NULL;
    wire_msg *m = NULL;
    struct stat info;
    size_t total = 0;
    set_up(&s);
    assert_ok(wire_msg_new(&m));
    assert_ok(record_open(s.path, &r));
    assert_int_equal(record_rows(r), ROWS);
    assert_string_equal(record_welcome(r), WELCOME);
    for (int i = ROWS - 1; i >= 0; i--) {
        assert_ok(record_read(r, (uint64_t)i, m));
        assert_same_message(s.m[i], m);
        total += wire_msg_bytes(m);
    }
    assert_int_equal(record_read(r, ROWS, m), ST_END);
    frame head;
    assert_ok(record_head(r, ROWS - 1, &head));
    assert_int_equal(head.kind, KIND_ROW);
    assert_fails(ST_END, record_head(r, ROWS, &head), "there is no row");
    assert_int_equal(stat(s.path, &info), 0);
    assert_true((size_t)info.st_size < total * 3 / 4); /* images of rows 3 and 4 are not repeated */
    record_close(&r);
    wire_msg_free(&m);
    tear_down(&s);
}

/* Records these messages of the setting and replays them. Returns how many rows come before *out,
 * the status that ends it. */
static int rows_played(const setting *s, const int *list, int n, status *out)
{
    char path[300];
    record_writer *w = NULL;
    client *c = NULL;
    wire_msg *m = NULL;
    int played = 0;
    snprintf(path, sizeof path, "%s.again", s->path);
    assert_ok(wire_msg_new(&m));
    assert_ok(record_create(path, WELCOME, &w));
    for (int i = 0; i < n; i++)
        assert_ok(record_add(w, s->m[list[i]]));
    assert_ok(record_finish(&w));
    assert_ok(client_replay(&(replay_options){.path = path, .loops = 1}, &c));
    while ((*out = client_next_raw(c, m, NULL)) == ST_OK)
        played++;
    client_close(&c);
    wire_msg_free(&m);
    return played;
}

static void test_client_replay__rows_out_of_order(void **state)
{
    (void)state;
    setting s;
    status st;
    set_up(&s);
    assert_int_equal(rows_played(&s, (int[]){0, 1, 2, 0, 1, 2}, 6, &st), 6); /* two rounds */
    assert_int_equal(st, ST_END);
    assert_int_equal(rows_played(&s, (int[]){0, 2, 1}, 3, &st), 1);
    assert_fails(ST_BAD_INPUT, st, "row 102 comes after row 100 where row 101 was expected");
    assert_int_equal(rows_played(&s, (int[]){2, 3, 3}, 3, &st), 2);
    assert_fails(ST_BAD_INPUT, st, "row 103 comes after row 103");
    tear_down(&s);
}

static void test_client_replay__loops(void **state)
{
    (void)state;
    setting s;
    client *c = NULL;
    arena a;
    wire_msg *raw = NULL;
    set_up(&s);
    arena_init(&a, 0);
    assert_ok(wire_msg_new(&raw));
    assert_ok(client_replay(&(replay_options){.path = s.path, .loops = 2}, &c));
    assert_string_equal(client_welcome(c), WELCOME);
    for (int i = 0; i < 2 * ROWS; i++) {
        row r;
        frame head;
        arena_reset(&a);
        assert_ok(client_next(c, &a, &r, &head, raw));
        assert_int_equal(head.row, 100 + i % ROWS);
        rows_assert_equal(&s.rows[i % ROWS], &r);
        assert_same_message(s.m[i % ROWS], raw);
    }
    row r;
    assert_int_equal(client_next(c, &a, &r, NULL, NULL), ST_END);
    assert_int_equal(client_next(c, &a, &r, NULL, NULL), ST_END);
    client_close(&c);
    assert_ok(client_replay(&(replay_options){.path = s.path}, &c)); /* without end */
    for (int i = 0; i < 5 * ROWS; i++)
        assert_ok(client_next_raw(c, raw, NULL));
    client_close(&c);
    wire_msg_free(&raw);
    arena_done(&a);
    tear_down(&s);
}

/* Together the ranks get every row of every step once, in every round through the file, and each
 * can go on from the end of any step. */
static void test_client_replay__ranks_share_every_step(void **state)
{
    (void)state;
    enum { STEP = 4, LOOPS = 2, ALL = ROWS * LOOPS, RANKS = 2 };
    setting s;
    arena a;
    wire_msg *raw = NULL;
    int seen[ALL] = {0};
    set_up(&s);
    arena_init(&a, 0);
    assert_ok(wire_msg_new(&raw));
    for (int rank = 0; rank < RANKS; rank++)
        for (uint64_t skip = 0; skip <= ALL; skip += STEP) {
            replay_options o = {.path = s.path,
                                .loops = LOOPS,
                                .skip = skip,
                                .rank = rank,
                                .ranks = RANKS,
                                .step_rows = STEP};
            client *c = NULL;
            int64_t cost[STEP];
            int rank_of[STEP];
            assert_ok(client_replay(&o, &c));
            for (uint64_t i = skip; i < ALL; i++) {
                for (uint64_t k = 0; i % STEP == 0 && k < STEP; k++) {
                    const row *r = &s.rows[(i + k) % ROWS];
                    row_measure m = {r->n_tokens, r->n_patches + r->n_video_patches, 0};
                    for (int64_t d = 0; d < r->n_docs; d++)
                        m.squares += (int64_t)(r->cu_seqlens[d + 1] - r->cu_seqlens[d]) *
                                     (r->cu_seqlens[d + 1] - r->cu_seqlens[d]);
                    cost[k] = assign_cost(&m);
                }
                assert_ok(assign_rows(cost, STEP, RANKS, rank_of));
                if (rank_of[i % STEP] != rank)
                    continue;
                row r;
                frame head;
                arena_reset(&a);
                assert_ok(client_next(c, &a, &r, &head, NULL));
                assert_int_equal(head.row, 100 + i % ROWS);
                seen[i] += skip == 0;
            }
            row r;
            assert_int_equal(client_next(c, &a, &r, NULL, NULL), ST_END);
            client_close(&c);
        }
    for (int i = 0; i < ALL; i++)
        assert_int_equal(seen[i], 1);
    wire_msg_free(&raw);
    arena_done(&a);
    tear_down(&s);
}

static void test_client_replay__every_rank_needs_a_row_of_a_step(void **state)
{
    (void)state;
    setting s;
    client *c = NULL;
    set_up(&s);
    const replay_options o = {.path = s.path, .rank = 2, .ranks = 3, .step_rows = 2};
    /* with no number of rounds, rank 2 would search for ever */
    assert_int_equal(client_replay(&o, &c), ST_CONFIG);
    assert_null(c);
    tear_down(&s);
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
    setting s;
    arena a;
    set_up(&s);
    arena_init(&a, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int rank = 0; rank < ranks; rank++) {
                replay_options o = {.path = s.path,
                                    .loops = 1,
                                    .skip = cases[i].skip,
                                    .rank = rank,
                                    .ranks = ranks,
                                    .step_rows = STEP};
                client *c = NULL;
                int n = 0;
                row r;
                assert_ok(client_replay(&o, &c));
                assert_int_equal(client_left_over(c), cases[i].left);
                for (status st; (st = client_next(c, &a, &r, NULL, NULL)) != ST_END; n++)
                    assert_ok(st);
                assert_int_equal(n, cases[i].taken / ranks);
                client_close(&c);
            }
    client *c = NULL;
    replay_options o = {.path = s.path, .loops = 1, .step_rows = ROWS + 1};
    assert_fails(ST_BAD_INPUT, client_replay(&o, &c), "a step takes 7");
    arena_done(&a);
    tear_down(&s);
}

static uint8_t *read_record_file(const char *path, size_t *out_size)
{
    struct stat info;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &info), 0);
    uint8_t *bytes = malloc((size_t)info.st_size);
    assert_non_null(bytes);
    *out_size = fread(bytes, 1, (size_t)info.st_size, f);
    fclose(f);
    return bytes;
}

static void write_record_file(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

static void test_record_open__cut_short(void **state)
{
    (void)state;
    setting s;
    size_t size;
    set_up(&s);
    uint8_t *bytes = read_record_file(s.path, &size);
    rng_key key = rng_key_make(harness_seed(), "cut");
    for (uint64_t i = 0; i < 100; i++) {
        record_reader *r = NULL;
        char end[40];
        size_t cut = i < 64 ? size - 1 - i : rng_below(key, i, size);
        write_record_file(s.path, bytes, cut);
        assert_int_equal(record_open(s.path, &r), ST_BAD_INPUT);
        if (cut > 200) {
            snprintf(end, sizeof end, "byte %zu", cut);
            assert_non_null(strstr(status_text(), end));
            assert_non_null(strstr(status_text(), "cut short"));
        }
    }
    free(bytes);
    tear_down(&s);
}

/* One bit is changed anywhere in the file: it is refused, or, in padding, makes no difference. */
static void test_record__damaged(void **state)
{
    (void)state;
    setting s;
    size_t size;
    wire_msg *m = NULL;
    int noticed = 0;
    set_up(&s);
    assert_ok(wire_msg_new(&m));
    uint8_t *bytes = read_record_file(s.path, &size);
    rng_key key = rng_key_make(harness_seed(), "damage");
    enum { TRIES = 300 };
    for (uint64_t i = 0; i < TRIES; i++) {
        record_reader *r = NULL;
        uint64_t bit = i < 32 * 8 ? (size - 32) * 8 + i : rng_below(key, i, size * 8);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_record_file(s.path, bytes, size);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        status st = record_open(s.path, &r);
        for (uint64_t k = 0; k < ROWS && st == ST_OK; k++) {
            st = record_read(r, k, m);
            if (st == ST_OK)
                assert_same_message(s.m[k], m);
        }
        assert_true(st == ST_OK || st == ST_BAD_INPUT);
        noticed += st != ST_OK;
        record_close(&r);
    }
    print_message("%d of %d noticed\n", noticed, TRIES);
    assert_true(noticed > TRIES * 9 / 10);
    free(bytes);
    wire_msg_free(&m);
    tear_down(&s);
}

static void test_record__refuses_other_files(void **state)
{
    (void)state;
    setting s;
    record_reader *r = NULL;
    record_writer *w = NULL;
    client *c = NULL;
    size_t size;
    set_up(&s);
    uint8_t *bytes = read_record_file(s.path, &size);
    bytes[4] = 9;
    write_record_file(s.path, bytes, size);
    assert_fails(ST_BAD_INPUT, record_open(s.path, &r), "version 9");
    assert_non_null(strstr(status_text(), "version 1"));
    write_record_file(s.path, bytes, 0);
    assert_fails(ST_BAD_INPUT, record_open(s.path, &r), "TSRR");
    write_record_file(s.path,
                      (const uint8_t *)"{\"not\": \"a recording, but JSON of some length\"}", 48);
    assert_fails(ST_BAD_INPUT, client_replay(&(replay_options){.path = s.path, .loops = 1}, &c),
                 s.path);
    assert_fails(ST_NO_INPUT, record_open("/nowhere/at/all", &r), "/nowhere/at/all");
    assert_fails(ST_CANT_CREATE, record_create("/nowhere/at/all", WELCOME, &w), "/nowhere/at/all");
    unlink(s.path);
    assert_ok(record_create(s.path, WELCOME, &w)); /* after record_abandon no file is left */
    record_abandon(&w);
    assert_int_equal(rmdir(s.folder), 0);
    assert_int_equal(mkdir(s.folder, 0700), 0);
    free(bytes);
    tear_down(&s);
}

/* A process that is killed cannot clean up, so the file has no name until it is whole (where
 * O_TMPFILE is supported). */
static void test_record__a_killed_writer_leaves_no_file(void **state)
{
    (void)state;
    setting s;
    record_writer *w = NULL;
    set_up(&s);
    unlink(s.path);
    const int fd = open(s.folder, O_TMPFILE | O_WRONLY, 0600);
    assert_true(fd >= 0 || errno == EOPNOTSUPP);
    if (fd >= 0) {
        close(fd);
        const pid_t child = fork();
        if (child == 0) {
            if (record_create(s.path, WELCOME, &w) == ST_OK && record_add(w, s.m[0]) == ST_OK)
                raise(SIGKILL);
            _exit(1);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how));
        assert_int_equal(rmdir(s.folder), 0); /* it is empty */
        assert_int_equal(mkdir(s.folder, 0700), 0);
    }
    tear_down(&s);
}

static void test_record_finish__accepts_a_folder_that_cannot_be_synced(void **state)
{
    (void)state;
    setting s;
    folders_refuse = true;
    set_up(&s);
    folders_refuse = false;
    tear_down(&s);
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
