/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of save_ranks.c: ranks, each a thread, make one list of what they know. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/checkpoint/save/save_ranks.h"

enum { RANKS = 3, BYTES_MOST = 8192 };

/* Where ranks meet: each leaves what it sends, waits for the others,
 * and takes what all have left. */
static pthread_barrier_t meeting;
static char left[RANKS][BYTES_MOST];
static int gathers;

static status gather_values(const comm *group, const void *send, void *recv, int64_t bytes)
{
    if (bytes > BYTES_MOST)
        return FAIL(ST_INTERNAL, "%lld bytes at once", (long long)bytes);
    memcpy(left[group->rank], send, (size_t)bytes);
    pthread_barrier_wait(&meeting);
    for (int rank = 0; rank < RANKS; rank++)
        memcpy((char *)recv + rank * bytes, left[rank], (size_t)bytes);
    if (group->rank == 0)
        gathers++;
    pthread_barrier_wait(&meeting);
    return ST_OK;
}

static status broadcast_value(const comm *group, void *inout, int64_t bytes, int root)
{
    if (group->rank == root)
        memcpy(left[0], inout, (size_t)bytes);
    pthread_barrier_wait(&meeting);
    memcpy(inout, left[0], (size_t)bytes);
    pthread_barrier_wait(&meeting);
    return ST_OK;
}

static const comm_engine engine = {
    .name = "threads", .host_all_gather = gather_values, .host_broadcast = broadcast_value};

typedef struct one_rank {
    int rank;
    status got;       /* how it fared */
    const char *says; /* what it knows */
    bad_samples all;
} one_rank;

static void *unite(void *user)
{
    static const int world[RANKS] = {0, 1, 2};
    one_rank *own = (one_rank *)user;
    const comm group = {.engine = &engine, .rank = own->rank, .size = RANKS, .world_rank = world};
    bad_samples known = {0};
    own->got = bad_samples_read_text(&known, own->says, "a list");
    if (own->got == ST_OK)
        own->got = save_unite_bad_samples(&group, &known, &own->all);
    bad_samples_done(&known);
    return NULL;
}

static void unite_all(one_rank *all)
{
    pthread_t thread[RANKS];
    gathers = 0;
    assert_int_equal(pthread_barrier_init(&meeting, NULL, RANKS), 0);
    for (int rank = 0; rank < RANKS; rank++) {
        all[rank].rank = rank;
        assert_int_equal(pthread_create(&thread[rank], NULL, unite, &all[rank]), 0);
    }
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(thread[rank], NULL);
    pthread_barrier_destroy(&meeting);
}

static void expect_all(const one_rank *all, const char *wanted)
{
    for (int rank = 0; rank < RANKS; rank++) {
        char *text;
        assert_int_equal(all[rank].got, ST_OK);
        assert_ok(bad_samples_write(&all[rank].all, &text));
        assert_string_equal(text, wanted);
        free(text);
    }
}

static void forget_all(one_rank *all)
{
    for (int rank = 0; rank < RANKS; rank++)
        bad_samples_done(&all[rank].all);
}

static void test_unite__all_ranks_know_what_any_knows(void **state)
{
    (void)state;
    static const char two[] = "{\"index\":\"0123456789abcdef0123456789abcdef\",\"count\":2,"
                              "\"ids\":\"BD\"}",
                      all_of_it[] = "{\"index\":\"0123456789abcdef0123456789abcdef\",\"count\":3,"
                                    "\"ids\":\"BDF\"}";
    static const char *const said[RANKS] = {
        "{\"index\":\"0123456789abcdef0123456789abcdef\",\"count\":2,\"ids\":\"EF\"}",
        "{\"index\":\"0123456789abcdef0123456789abcdef\",\"count\":0,\"ids\":\"\"}", two};
    one_rank all[RANKS] = {{0}};
    for (int turn = 0; turn < RANKS; turn++) { /* whichever rank knows what */
        for (int rank = 0; rank < RANKS; rank++)
            all[rank].says = said[(rank + turn) % RANKS];
        unite_all(all);
        expect_all(all, all_of_it);
        assert_int_equal(gathers, 4); /* two agreements, the counts, a round */
        forget_all(all);
    }
    unite_all(all);
    for (int rank = 0; rank < RANKS; rank++)
        all[rank].says = all_of_it;
    unite_all(all); /* nothing is new, and no list travels */
    expect_all(all, all_of_it);
    assert_int_equal(gathers, 2);
    forget_all(all);
}

/* Lists of several rounds, of which the ranks have different numbers. */
static void test_unite__long_lists(void **state)
{
    (void)state;
    static const int64_t count[RANKS] = {1, 512, 1300};
    char *text[RANKS];
    one_rank all[RANKS] = {{0}};
    for (int rank = 0; rank < RANKS; rank++) {
        bad_samples list = {0};
        for (int64_t i = 0; i < count[rank]; i++)
            assert_ok(bad_samples_add(&list, RANKS * i + rank, NULL, NULL));
        assert_ok(bad_samples_write(&list, &text[rank]));
        bad_samples_done(&list);
        all[rank].says = text[rank];
    }
    unite_all(all);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(all[rank].got, ST_OK);
        assert_int_equal(all[rank].all.n, 1 + 512 + 1300);
        assert_non_null(bad_samples_find(&all[rank].all, RANKS * 1299 + 2));
        assert_non_null(bad_samples_find(&all[rank].all, RANKS * 511 + 1));
        assert_null(bad_samples_find(&all[rank].all, RANKS * 512 + 1));
    }
    forget_all(all);
    for (int rank = 0; rank < RANKS; rank++)
        free(text[rank]);
}

/* One rank alone needs no engine. */
static void test_unite__alone(void **state)
{
    (void)state;
    const comm alone = comm_alone("world");
    bad_samples known = {0}, all = {0};
    assert_ok(bad_samples_add(&known, 1, "c", NULL));
    assert_ok(save_unite_bad_samples(&alone, &known, &all));
    assert_int_equal(all.n, 1);
    bad_samples_done(&known);
    bad_samples_done(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unite__all_ranks_know_what_any_knows),
        cmocka_unit_test(test_unite__long_lists),
        cmocka_unit_test(test_unite__alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
