/* SPDX-License-Identifier: Apache-2.0 */
/* test_profile.c: collectives in a profile, by a clock that the test keeps for each stream. The
 * time that computing waits for a collective counts in the step, time that overlaps with computing
 * is listed apart, and a call inside another counts once. */
#include "tests/harness.h"

#include <stdlib.h>

#include "common/conf/conf.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"
#include "trainer/report/profile.h"

struct event {
    int64_t ns;
};

/* The clocks of two streams: the computing one, and one for collectives. */
static struct {
    stream *of[2];
    int64_t ns[2];
} now;

static int64_t *clock_of(const stream *queue)
{
    return &now.ns[queue == now.of[1]];
}

static status record_event(stream *queue, event *moment)
{
    moment->ns = *clock_of(queue);
    return ST_OK;
}

static status measure_between(event *from, event *to, int64_t *out_ns)
{
    *out_ns = to->ns - from->ns;
    return ST_OK;
}

/* A copy takes 10 us. */
static status time_copy(stream *queue, void *dst, const void *src, size_t bytes)
{
    (void)dst;
    (void)src;
    (void)bytes;
    *clock_of(queue) += 10000;
    return ST_OK;
}

static status zero(stream *queue, void *dst, size_t bytes)
{
    return time_copy(queue, dst, NULL, bytes);
}

static status event_new(device *dev, event **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    return *out ? ST_OK : ST_NO_MEMORY;
}

static void event_free(event **moment)
{
    free(*moment);
    *moment = NULL;
}

static status event_wait(device *dev, event *moment)
{
    (void)dev;
    (void)moment;
    return ST_OK;
}

/* A collective of this name that takes ns on its stream. */
static void time_collective(stream *queue, const char *what, int64_t ns)
{
    assert_ok(device_call_begins(queue, what));
    *clock_of(queue) += ns;
    assert_ok(device_call_ended(queue));
}

/* Lets computing wait for all that is queued on the other stream so far. */
static void wait_for(const char *what)
{
    assert_ok(device_call_begins(now.of[0], what));
    if (now.ns[0] < now.ns[1])
        now.ns[0] = now.ns[1];
    assert_ok(device_call_ended(now.of[0]));
}

static const profile_call *find_call(const profile_sums *sums, const char *what)
{
    for (int i = 0; i < sums->n_calls; i++)
        if (strcmp(sums->call[i].what, what) == 0)
            return &sums->call[i];
    fail_msg("no %s in the profile", what);
    return NULL;
}

typedef struct scene {
    backend_vtable backend;
    device *cpu, dev;
    stream *side, *queue;
    const ops_table *ops; /* the real table of `queue` */
    profile *profiler;
} scene;

static void open_scene(scene *setup)
{
    setup->backend = backend_cpu;
    setup->backend.event_new = event_new;
    setup->backend.event_free = event_free;
    setup->backend.event_record = record_event;
    setup->backend.event_wait = event_wait;
    setup->backend.event_ns = measure_between;
    setup->backend.copy = time_copy;
    setup->backend.zero = zero;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &setup->cpu));
    assert_ok(setup->cpu->backend->stream_new(setup->cpu, &setup->queue));
    assert_ok(setup->cpu->backend->stream_new(setup->cpu, &setup->side));
    setup->dev = *setup->cpu;
    setup->dev.backend = &setup->backend;
    setup->ops = setup->queue->ops;
    setup->queue->dev = setup->side->dev = &setup->dev;
    now.of[0] = setup->queue;
    now.of[1] = setup->side;
    now.ns[0] = now.ns[1] = 0;
}

static void close_scene(scene *setup)
{
    profile_free(&setup->profiler);
    assert_true(setup->dev.backend == &setup->backend && !setup->dev.calls);
    setup->queue->ops = setup->ops;
    setup->queue->dev = setup->side->dev = setup->cpu;
    setup->cpu->backend->stream_free(&setup->queue);
    setup->cpu->backend->stream_free(&setup->side);
    device_close(&setup->cpu);
}

static void test_profile__exposed_and_overlapped(void **state)
{
    (void)state;
    scene setup;
    open_scene(&setup);
    stream *const queue = setup.queue, *const side = setup.side;
    assert_ok(profile_new(queue, &setup.profiler));
    for (int step = 0; step < 2; step++) {
        now.ns[0] = now.ns[1] = 0;
        assert_ok(profile_begin(setup.profiler));
        time_collective(side, "gather", 25000);
        assert_ok(setup.dev.backend->copy(queue, NULL, NULL, 0)); /* computing until 10 us */
        wait_for("gather");                                       /* 15 of the gather's 25 us */
        time_collective(side, "reduce", 8000);                    /* overlaps with the copy below */
        assert_ok(setup.dev.backend->copy(queue, NULL, NULL, 0));
        wait_for("reduce");
        assert_ok(device_call_begins(queue, NULL)); /* a group of messages is named by its first */
        time_collective(queue, "exchange", 4000);
        time_collective(queue, "another", 1000);
        assert_ok(device_call_ended(queue));
        now.ns[0] += 3000; /* nothing of ours runs */
        assert_ok(profile_end(setup.profiler, 0));
    }
    const profile_sums *sums = profile_read(setup.profiler);
    const profile_call *gather = find_call(sums, "gather"), *reduce = find_call(sums, "reduce");
    const profile_call *exchange = find_call(sums, "exchange");
    assert_int_equal(sums->n_calls, 3);
    assert_int_equal(gather->exposed_ns, 2 * 15000);
    assert_int_equal(profile_beside_ns(sums, gather), 2 * 10000);
    assert_int_equal(reduce->exposed_ns, 0);
    assert_int_equal(profile_beside_ns(sums, reduce), 2 * 8000);
    assert_int_equal(exchange->exposed_ns, 2 * 5000);
    assert_int_equal(profile_beside_ns(sums, exchange), 0);
    assert_int_equal(profile_beside_ns(sums, NULL), 2 * 18000);
    assert_int_equal(sums->ns[PROFILE_COLLECTIVES], 2 * (15000 + 5000));
    assert_int_equal(sums->ns[PROFILE_POINTWISE], 2 * 20000);
    assert_int_equal(sums->ns[PROFILE_IDLE], 2 * 3000);
    assert_int_equal(sums->total_ns, 2 * (10 + 15 + 10 + 5 + 3) * 1000);
    close_scene(&setup);
}

/* A product that clears and copies first, as products of the CUDA backend do. */
static status time_product(stream *queue, const gemm_args *args)
{
    (void)args;
    TRY(queue->dev->backend->zero(queue, NULL, 0));
    TRY(queue->dev->backend->copy(queue, NULL, NULL, 0));
    *clock_of(queue) += 30000;
    return ST_OK;
}

static void test_profile__a_call_inside_another_is_counted_once(void **state)
{
    (void)state;
    scene setup;
    ops_table ops = {.gemm = time_product};
    open_scene(&setup);
    setup.queue->ops = &ops;
    assert_ok(profile_new(setup.queue, &setup.profiler));
    assert_ok(profile_begin(setup.profiler));
    assert_ok(op_gemm(setup.queue, NULL));
    assert_ok(setup.dev.backend->copy(setup.queue, NULL, NULL,
                                      0)); /* a copy outside a product counts as before */
    now.ns[0] += 3000;
    assert_ok(profile_end(setup.profiler, 0));
    const profile_sums *sums = profile_read(setup.profiler);
    assert_int_equal(sums->calls, 2);
    assert_int_equal(sums->ns[PROFILE_DENSE], 50000);
    assert_int_equal(sums->ns[PROFILE_POINTWISE], 10000);
    assert_int_equal(sums->ns[PROFILE_IDLE], 3000);
    assert_int_equal(sums->total_ns, now.ns[0]); /* the parts add up to the whole */
    close_scene(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile__exposed_and_overlapped),
        cmocka_unit_test(test_profile__a_call_inside_another_is_counted_once)};
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
