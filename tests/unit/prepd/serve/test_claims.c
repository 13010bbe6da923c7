/* Whose word an index record waits for: never for that of a worker that may have no work. */
#include "common/base/clock.h"
#include "prepd/serve/dispatch_state.h"
#include "tests/harness.h"

enum { S = 1000000000 };

/* A worker on a machine of its own that joined so long ago. */
static worker_seat seat(uint64_t number, const char *host, bool proved, int64_t seconds_ago)
{
    worker_seat w = {.number = number, .proved = proved, .joined_ns = clock_ns() - seconds_ago * S};
    snprintf(w.host, sizeof w.host, "%s", host);
    snprintf(w.from, sizeof w.from, "10.0.0.%d", (int)number);
    return w;
}

/* Whether the first of two seats may confirm what it claims itself. */
static bool may_go_on(worker_seat w, worker_seat o, int breaches_of_w, int breaches_of_o)
{
    static dispatch d;
    const claim_asker asker = {&d, &w};
    lease_book book;
    lease *l = NULL;
    lease_book_init(&book, 2);
    d = (dispatch){.seats = &w, .n_seats = 2};
    w.next = &o;
    for (int i = 0; i < breaches_of_w; i++)
        breach_note(&d.breaches, w.from, clock_ns());
    for (int i = 0; i < breaches_of_o; i++)
        breach_note(&d.breaches, o.from, clock_ns());
    assert_ok(lease_new(&book, LEASE_IMAGES, NULL, 0, (const int64_t[]){7}, 1, &l));
    assert_ok(lease_add_claim(l, w.number, (const uint64_t[]){1}));
    const bool may = claim_may_take(&asker, l);
    lease_free(&l);
    return may;
}

static void test_claims__another_that_works_is_waited_for(void **state)
{
    (void)state;
    const worker_seat w = seat(1, "a", true, 500), o = seat(2, "b", true, 1);
    assert_false(may_go_on(w, o, 0, 0));
    assert_false(may_go_on(w, seat(2, "a", true, 1), 0, 0)); /* its neighbour */
    worker_seat local = o;
    local.local = true;
    local.proved = false;
    assert_false(may_go_on(w, local, 0, 0));
}

static void test_claims__one_that_never_says_what_it_is_is_not(void **state)
{
    (void)state;
    assert_false(may_go_on(seat(1, "a", true, 2), seat(2, "b", false, 1), 0, 0)); /* it loads */
    assert_true(may_go_on(seat(1, "a", true, 500), seat(2, "b", false, 499), 0, 0));
    assert_true(may_go_on(seat(1, "a", true, 500), seat(2, "b", false, 0), 0, 0)); /* once more */
}

static void test_claims__one_that_is_held_off_is_not(void **state)
{
    (void)state;
    const int many = FREE_BREACHES + 7;
    const worker_seat w = seat(1, "a", true, 500), o = seat(2, "b", true, 1);
    assert_false(may_go_on(w, o, 0, FREE_BREACHES));
    assert_true(may_go_on(w, o, 0, many));
    assert_false(may_go_on(w, o, many, 0));
    assert_false(may_go_on(w, o, many, many)); /* they are given work then */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claims__another_that_works_is_waited_for),
        cmocka_unit_test(test_claims__one_that_never_says_what_it_is_is_not),
        cmocka_unit_test(test_claims__one_that_is_held_off_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
