/* Tests of core/audit.c: a row that is made twice is sent once if both are alike, and otherwise a
 * third worker decides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

enum { GOOD = 1, FLIPPED = 2, OTHER = 3, ROW = 5, MOST_ROWS = 20000 };

typedef struct scene {
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

static void add_worker(scene *all, uint64_t number, const char *host)
{
    worker_seat *worker = (worker_seat *)calloc(1, sizeof *worker);
    assert_non_null(worker);
    *worker = (worker_seat){
        .number = number, .pid = (pid_t)number + 100, .proved = true, .next = all->state.seats};
    snprintf(worker->host, sizeof worker->host, "%s", host);
    all->state.seats = worker;
    all->state.n_seats++;
}

/* A daemon that has every row made twice, with a consumer that waits for row 5. */
static void set_up(scene *all, int workers)
{
    static const char *const host[] = {"a", "a", "b"};
    *all = (scene){0};
    all->options.prepd_audit = 1;
    all->state = (dispatch){.outside = still_world(), .options = &all->options};
    all->state.outside.shell = all;
    all->state.outside.send = note_sent;
    lease_book_init(&all->state.book, 2);
    for (int k = 0; k < workers; k++)
        add_worker(all, (uint64_t)k + 1, host[k]);
    all->consumer = (consumer_seat *)calloc(1, sizeof *all->consumer);
    assert_non_null(all->consumer);
    all->consumer->src = &all->state.train;
    all->consumer->welcomed = true;
    all->consumer->n_slots = 1;
    all->row = all->consumer->slots[0].row = ROW;
    all->state.consumer_seats = all->consumer;
    all->state.n_consumers = 1;
    assert_ok(lease_new(&all->state.book, LEASE_ROW, all->consumer, ROW, NULL, 0, &all->work));
}

static void tear_down(scene *all)
{
    consumer_close(&all->state, all->consumer, NULL);
    while (all->state.seats) {
        worker_seat *worker = all->state.seats;
        all->state.seats = worker->next;
        free(worker);
    }
    lease_book_forget(&all->state.book, NULL);
}

/* The linker gives every call of calloc to this one (--wrap). */
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
static size_t refused_size; /* of the objects that get no memory; 0: none */

void *__wrap_calloc(size_t count, size_t size)
{
    return size == refused_size ? NULL : __real_calloc(count, size);
}

/* Worker `number` makes the row with a digest that begins with this byte. */
static status try_make(scene *all, uint64_t number, uint8_t digest)
{
    const frame head = {.kind = KIND_ROW, .row = all->row, .digest = {{digest}}};
    uint8_t bytes[FRAME_BYTES];
    wire_msg *message = NULL;
    frame_encode(&head, bytes);
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_msg_add(message, bytes, sizeof bytes));
    assert_ok(wire_msg_add(message, "block", 5));
    free(all->work->tag);
    all->work->tag = strdup("{}");
    all->work->by = number;
    const status st =
        audit_made(&all->state, all->work, seat_of_number(&all->state, number), message);
    wire_msg_free(&message);
    return st;
}

static void make(scene *all, uint64_t number, uint8_t digest)
{
    assert_ok(try_make(all, number, digest));
}

/* Takes the row from the book for another worker to make. */
static void give(scene *all, uint64_t number)
{
    const worker_seat *worker = seat_of_number(&all->state, number);
    all->work = lease_book_take(&all->state.book, false);
    assert_non_null(all->work);
    assert_true(audit_may_take(&all->state, worker, all->work));
}

static bool may_make(const scene *all, uint64_t number)
{
    return audit_may_take(&all->state, seat_of_number(&all->state, number), all->state.book.lost);
}

static void test_audit__two_alike_are_sent_once(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    make(&all, 1, GOOD);
    assert_int_equal(all.sent, 0);
    assert_false(may_make(&all, 1)); /* not by the same again */
    assert_false(may_make(&all, 2)); /* nor on the same host, while there is another */
    give(&all, 3);
    make(&all, 3, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_int_equal(all.sent_row, ROW);
    assert_int_equal(all.state.counts.audited, 1);
    assert_int_equal(all.state.counts.deviants, 0);
    assert_true(all.consumer->made[0].audited);
    tear_down(&all);
}

/* Whichever of the two is wrong, the third says so. */
static void test_audit__a_third_decides(void **state)
{
    (void)state;
    for (uint64_t wrong = 1; wrong <= 3; wrong += 2) {
        scene all;
        set_up(&all, 3);
        make(&all, 1, wrong == 1 ? FLIPPED : GOOD);
        give(&all, 3);
        make(&all, 3, wrong == 3 ? FLIPPED : GOOD);
        assert_int_equal(all.sent, 0);
        give(&all, 2);
        make(&all, 2, GOOD);
        assert_int_equal(all.sent, GOOD);
        assert_null(seat_of_number(&all.state, wrong)); /* it is dismissed */
        assert_int_equal(all.state.n_seats, 2);
        assert_int_equal(all.state.counts.deviants, 1);
        tear_down(&all);
    }
}

static void test_audit__three_that_differ_blame_nobody(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    make(&all, 1, GOOD);
    give(&all, 3);
    make(&all, 3, FLIPPED);
    give(&all, 2);
    make(&all, 2, OTHER);
    assert_int_equal(all.sent, OTHER);
    assert_int_equal(all.state.n_seats, 3);
    tear_down(&all);
}

/* The next row that the consumer waits for. */
static void next_row(scene *all, uint64_t row)
{
    consumer_seat *consumer = all->consumer;
    assert_int_equal(consumer->n_slots, 0);
    consumer->slots[consumer->first_slot] = (slot){.row = all->row = row};
    consumer->n_slots = 1;
    all->sent = 0;
    assert_ok(lease_new(&all->state.book, LEASE_ROW, consumer, row, NULL, 0, &all->work));
}

/* Two workers make the rows in turn, and the second one flips a bit in one of a hundred of them.
 * Those that are compared are made by the other one too. Returns how many rows came false. */
static int make_rows(scene *all)
{
    int false_rows = 0;
    for (uint64_t row = 0; all->state.counts.deviants == 0 && row < MOST_ROWS; row++) {
        const uint8_t second = row % 100 == 7 ? FLIPPED : GOOD;
        const bool by_second = row % 2 == 1;
        next_row(all, row);
        make(all, by_second ? 3 : 1, by_second ? second : GOOD);
        if (!all->sent) {
            give(all, by_second ? 1 : 3);
            make(all, by_second ? 1 : 3, by_second ? GOOD : second);
        }
        if (!all->sent) {
            give(all, 2);
            make(all, 2, GOOD);
        }
        false_rows += all->sent == FLIPPED;
    }
    return false_rows;
}

/* prepd.audit 0.05 finds it after some thousand rows, whatever the secret is, and lists rows that
 * nobody compared. No row is sent false that was compared. */
static void test_audit__finds_one_false_row_in_a_hundred(void **state)
{
    enum { SECRETS = 8 };
    uint64_t rows = 0;
    (void)state;
    for (uint64_t secret = 0; secret < SECRETS; secret++) {
        scene all;
        set_up(&all, 3);
        lease_free(&all.work);
        all.consumer->n_slots = 0;
        all.options.prepd_audit = 0.05;
        all.state.place.secret = secret;
        const int false_rows = make_rows(&all);
        assert_null(seat_of_number(&all.state, 3));
        assert_int_equal(all.state.n_seats, 2);
        assert_int_equal(all.row % 100, 7);
        assert_int_equal(all.sent, GOOD);
        assert_int_equal(false_rows, all.row / 100);
        assert_non_null(strstr(status_text(), "worker 103 on b"));
        assert_null(strstr(status_text(), "nobody compared: none"));
        rows += all.row;
        tear_down(&all);
    }
    assert_in_range(rows / SECRETS, 1000, 4000); /* 2,000 on average */
}

/* A row that cannot be kept for want of memory leaves its lease in the book, which the daemon frees
 * when it ends. */
static void test_audit__no_memory_loses_no_lease(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    refused_size = sizeof(row_audit);
    assert_fails(ST_NO_MEMORY, try_make(&all, 1, GOOD), "no memory to audit a row");
    refused_size = 0;
    assert_ptr_equal(all.state.book.lost, all.work);
    assert_int_equal(all.sent, 0);
    tear_down(&all);
}

/* A row waits for no second worker where there is none, or where the last other one has left. */
static void test_audit__one_worker_is_not_waited_for(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 1);
    make(&all, 1, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_int_equal(all.state.counts.unaudited, 1);
    tear_down(&all);
    set_up(&all, 2);
    make(&all, 1, GOOD);
    audits_go_on(&all.state);
    assert_int_equal(all.sent, 0);
    seat_of_number(&all.state, 2)->ended = true;
    audits_go_on(&all.state);
    assert_int_equal(all.sent, GOOD);
    assert_int_equal(all.state.counts.unaudited, 1);
    assert_false(all.consumer->made[0].audited);
    tear_down(&all);
}

/* The other machine's copy of the data lacks a file of the row: another process on the first one's
 * machine makes it. Whoever comes from the other machine later has that copy as well, unless it is
 * sent the files. */
static void test_audit__a_machine_that_lacks_a_file_is_not_asked_again(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    make(&all, 1, GOOD);
    give(&all, 3);
    audit_missed(all.work, seat_of_number(&all.state, 3));
    lease_book_return(&all.state.book, all.work);
    seat_retire(&all.state, seat_of_number(&all.state, 3), true);
    add_worker(&all, 4, "b");
    assert_false(may_make(&all, 4));
    assert_true(may_make(&all, 2));
    audits_go_on(&all.state);
    assert_int_equal(all.sent, 0);
    seat_of_number(&all.state, 4)->ship = true;
    give(&all, 4);
    make(&all, 4, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_int_equal(all.state.counts.audited, 1);
    tear_down(&all);
}

/* The same for a sample of which one says that it cannot be decoded: the other machine's workers
 * lack its file, and are not waited for, however often they start anew. */
static void test_audit__no_word_waits_for_who_lacks_the_file(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    seat_retire(&all.state, seat_of_number(&all.state, 2), false);
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    assert_int_equal(lease_solo_item(all.work), 7);
    assert_true(failure_may_try(&all.state, seat_of_number(&all.state, 3), all.work));
    failure_missed(all.work, seat_of_number(&all.state, 3));
    seat_retire(&all.state, seat_of_number(&all.state, 3), true);
    add_worker(&all, 4, "b");
    assert_false(failure_may_try(&all.state, seat_of_number(&all.state, 4), all.work));
    failures_go_on(&all.state);
    assert_null(all.work->failures);
    assert_non_null(bad_samples_find(&all.state.train.bad, 7));
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* All others lack a file of the row, or many machines did: the row is sent. */
static void test_audit__who_lacks_a_file_is_not_waited_for(void **state)
{
    (void)state;
    static const char *const elsewhere[] = {"b", "c", "d"};
    for (int machines = 1; machines <= MOST_LACKING; machines += MOST_LACKING - 1) {
        scene all;
        set_up(&all, 1);
        for (int k = 0; k < machines; k++)
            add_worker(&all, (uint64_t)k + 2, elsewhere[k]);
        make(&all, 1, GOOD);
        for (int k = 0; k < machines; k++) {
            audits_go_on(&all.state);
            assert_int_equal(all.sent, 0);
            give(&all, (uint64_t)k + 2);
            audit_missed(all.work, seat_of_number(&all.state, (uint64_t)k + 2));
            lease_book_return(&all.state.book, all.work);
        }
        add_worker(&all, 9, machines == 1 ? "b" : "e");
        audits_go_on(&all.state);
        assert_int_equal(all.sent, GOOD);
        assert_int_equal(all.state.counts.unaudited, 1);
        assert_null(all.state.book.lost);
        tear_down(&all);
    }
}

/* Two rows that differ and nobody to decide: another local worker is started. */
static void test_audit__starts_a_worker_to_decide(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 2);
    make(&all, 1, GOOD);
    give(&all, 2);
    make(&all, 2, FLIPPED);
    audits_go_on(&all.state);
    audits_go_on(&all.state);
    assert_int_equal(all.state.local.target, 1);
    add_worker(&all, 9, "a");
    give(&all, 9);
    make(&all, 9, GOOD);
    assert_int_equal(all.sent, GOOD);
    seats_schedule(&all.state);
    assert_int_equal(all.state.local.target, 0); /* it is no longer needed */
    assert_null(seat_of_number(&all.state, 2));
    tear_down(&all);
}

/* Two rows that differ wait for a third worker, which is being started. */
static void disagree(scene *all)
{
    set_up(all, 2);
    make(all, 1, GOOD);
    give(all, 2);
    make(all, 2, FLIPPED);
    audits_go_on(&all->state);
    assert_int_equal(all->state.local.target, 1);
}

/* That other rows come out alike does not send the worker home that is to decide. */
static void test_audit__the_third_stays_until_all_is_decided(void **state)
{
    (void)state;
    scene all;
    disagree(&all);
    assert_ok(lease_new(&all.state.book, LEASE_ROW, all.consumer, ROW + 1, NULL, 0, &all.work));
    make(&all, 1, GOOD);
    give(&all, 2);
    make(&all, 2, GOOD);
    assert_int_equal(all.state.counts.audited, 1);
    assert_int_equal(all.state.local.target, 1);
    tear_down(&all);
}

/* A row whose consumer has left needs no decision. */
static void test_audit__the_third_goes_with_the_consumer(void **state)
{
    (void)state;
    scene all;
    disagree(&all);
    lease_book_forget(&all.state.book, all.consumer);
    seats_schedule(&all.state);
    assert_int_equal(all.state.local.target, 0);
    tear_down(&all);
}

/* An operator's number of workers is without the one that decides, which is called again. */
static void test_audit__the_third_outlives_an_operator(void **state)
{
    (void)state;
    scene all;
    disagree(&all);
    local_want(&all.state, 3);
    audits_go_on(&all.state);
    assert_int_equal(all.state.local.target, 4);
    add_worker(&all, 9, "a");
    give(&all, 9);
    make(&all, 9, GOOD);
    seats_schedule(&all.state);
    assert_int_equal(all.state.local.target, 3);
    tear_down(&all);
}

/* Worker 2 cannot decode a sample of a row that worker 1 has made: worker 1 is the one to ask. */
static void test_audit__the_maker_may_try_a_sample_alone(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 2);
    make(&all, 1, GOOD);
    give(&all, 2);
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 2)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    assert_int_equal(lease_solo_item(all.work), 7);
    assert_false(failure_may_try(&all.state, seat_of_number(&all.state, 2), all.work));
    assert_true(failure_may_try(&all.state, seat_of_number(&all.state, 1), all.work));
    assert_true(may_make(&all, 1));
    tear_down(&all);
}

/* Two disagree about a sample that is quarantined meanwhile, by what was found in another row: the
 * one that could not decode it either is not dismissed. */
static void test_audit__what_is_known_to_be_bad_dismisses_nobody(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    failure_denied(all.work, seat_of_number(&all.state, 3));
    failures_go_on(&all.state);
    assert_non_null(all.work->failures); /* worker 2 is to decide */
    seats_quarantine(&all.state, &all.state.train, 7, "no picture");
    failures_go_on(&all.state);
    assert_null(all.work->failures);
    assert_int_equal(all.state.n_seats, 3);
    assert_int_equal(all.state.counts.deviants, 0);
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* A prefix that one worker cannot decode has two branches: one that the consumer's own list has,
 * and one that is quarantined meanwhile. Whoever is asked about it then makes it blank, and has
 * decoded nothing: that dismisses nobody, and puts no sample of the consumer's list into
 * quarantine. */
static void test_audit__what_is_blank_for_its_consumer_dismisses_nobody(void **state)
{
    (void)state;
    static const int64_t items[] = {~7, 7, 8};
    scene all;
    known_list known = {0};
    set_up(&all, 3);
    lease_free(&all.work);
    assert_ok(lease_new(&all.state.book, LEASE_ROW, all.consumer, ROW, items, 3, &all.work));
    assert_ok(lease_set_branches(all.work, 0, 2));
    assert_ok(bad_samples_add(&known.bad, 8, NULL, NULL));
    all.consumer->known = &known;
    assert_ok(failure_told(all.work, ~7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    assert_int_equal(lease_solo_item(all.work), ~7);
    seats_quarantine(&all.state, &all.state.train, 7, "no picture");
    for (uint64_t other = 2; other <= 3; other++) {
        failure_denied(all.work, seat_of_number(&all.state, other));
        failures_settle(&all.state, all.work);
    }
    assert_null(all.work->failures);
    assert_int_equal(all.state.n_seats, 3);
    assert_int_equal(all.state.counts.deviants, 0);
    assert_null(bad_samples_find(&all.state.train.bad, 8));
    bad_samples_done(&all.state.train.bad);
    all.consumer->known = NULL;
    bad_samples_done(&known.bad);
    tear_down(&all);
}

/* The only worker that is there says that a sample cannot be decoded. A local worker that is still
 * to come is asked too; once nobody is to come, the one's word counts. */
static void test_audit__a_local_worker_to_come_is_waited_for(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 1);
    all.state.local.target = 1;
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    failures_go_on(&all.state);
    assert_non_null(all.work->failures);
    assert_null(bad_samples_find(&all.state.train.bad, 7));
    all.state.local.target = 0;
    failures_go_on(&all.state);
    assert_null(all.work->failures);
    assert_non_null(bad_samples_find(&all.state.train.bad, 7));
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* A worker that the system does not start for a minute is waited for no longer. */
static void test_audit__a_local_worker_that_cannot_be_started(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 1);
    all.state.local.target = 1;
    all.state.local.unstarted_ns = all.state.now_ns = 1;
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    all.state.now_ns += INT64_C(59000000000);
    failures_go_on(&all.state);
    assert_null(bad_samples_find(&all.state.train.bad, 7));
    all.state.now_ns += INT64_C(2000000000);
    failures_go_on(&all.state);
    assert_non_null(bad_samples_find(&all.state.train.bad, 7));
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* The same where someone kills every worker before it begins, until one begins. */
static void test_audit__local_workers_that_are_killed_at_every_start(void **state)
{
    (void)state;
    scene all;
    const child_end killed = {.how = PROC_END_OUTSIDE, .code = -1, .what = "signal 9"};
    set_up(&all, 1);
    all.state.local.target = 1;
    for (pid_t pid = 1000; pid < 1080; pid++) { /* a second each, once there is a pause */
        all.state.local.child[0] = (local_child){.pid = pid};
        all.state.local.n_places = 1;
        all.state.now_ns += INT64_C(1000000000);
        child_ended(&all.state, pid, &killed);
    }
    assert_false(local_is_expected(&all.state));
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    assert_non_null(bad_samples_find(&all.state.train.bad, 7));
    local_begun(&all.state, 1);
    assert_true(local_is_expected(&all.state));
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* The local worker that said so leaves, or has ended. The one that comes in its place is asked. */
static void test_audit__who_replaces_the_only_one_is_waited_for(void **state)
{
    (void)state;
    for (int ended = 0; ended < 2; ended++) {
        scene all;
        set_up(&all, 1);
        worker_seat *said = seat_of_number(&all.state, 1);
        said->local = true;
        said->ended = ended;
        all.state.local.child[0] = (local_child){.pid = said->pid, .leaving = !ended};
        all.state.local.n_places = 1;
        all.state.local.target = 1;
        assert_ok(failure_told(all.work, 7, "no picture", said));
        lease_book_return(&all.state.book, all.work);
        failures_settle(&all.state, all.work);
        assert_non_null(all.work->failures);
        assert_null(bad_samples_find(&all.state.train.bad, 7));
        tear_down(&all);
    }
}

/* A worker that said so of one sample went before its answer was done with. The sample is tried
 * alone all the same before the whole row is made again. */
static void test_audit__what_was_said_by_one_that_went_is_tried(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_go_on(&all.state);
    assert_int_equal(lease_solo_item(all.work), 7);
    tear_down(&all);
}

/* A local worker that has said so itself is not waited for. */
static void test_audit__the_only_local_worker_is_believed(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 1);
    all.state.local.target = 1;
    seat_of_number(&all.state, 1)->local = true;
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    assert_non_null(bad_samples_find(&all.state.train.bad, 7));
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* A daemon that is drained sends every row that was made once, before it stops. */
static void test_audit__a_drain_sends_what_was_made(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 2);
    make(&all, 1, GOOD);
    assert_ok(lease_new(&all.state.book, LEASE_ROW, all.consumer, ROW + 1, NULL, 0, &all.work));
    make(&all, 1, GOOD);
    all.state.draining = true;
    for (int turns = 0; turns < 9 && !all.state.stopping; turns++)
        dispatch_turn(&all.state);
    assert_true(all.state.stopping);
    assert_int_equal(all.sent, GOOD);
    assert_int_equal(all.state.counts.unaudited, 2);
    assert_null(all.state.book.lost);
    tear_down(&all);
}

/* A worker that has not said anything yet leaves in the turn in which the daemon looks whether all
 * is done. In the next one nobody is left to ask about the sample, which is decided then. */
static void test_audit__a_drain_waits_for_a_sample_that_is_not_decided(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 2);
    worker_seat *leaves = seat_of_number(&all.state, 2);
    leaves->local = true;
    all.state.local.child[0] = (local_child){.pid = leaves->pid, .leaving = true};
    all.state.local.n_places = 1;
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    all.state.draining = true;
    dispatch_turn(&all.state);
    assert_int_equal(all.state.n_seats, 1);
    assert_non_null(all.state.book.lost);
    assert_false(all.state.stopping);
    failures_go_on(&all.state);
    assert_non_null(bad_samples_find(&all.state.train.bad, 7));
    bad_samples_done(&all.state.train.bad);
    tear_down(&all);
}

/* Two workers disagree about a sample, and nobody will come: a drain does not wait for that. */
static void test_audit__a_drain_leaves_what_nobody_can_decide(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 2);
    assert_ok(failure_told(all.work, 7, "no picture", seat_of_number(&all.state, 1)));
    lease_book_return(&all.state.book, all.work);
    failures_settle(&all.state, all.work);
    failure_denied(all.work, seat_of_number(&all.state, 2));
    all.state.draining = true;
    dispatch_turn(&all.state);
    assert_true(all.state.stopping);
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
        assert_ok(sent_row_add(consumer, &(made_row){row, row + 1, BYTES, false}));
        consumer->unreturned += BYTES;
    }
    for (uint64_t row = 0; row < ROWS; row++)
        assert_int_equal(sent_row_find(consumer, row)->by, row + 1);
    for (uint64_t row = ROWS; row < 4 * ROWS; row++) /* each is given back before the next */
        assert_ok(sent_row_add(consumer, &(made_row){row, row + 1, BYTES, false}));
    assert_in_range(consumer->made_capacity, ROWS, 4 * ROWS);
    assert_non_null(sent_row_find(consumer, 4 * ROWS - SESSION_SLOTS));
    assert_null(sent_row_find(consumer, 4 * ROWS));
    free(consumer->made);
    free(consumer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_audit__two_alike_are_sent_once),
        cmocka_unit_test(test_audit__a_third_decides),
        cmocka_unit_test(test_audit__three_that_differ_blame_nobody),
        cmocka_unit_test(test_audit__finds_one_false_row_in_a_hundred),
        cmocka_unit_test(test_audit__no_memory_loses_no_lease),
        cmocka_unit_test(test_audit__one_worker_is_not_waited_for),
        cmocka_unit_test(test_audit__a_machine_that_lacks_a_file_is_not_asked_again),
        cmocka_unit_test(test_audit__who_lacks_a_file_is_not_waited_for),
        cmocka_unit_test(test_audit__no_word_waits_for_who_lacks_the_file),
        cmocka_unit_test(test_audit__starts_a_worker_to_decide),
        cmocka_unit_test(test_audit__the_third_stays_until_all_is_decided),
        cmocka_unit_test(test_audit__the_third_goes_with_the_consumer),
        cmocka_unit_test(test_audit__the_third_outlives_an_operator),
        cmocka_unit_test(test_audit__the_maker_may_try_a_sample_alone),
        cmocka_unit_test(test_audit__what_is_known_to_be_bad_dismisses_nobody),
        cmocka_unit_test(test_audit__what_is_blank_for_its_consumer_dismisses_nobody),
        cmocka_unit_test(test_audit__a_local_worker_to_come_is_waited_for),
        cmocka_unit_test(test_audit__a_local_worker_that_cannot_be_started),
        cmocka_unit_test(test_audit__local_workers_that_are_killed_at_every_start),
        cmocka_unit_test(test_audit__what_was_said_by_one_that_went_is_tried),
        cmocka_unit_test(test_audit__the_only_local_worker_is_believed),
        cmocka_unit_test(test_audit__who_replaces_the_only_one_is_waited_for),
        cmocka_unit_test(test_audit__a_drain_sends_what_was_made),
        cmocka_unit_test(test_audit__a_drain_waits_for_a_sample_that_is_not_decided),
        cmocka_unit_test(test_audit__a_drain_leaves_what_nobody_can_decide),
        cmocka_unit_test(test_sent_rows__all_under_way_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
