/* SPDX-License-Identifier: Apache-2.0 */
/* test_fsdp.c: how long computing waits for FSDP's collectives, by a clock that the test keeps for
 * each stream. The gather of the next unit and the reduction of the last one overlap with
 * computing; only the very first gather and the very last reduction do not. No unit gets a buffer
 * before the unit that had it is done with it. */
#include "tests/harness.h"

#include <stdlib.h>

#include "common/conf/conf.h"
#include "trainer/ops/open.h"
#include "trainer/parallel/fsdp.h"

enum { UNITS = 4, RANKS = 2, PIECE = UNIT_ALIGN, BUFFERS = 2 };

struct event {
    int64_t ns;
};

static struct {
    const stream *computing;
    int64_t ns, side_ns;       /* time of the computing stream and of the other */
    int64_t gather, reduction; /* how long a collective takes */
    const unit_span *list;
    int64_t gathered[BUFFERS], used[BUFFERS], reduced[BUFFERS]; /* when, by buffer */
    int gathers, reductions;
} now;

static int64_t *clock_of(const stream *queue)
{
    return queue == now.computing ? &now.ns : &now.side_ns;
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

static status record_event(stream *queue, event *moment)
{
    moment->ns = *clock_of(queue);
    return ST_OK;
}

static status follow(stream *queue, event *moment)
{
    int64_t *ns = clock_of(queue);
    *ns = *ns < moment->ns ? moment->ns : *ns;
    return ST_OK;
}

static stream *urgent; /* the stream whose kernels go first */

static status urgent_stream_new(device *dev, stream **out)
{
    TRY(backend_cpu.stream_new(dev, out));
    urgent = *out;
    return ST_OK;
}

static status all_gather(const comm *group, stream *queue, const void *send, void *recv,
                         int64_t count, st_dtype dtype)
{
    (void)group;
    (void)send;
    (void)dtype;
    int at = recv == now.list[1].whole_act;
    assert_ptr_equal(queue, urgent);
    assert_int_equal(count, PIECE);
    assert_true(recv == now.list[at].whole_act);
    assert_true(now.side_ns >= now.used[at]);
    now.side_ns += now.gather;
    now.gathered[at] = now.side_ns;
    now.gathers++;
    return ST_OK;
}

static status reduce_scatter(const comm *group, stream *queue, const void *send, void *recv,
                             int64_t count, st_dtype dtype)
{
    (void)group;
    (void)recv;
    (void)dtype;
    int at = send == now.list[1].whole_grad;
    assert_ptr_not_equal(queue, now.computing);
    assert_int_equal(count, PIECE);
    assert_true(send == now.list[at].whole_grad);
    assert_true(now.side_ns >= now.used[at]);
    now.side_ns += now.reduction;
    now.reduced[at] = now.side_ns;
    now.reductions++;
    return ST_OK;
}

static void compute(fsdp_units *units, stream *queue, int unit, unit_use use, int64_t ns)
{
    int at = unit % BUFFERS;
    assert_ok(fsdp_units_enter(units, queue, unit, use));
    assert_true(now.ns >= now.gathered[at]);
    assert_true(use == UNIT_FORWARD || now.ns >= now.reduced[at]);
    now.ns += ns;
    now.used[at] = now.ns;
    assert_ok(fsdp_units_leave(units, queue, unit, use));
}

/* Runs a forward and a backward pass whose units compute for `ns` in each; returns the time
 * taken. */
static int64_t run_units(fsdp_units *units, stream *queue, int64_t ns, int64_t gather,
                         int64_t reduction)
{
    const unit_span *list = now.list;
    memset(&now, 0, sizeof now);
    now.computing = queue;
    now.list = list;
    now.gather = gather;
    now.reduction = reduction;
    assert_ok(fsdp_units_begin(units, queue));
    for (int i = 0; i < UNITS - 1; i++)
        compute(units, queue, i, UNIT_FORWARD, ns);
    compute(units, queue, UNITS - 1, UNIT_TURN, ns);
    for (int i = UNITS - 2; i >= 0; i--)
        compute(units, queue, i, UNIT_BACKWARD, ns);
    assert_ok(fsdp_units_end(units, queue));
    /* One gather per unit in forward, and in backward one for each that is no longer in a
     * buffer. */
    assert_int_equal(now.gathers, UNITS + UNITS - BUFFERS);
    assert_int_equal(now.reductions, UNITS);
    assert_true(now.ns >= now.reduced[0] && now.ns >= now.reduced[1]);
    return now.ns;
}

static void test_units__collectives_overlap_with_computing(void **state)
{
    (void)state;
    enum { PASSES = 2 * UNITS - 1 };
    const comm_engine engine = {
        .name = "clock", .all_gather = all_gather, .reduce_scatter = reduce_scatter};
    const int world[RANKS] = {0, 1};
    static float own[UNITS][PIECE], gradient[UNITS][PIECE];
    backend_vtable backend = backend_cpu;
    backend.ahead = 1; /* collectives get a stream of their own */
    backend.urgent_stream_new = urgent_stream_new;
    backend.event_new = event_new;
    backend.event_free = event_free;
    backend.event_record = record_event;
    backend.event_follow = follow;
    device *cpu;
    stream *queue;
    fsdp_units *units;
    mesh ranks;
    unit_span list[UNITS];
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &cpu));
    assert_ok(cpu->backend->stream_new(cpu, &queue));
    cpu->backend = &backend;
    mesh_alone(&ranks);
    ranks.group[MESH_WHOLE] =
        (comm){.engine = &engine, .name = "whole", .size = RANKS, .world_rank = world};
    for (int i = 0; i < UNITS; i++)
        list[i] = (unit_span){.unit = i,
                              .group = MESH_WHOLE,
                              .ranks = RANKS,
                              .trained = true,
                              .count = RANKS * PIECE,
                              .piece = PIECE,
                              .layer = i,
                              .act = own[i],
                              .grad = gradient[i]};
    assert_ok(fsdp_units_new(queue, &ranks, list, UNITS,
                             &(unit_options){.training = true, .reshard = true}, &units));
    now.list = list;
    assert_ptr_not_equal(list[0].whole_act, list[1].whole_act);
    assert_ptr_equal(list[0].whole_act, list[2].whole_act);
    /* In the backward pass a gather and a reduction run beside the computing of each unit. */
    assert_int_equal(run_units(units, queue, 20, 10, 10), 10 + PASSES * 20 + 10);
    assert_int_equal(run_units(units, queue, 20, 12, 8), 12 + PASSES * 20 + 8);
    /* If links are slower than computing, a pass takes as long as they do, and computing hides
     * behind them. */
    assert_in_range(run_units(units, queue, 1, 10, 10), 10 * (2 * UNITS - BUFFERS + UNITS),
                    10 * (2 * UNITS - BUFFERS + UNITS) + PASSES);
    fsdp_units_free(&units, queue);
    cpu->backend->stream_free(&queue);
    cpu->backend = &backend_cpu;
    device_close(&cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units__collectives_overlap_with_computing)};
    return cmocka_run_group_tests_name("fsdp", tests, NULL, NULL);
}
