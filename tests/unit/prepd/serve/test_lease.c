/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of lease.h: which sample is blamed when workers die. The state machine is driven alone,
 * without sockets or processes. */
#include "prepd/serve/core/state/lease.h"

#include <string.h>

#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

enum { SOLO_LIMIT = 2 };
static const int64_t items[] = {10, 20, 30, 20};

static lease *make_lease(lease_book *book)
{
    lease *leased = NULL;
    lease_book_init(book, SOLO_LIMIT);
    assert_ok(lease_new(book, LEASE_ROW, NULL, 7, items, 4, &leased));
    return leased;
}

static lease *retake_lease(lease_book *book, lease *leased, loss how, bool fresh)
{
    int64_t item = -1;
    assert_int_equal(lease_lost(book, leased, how, &item), LEASE_AGAIN);
    return lease_book_take(book, fresh);
}

static void test_lease__outside_deaths_blame_no_sample(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book);
    for (int i = 0; i < 100; i++) {
        lease_on(leased, 20);
        lease *again = retake_lease(&book, leased, LOSS_OUTSIDE, false);
        assert_ptr_equal(again, leased);
        assert_false(leased->solo);
    }
    lease_free(&leased);
}

/* A worker that breaks the protocol proves nothing, neither about the row nor about a sample that
 * is tried alone. */
static void test_lease__breaches_blame_no_sample(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book);
    for (int i = 0; i < 100; i++) {
        lease_on(leased, 20);
        assert_ptr_equal(retake_lease(&book, leased, LOSS_BREACH, false), leased);
        assert_false(leased->solo);
        assert_int_equal(leased->losses, 0);
    }
    assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, false), leased);
    lease_on(leased, 30);
    assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, true), leased);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(lease_solo_item(leased), 30);
        assert_ptr_equal(retake_lease(&book, leased, LOSS_BREACH, true), leased);
        assert_int_equal(leased->solo_deaths, 0);
    }
    lease_free(&leased);
}

/* Each item counts as progress once, however often and in whatever order a worker names it. */
static void test_lease_on__counts_each_item_once(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book); /* 10, 20, 30, 20 */
    int further = 0;
    for (int i = 0; i < 1000; i++)
        further += lease_on(leased, items[i % 4]);
    assert_int_equal(further, 4);
    assert_false(lease_on(leased, 20));
    assert_true(lease_has(leased, 30));
    assert_false(lease_has(leased, 31));
    assert_false(lease_has(leased, -1));
    lease_free(&leased);
}

static bool is_of_kind(const void *kind, const lease *leased)
{
    return leased->kind == *(const lease_kind *)kind;
}

static void test_lease__lost_twice_tries_the_suspect_alone(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book);
    assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, false), leased);
    lease_on(leased, 30);
    int64_t item = -1;
    assert_int_equal(lease_lost(&book, leased, LOSS_CRASH, &item), LEASE_AGAIN);
    assert_true(lease_book_wants_fresh(&book, is_of_kind, &(lease_kind){LEASE_ROW}));
    assert_false(lease_book_wants_fresh(&book, is_of_kind, &(lease_kind){LEASE_TEXTS}));
    assert_null(lease_book_take(&book, false)); /* only a fresh worker may try it */
    assert_ptr_equal(lease_book_take(&book, true), leased);
    assert_int_equal(lease_solo_item(leased), 30);
    assert_int_equal(leased->n_untried, 1);

    /* A kill from outside during the trial changes nothing. */
    assert_ptr_equal(retake_lease(&book, leased, LOSS_OUTSIDE, true), leased);
    assert_int_equal(lease_solo_item(leased), 30);
    /* One death that it caused is not enough to condemn the item; the second is. */
    assert_ptr_equal(retake_lease(&book, leased, LOSS_TIMEOUT, true), leased);
    assert_int_equal(lease_lost(&book, leased, LOSS_CRASH, &item), LEASE_POISON);
    assert_int_equal(item, 30);
    assert_false(leased->solo);
    assert_ptr_equal(lease_book_take(&book, false), leased);
    lease_free(&leased);
}

static void test_lease__harmless_items_are_cleared(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book);
    assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, false), leased);
    assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, true), leased);
    static const int64_t order[] = {10, 20, 30};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lease_solo_item(leased), order[i]);
        lease_solo_done(&book, leased);
        assert_ptr_equal(lease_book_take(&book, true), leased);
    }
    /* the lease is whole again, and no item is condemned */
    assert_int_equal(lease_solo_item(leased), LEASE_NO_ITEM);
    assert_int_equal(leased->losses, 0);
    lease_free(&leased);
}

static void test_lease__a_wrong_suspect_brings_all_items_to_trial(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book);
    for (int round = 0; round < 2; round++) {
        assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, false), leased);
        lease_on(leased, 20);
        assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, true), leased);
        assert_int_equal(lease_solo_item(leased), 20);
        assert_int_equal(leased->n_untried, round == 0 ? 1 : 3); /* each sample once */
        while (leased->solo) {
            lease_solo_done(&book, leased);
            assert_ptr_equal(lease_book_take(&book, true), leased);
        }
    }
    lease_free(&leased);
}

static void test_lease__empty_row_survives_any_loss(void **state)
{
    (void)state;
    lease_book book;
    lease_book_init(&book, SOLO_LIMIT);
    lease *leased = NULL;
    assert_ok(lease_new(&book, LEASE_ROW, NULL, 0, NULL, 0, &leased));
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(retake_lease(&book, leased, LOSS_CRASH, false), leased);
    lease_free(&leased);
}

static void test_lease__earliest_row_first_and_owners_forgotten(void **state)
{
    (void)state;
    lease_book book;
    lease_book_init(&book, SOLO_LIMIT);
    int owner_a, owner_b;
    lease *leased[3];
    int64_t item;
    for (int i = 0; i < 3; i++)
        assert_ok(lease_new(&book, LEASE_ROW, i == 1 ? &owner_b : &owner_a, (uint64_t)i, items, 3,
                            &leased[i]));
    for (int i = 2; i >= 0; i--)
        assert_int_equal(lease_lost(&book, leased[i], LOSS_OUTSIDE, &item), LEASE_AGAIN);
    assert_int_equal(lease_book_waiting(&book), 3);
    lease_book_forget(&book, &owner_a);
    assert_int_equal(lease_book_waiting(&book), 1);
    assert_ptr_equal(lease_book_take(&book, false), leased[1]);
    lease_drop_item(leased[1], 20);
    assert_int_equal(leased[1]->n_items, 2);
    assert_int_equal(leased[1]->item[1], 30);
    lease_free(&leased[1]);
}

static void test_lease_on__only_a_further_item_is_progress(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book); /* 10, 20, 30, 20 */
    assert_true(lease_on(leased, 10));
    assert_false(lease_on(leased, 10));
    assert_true(lease_on(leased, 30)); /* a worker need not name every item */
    assert_false(lease_on(leased, 10));
    assert_false(lease_on(leased, -1));
    assert_true(lease_on(leased, 20)); /* the sample occurs twice in this lease */
    assert_false(lease_on(leased, 20));
    assert_ptr_equal(retake_lease(&book, leased, LOSS_OUTSIDE, false), leased);
    assert_true(lease_on(leased, 10)); /* the next worker begins at the first item */
    lease_free(&leased);
}

static void test_lease__one_not_begun_is_first_again_and_blames_no_sample(void **state)
{
    (void)state;
    lease_book book;
    lease_book_init(&book, SOLO_LIMIT);
    lease *leased[2];
    for (int i = 0; i < 2; i++)
        assert_ok(lease_new(&book, LEASE_ROW, NULL, (uint64_t)i, items, 3, &leased[i]));
    lease_book_return(&book, leased[0]);
    for (int i = 0; i < 5; i++) {
        lease_unbegun(&book, leased[1]);
        assert_ptr_equal(lease_book_take(&book, false), leased[1]);
        assert_int_equal(leased[1]->losses, 0);
        assert_false(leased[1]->solo);
    }
    lease_free(&leased[1]);
    assert_ptr_equal(lease_book_take(&book, false), leased[0]);
    lease_free(&leased[0]);
}

/* What workers lose that are no deciders blames nothing, however often. After two of them only a
 * decider gets it. */
static void test_lease_struck__goes_to_a_decider_in_the_end(void **state)
{
    (void)state;
    lease_book book;
    lease *leased = make_lease(&book);
    for (int i = 0; i < 100; i++) {
        assert_true(lease_needs_decider(leased) == (i >= LEASE_MAX_STRIKES));
        lease_on(leased, 20);
        lease_struck(&book, leased);
        assert_ptr_equal(lease_book_take(&book, false), leased);
        assert_false(leased->solo);
        assert_int_equal(leased->losses, 0);
    }
    lease_free(&leased);
}

/* What is said of a prefix is said of its branches, also if its first sample is number 0. A sample
 * of a prefix that is to blame by itself costs itself only. */
static void test_lease__a_prefix_answers_for_its_branches(void **state)
{
    (void)state;
    static const int64_t with_prefixes[] = {5, ~INT64_C(0), 0, 9, 3, ~INT64_C(6), 6, 7};
    lease_book book;
    lease *leased = NULL;
    int64_t item, hit, place = 0;
    lease_book_init(&book, SOLO_LIMIT);
    assert_ok(lease_new(&book, LEASE_ROW, NULL, 7, with_prefixes, 8, &leased));
    assert_ok(lease_set_branches(leased, 1, 3));
    assert_ok(lease_set_branches(leased, 5, 2));
    assert_int_equal(lease_solo_item(leased), LEASE_NO_ITEM);
    const int64_t of_first[] = {0, 9, 3}, of_second[] = {6, 7};
    for (int i = 0; i < 3; i++) {
        assert_true(lease_next_hit(leased, ~INT64_C(0), &place, &hit));
        assert_int_equal(hit, of_first[i]);
    }
    assert_false(lease_next_hit(leased, ~INT64_C(0), &place, &hit));
    place = 0;
    for (int i = 0; i < 2; i++) {
        assert_true(lease_next_hit(leased, ~INT64_C(6), &place, &hit));
        assert_int_equal(hit, of_second[i]);
    }
    assert_false(lease_next_hit(leased, ~INT64_C(6), &place, &hit));
    place = 0;
    assert_true(lease_next_hit(leased, 9, &place, &hit));
    assert_int_equal(hit, 9);
    assert_false(lease_next_hit(leased, 9, &place, &hit));
    /* the prefix of sample 0 is tried alone, and is not taken for no item */
    lease_on(leased, ~INT64_C(0));
    leased = retake_lease(&book, leased, LOSS_CRASH, false);
    lease_on(leased, ~INT64_C(0));
    leased = retake_lease(&book, leased, LOSS_CRASH, true);
    assert_int_equal(lease_solo_item(leased), ~INT64_C(0));
    assert_int_equal(lease_sample(lease_solo_item(leased)), 0);
    lease_on(leased, 0); /* as which it is reported when it is alone */
    leased = retake_lease(&book, leased, LOSS_CRASH, true);
    assert_int_equal(lease_lost(&book, leased, LOSS_CRASH, &item), LEASE_POISON);
    assert_int_equal(item, ~INT64_C(0));
    leased = lease_book_take(&book, false);
    assert_int_equal(lease_solo_item(leased), LEASE_NO_ITEM);
    lease_free(&leased);
}

/* A worker that is asked about a sample may have done others before. If it dies, that does not
 * count, and fresh workers try from then on, whose deaths do. */
static void test_lease__who_is_asked_and_dies_blames_no_sample(void **state)
{
    (void)state;
    lease_book book;
    int64_t item;
    lease *leased = make_lease(&book);
    lease_try_alone(leased, 30);
    leased = retake_lease(&book, leased, LOSS_OUTSIDE, false);
    assert_int_equal(lease_solo_item(leased), 30); /* whoever is there may be asked */
    assert_null(retake_lease(&book, leased, LOSS_CRASH, false));
    leased = lease_book_take(&book, true);
    assert_int_equal(lease_solo_item(leased), 30);
    for (int deaths = 1; deaths < SOLO_LIMIT; deaths++)
        leased = retake_lease(&book, leased, LOSS_CRASH, true);
    assert_int_equal(lease_lost(&book, leased, LOSS_CRASH, &item), LEASE_POISON);
    assert_int_equal(item, 30);
    lease_free(&leased);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease__outside_deaths_blame_no_sample),
        cmocka_unit_test(test_lease__breaches_blame_no_sample),
        cmocka_unit_test(test_lease__a_prefix_answers_for_its_branches),
        cmocka_unit_test(test_lease__lost_twice_tries_the_suspect_alone),
        cmocka_unit_test(test_lease__harmless_items_are_cleared),
        cmocka_unit_test(test_lease__a_wrong_suspect_brings_all_items_to_trial),
        cmocka_unit_test(test_lease__empty_row_survives_any_loss),
        cmocka_unit_test(test_lease__earliest_row_first_and_owners_forgotten),
        cmocka_unit_test(test_lease_on__only_a_further_item_is_progress),
        cmocka_unit_test(test_lease_on__counts_each_item_once),
        cmocka_unit_test(test_lease__one_not_begun_is_first_again_and_blames_no_sample),
        cmocka_unit_test(test_lease__who_is_asked_and_dies_blames_no_sample),
        cmocka_unit_test(test_lease_struck__goes_to_a_decider_in_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
