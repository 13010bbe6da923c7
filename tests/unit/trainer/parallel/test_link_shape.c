/* SPDX-License-Identifier: Apache-2.0 */
/* test_link_shape.c: rank 0's side of an agreement (trainer/parallel/core/link_shape.c) when
 * another rank leaves while a question is open, and whom it names when calls are late. The core is
 * played without sockets: rank r is connected as number r - 1. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/core/link_core.h"

enum { RANKS = 3, MESSAGE_MAX = 256 };

static const link_now now = {.ns = 1, .began = true};
static const uint8_t nothing[LINK_NEEDS];

/* What rank 0 has answered to an event. */
typedef struct answers {
    int shapes;  /* agreements that it sent to a rank */
    bool agreed; /* it has told its own shell */
    bool ended;  /* the job is over */
    char cause[MESSAGE_MAX];
} answers;

static answers take_answers(link_core *core)
{
    answers all = {0};
    link_action action;
    while (link_core_next(core, &action)) {
        if (action.kind == LINK_SEND) /* the shell looks it up in a list */
            assert_in_range(action.conn, 0, RANKS - 2);
        all.shapes += action.kind == LINK_SEND && action.message == CONTROL_SHAPE;
        all.agreed |= action.kind == LINK_AGREED;
        if (action.kind == LINK_ENDS) {
            all.ended = true;
            snprintf(all.cause, sizeof all.cause, "%s", action.text);
        }
    }
    return all;
}

static answers hear_at(link_core *core, link_now when, int rank, rank_link_kind kind,
                       const void *payload, size_t size)
{
    uint8_t bytes[MESSAGE_MAX];
    rank_link_header_put(bytes, kind, size);
    memcpy(bytes + CONTROL_HEADER, payload, size);
    link_core_bytes(core, when, rank - 1, bytes, CONTROL_HEADER + size);
    return take_answers(core);
}

static answers hear(link_core *core, int rank, rank_link_kind kind, const void *payload,
                    size_t size)
{
    return hear_at(core, now, rank, kind, payload, size);
}

static answers hear_need(link_core *core, int rank, uint64_t number, uint8_t need)
{
    uint8_t shape[8 + LINK_NEEDS] = {[8] = need};
    store_u64(shape, number);
    return hear(core, rank, CONTROL_SHAPE, shape, sizeof shape);
}

static void greet(link_core *core, rank_link_hello me, uint32_t rank)
{
    uint8_t *payload;
    size_t size;
    me.rank = rank;
    assert_ok(rank_link_hello_put(&me, &payload, &size));
    link_core_connected(core, now, (int)rank - 1);
    (void)take_answers(core);
    (void)hear(core, (int)rank, CONTROL_HELLO, payload, size);
    free(payload);
}

/* Rank 0, to which all others have come. */
static link_core *meet_all(void)
{
    const uint8_t id[CONTROL_ID_BYTES] = {0};
    const link_terms terms = {
        .me = {.size = RANKS, .host = "a", .version = "b", .options = "c: 1\n"},
        .at_host = "a",
        .timeout_s = 10,
        .silence_s = 10,
        .id = id};
    link_core *core;
    assert_ok(link_core_new(&terms, now, &core));
    link_core_time(core, now);
    (void)take_answers(core);
    for (uint32_t rank = 1; rank < RANKS; rank++)
        greet(core, terms.me, rank);
    return core;
}

static answers ask(link_core *core)
{
    link_core_need(core, now, nothing);
    return take_answers(core);
}

static void test_agree__all_are_answered(void **state)
{
    link_core *core = meet_all();
    (void)state;
    for (uint64_t number = 0; number < 2; number++) {
        assert_false(hear_need(core, 2, number, 7).agreed);
        assert_false(ask(core).agreed);
        const answers last = hear_need(core, 1, number, 9);
        assert_true(last.agreed);
        assert_int_equal(last.shapes, RANKS - 1);
    }
    link_core_free(&core);
}

/* Rank 0 has given up, rank 1 has heard that and hung up, and then rank 2 asks. */
static void test_leave__a_late_rank_asks_when_another_has_hung_up(void **state)
{
    link_core *core = meet_all();
    (void)state;
    (void)ask(core);
    (void)hear_need(core, 1, 0, 1);
    link_core_leave(core, now, "the ranks have not agreed");
    (void)take_answers(core);
    link_core_gone(core, now, 0, NULL);
    assert_false(take_answers(core).ended);
    assert_int_equal(hear_need(core, 2, 0, 1).shapes, 1);
    link_core_free(&core);
}

/* Rank 1 leaves though it has just asked. */
static void test_leave__a_rank_leaves_that_has_asked(void **state)
{
    link_core *core = meet_all();
    (void)state;
    (void)hear_need(core, 1, 0, 1);
    (void)hear(core, 1, CONTROL_BYE, nothing, 0);
    (void)hear_need(core, 2, 0, 1);
    assert_int_equal(ask(core).shapes, 1);
    link_core_free(&core);
}

static answers hear_beat(link_core *core, int rank, rank_link_kind kind)
{
    return hear(core, rank, kind, "there", 5);
}

static answers hear_late(link_core *core, int rank)
{
    return hear(core, rank, CONTROL_LATE, "its words", 9);
}

/* Rank 0, of which the reports of ranks 1 and 2 are of these kinds. */
static link_core *hear_reports(rank_link_kind first, rank_link_kind second)
{
    link_core *core = meet_all();
    (void)hear_beat(core, 1, first);
    (void)hear_beat(core, 2, second);
    return core;
}

/* Calls of rank 0 are late. It names the other that neither waits for it nor for rows. */
static void test_late__who_does_not_wait_is_named(void **state)
{
    static const struct {
        rank_link_kind second;
        const char *cause;
    } cases[] = {{CONTROL_BEAT,
                  "rank 2 (a, pid 0) keeps the others waiting: it hangs in its work or "
                  "is stopped (rank 0 failed: mine); heard last 0.0 s ago: there"},
                 {CONTROL_HELD, "rank 0 failed: mine"}, /* nobody is known to be the cause */
                 {CONTROL_WAITS, "rank 0 failed: mine"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        link_core *core = hear_reports(CONTROL_HELD, cases[i].second);
        link_core_late(core, now, "mine");
        assert_string_equal(take_answers(core).cause, cases[i].cause);
        link_core_free(&core);
    }
}

/* Calls of rank 1 are late, whose own report does not count. Rank 0 itself is a cause where it does
 * not wait. */
static void test_late__all_who_do_not_wait_are_named(void **state)
{
    link_core *core = hear_reports(CONTROL_BEAT, CONTROL_BEAT);
    (void)state;
    assert_non_null(strstr(hear_late(core, 1).cause, "ranks 0 2 keep the others waiting"));
    link_core_free(&core);
    core = hear_reports(CONTROL_BEAT, CONTROL_HELD);
    assert_non_null(strstr(hear_late(core, 1).cause, "rank 0 (a, pid 0) keeps the others waiting"));
    link_core_free(&core);
}

/* Rank 2 waited when it was heard last, which is long ago. */
static void test_late__a_silent_rank_is_named(void **state)
{
    link_core *core = hear_reports(CONTROL_HELD, CONTROL_HELD);
    link_now later = now;
    (void)state;
    later.ns += INT64_C(4) * 1000 * 1000 * 1000;
    link_core_time(core, later);
    (void)take_answers(core);
    (void)hear_at(core, later, 1, CONTROL_HELD, "there", 5);
    link_core_late(core, later, "mine");
    assert_non_null(strstr(take_answers(core).cause, "rank 2 (a, pid 0) keeps the others waiting"));
    link_core_free(&core);
}

/* Rank 0 was stopped while a question was open, and then hears nobody. It cannot know whether rank
 * 2 has answered meanwhile, so it does not blame it; the silence that follows ends the job. */
static void test_still__a_rank_that_was_not_heard_is_not_blamed(void **state)
{
    link_core *core = meet_all();
    link_now later = now;
    (void)state;
    (void)ask(core);
    (void)hear_need(core, 1, 0, 0);
    later.ns += INT64_C(40) * 1000 * 1000 * 1000;
    later.call_ns = INT64_C(5) * 1000 * 1000 * 1000;
    link_core_time(core, later);
    assert_false(take_answers(core).ended);
    answers last = {0};
    for (int second = 1; second <= 10 && !last.ended; second++) {
        later.ns += INT64_C(1) * 1000 * 1000 * 1000;
        link_core_time(core, later);
        last = take_answers(core);
    }
    assert_non_null(strstr(last.cause, "has heard none of the other 2 ranks for 10.0 s"));
    link_core_free(&core);
}

/* What breaks the protocol ends the job. */
static void test_break__wrong_questions(void **state)
{
    const uint8_t bytes[9 + LINK_NEEDS] = {0};
    (void)state;
    for (int how = 0; how < 4; how++) {
        link_core *core = meet_all();
        answers last = {0};
        if (how == 0) /* of another micro-batch */
            last = hear_need(core, 1, 1, 0);
        else if (how == 1) /* twice */
            assert_false(hear_need(core, 1, 0, 0).ended);
        else /* too short, too long */
            last = hear(core, 1, CONTROL_SHAPE, bytes, how == 2 ? 7 : sizeof bytes);
        if (how == 1)
            last = hear_need(core, 1, 0, 0);
        assert_true(last.ended);
        link_core_free(&core);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agree__all_are_answered),
        cmocka_unit_test(test_leave__a_late_rank_asks_when_another_has_hung_up),
        cmocka_unit_test(test_leave__a_rank_leaves_that_has_asked),
        cmocka_unit_test(test_late__who_does_not_wait_is_named),
        cmocka_unit_test(test_late__all_who_do_not_wait_are_named),
        cmocka_unit_test(test_late__a_silent_rank_is_named),
        cmocka_unit_test(test_still__a_rank_that_was_not_heard_is_not_blamed),
        cmocka_unit_test(test_break__wrong_questions),
    };
    return cmocka_run_group_tests_name("link_shape", tests, NULL, NULL);
}
