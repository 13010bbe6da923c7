/* Tests of claims.c: an index record that a remote worker told waits to be confirmed by another
 * worker, but not by one that may get no work, for which it could wait for ever. */
#include "common/base/clock.h"
#include "prepd/serve/dispatch_state.h"
#include "tests/harness.h"

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
    state = (dispatch){.seats = &worker, .n_seats = 2};
    worker.next = &other;
    for (int i = 0; i < breaches_of_w; i++)
        breach_note(&state.breaches, worker.from, clock_ns());
    for (int i = 0; i < breaches_of_o; i++)
        breach_note(&state.breaches, other.from, clock_ns());
    assert_ok(lease_new(&book, LEASE_IMAGES, NULL, 0, (const int64_t[]){7}, 1, &leased));
    assert_ok(lease_add_claim(leased, worker.number, (const uint64_t[]){1}));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claims__wait_for_another_that_works),
        cmocka_unit_test(test_claims__do_not_wait_for_one_without_fingerprints),
        cmocka_unit_test(test_claims__do_not_wait_for_one_that_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
