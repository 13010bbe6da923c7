/* Tests of decisions_union.c: ranks, each a thread, make one list of what they have heard. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/checkpoint/decisions_union.h"

enum { RANKS = 3, BYTES_MOST = 8192 };

/* Where ranks meet: each leaves what it sends, waits for the others, and takes what all have left.
 */
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
    status mine, got; /* how it fared before, and together */
    const char *says; /* what it has heard */
    decisions known;
} one_rank;

static void *unite(void *user)
{
    static const int world[RANKS] = {0, 1, 2};
    one_rank *own = (one_rank *)user;
    const comm group = {.engine = &engine, .rank = own->rank, .size = RANKS, .world_rank = world};
    decisions heard = {0};
    own->got = decisions_read(&heard, own->says, DECISION_ROW_UNKNOWN, "heard");
    if (own->got == ST_OK && own->mine != ST_OK)
        own->got = FAIL(own->mine, "its daemon says nonsense");
    own->got = decisions_unite(&group, own->got, &heard, &own->known);
    decisions_done(&heard);
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
        assert_ok(decisions_write(&all[rank].known, &text));
        assert_string_equal(text, wanted);
        free(text);
    }
}

static void forget_all(one_rank *all)
{
    for (int rank = 0; rank < RANKS; rank++)
        decisions_done(&all[rank].known);
}

static void test_unite__all_ranks_know_what_any_has_heard(void **state)
{
    (void)state;
    static const char two[] = "[{\"id\":4,\"cause\":\"c\",\"row\":2},{\"id\":1,\"cause\":\"d\"}]";
    static const char *const said[RANKS] = {"[{\"id\":4,\"cause\":\"b\",\"row\":9}]", "", two};
    static const char all_of_it[] =
        "[{\"id\":1,\"cause\":\"d\"},{\"id\":4,\"cause\":\"c\",\"row\":2}]";
    one_rank all[RANKS] = {{0}};
    for (int turn = 0; turn < RANKS; turn++) { /* whichever rank has heard what */
        for (int rank = 0; rank < RANKS; rank++)
            all[rank].says = said[(rank + turn) % RANKS];
        unite_all(all);
        expect_all(all, all_of_it);
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

/* A text of several pieces, beside one that is shorter and one that does not exist. */
static void test_unite__long_lists(void **state)
{
    (void)state;
    enum { SAMPLES = 400, ROOM = 64 * SAMPLES };
    char *text = (char *)malloc(ROOM);
    assert_non_null(text);
    int size = snprintf(text, ROOM, "[");
    for (int i = 0; i < SAMPLES; i++)
        size += snprintf(text + size, (size_t)(ROOM - size),
                         "%s{\"id\":%d,\"cause\":\"cut short\"}", i ? "," : "", 2 * i);
    snprintf(text + size, (size_t)(ROOM - size), "]");
    one_rank all[RANKS] = {
        {.says = ""}, {.says = text}, {.says = "[{\"id\":3,\"cause\":\"crash\",\"row\":1}]"}};
    unite_all(all);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(all[rank].got, ST_OK);
        assert_int_equal(all[rank].known.n_entries, SAMPLES + 1);
        assert_int_equal(all[rank].known.entry[2].sample, 3);
    }
    forget_all(all);
    free(text);
}

static void test_unite__one_that_fails_fails_all(void **state)
{
    (void)state;
    one_rank all[RANKS] = {{.says = ""}, {.says = "", .mine = ST_PROTOCOL}, {.says = ""}};
    unite_all(all);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(all[rank].got, ST_PROTOCOL);
    forget_all(all);
}

/* One rank alone needs no engine. */
static void test_unite__alone(void **state)
{
    (void)state;
    const comm alone = comm_alone("world");
    decisions heard = {0}, known = {0};
    assert_ok(decisions_read(&heard, "[{\"id\":1,\"cause\":\"c\"}]", 3, "heard"));
    assert_ok(decisions_unite(&alone, ST_OK, &heard, &known));
    assert_int_equal(known.n_entries, 1);
    assert_int_equal(known.entry[0].row, 3);
    decisions_done(&heard);
    decisions_done(&known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unite__all_ranks_know_what_any_has_heard),
        cmocka_unit_test(test_unite__long_lists),
        cmocka_unit_test(test_unite__one_that_fails_fails_all),
        cmocka_unit_test(test_unite__alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
