/* test_link_shape.c: rank 0's side of an agreement (trainer/parallel/core/link_shape.c) when
 * another rank leaves while a question is open. The core is played without sockets: rank r is
 * connected as number r - 1. */
#include "tests/harness.h"

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
        all.ended |= action.kind == LINK_ENDS;
    }
    return all;
}

static answers hear(link_core *core, int rank, rank_link_kind kind, const void *payload,
                    size_t size)
{
    uint8_t bytes[MESSAGE_MAX];
    rank_link_header_put(bytes, kind, size);
    memcpy(bytes + CONTROL_HEADER, payload, size);
    link_core_bytes(core, now, rank - 1, bytes, CONTROL_HEADER + size);
    return take_answers(core);
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
        cmocka_unit_test(test_break__wrong_questions),
    };
    return cmocka_run_group_tests_name("link_shape", tests, NULL, NULL);
}
