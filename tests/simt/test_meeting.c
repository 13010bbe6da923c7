/* SPDX-License-Identifier: Apache-2.0 */
/* test_meeting.c: how a meeting of ranks (peers.cu) waits, by the harness's clock: until the others
 * have come, until the host says that the job is over, or until it has waited for longer than the
 * host allows. Then it leaves its place and traps. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "tests/simt/device.h"
#include "tests/simt/simt.h"
#include "trainer/ops/table.h"

enum { RANKS = 3, ABSENT = 1 /* the rank that is waited for */, LONGEST_NS = 100000 };

/* What happens while the kernel waits, by its clock. */
typedef struct meeting {
    device *dev;
    stream *queue;
    uint32_t window[RANKS][RANKS + 1]; /* arrived [RANKS], met */
    void *base[RANKS];
    peer_watch watch;
    int64_t start_ns, last_ns;                      /* of the wait; 0: it has not begun */
    int64_t comes_ns, stops_ns, anew_ns, longer_ns; /* after its start; 0: never */
} meeting;

static void let_time_pass(void *of, int64_t ns)
{
    meeting *meet = of;
    meet->start_ns = meet->start_ns ? meet->start_ns : ns;
    const int64_t waited_ns = ns - meet->start_ns;
    meet->last_ns = ns;
    if (meet->comes_ns && waited_ns >= meet->comes_ns)
        meet->window[0][ABSENT] = 1;
    if (meet->stops_ns && waited_ns >= meet->stops_ns)
        meet->watch.stop = 1;
    if (meet->anew_ns && waited_ns >= meet->anew_ns)
        meet->watch.anew = 1;
    if (meet->longer_ns && waited_ns >= meet->longer_ns)
        meet->watch.longest_ns = 2 * LONGEST_NS;
}

static int set_up(void **state)
{
    meeting *meet = calloc(1, sizeof *meet);
    assert_non_null(meet);
    assert_ok(backend_simt()->open(&(device_options){0}, &meet->dev));
    assert_ok(meet->dev->backend->stream_new(meet->dev, &meet->queue));
    simt_schedule(SIMT_FORWARD, 1);
    for (int i = 0; i < RANKS; i++)
        meet->base[i] = meet->window[i];
    meet->watch = (peer_watch){.longest_ns = LONGEST_NS};
    meet->window[0][2] = 1; /* the last rank has come */
    simt_on_clock(let_time_pass, meet);
    *state = meet;
    return 0;
}

static int tear_down(void **state)
{
    meeting *meet = *state;
    simt_on_clock(NULL, NULL);
    meet->dev->backend->stream_free(&meet->queue);
    meet->dev->backend->close(meet->dev);
    free(meet);
    return 0;
}

static status meet_others(meeting *meet)
{
    return op_peers_meet(meet->queue, &(peers_meet_args){.peers = {meet->base, 0, RANKS},
                                                         .met = RANKS * sizeof(uint32_t),
                                                         .phase = MEET_ARRIVE | MEET_WAIT,
                                                         .watch = &meet->watch});
}

/* The meeting ends well after as long, and what comes later finds nothing wrong. */
static void expect_end(meeting *meet, int64_t after_ns)
{
    assert_ok(meet_others(meet));
    assert_ok(meet->dev->backend->wait(meet->queue));
    assert_int_equal(meet->window[0][RANKS], 1);
    assert_in_range(meet->last_ns - meet->start_ns, after_ns, after_ns + LONGEST_NS / 10);
}

/* The kernel traps after as long, and says for whom it waited. */
static void expect_trap(meeting *meet, int64_t after_ns)
{
    assert_fails(ST_BAD_DEVICE, meet_others(meet), "the kernel traps");
    for (int i = 0; i < 2; i++)
        assert_fails(ST_BAD_DEVICE, meet->dev->backend->wait(meet->queue),
                     "(peers_meet) waited for rank 1 of its group in turn 1, phase 3");
    assert_int_equal(meet->window[0][RANKS], 0);
    assert_in_range(meet->last_ns - meet->start_ns, after_ns, after_ns + LONGEST_NS / 10);
}

static void test_meeting__ends_when_the_last_rank_comes(void **state)
{
    meeting *meet = *state;
    meet->comes_ns = LONGEST_NS / 2;
    expect_end(meet, LONGEST_NS / 2);
    assert_int_equal(meet->window[1][0], 1); /* and has said that this rank is here */
}

static void test_meeting__ends_when_the_job_is_over(void **state)
{
    meeting *meet = *state;
    meet->stops_ns = LONGEST_NS / 2;
    expect_end(meet, LONGEST_NS / 2);
}

static void test_meeting__traps_when_nobody_ends_it(void **state)
{
    expect_trap(*state, LONGEST_NS);
}

static void test_meeting__waits_as_long_again_when_told(void **state)
{
    meeting *meet = *state;
    meet->anew_ns = LONGEST_NS * 9 / 10;
    expect_trap(meet, LONGEST_NS * 19 / 10);
}

static void test_meeting__waits_as_long_as_it_may_by_now(void **state)
{
    meeting *meet = *state;
    meet->longer_ns = LONGEST_NS / 2;
    expect_trap(meet, 2 * LONGEST_NS);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_meeting__ends_when_the_last_rank_comes),
        CASE(test_meeting__ends_when_the_job_is_over),
        CASE(test_meeting__traps_when_nobody_ends_it),
        CASE(test_meeting__waits_as_long_again_when_told),
        CASE(test_meeting__waits_as_long_as_it_may_by_now),
    };
    return cmocka_run_group_tests_name("meeting", tests, NULL, NULL);
}
