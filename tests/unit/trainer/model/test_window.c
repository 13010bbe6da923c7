/* SPDX-License-Identifier: Apache-2.0 */
/* test_window.c: how the ranks agree on the way in which token copies reach their experts: through
 * windows of device memory, or by the host. All ranks take the same way, and none goes on when the
 * job has ended. The test plays the other rank, which answers as this one does unless `other` says
 * otherwise. */
#include "tests/harness.h"

#include <string.h>

#include "trainer/model/exchange/exchange.h"
#include "trainer/ops/open.h"

enum { SLOTS = 4 };

static struct {
    status own, other; /* the result of making a window, on either rank */
    int answers;       /* calls between ranks that succeed before the job ends */
    int made;          /* windows that exist now */
    bool no_memory;    /* for the answers of two ranks */
    int64_t told;      /* how this rank says that it fared */
} play;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
    /* The answers about reach are bytes, those of comm_agree 16 bytes each. */
    const bool answers = count == 2 && (size == 1 || size == 16);
    return play.no_memory && answers ? NULL : __real_calloc(count, size);
}

static status answered(void)
{
    return play.answers-- > 0 ? ST_OK : FAIL(ST_UNAVAILABLE, "rank 1 died");
}

static status host_all_gather(const comm *group, const void *send, void *recv, int64_t bytes)
{
    TRY(answered());
    if (bytes >= (int64_t)sizeof play.told)
        memcpy(&play.told, send, sizeof play.told);
    for (int peer = 0; peer < group->size; peer++)
        memcpy((char *)recv + peer * bytes, send, (size_t)bytes);
    /* A message begins with the sender's status (comm_agree). */
    if (play.other != ST_OK) {
        const int64_t code = play.other;
        memcpy((char *)recv + bytes, &code, sizeof code);
    }
    return ST_OK;
}

static status host_broadcast(const comm *group, void *inout, int64_t bytes, int root)
{
    TRY(answered());
    if (root != group->rank)
        snprintf(inout, (size_t)bytes, "its own reason");
    return ST_OK;
}

static status window_reach(const comm *group)
{
    (void)group;
    return play.own == ST_OK ? ST_OK : FAIL(play.own, "no reach");
}

static status window_new(const comm *group, stream *queue, size_t bytes, comm_window *out)
{
    (void)group, (void)queue, (void)bytes;
    if (play.own != ST_OK)
        return FAIL(play.own, "no reach");
    out->handle = &play;
    play.made++;
    return ST_OK;
}

static status window_share(const comm *group, stream *queue, comm_window *inout)
{
    (void)group, (void)queue, (void)inout;
    return ST_OK;
}

static void window_free(const comm *group, stream *queue, comm_window *window)
{
    (void)group, (void)queue;
    play.made -= window->handle != NULL;
}

static const comm_engine engine = {.name = "play",
                                   .window_reach = window_reach,
                                   .window_new = window_new,
                                   .window_share = window_share,
                                   .window_free = window_free,
                                   .host_all_gather = host_all_gather,
                                   .host_broadcast = host_broadcast};
static const int ranks[] = {0, 1};

static status open_as(stream *queue, status own, status other, int answers, bool must,
                      bool *out_open)
{
    mesh place;
    model_dims dims;
    exchange_window window = {0};
    assert_ok(dims_load("debug", &dims));
    mesh_alone(&place);
    place.layout.expert = 2;
    place.group[MESH_WORLD] = place.group[MESH_EXPERT] =
        (comm){.engine = &engine, .name = "world", .size = 2, .world_rank = ranks};
    play.own = own;
    play.other = other;
    play.answers = answers;
    play.made = 0;
    *out_open = true;
    const status st =
        exchange_window_open(queue, &place, &dims.text, SLOTS, must, &window, out_open);
    assert_int_equal(play.made, st == ST_OK && *out_open);
    exchange_window_close(queue, &window);
    assert_int_equal(play.made, 0);
    return st;
}

static void test_window__all_ranks_or_none(void **state)
{
    (void)state;
    enum { MANY = 100 };
    bool open;
    device *dev;
    stream *queue;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    assert_ok(open_as(queue, ST_OK, ST_OK, MANY, false, &open));
    assert_true(open);
    assert_ok(open_as(queue, ST_UNAVAILABLE, ST_OK, MANY, false, &open));
    assert_false(open);
    /* Any other failure reaches all ranks, and all of them stop. */
    assert_fails(ST_NO_MEMORY, open_as(queue, ST_OK, ST_NO_MEMORY, MANY, false, &open),
                 "rank 1: its own reason");
    assert_fails(ST_UNAVAILABLE, open_as(queue, ST_UNAVAILABLE, ST_OK, MANY, true, &open),
                 "comm.expert_exchange is device: no reach");
    /* The job ends before its ranks have agreed, or after that. */
    for (int answers = 0; answers < 3; answers++)
        assert_fails(ST_UNAVAILABLE, open_as(queue, ST_UNAVAILABLE, ST_OK, answers, false, &open),
                     "rank 1 died");
    for (int answers = 0; answers < 2; answers++)
        assert_fails(ST_UNAVAILABLE, open_as(queue, ST_OK, ST_OK, answers, false, &open),
                     "rank 1 died");
    dev->backend->stream_free(&queue);
    device_close(&dev);
}

/* Whether windows are within reach is known without making one. */
static void test_window__reach_is_asked_without_a_window(void **state)
{
    (void)state;
    const comm all = {.engine = &engine, .name = "world", .size = 2, .world_rank = ranks};
    const comm_engine none = {
        .name = "none", .host_all_gather = host_all_gather, .host_broadcast = host_broadcast};
    const comm without = {.engine = &none, .name = "world", .size = 2, .world_rank = ranks};
    bool reached = false;
    play.own = play.other = ST_OK;
    play.answers = 2;
    play.made = 0;
    assert_ok(comm_window_reached(&all, &all, &reached));
    assert_true(reached && play.made == 0);
    play.own = ST_UNAVAILABLE;
    play.answers = 2;
    assert_ok(comm_window_reached(&all, &all, &reached));
    assert_false(reached);
    play.answers = 2;
    assert_ok(comm_window_reached(&without, &without, &reached));
    assert_false(reached);
    play.own = ST_NO_MEMORY;
    play.answers = 2;
    assert_fails(ST_NO_MEMORY, comm_window_reached(&all, &all, &reached), "no reach");
    play.own = ST_OK; /* a rank that has no memory for the answers tells the others so */
    play.answers = 2;
    play.told = ST_OK;
    play.no_memory = true;
    assert_fails(ST_NO_MEMORY, comm_window_reached(&all, &all, &reached), "answers of 2 ranks");
    play.no_memory = false;
    assert_int_equal(play.told, ST_NO_MEMORY);
    play.own = ST_UNAVAILABLE; /* the job has ended */
    play.answers = 1;
    assert_fails(ST_UNAVAILABLE, comm_window_reached(&all, &all, &reached), "rank 1 died");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window__all_ranks_or_none),
        cmocka_unit_test(test_window__reach_is_asked_without_a_window),
    };
    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
