/* Tests of claims.c: an index record that a remote worker told waits to be confirmed by another
 * worker, but not by one that may get no work, for which it could wait for ever. Nobody is blamed
 * for a comparison with a text that was refused meanwhile (index_build.c, index_records.c). */
#include "common/base/clock.h"
#include "prepd/serve/core/dispatch_state.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

enum { SECOND = 1000000000 };

/* A worker on this host that joined this many seconds ago; proved says whether it has told its
 * fingerprints. */
static worker_seat seat(uint64_t number, const char *host, bool proved, int64_t seconds_ago)
{
    worker_seat worker = {
        .number = number, .proved = proved, .joined_ns = clock_ns() - seconds_ago * SECOND};
    snprintf(worker.host, sizeof worker.host, "%s", host);
    snprintf(worker.from, sizeof worker.from, "10.0.0.%d", (int)number);
    return worker;
}

/* Of two workers, whether the first may confirm its own claim instead of waiting for the other. */
static bool may_go_on(worker_seat worker, worker_seat other, int breaches_of_w, int breaches_of_o)
{
    static dispatch state;
    const claim_asker asker = {&state, &worker};
    lease_book book;
    lease *leased = NULL;
    lease_book_init(&book, 2);
    state =
        (dispatch){.outside = still_world(), .now_ns = clock_ns(), .seats = &worker, .n_seats = 2};
    worker.next = &other;
    for (int i = 0; i < breaches_of_w; i++)
        breach_note(&state.breaches, worker.from, clock_ns());
    for (int i = 0; i < breaches_of_o; i++)
        breach_note(&state.breaches, other.from, clock_ns());
    assert_ok(lease_new(&book, LEASE_IMAGES, NULL, 0, (const int64_t[]){7}, 1, &leased));
    assert_ok(lease_add_claim(leased, worker.number, worker.host, (const uint64_t[]){1}));
    const bool may = claim_may_take(&asker, leased);
    lease_free(&leased);
    return may;
}

static void test_claims__wait_for_another_that_works(void **state)
{
    (void)state;
    const worker_seat worker = seat(1, "a", true, 500), other = seat(2, "b", true, 1);
    assert_false(may_go_on(worker, other, 0, 0));
    /* one on the same machine is waited for too */
    assert_false(may_go_on(worker, seat(2, "a", true, 1), 0, 0));
    worker_seat local = other;
    local.local = true;
    local.proved = false;
    assert_false(may_go_on(worker, local, 0, 0));
}

static void test_claims__do_not_wait_for_one_without_fingerprints(void **state)
{
    (void)state;
    /* the other is still loading */
    assert_false(may_go_on(seat(1, "a", true, 2), seat(2, "b", false, 1), 0, 0));
    assert_true(may_go_on(seat(1, "a", true, 500), seat(2, "b", false, 499), 0, 0));
    /* it has left and joined again */
    assert_true(may_go_on(seat(1, "a", true, 500), seat(2, "b", false, 0), 0, 0));
}

static void test_claims__do_not_wait_for_one_that_is_held(void **state)
{
    (void)state;
    const int many = FREE_BREACHES + 7;
    const worker_seat worker = seat(1, "a", true, 500), other = seat(2, "b", true, 1);
    assert_false(may_go_on(worker, other, 0, FREE_BREACHES));
    assert_true(may_go_on(worker, other, 0, many));
    assert_false(may_go_on(worker, other, many, 0));
    assert_false(may_go_on(worker, other, many, many)); /* if all are held, all get work */
}

/* --- texts that are compared with one that is refused --- */

enum { TEXTS = 3 };

static int64_t count_texts(const dataset *set)
{
    (void)set;
    return TEXTS;
}

/* Three texts of which the second is compared with the first, and the third with the second. */
static void open_texts(dispatch *state, const dataset *data)
{
    static part said = {"which", 5, -1};
    static turn turns[] = {{.role = ROLE_USER, .parts = &said, .n_parts = 1},
                           {.role = ROLE_ASSISTANT, .parts = &said, .n_parts = 1}};
    source *train = &state->train;
    *state = (dispatch){.outside = still_world()};
    arena_init(&state->scratch, 1 << 20);
    lease_book_init(&state->book, 1);
    *train = (source){.name = "train",
                      .build = {.src = train, .active = true, .left = TEXTS, .next_sample = TEXTS}};
    assert_ok(index_new(TEXTS, 0, &train->index));
    assert_ok(index_take_beginnings(train->index));
    assert_ok(predecessors_new(data, &train->build.before));
    for (int64_t i = 0; i < TEXTS; i++) {
        const sample text = {.id = (uint64_t)i, .turns = turns, .n_turns = 2};
        assert_ok(predecessors_add(train->build.before, i, &text));
    }
    assert_int_equal(predecessors_back(train->build.before, 1), 1);
}

static void close_texts(dispatch *state)
{
    lease *left = lease_book_take(&state->book, false);
    lease_free(&left);
    predecessors_free(&state->train.build.before);
    index_free(&state->train.index);
    arena_done(&state->scratch);
}

/* The worker tells that the second text has so many tokens in common with the first. */
static void tell(dispatch *state, lease *leased, int agrees, const worker_seat *worker)
{
    char text[200];
    json_value *records;
    snprintf(text, sizeof text,
             "{\"records\":[{\"tokens\":20,\"targets\":3,\"agrees\":%d,\"head\":4,"
             "\"first_label\":14}]}",
             agrees);
    assert_ok(json_parse(text, strlen(text), "records", &records));
    assert_ok(index_build_take(state, leased, records, worker, "worker"));
    lease_free(&leased);
    json_free(&records);
}

/* The first worker tells of the second text, then the first text is refused. The second worker
 * tells after that: of a lease that it had before (at_work), or of one that it got after. */
static void tell_around_a_refusal(bool at_work)
{
    static const dataset_vtable vtable = {.samples = count_texts};
    static const dataset data = {.adapter = &vtable};
    static const int64_t first = 0, second = 1;
    static dispatch state;
    worker_seat one = seat(1, "a", true, 500), two = seat(2, "b", true, 500),
                three = seat(3, "c", true, 500);
    lease *deadly, *told;
    open_texts(&state, &data);
    state.seats = &one;
    one.next = &two;
    two.next = &three;
    assert_ok(lease_new(&state.book, LEASE_TEXTS, &state.train, 0, &first, 1, &deadly));
    assert_ok(lease_new(&state.book, LEASE_TEXTS, &state.train, 0, &second, 1, &told));
    tell(&state, told, 10, &one);
    assert_non_null(told = lease_book_take(&state.book, false));
    assert_int_equal(told->n_claims, 1);
    if (at_work)
        two.work = told;
    else
        lease_book_return(&state.book, told);
    assert_ok(index_build_poison(&state, deadly, first, "ends its worker"));
    lease_free(&deadly);
    if (!at_work)
        told = lease_book_take(&state.book, false);
    two.work = NULL;
    tell(&state, told, at_work ? 10 : 0, &two);
    assert_false(
        index_has_sample(state.train.index, second)); /* one claim; the other is forgotten */
    assert_non_null(told = lease_book_take(&state.book, false));
    assert_int_equal(told->n_claims, 1);
    tell(&state, told, 0, &three);
    assert_true(index_has_sample(state.train.index, second));
    assert_ptr_equal(state.seats, &one); /* all three are still here */
    assert_ptr_equal(two.next, &three);
    close_texts(&state);
}

static void test_claims__a_refusal_between_them_blames_nobody(void **state)
{
    (void)state;
    tell_around_a_refusal(false);
    tell_around_a_refusal(true);
}

/* Whether a worker may confirm what seat 1 of machine "a" said, which is here no longer. */
static bool may_confirm_where(worker_seat worker, worker_seat other, const local_pool *pool)
{
    static dispatch state;
    const claim_asker asker = {&state, &worker};
    lease_book book;
    lease *leased = NULL;
    lease_book_init(&book, 2);
    state =
        (dispatch){.outside = still_world(), .now_ns = clock_ns(), .seats = &worker, .n_seats = 2};
    state.local = *pool;
    worker.next = &other;
    assert_ok(lease_new(&book, LEASE_IMAGES, NULL, 0, (const int64_t[]){7}, 1, &leased));
    assert_ok(lease_add_claim(leased, 1, "a", (const uint64_t[]){1}));
    const bool may = claim_may_take(&asker, leased);
    lease_free(&leased);
    return may;
}

static bool may_confirm_the_gone(worker_seat worker, worker_seat other, int local_target)
{
    return may_confirm_where(worker, other, &(local_pool){.target = local_target});
}

static void test_claims__wait_for_local_workers_that_are_to_come(void **state)
{
    (void)state;
    const worker_seat again = seat(2, "a", true, 5), held = seat(3, "b", false, 500);
    assert_false(may_confirm_the_gone(again, held, 1)); /* or whoever joins first is believed */
    assert_true(may_confirm_the_gone(again, held, 0));
    assert_true(may_confirm_the_gone(seat(2, "b", true, 5), held, 1));
}

/* Whoever kills every local worker at its start does not keep the index from being built. */
static void test_claims__wait_a_minute_for_local_workers_that_are_killed(void **state)
{
    (void)state;
    const int64_t second = 1000000000;
    const worker_seat again = seat(2, "a", true, 5), held = seat(3, "a", true, 5);
    for (int seconds = 55; seconds <= 65; seconds += 10)
        assert_int_equal(
            may_confirm_where(
                again, held,
                &(local_pool){.target = 1, .killed_ns = clock_ns() - seconds * second}),
            seconds > 60);
}

static void test_claims__are_not_confirmed_by_the_machine_of_a_worker_that_has_gone(void **state)
{
    (void)state;
    const worker_seat again = seat(2, "a", true, 5);
    assert_false(may_confirm_the_gone(again, seat(3, "b", true, 1), 0));
    assert_true(may_confirm_the_gone(again, seat(3, "a", true, 1), 0)); /* there is no other */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claims__wait_for_another_that_works),
        cmocka_unit_test(test_claims__do_not_wait_for_one_without_fingerprints),
        cmocka_unit_test(test_claims__do_not_wait_for_one_that_is_held),
        cmocka_unit_test(test_claims__wait_for_local_workers_that_are_to_come),
        cmocka_unit_test(test_claims__wait_a_minute_for_local_workers_that_are_killed),
        cmocka_unit_test(test_claims__are_not_confirmed_by_the_machine_of_a_worker_that_has_gone),
        cmocka_unit_test(test_claims__a_refusal_between_them_blames_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
