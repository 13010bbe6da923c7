/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of core/decisions/doubts.c: who is believed about a row and a sample, and
 * what happens to whom deciders contradict. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

enum { GOOD = 1, FALSE = 2, OTHER = 3, ROW = 5 };
/* The workers of a scene: two of the daemon's own, then two of the keys "b" and "c". */
enum { LOCAL = 1, SECOND = 2, THIRD = 3, REMOTE = 4, OTHER_REMOTE = 5 };
static const int64_t SECOND_NS = 1000000000;

typedef struct scene {
    int fail_at; /* which allocation of a row that was made; -1: none */
    dispatch state;
    conf options;
    consumer_seat *consumer;
    lease *work;
    uint64_t row; /* that is made */
    uint64_t sent_row;
    uint8_t sent; /* the first byte of the digest of the row that was sent; 0: none was */
} scene;

static status note_sent(void *shell, door at, const wire_peer *to, wire_msg *message)
{
    scene *all = (scene *)shell;
    frame head;
    (void)to;
    assert_ok(frame_decode(wire_msg_part(message, 0), "sent", &head));
    if (at == DOOR_CONSUMERS && head.kind == KIND_ROW) {
        assert_int_equal(all->sent, 0);
        all->sent = head.digest.bytes[0];
        all->sent_row = head.row;
        assert_int_equal(wire_msg_parts(message), 3); /* header, block, tag */
    }
    wire_msg_clear(message);
    return ST_OK;
}

static void add_worker(scene *all, uint64_t number)
{
    worker_seat *worker = (worker_seat *)calloc(1, sizeof *worker);
    const bool local = number <= THIRD;
    assert_non_null(worker);
    *worker = (worker_seat){.number = number,
                            .pid = (pid_t)number + 100,
                            .proved = true,
                            .local = local,
                            .decider = local,
                            .next = all->state.seats};
    if (!local) {
        assert_ok(account_open(&all->state.accounts, &(wire_peer){0}, number == REMOTE ? "b" : "c",
                               all->state.now_ns, &worker->of));
        worker->of->uses++;
        worker->of->seats++;
    }
    all->state.seats = worker;
    all->state.n_seats++;
}

/* A daemon with these workers that has every row checked, and a consumer that waits for row 5. */
static void set_up(scene *all, const uint64_t *workers)
{
    *all = (scene){.fail_at = -1};
    all->options.prepd_audit = 1;
    all->state =
        (dispatch){.outside = still_world(), .options = &all->options, .now_ns = SECOND_NS};
    all->state.outside.shell = all;
    all->state.outside.send = note_sent;
    lease_book_init(&all->state.book, 2);
    while (*workers)
        add_worker(all, *workers++);
    all->consumer = (consumer_seat *)calloc(1, sizeof *all->consumer);
    assert_non_null(all->consumer);
    assert_ok(account_open(&all->state.accounts, &(wire_peer){0}, "reader", all->state.now_ns,
                           &all->consumer->of));
    all->consumer->of->uses++;
    all->consumer->src = &all->state.train;
    all->consumer->welcomed = true;
    all->consumer->n_slots = 1;
    all->row = all->consumer->slots[0].row = ROW;
    all->state.consumer_seats = all->consumer;
    all->state.n_consumers = 1;
    assert_ok(lease_new(&all->state.book, LEASE_ROW, all->consumer, ROW, NULL, 0, &all->work));
}

#define SET_UP(all, ...) set_up(all, (const uint64_t[]){__VA_ARGS__, 0})

static void tear_down(scene *all)
{
    consumer_close(&all->state, all->consumer, NULL);
    while (all->state.seats) {
        worker_seat *worker = all->state.seats;
        all->state.seats = worker->next;
        free(worker);
    }
    lease_book_forget(&all->state.book, NULL);
    accounts_free(&all->state.accounts);
}

/* The linker gives every call of calloc to this one (--wrap). */
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
static int allocations_left = -1; /* before one fails; -1: none does */

void *__wrap_calloc(size_t count, size_t size)
{
    return allocations_left >= 0 && allocations_left-- == 0 ? NULL : __real_calloc(count, size);
}

/* Worker `number` makes the row with a digest that begins with this byte. A decider compares it
 * with the rows that it was given. */
static status try_make(scene *all, uint64_t number, uint8_t digest)
{
    const frame head = {.kind = KIND_ROW, .row = all->row, .digest = {{digest}}};
    const worker_seat *worker = seat_of_number(&all->state, number);
    const wire_msg *given[2];
    uint8_t bytes[FRAME_BYTES];
    wire_msg *message = NULL;
    frame_encode(&head, bytes);
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_msg_add(message, bytes, sizeof bytes));
    assert_ok(wire_msg_add(message, "block", 5));
    free(all->work->tag);
    all->work->tag = strdup("{}");
    all->work->by = number;
    all->work->account = worker->decider ? 0 : worker->of->number;
    for (int k = 0, count = doubt_rows(all->work, given); k < count; k++)
        all->work->same[k] = made_digest(given[k]).bytes[0] == digest;
    allocations_left = all->fail_at;
    const status st = row_made(&all->state, all->work, worker, message);
    allocations_left = -1;
    wire_msg_free(&message);
    return st;
}

static void make(scene *all, uint64_t number, uint8_t digest)
{
    assert_ok(try_make(all, number, digest));
}

typedef struct giver {
    const scene *all;
    const worker_seat *worker;
} giver;

static bool may_do(const void *user, const lease *leased)
{
    const giver *who = (const giver *)user;
    return (who->worker->decider || !lease_needs_decider(leased)) &&
           doubt_may_take(who->worker, leased) &&
           failure_may_try(&who->all->state, who->worker, leased);
}

/* Takes the row from the book for this worker. */
static void give(scene *all, uint64_t number)
{
    const giver who = {all, seat_of_number(&all->state, number)};
    all->work = lease_book_take_if(&all->state.book, false, may_do, &who);
    assert_non_null(all->work);
}

static bool may_make(const scene *all, uint64_t number)
{
    const giver who = {all, seat_of_number(&all->state, number)};
    return lease_book_has(&all->state.book, false, may_do, &who);
}

static bool is_excluded(const scene *all, const char *name)
{
    for (int i = 0; i < all->state.accounts.used; i++)
        if (strcmp(all->state.accounts.of[i]->name, name) == 0)
            return account_is_excluded(all->state.accounts.of[i], all->state.now_ns);
    return false;
}

static void test_doubt__a_decider_makes_it_and_its_row_is_sent(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, REMOTE, OTHER_REMOTE);
    make(&all, REMOTE, GOOD);
    assert_int_equal(all.sent, 0);
    assert_false(may_make(&all, REMOTE));
    assert_false(may_make(&all, OTHER_REMOTE)); /* two of them would prove nothing */
    give(&all, LOCAL);
    make(&all, LOCAL, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_int_equal(all.sent_row, ROW);
    assert_int_equal(all.state.counts.checked, 1);
    assert_int_equal(all.consumer->made[0].account, 0);
    assert_int_equal(all.state.n_seats, 3);
    tear_down(&all);
}

/* A second decider agrees with the first one: the maker's key is excluded, and only the true row
 * was ever sent. All its workers are told to wait, whoever of them made it. */
static void test_doubt__a_false_row_excludes_its_key(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, SECOND, REMOTE, OTHER_REMOTE);
    make(&all, REMOTE, FALSE);
    give(&all, LOCAL);
    make(&all, LOCAL, GOOD);
    assert_int_equal(all.sent, 0);
    assert_false(is_excluded(&all, "b"));
    assert_false(may_make(&all, LOCAL));
    give(&all, SECOND);
    make(&all, SECOND, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_true(is_excluded(&all, "b"));
    assert_false(is_excluded(&all, "c"));
    assert_null(seat_of_number(&all.state, REMOTE));
    assert_int_equal(all.state.n_seats, 3);
    assert_int_equal(all.state.counts.contradicted, 1);
    tear_down(&all);
}

/* Where two deciders differ, a third makes the row, an alarm is raised and nobody is excluded, be
 * it a row of another worker or of one of them. */
static void test_doubt__two_deciders_that_differ_raise_an_alarm(void **state)
{
    (void)state;
    for (int remote = 0; remote < 2; remote++) {
        scene all;
        SET_UP(&all, LOCAL, SECOND, THIRD, REMOTE);
        if (remote) {
            make(&all, REMOTE, FALSE);
            give(&all, LOCAL);
        }
        make(&all, LOCAL, OTHER);
        give(&all, SECOND);
        make(&all, SECOND, GOOD);
        assert_int_equal(all.sent, 0);
        assert_int_equal(all.state.alarm.count, 1);
        assert_int_equal(doubt_deciders(&all.state, all.state.book.lost), 3);
        assert_false(may_make(&all, LOCAL) || may_make(&all, SECOND));
        give(&all, THIRD);
        make(&all, THIRD, GOOD);
        assert_int_equal(all.sent, GOOD);
        assert_false(is_excluded(&all, "b"));
        assert_int_equal(all.state.n_seats, 4);
        tear_down(&all);
    }
}

/* No number of machines that agree on a false row gets it past one local worker; while there is
 * none, nothing leaves. */
static void test_doubt__waits_for_a_decider_at_audit_1(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, REMOTE, OTHER_REMOTE);
    make(&all, REMOTE, FALSE);
    for (int minutes = 0; minutes < 100; minutes++) {
        all.state.now_ns += 60 * SECOND_NS;
        doubts_poll(&all.state);
        assert_false(may_make(&all, OTHER_REMOTE));
    }
    assert_int_equal(all.sent, 0);
    assert_int_equal(doubts_waiting(&all.state), 1);
    assert_int_equal(doubt_deciders(&all.state, all.state.book.lost), 1);
    tear_down(&all);
}

/* Below that, a drawn row waits half a minute for a decider that cannot start. One of a watched key
 * waits on. */
static void test_doubt__a_drawn_row_leaves_unchecked_after_30_s(void **state)
{
    (void)state;
    for (int watched = 0; watched < 2; watched++) {
        scene all;
        SET_UP(&all, REMOTE);
        all.options.prepd_audit = 0.999999999;
        if (watched)
            account_watch(seat_of_number(&all.state, REMOTE)->of);
        make(&all, REMOTE, GOOD);
        all.state.now_ns += 29 * SECOND_NS;
        doubts_poll(&all.state);
        assert_int_equal(all.sent, 0);
        all.state.now_ns += 2 * SECOND_NS;
        doubts_poll(&all.state);
        assert_int_equal(all.sent, watched ? 0 : GOOD);
        assert_int_equal(all.state.counts.unchecked, !watched);
        tear_down(&all);
    }
}

static void test_doubt__a_watched_key_is_checked_row_by_row(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, REMOTE);
    all.options.prepd_audit = 0;
    account *of = seat_of_number(&all.state, REMOTE)->of;
    of->watched = 1;
    make(&all, REMOTE, GOOD);
    assert_int_equal(all.sent, 0);
    assert_int_equal(of->watched, 0);
    give(&all, LOCAL);
    make(&all, LOCAL, GOOD);
    assert_int_equal(all.sent, GOOD);
    tear_down(&all);
}

/* One local worker alone does not make its rows twice, unless every row is to be checked. */
static void test_doubt__a_single_decider_is_not_asked_twice(void **state)
{
    (void)state;
    for (int all_checked = 0; all_checked < 2; all_checked++) {
        scene all;
        SET_UP(&all, LOCAL, REMOTE);
        all.options.prepd_audit = all_checked ? 1 : 0.999999999;
        make(&all, LOCAL, GOOD);
        assert_int_equal(all.sent, all_checked ? 0 : GOOD);
        assert_int_equal(all.state.counts.unchecked, !all_checked);
        tear_down(&all);
    }
}

/* With prepd.workers -1 trusted workers of other machines decide, and this one starts a second
 * decider only after an operator has scaled it up. */
static void test_doubt__a_machine_that_was_scaled_up_starts_a_second_decider(void **state)
{
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        scene all;
        SET_UP(&all, LOCAL);
        all.options.prepd_workers = -1;
        all.state.place.trusted = true;
        local_scale(&all.state, scaled);
        make(&all, LOCAL, FALSE);
        assert_int_equal(all.sent, scaled ? 0 : FALSE);
        assert_int_equal(all.state.counts.unchecked, !scaled);
        tear_down(&all);
    }
}

static void test_doubt__no_memory_loses_no_lease(void **state)
{
    (void)state;
    for (int at = 0; at < 2; at++) {
        scene all;
        SET_UP(&all, LOCAL, REMOTE);
        all.fail_at = at;
        assert_int_equal(try_make(&all, REMOTE, GOOD), ST_NO_MEMORY);
        assert_ptr_equal(all.state.book.lost, all.work);
        assert_int_equal(all.sent, 0);
        tear_down(&all);
    }
}

/* Its documents are others than when it was made: a decider makes it, and the maker is watched. */
static void test_doubt__is_void_when_the_row_becomes_another(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, REMOTE);
    account *of = seat_of_number(&all.state, REMOTE)->of;
    make(&all, REMOTE, FALSE);
    give(&all, LOCAL);
    doubt_void(&all.state.accounts, all.work);
    assert_true(lease_needs_decider(all.work));
    assert_int_equal(of->watched, 16);
    all.options.prepd_audit = 0;
    make(&all, LOCAL, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_false(is_excluded(&all, "b"));
    tear_down(&all);
}

/* Three keys whose words were false within an hour: perhaps it is this machine. */
static void test_key_contradicted__three_in_an_hour_raise_an_alarm(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL);
    account *of;
    lease_free(&all.work);
    for (int k = 0; k < 4; k++) {
        const char host[] = {(char)('p' + k), 0};
        assert_ok(account_open(&all.state.accounts, &(wire_peer){0}, host, all.state.now_ns, &of));
        key_contradicted(&all.state, of->number, "it lied");
        all.state.now_ns += (k == 0 ? 61 : 1) * 60 * SECOND_NS; /* the first is forgotten by then */
        assert_int_equal(all.state.alarm.count, k < 3 ? 0 : 1);
    }
    assert_non_null(strstr(all.state.alarm.why, "q r s"));
    tear_down(&all);
}

/* --- REFUSE --- */

static void refuse(scene *all)
{
    json_value *said = NULL;
    const char text[] = "{\"row\":5,\"message\":\"its digest differs\"}";
    assert_ok(json_parse(text, sizeof text - 1, "test", &said));
    assert_ok(refusal_take(&all->state, all->consumer, said, "test"));
    json_free(&said);
}

/* The consumer is there again, and its row is leased anew. */
static void come_back(scene *all)
{
    consumer_seat *consumer = (consumer_seat *)calloc(1, sizeof *consumer);
    assert_non_null(consumer);
    assert_ok(account_open(&all->state.accounts, &(wire_peer){0}, "reader", all->state.now_ns,
                           &consumer->of));
    consumer->of->uses++;
    consumer->src = &all->state.train;
    consumer->welcomed = true;
    consumer->n_slots = 1;
    consumer->slots[0].row = ROW;
    all->consumer = all->state.consumer_seats = consumer;
    all->state.n_consumers = 1;
    all->sent = 0;
    assert_ok(lease_new(&all->state.book, LEASE_ROW, consumer, ROW, NULL, 0, &all->work));
    assert_ok(refusal_apply(&all->state, consumer, all->work));
}

/* Row 5, made by this worker with this digest, is refused; the consumer comes back for it. */
static void sent_and_refused(scene *all, uint64_t number, uint8_t digest)
{
    all->options.prepd_audit = 0;
    make(all, number, digest);
    assert_int_equal(all->sent, digest);
    refuse(all);
    assert_int_equal(all->state.n_consumers, 0);
    come_back(all);
    assert_true(lease_needs_decider(all->work));
}

static void test_refuse__another_digest_excludes_the_maker(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, SECOND, REMOTE);
    sent_and_refused(&all, REMOTE, FALSE);
    make(&all, LOCAL, GOOD);
    assert_int_equal(all.sent, 0); /* a second one confirms it */
    give(&all, SECOND);
    make(&all, SECOND, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_true(is_excluded(&all, "b"));
    assert_false(penalty_holds(&all.consumer->of->suspected, all.state.now_ns));
    tear_down(&all);
}

/* The digest is the same: its content may have been another, or the consumer is wrong. Both are
 * looked after, and no worker goes. */
static void test_refuse__the_same_digest_watches_both(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, SECOND, REMOTE);
    sent_and_refused(&all, REMOTE, GOOD);
    make(&all, LOCAL, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_false(is_excluded(&all, "b"));
    assert_int_equal(seat_of_number(&all.state, REMOTE)->of->watched, 16);
    assert_true(penalty_holds(&all.consumer->of->suspected, all.state.now_ns));
    assert_false(penalty_holds(&all.consumer->of->refused, all.state.now_ns));
    tear_down(&all);
}

static void test_refuse__what_two_deciders_made_alike_turns_the_consumer_away(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, SECOND, REMOTE);
    sent_and_refused(&all, LOCAL, GOOD);
    lease_book_return(&all.state.book, all.work);
    assert_false(may_make(&all, LOCAL)); /* not by the same again */
    give(&all, SECOND);
    make(&all, SECOND, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_true(penalty_holds(&all.consumer->of->refused, all.state.now_ns));
    assert_int_equal(all.state.alarm.count, 0);
    tear_down(&all);
}

static void test_refuse__what_two_deciders_made_differently_raises_an_alarm(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, SECOND, THIRD);
    sent_and_refused(&all, LOCAL, FALSE);
    make(&all, SECOND, GOOD);
    assert_int_equal(all.sent, 0);
    assert_int_equal(all.state.alarm.count, 1);
    give(&all, THIRD);
    make(&all, THIRD, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_false(penalty_holds(&all.consumer->of->refused, all.state.now_ns));
    tear_down(&all);
}

/* --- samples that cannot be decoded --- */

static void fails(scene *all, uint64_t number, int64_t item)
{
    all->work->all_sent = true;
    assert_ok(failure_note(all->work, item, "no picture", seat_of_number(&all->state, number)));
    lease_book_return(&all->state.book, all->work);
    failures_poll(&all->state);
}

static void test_failure__a_good_sample_excludes_who_reported_it(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, REMOTE, OTHER_REMOTE);
    fails(&all, REMOTE, 7);
    assert_int_equal(lease_solo_item(all.work), 7);
    assert_false(may_make(&all, OTHER_REMOTE));
    give(&all, LOCAL);
    failure_refute(&all.state, all.work, seat_of_number(&all.state, LOCAL));
    lease_solo_done(&all.state.book, all.work);
    assert_true(is_excluded(&all, "b"));
    assert_null(all.work->failures);
    assert_null(bad_samples_find(&all.state.train.bad, 7));
    tear_down(&all);
}

/* The daemon did not send a file with the lease, so what the worker says of it is the daemon's own
 * word. */
static void test_failure__of_a_file_that_was_not_sent_excludes_nobody(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, REMOTE);
    assert_ok(failure_note(all.work, 7, "a link now", seat_of_number(&all.state, REMOTE)));
    lease_book_return(&all.state.book, all.work);
    failures_poll(&all.state);
    give(&all, LOCAL);
    failure_refute(&all.state, all.work, seat_of_number(&all.state, LOCAL));
    lease_solo_done(&all.state.book, all.work);
    assert_false(is_excluded(&all, "b"));
    tear_down(&all);
}

/* A decider's own word is tried by another one where there is another, and excludes nobody. */
static void test_failure__of_a_decider_is_tried_by_another(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, SECOND);
    fails(&all, LOCAL, 7);
    assert_false(may_make(&all, LOCAL));
    assert_true(may_make(&all, SECOND));
    seat_of_number(&all.state, SECOND)->ended = true;
    assert_true(may_make(&all, LOCAL));
    give(&all, LOCAL);
    failure_refute(&all.state, all.work, seat_of_number(&all.state, LOCAL));
    lease_solo_done(&all.state.book, all.work);
    assert_null(all.work->failures);
    assert_int_equal(all.state.counts.contradicted, 0);
    tear_down(&all);
}

/* What has become blank meanwhile, by what was found elsewhere, is not tried: whoever makes it has
 * decoded nothing. */
static void test_failure__what_is_blank_by_now_contradicts_nobody(void **state)
{
    (void)state;
    scene all;
    SET_UP(&all, LOCAL, REMOTE);
    fails(&all, REMOTE, 7);
    quarantine_sample(&all.state, &all.state.train, 7, "no picture");
    failures_poll(&all.state);
    assert_null(all.work->failures);
    assert_int_equal(lease_solo_item(all.work), LEASE_NO_ITEM);
    assert_int_equal(all.state.n_seats, 2);
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* However many small rows are under way, who made each is known. */
static void test_sent_rows__all_under_way_are_known(void **state)
{
    (void)state;
    enum { ROWS = 5000, BYTES = 15000 };
    consumer_seat *consumer = (consumer_seat *)calloc(1, sizeof *consumer);
    assert_non_null(consumer);
    for (uint64_t row = 0; row < ROWS; row++) {
        assert_ok(sent_row_add(consumer, &(made_row){.row = row, .by = row + 1, .bytes = BYTES}));
        consumer->unreturned += BYTES;
    }
    for (uint64_t row = 0; row < ROWS; row++)
        assert_int_equal(sent_row_find(consumer, row)->by, row + 1);
    for (uint64_t row = ROWS; row < 4 * ROWS; row++) /* each is given back before the next */
        assert_ok(sent_row_add(consumer, &(made_row){.row = row, .by = row + 1, .bytes = BYTES}));
    assert_in_range(consumer->made_capacity, ROWS, 4 * ROWS);
    assert_non_null(sent_row_find(consumer, 4 * ROWS - SESSION_SLOTS));
    assert_null(sent_row_find(consumer, 4 * ROWS));
    free(consumer->made);
    free(consumer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doubt__a_decider_makes_it_and_its_row_is_sent),
        cmocka_unit_test(test_doubt__a_false_row_excludes_its_key),
        cmocka_unit_test(test_doubt__two_deciders_that_differ_raise_an_alarm),
        cmocka_unit_test(test_doubt__waits_for_a_decider_at_audit_1),
        cmocka_unit_test(test_doubt__a_drawn_row_leaves_unchecked_after_30_s),
        cmocka_unit_test(test_doubt__a_watched_key_is_checked_row_by_row),
        cmocka_unit_test(test_doubt__a_single_decider_is_not_asked_twice),
        cmocka_unit_test(test_doubt__a_machine_that_was_scaled_up_starts_a_second_decider),
        cmocka_unit_test(test_doubt__no_memory_loses_no_lease),
        cmocka_unit_test(test_doubt__is_void_when_the_row_becomes_another),
        cmocka_unit_test(test_key_contradicted__three_in_an_hour_raise_an_alarm),
        cmocka_unit_test(test_refuse__another_digest_excludes_the_maker),
        cmocka_unit_test(test_refuse__the_same_digest_watches_both),
        cmocka_unit_test(test_refuse__what_two_deciders_made_alike_turns_the_consumer_away),
        cmocka_unit_test(test_refuse__what_two_deciders_made_differently_raises_an_alarm),
        cmocka_unit_test(test_failure__a_good_sample_excludes_who_reported_it),
        cmocka_unit_test(test_failure__of_a_file_that_was_not_sent_excludes_nobody),
        cmocka_unit_test(test_failure__of_a_decider_is_tried_by_another),
        cmocka_unit_test(test_failure__what_is_blank_by_now_contradicts_nobody),
        cmocka_unit_test(test_sent_rows__all_under_way_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
