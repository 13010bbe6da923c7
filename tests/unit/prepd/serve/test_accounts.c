/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of accounts.h: what holds against which key, and for how long. */
#include "prepd/serve/core/state/accounts.h"

#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

static const int64_t SECOND = 1000000000, MINUTE = 60 * INT64_C(1000000000);

static account *open_at(accounts *list, const char *host, int64_t now)
{
    account *held = NULL;
    assert_ok(account_open(list, &(wire_peer){0}, host, now, &held));
    return held;
}

static account *open_key(accounts *list, const char *key, const char *name)
{
    wire_peer peer = {0};
    account *held = NULL;
    snprintf(peer.key, sizeof peer.key, "%s", key);
    snprintf(peer.key_name, sizeof peer.key_name, "%s", name);
    assert_ok(account_open(list, &peer, "10.0.0.1", 0, &held));
    return held;
}

static void test_account__is_of_a_key_an_address_or_ipc(void **state)
{
    (void)state;
    accounts list = {0};
    account *one = open_key(&list, "key-1", "node");
    assert_ptr_equal(open_key(&list, "key-1", "node"), one);
    assert_ptr_not_equal(open_key(&list, "key-2", "node"), one); /* a name is no key */
    assert_ptr_not_equal(open_at(&list, "10.0.0.1", 0), one);
    assert_ptr_equal(open_at(&list, "", 0), open_at(&list, "", 0));
    assert_ptr_equal(account_of(&list, one->number), one);
    assert_null(account_of(&list, 0));
    assert_null(account_of(&list, 99));
    accounts_free(&list);
}

static void test_account_exclude__minutes_double_up_to_64(void **state)
{
    (void)state;
    accounts list = {0};
    account *held = open_at(&list, "a", 0);
    int64_t now = 5 * SECOND;
    for (int64_t minutes = 1; minutes <= 256; minutes *= 2) {
        const int64_t most = minutes < 64 ? minutes : 64;
        for (int i = 0; i < 4; i++) /* one message may say four things */
            account_exclude(held, "it lies", now);
        assert_true(account_is_excluded(held, now + most * MINUTE - 1));
        assert_false(account_is_excluded(held, now + most * MINUTE));
        now += most * MINUTE;
    }
    assert_string_equal(held->why, "it lies");
    accounts_free(&list);
}

/* Three are free, and what comes while a key is excluded counts no more: a hundred workers of one
 * key hear it at different times. */
static void test_account_breach__seconds_double_after_three(void **state)
{
    (void)state;
    accounts list = {0};
    account *held = open_at(&list, "a", 0);
    int64_t now = 0;
    for (int i = 0; i < 3; i++)
        assert_false(account_breach(held, "garbage", now));
    for (int64_t seconds = 1; seconds <= 4096; seconds *= 2) {
        const int64_t most = seconds < 3840 ? seconds : 3840;
        assert_true(account_breach(held, "garbage", now));
        for (int i = 0; i < 100; i++)
            assert_false(account_breach(held, "garbage", now + 1));
        assert_true(account_is_excluded(held, now + most * SECOND - 1));
        assert_false(account_is_excluded(held, now + most * SECOND));
        now += most * SECOND;
    }
    now += 65 * MINUTE; /* long ago */
    for (int i = 0; i < 3; i++)
        assert_false(account_breach(held, "garbage", now));
    accounts_free(&list);
}

/* A breach while it is excluded for a lie, or the other way round,
 * never shortens the longer one. */
static void test_account__the_longer_exclusion_stands(void **state)
{
    (void)state;
    accounts list = {0};
    account *held = open_at(&list, "a", 0);
    account_exclude(held, "it lies", 0);
    for (int i = 0; i < 10; i++)
        (void)account_breach(held, "garbage", SECOND);
    assert_true(account_is_excluded(held, MINUTE - 1));
    assert_false(account_is_excluded(held, MINUTE));
    accounts_free(&list);
}

static void test_account_watch__rows_double(void **state)
{
    (void)state;
    accounts list = {0};
    account *held = open_at(&list, "a", 0);
    for (int64_t rows = 16; rows <= 1024; rows *= 2) {
        account_watch(held);
        assert_int_equal(held->watched, rows);
    }
    account_watch(held);
    assert_int_equal(held->watched, 1024);
    account_take_build(held, "another"); /* it has more to come */
    assert_int_equal(held->watched, 1024);
    held->watched = 0;
    account_take_build(held, "another");
    assert_int_equal(held->watched, 0);
    account_take_build(held, "a third");
    assert_int_equal(held->watched, 200);
    accounts_free(&list);
}

static void test_account_may_join__a_burst_then_a_rate(void **state)
{
    (void)state;
    accounts list = {0};
    account *held = open_at(&list, "a", 0);
    int64_t now = 5 * SECOND;
    for (int i = 0; i < 1024; i++)
        assert_true(account_may_join(held, now));
    assert_false(account_may_join(held, now));
    int joined = 0;
    for (int i = 0; i < 10000; i++)
        joined += account_may_join(held, now += SECOND / 10000);
    assert_in_range(joined, 99, 101);
    held->seats = ACCOUNT_SEATS;
    assert_false(account_may_join(held, now + MINUTE));
    accounts_free(&list);
}

static void test_account_may_have__doubles_with_each_answer(void **state)
{
    (void)state;
    accounts list = {0};
    account *held = open_at(&list, "a", 0);
    for (int64_t most = 1; most <= 512; most *= 2) {
        held->leases = most - 1;
        assert_true(account_may_have(held));
        held->leases = most;
        assert_false(account_may_have(held));
        account_answered(held);
    }
    for (int i = 0; i < 100; i++)
        account_answered(held);
    assert_true(account_may_have(held));
    account_lost(held);
    assert_false(account_may_have(held));
    held->leases = 0;
    assert_true(account_may_have(held));
    accounts_free(&list);
}

static void test_accounts_admit__lifts_all_of_a_name(void **state)
{
    (void)state;
    accounts list = {0};
    account *one = open_key(&list, "key-1", "node"), *two = open_key(&list, "key-2", "node"),
            *other = open_key(&list, "key-3", "other");
    account_exclude(one, "it lies", 0);
    account_watch(two);
    penalty_set(&two->suspected, 0, 0);
    account_exclude(other, "it lies", 0);
    const char *was;
    assert_int_equal(accounts_admit(&list, "node", 0, &was), 2);
    assert_string_equal(was, "excluded");
    assert_false(account_is_excluded(one, 0));
    assert_int_equal(two->watched, 0);
    assert_false(penalty_holds(&two->suspected, 0));
    assert_true(account_is_excluded(other, 0));
    assert_int_equal(accounts_admit(&list, "nobody", 0, &was), 0);
    accounts_free(&list);
}

/* However many addresses come, an excluded one keeps its place, and a place is used again once
 * nothing is to be remembered of it. */
static void test_accounts__a_crowd_displaces_nobody_excluded(void **state)
{
    (void)state;
    accounts list = {0};
    char host[16];
    const uint64_t bad = open_at(&list, "10.0.0.1", 0)->number;
    account_exclude(account_of(&list, bad), "it lies", 0);
    for (int i = 0; i < 3 * MAX_ACCOUNTS; i++) {
        snprintf(host, sizeof host, "10.1.%d.%d", i / 250, i % 250);
        assert_non_null(open_at(&list, host, SECOND));
    }
    assert_int_equal(list.used, MAX_ACCOUNTS);
    assert_true(account_is_excluded(open_at(&list, "10.0.0.1", SECOND), SECOND));
    accounts_free(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account__is_of_a_key_an_address_or_ipc),
        cmocka_unit_test(test_account_exclude__minutes_double_up_to_64),
        cmocka_unit_test(test_account_breach__seconds_double_after_three),
        cmocka_unit_test(test_account__the_longer_exclusion_stands),
        cmocka_unit_test(test_account_watch__rows_double),
        cmocka_unit_test(test_account_may_join__a_burst_then_a_rate),
        cmocka_unit_test(test_account_may_have__doubles_with_each_answer),
        cmocka_unit_test(test_accounts_admit__lifts_all_of_a_name),
        cmocka_unit_test(test_accounts__a_crowd_displaces_nobody_excluded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
