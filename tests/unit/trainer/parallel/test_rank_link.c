/* SPDX-License-Identifier: Apache-2.0 */
/* test_rank_link.c: the rank link among threads that each stand for a rank. Ranks that do not
 * belong together are refused and told why within a set time, and when one rank fails all others
 * hear of it. tests/flow/ranks_faults.py has processes that die or stop. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "trainer/parallel/link/rank_link.h"
#include "trainer/parallel/core/rank_link_frame.h"

enum { MOST = 8, WORDS = 4096 };

typedef struct rank {
    pthread_t thread;
    rank_link_options options;
    const char *fails; /* the failure that it reports at the end; NULL: none */
    bool waits;        /* stays until another rank's failure ends the job */
    int agreements;    /* how often it agrees with the others */
    int wrong;         /* how often the answer was not the largest of all */
    unsigned char id[CONTROL_ID_BYTES];
    status opened, checked, closed;
    char words[WORDS]; /* the text of its last failure */
    int64_t took_ns;
} rank;

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

/* What the rank at `place` says for the first, second, .. of its agreements. */
static uint8_t need_of(int place, int round, int number)
{
    return (uint8_t)((place * 37 + round * 11 + number * 101) % 251);
}

static status agree_often(rank *peer, rank_link *link)
{
    for (int round = 0; round < peer->agreements; round++) {
        uint8_t need[LINK_NEEDS];
        for (int i = 0; i < LINK_NEEDS; i++)
            need[i] = need_of(peer->options.rank, round, i);
        TRY(rank_link_agree(link, need));
        for (int i = 0; i < LINK_NEEDS; i++) {
            uint8_t most = 0;
            for (int other = 0; other < peer->options.size; other++)
                most = need_of(other, round, i) > most ? need_of(other, round, i) : most;
            peer->wrong += need[i] != most;
        }
    }
    return ST_OK;
}

static void *be_rank(void *of)
{
    rank *peer = of;
    rank_link *link = NULL;
    int64_t start = clock_ns();
    uint64_t sample[] = {40, 41};
    peer->opened = rank_link_open(&peer->options, peer->id, &link);
    snprintf(peer->words, WORDS, "%s", status_text());
    if (peer->opened == ST_OK) {
        rank_link_at_step(link, 1, NULL, 0); /* as with an empty row */
        rank_link_at_step(link, 7 + peer->options.rank, sample, 2);
        sleep_ms(50);
        peer->checked = agree_often(peer, link);
        while (peer->waits && peer->checked == ST_OK && clock_ns() - start < INT64_C(60000000000)) {
            sleep_ms(5);
            peer->checked = rank_link_check(link);
        }
        peer->closed = rank_link_close(&link, peer->checked != ST_OK ? "gives up" : peer->fails);
        snprintf(peer->words, WORDS, "%s", status_text());
    }
    peer->took_ns = clock_ns() - start;
    return NULL;
}

static void set_up(rank *peer, int count, double timeout_s)
{
    int port = harness_port(NULL);
    memset(peer, 0, (size_t)count * sizeof *peer);
    for (int i = 0; i < count; i++) {
        peer[i].options =
            (rank_link_options){.rank = i,
                                .size = count,
                                .at = {"127.0.0.1", port},
                                .options = "a.x: 1\nprepd.endpoint: here\nb.y: \"two\"\n",
                                .timeout_s = timeout_s,
                                .silence_s = 20.0};
        memset(peer[i].id, i == 0 ? 0x5A : 0, sizeof peer[i].id);
    }
}

static void spawn_rank(rank *peer)
{
    assert_int_equal(pthread_create(&peer->thread, NULL, be_rank, peer), 0);
}

static rank *first_to_end(rank *first, rank *second)
{
    for (;; sleep_ms(1)) {
        if (pthread_tryjoin_np(first->thread, NULL) == 0)
            return first;
        if (pthread_tryjoin_np(second->thread, NULL) == 0)
            return second;
    }
}

static void run_all(rank *peer, int count)
{
    for (int i = 0; i < count; i++)
        spawn_rank(&peer[i]);
    for (int i = 0; i < count; i++)
        pthread_join(peer[i].thread, NULL);
}

/* Connects to the port of a rank as soon as it listens. */
static int connect_rank(const rank *peer)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)peer->options.at.port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), tries = 0;
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        assert_int_equal(errno, ECONNREFUSED);
        assert_true(++tries < 2000);
        sleep_ms(10);
    }
    return fd;
}

static void says(const char *words, const char *wanted)
{
    if (!strstr(words, wanted))
        fail_msg("\"%s\" does not say \"%s\"", words, wanted);
}

static void test_meet__all_get_the_id_and_leave_without_error(void **state)
{
    (void)state;
    rank peers[MOST];
    set_up(peers, MOST, 60.0);
    /* prepd.endpoint may differ between ranks */
    peers[3].options.options = "a.x: 1\nprepd.endpoint: elsewhere\nb.y: \"two\"\n";
    run_all(peers, MOST);
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(peers[i].opened, ST_OK);
        assert_int_equal(peers[i].closed, ST_OK);
        assert_memory_equal(peers[i].id, peers[0].id, sizeof peers[i].id);
    }
    assert_int_equal(peers[1].id[CONTROL_ID_BYTES - 1], 0x5A);
}

static void test_meet__a_wrong_size_ends_all(void **state)
{
    (void)state;
    rank peers[3];
    set_up(peers, 3, 60.0);
    peers[1].options.size = 4;
    peers[2].options.timeout_s = 3.0; /* if it comes last, rank 0 has ended before */
    run_all(peers, 3);
    assert_int_equal(peers[0].opened, ST_CONFIG);
    says(peers[0].words, "was started as one of 4 ranks");
    assert_int_equal(peers[1].opened, ST_CONFIG);
    says(peers[1].words, "it refused this rank: rank 1 on");
    assert_int_not_equal(peers[2].opened, ST_OK);
    for (int i = 0; i < 3; i++)
        assert_true(peers[i].took_ns < INT64_C(30000000000));
}

static void test_meet__other_options_are_named(void **state)
{
    (void)state;
    rank peers[2];
    set_up(peers, 2, 60.0);
    peers[1].options.options = "a.x: 1\nprepd.endpoint: here\nb.y: \"ten\"\n";
    run_all(peers, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(peers[i].opened, ST_CONFIG);
        says(peers[i].words, "b.y: \"two\" here, \"ten\" there");
    }
}

/* The build is a hash of the program, which all threads share, so the test sends the messages of
 * rank 1 itself. */
static void test_meet__another_build_is_named(void **state)
{
    (void)state;
    rank peers[2];
    rank_link_kind kind;
    uint8_t header[CONTROL_HEADER], text[CONTROL_TEXT_MAX + 1] = {0}, *bytes;
    size_t size;
    set_up(peers, 2, 60.0);
    rank_link_hello other = {.rank = 1,
                             .size = 2,
                             .pid = 7,
                             .host = "node7",
                             .version = "trainer 9.9 (build other)",
                             .options = peers[0].options.options};
    spawn_rank(&peers[0]);
    int fd = connect_rank(&peers[0]);
    assert_ok(rank_link_hello_put(&other, &bytes, &size));
    rank_link_header_put(header, CONTROL_HELLO, size);
    assert_int_equal(send(fd, header, sizeof header, 0), sizeof header);
    assert_int_equal(send(fd, bytes, size, 0), size);
    assert_int_equal(recv(fd, header, sizeof header, MSG_WAITALL), sizeof header);
    assert_ok(rank_link_header_get(header, &kind, &size));
    assert_int_equal(kind, CONTROL_REFUSE);
    assert_int_equal(recv(fd, text, size, MSG_WAITALL), size);
    close(fd);
    free(bytes);
    pthread_join(peers[0].thread, NULL);
    assert_int_equal(peers[0].opened, ST_CONFIG);
    assert_true(peers[0].took_ns < INT64_C(30000000000));
    for (int i = 0; i < 2; i++) {
        const char *words = i == 0 ? peers[0].words : (const char *)text;
        says(words, "rank 1 on node7 is trainer 9.9 (build other), rank 0 on");
        says(words, "all ranks must run the same build");
    }
}

static void test_meet__missing_ranks_are_named(void **state)
{
    (void)state;
    rank peers[4];
    set_up(peers, 4, 4.0);
    spawn_rank(&peers[0]);
    spawn_rank(&peers[2]);
    pthread_join(peers[0].thread, NULL);
    pthread_join(peers[2].thread, NULL);
    assert_int_equal(peers[0].opened, ST_TIMEOUT);
    says(peers[0].words, "2 of 4 ranks did not come");
    says(peers[0].words, "ranks 1 3");
    assert_int_not_equal(peers[2].opened, ST_OK);
    says(peers[2].words, "2 of 4 ranks did not come");
    set_up(peers, 2, 0.5);
    spawn_rank(&peers[1]);
    pthread_join(peers[1].thread, NULL);
    assert_int_equal(peers[1].opened, ST_TIMEOUT);
    says(peers[1].words, "rank 0 cannot be reached at 127.0.0.1 port");
}

static void test_meet__a_busy_port_is_named(void **state)
{
    (void)state;
    int fd;
    rank peers[2];
    set_up(peers, 2, 1.0);
    peers[0].options.at.port = harness_port(&fd);
    listen(fd, 1);
    spawn_rank(&peers[0]);
    pthread_join(peers[0].thread, NULL);
    close(fd);
    assert_int_equal(peers[0].opened, ST_UNAVAILABLE);
    says(peers[0].words, "is busy");
}

/* Others who find the port are sent away: one that sends something else, and one that claims a rank
 * already taken. */
static void test_meet__strangers_are_sent_away(void **state)
{
    (void)state;
    rank peers[3], second;
    set_up(peers, 3, 60.0);
    spawn_rank(&peers[0]);
    int fd = connect_rank(&peers[0]);
    const char request[] = "GET / HTTP/1.1\r\n\r\n";
    assert_int_equal(send(fd, request, sizeof request, 0), sizeof request);
    close(fd);
    second = peers[1];
    spawn_rank(&peers[1]);
    spawn_rank(&second);
    rank *out = first_to_end(&peers[1], &second), *in = out == &second ? &peers[1] : &second;
    assert_int_equal(out->opened, ST_CONFIG);
    says(out->words, "rank 1 has connected already");
    spawn_rank(&peers[2]);
    rank *left[] = {&peers[0], in, &peers[2]};
    for (int i = 0; i < 3; i++) {
        pthread_join(left[i]->thread, NULL);
        assert_int_equal(left[i]->closed, ST_OK);
    }
}

static void expect_told(rank *peer, int count, int culprit)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(peer[i].opened, ST_OK);
        if (i == culprit)
            continue;
        char wanted[64];
        snprintf(wanted, sizeof wanted, "rank %d failed: a NaN in step 7", culprit);
        assert_int_equal(peer[i].checked, ST_UNAVAILABLE);
        says(peer[i].words, wanted);
        assert_true(peer[i].took_ns < INT64_C(30000000000));
    }
}

static void test_fault__one_fails_and_all_are_told(void **state)
{
    (void)state;
    for (int culprit = 0; culprit < 4; culprit += 3) {
        rank peers[4];
        set_up(peers, 4, 60.0);
        for (int i = 0; i < 4; i++)
            peers[i].waits = i != culprit;
        peers[culprit].fails = "a NaN in step 7";
        run_all(peers, 4);
        expect_told(peers, 4, culprit);
    }
}

/* Rank 0 is done and waits for the others to leave; then one of them fails. */
static void test_fault__rank_0_hears_of_it_while_it_leaves(void **state)
{
    (void)state;
    rank peers[3];
    set_up(peers, 3, 60.0);
    peers[1].waits = true;
    peers[2].fails = "a NaN in step 7";
    run_all(peers, 3);
    assert_int_equal(peers[0].closed, ST_UNAVAILABLE);
    says(peers[0].words, "rank 2 failed: a NaN in step 7");
    assert_int_equal(peers[1].checked, ST_UNAVAILABLE);
}

/* What a rank tells rank 0 is kept there, the last of it. */
static void *tell_and_hear(void *of)
{
    rank *peer = of;
    rank_link *link = NULL;
    char note[RANK_LINK_NOTE_MAX] = "";
    const int own = peer->options.rank;
    const int64_t start = clock_ns();
    peer->opened = rank_link_open(&peer->options, peer->id, &link);
    assert_int_equal(peer->opened, ST_OK);
    for (int i = 0; i < 20 && own != 0; i++) {
        snprintf(note, sizeof note, "note %d of rank %d", i, own);
        rank_link_tell(link, note);
    }
    for (int other = 1; other < 3 && own == 0; other++) {
        snprintf(peer->words, WORDS, "note 19 of rank %d", other);
        while ((!rank_link_told(link, other, note) || strcmp(note, peer->words) != 0) &&
               clock_ns() - start < INT64_C(20000000000))
            sleep_ms(5);
        peer->wrong += strcmp(note, peer->words) != 0;
    }
    peer->closed = rank_link_close(&link, NULL);
    return NULL;
}

static void test_note__rank_0_hears_the_last_of_each(void **state)
{
    (void)state;
    rank peers[3];
    set_up(peers, 3, 60.0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&peers[i].thread, NULL, tell_and_hear, &peers[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(peers[i].thread, NULL);
        assert_int_equal(peers[i].closed, ST_OK);
    }
    assert_int_equal(peers[0].wrong, 0);
}

typedef struct waiter {
    rank peer;
    bool waits_for_rows;
    pthread_barrier_t *all_heard;
    int heard; /* what it heard of the others at the end */
} waiter;

/* Says whether it waits for rows, then listens to what the link says of the others until that is as
 * expected, for at most 60 s. */
static void *wait_for_rows(void *of)
{
    waiter *waiting = of;
    rank_link *link = NULL;
    waiting->peer.opened = rank_link_open(&waiting->peer.options, waiting->peer.id, &link);
    assert_int_equal(waiting->peer.opened, ST_OK);
    rank_link_waits(link, waiting->waits_for_rows ? "rows" : NULL);
    const int64_t start = clock_ns();
    const bool expected = !waiting->waits_for_rows;
    /* Two beats: a rank that waits must not be told of itself. */
    sleep_ms(900);
    while (rank_link_others_wait(link) != expected && clock_ns() - start < INT64_C(60000000000))
        sleep_ms(5);
    waiting->heard = rank_link_others_wait(link);
    pthread_barrier_wait(waiting->all_heard);
    waiting->peer.closed = rank_link_close(&link, NULL);
    return NULL;
}

static void test_waits__others_hear_of_a_rank_that_waits_for_rows(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    for (int one = 0; one < RANKS; one++) {
        rank peers[RANKS];
        waiter waiting[RANKS];
        pthread_barrier_t all_heard;
        pthread_barrier_init(&all_heard, NULL, RANKS);
        set_up(peers, RANKS, 60.0);
        for (int i = 0; i < RANKS; i++) {
            waiting[i] = (waiter){peers[i], i == one, &all_heard, -1};
            waiting[i].peer.options.silence_s = 2.0;
            assert_int_equal(
                pthread_create(&waiting[i].peer.thread, NULL, wait_for_rows, &waiting[i]), 0);
        }
        for (int i = 0; i < RANKS; i++)
            pthread_join(waiting[i].peer.thread, NULL);
        pthread_barrier_destroy(&all_heard);
        for (int i = 0; i < RANKS; i++)
            assert_int_equal(waiting[i].heard, i != one);
    }
}

static void test_agree__all_hear_the_largest(void **state)
{
    rank peer[5];
    (void)state;
    set_up(peer, 5, 60.0);
    for (int i = 0; i < 5; i++) {
        peer[i].agreements = 300;
        spawn_rank(&peer[i]);
    }
    for (int i = 0; i < 5; i++) {
        pthread_join(peer[i].thread, NULL);
        assert_int_equal(peer[i].checked, ST_OK);
        assert_int_equal(peer[i].closed, ST_OK);
        assert_int_equal(peer[i].wrong, 0);
    }
}

/* Rank 2 stops after ten agreements but keeps its link. All hear that it was rank 2. */
static void test_agree__a_rank_that_does_not_ask(void **state)
{
    rank peer[3];
    (void)state;
    set_up(peer, 3, 2.0);
    for (int i = 0; i < 3; i++) {
        peer[i].agreements = i == 2 ? 10 : 11;
        peer[i].waits = i == 2;
        spawn_rank(&peer[i]);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(peer[i].thread, NULL);
        assert_int_equal(peer[i].wrong, 0);
        assert_int_equal(peer[i].checked, ST_UNAVAILABLE);
        says(peer[i].words, "rank 2 (");
        says(peer[i].words, "has not come to micro-batch 11 within 2.0 s");
        assert_true(peer[i].took_ns < INT64_C(30000000000));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meet__all_get_the_id_and_leave_without_error),
        cmocka_unit_test(test_meet__a_wrong_size_ends_all),
        cmocka_unit_test(test_meet__other_options_are_named),
        cmocka_unit_test(test_meet__another_build_is_named),
        cmocka_unit_test(test_meet__missing_ranks_are_named),
        cmocka_unit_test(test_meet__a_busy_port_is_named),
        cmocka_unit_test(test_meet__strangers_are_sent_away),
        cmocka_unit_test(test_fault__one_fails_and_all_are_told),
        cmocka_unit_test(test_fault__rank_0_hears_of_it_while_it_leaves),
        cmocka_unit_test(test_waits__others_hear_of_a_rank_that_waits_for_rows),
        cmocka_unit_test(test_note__rank_0_hears_the_last_of_each),
        cmocka_unit_test(test_agree__all_hear_the_largest),
        cmocka_unit_test(test_agree__a_rank_that_does_not_ask),
    };
    return cmocka_run_group_tests_name("rank_link", tests, NULL, NULL);
}
