/* Tests of core/audit.c: a row that is made twice is sent once if both are alike, and otherwise a
 * third worker decides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"
#include "tests/harness.h"
#include "tests/unit/prepd/serve/still_world.h"

enum { GOOD = 1, FLIPPED = 2, OTHER = 3, ROW = 5 };

typedef struct scene {
    dispatch state;
    conf options;
    consumer_seat *consumer;
    lease *work;
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
    all->consumer->n_slots = 1;
    all->consumer->slots[0].row = ROW;
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

/* Worker `number` makes the row with a digest that begins with this byte. */
static void make(scene *all, uint64_t number, uint8_t digest)
{
    const frame head = {.kind = KIND_ROW, .row = ROW, .digest = {{digest}}};
    uint8_t bytes[FRAME_BYTES];
    wire_msg *message = NULL;
    frame_encode(&head, bytes);
    assert_ok(wire_msg_new(&message));
    assert_ok(wire_msg_add(message, bytes, sizeof bytes));
    assert_ok(wire_msg_add(message, "block", 5));
    free(all->work->tag);
    all->work->tag = strdup("{}");
    all->work->by = number;
    assert_ok(audit_made(&all->state, all->work, seat_of_number(&all->state, number), message));
    wire_msg_free(&message);
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
    assert_int_equal(all.state.local.target, 0); /* it is not needed any more */
    assert_null(seat_of_number(&all.state, 2));
    tear_down(&all);
}

static void test_audit__none_is_drawn_where_workers_may_differ(void **state)
{
    (void)state;
    scene all;
    set_up(&all, 3);
    all.options.prepd_mixed_workers = true;
    make(&all, 1, GOOD);
    assert_int_equal(all.sent, GOOD);
    assert_int_equal(all.state.counts.unaudited, 0);
    tear_down(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_audit__two_alike_are_sent_once),
        cmocka_unit_test(test_audit__a_third_decides),
        cmocka_unit_test(test_audit__three_that_differ_blame_nobody),
        cmocka_unit_test(test_audit__one_worker_is_not_waited_for),
        cmocka_unit_test(test_audit__starts_a_worker_to_decide),
        cmocka_unit_test(test_audit__none_is_drawn_where_workers_may_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
