/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_states.c: states that rest on the host (memory.host). With BF16 beside float32, as on a
 * GPU, an update finds all of a unit's states in the buffer of the unit's turn, in the order that
 * they have on the host, with the master values that lie among them. And before they are read for a
 * checkpoint, the host has waited for the step that brings them back. */

#include "tests/harness.h"
#include "trainer/checkpoint/save/writer_parts.h"
#include "tests/dry_run/shapes.h"
#include "trainer/model/params/params_states.h"
#include "trainer/ops/open.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/optimizer_parts.h"

/* The preset `debug` with its states on the host. */
typedef struct bench {
    conf options;
    device *dev;
    stream *queue;
    params *registry;
} bench;

static void open_bench(bench *setup, bool hollow, int states, int master)
{
    model_dims dims;
    *setup = (bench){.options = {.optimizer_states = states,
                                 .training_master = master,
                                 .memory_host = HOST_MOMENTS,
                                 .model_path = "",
                                 .optimizer_groups = "",
                                 .freeze_pattern = ""}};
    assert_ok(hollow ? shapes_device_open(NULL, &setup->dev)
                     : device_open(BACKEND_CPU, &(device_options){.threads = 1}, &setup->dev));
    assert_ok(setup->dev->backend->stream_new(setup->dev, &setup->queue));
    assert_ok(dims_preset("debug", &dims));
    assert_ok(params_new(&dims, &setup->registry));
    assert_ok(groups_apply(&setup->options, setup->registry));
    assert_true(setup->registry->moments_on_host);
    assert_ok(params_alloc(setup->registry, setup->queue, true));
}

static void close_bench(bench *setup)
{
    params_release(setup->registry, setup->queue);
    params_free(&setup->registry);
    setup->dev->backend->stream_free(&setup->queue);
    device_close(&setup->dev);
}

/* Bytes from the beginning of a block. */
static int64_t place_in(const param_block *block, const void *at)
{
    return (const char *)at - (const char *)block->at;
}

/* The states of a row where an update finds them. */
static optim_tensor moved_of(const host_states *states, const param *row)
{
    optim_tensor tensor = {.p = row->value,
                           .m = row->moment1,
                           .v = row->moment2,
                           .m_scale = row->scale1,
                           .v_scale = row->scale2};
    host_states_move(states, row, &tensor);
    return tensor;
}

/* Where the two buffers of each turn begin, as the first row with states there says. */
typedef struct buffers {
    const char *at[STATES_TURNS][2];
} buffers;

/* Compares the places of a row with those that it has in its unit on the host. */
static void check_row(const params *registry, const param *row, const optim_tensor *moved,
                      buffers *known)
{
    const param_block *one = &registry->moments1, *two = &registry->moments2;
    const states_range of = states_range_of(registry, row->unit);
    const char **at = known->at[row->unit % STATES_TURNS];
    if (!at[0]) {
        at[0] = (const char *)moved->m - (place_in(one, row->moment1) - of.first);
        at[1] = (const char *)moved->v - (place_in(two, row->moment2) - of.first);
    }
    assert_ptr_equal(moved->m, at[0] + (place_in(one, row->moment1) - of.first));
    assert_ptr_equal(moved->v, at[1] + (place_in(two, row->moment2) - of.first));
    if (row->coded) {
        assert_ptr_equal(moved->m_scale, at[0] + (place_in(one, row->scale1) - of.first));
        assert_ptr_equal(moved->v_scale, at[1] + (place_in(two, row->scale2) - of.first));
    } else {
        assert_true(!moved->m_scale && !moved->v_scale);
    }
    /* A master value is among the states if others are kept in BF16, and else on the device. */
    if (!registry->act_masters || row->act_master)
        assert_ptr_equal(moved->p, row->value);
    else
        assert_ptr_equal(moved->p, at[0] + (place_in(one, row->value) - of.first));
}

/* All buffers are parts of one array of the device, one after the other. */
static void check_buffers(const bench *setup, const buffers *known)
{
    const size_t align = STATES_ALIGN;
    params_sizes size;
    assert_ok(params_size(setup->registry, setup->dev->backend, true, &size));
    const size_t all = 2 * (size_t)(size.turn[0] + size.turn[1]);
    assert_true(shapes_hold(setup->dev, known->at[0][0], all));
    assert_int_equal(shapes_allocations(setup->dev, all), 1);
    const char *at = known->at[0][0];
    for (int j = 0; j < STATES_TURNS; j++)
        for (int k = 0; k < 2; k++, at += size.turn[j])
            assert_ptr_equal(known->at[j][k], at);
    assert_true(size.turn[0] % STATES_ALIGN == 0 && size.turn[1] % STATES_ALIGN == 0);
    assert_int_equal((uintptr_t)known->at[0][0] % align, 0);
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const int unit = setup->registry->list[i].unit;
        assert_true(states_range_of(setup->registry, unit).bytes <= size.turn[unit % STATES_TURNS]);
    }
}

static void test_states__are_found_in_the_buffer_of_their_turn(void **state)
{
    (void)state;
    const int kinds[][2] = {{STATES_FLOAT32, MASTER_FLOAT32},
                            {STATES_FLOAT32, MASTER_BF16},
                            {STATES_INT8, MASTER_FLOAT32},
                            {STATES_INT8, MASTER_BF16}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        bench setup;
        host_states *states;
        buffers known = {0};
        int64_t masters = 0;
        open_bench(&setup, true, kinds[i][0], kinds[i][1]);
        assert_true(setup.registry->acts.dtype == DT_BF16);
        assert_ok(host_states_new(setup.registry, setup.dev, &states));
        for (int64_t j = 0; j < setup.registry->count; j++) {
            const param *row = &setup.registry->list[j];
            const optim_tensor moved = moved_of(states, row);
            check_row(setup.registry, row, &moved, &known);
            masters += moved.p != row->value;
        }
        assert_int_equal(masters > 0, kinds[i][1] == MASTER_BF16);
        check_buffers(&setup, &known);
        host_states_free(&states, setup.dev);
        close_bench(&setup);
    }
}

/* A device that notes when the host has waited, and refuses to read states before. */
static struct {
    const params *registry;
    bool waited;
    int read; /* times that a block of moments was read */
} now;

static status note_wait(stream *queue)
{
    now.waited = true;
    return backend_cpu.wait(queue);
}

static status read_waited(stream *queue, void *dst, const void *src, size_t bytes)
{
    if (src == now.registry->moments1.at || src == now.registry->moments2.at) {
        assert_true(now.waited);
        now.read++;
    }
    return backend_cpu.to_host(queue, dst, src, bytes);
}

static void test_states__a_copy_waits_for_the_step(void **state)
{
    (void)state;
    bench setup;
    backend_vtable backend = backend_cpu;
    progress reached = {.step = 3};
    snapshot *shot;
    char *folder = harness_temp();
    open_bench(&setup, false, STATES_FLOAT32, MASTER_FLOAT32);
    backend.wait = note_wait;
    backend.to_host = read_waited;
    setup.dev->backend = &backend;
    now.registry = setup.registry;

    checkpoint_writer writer = {.conf = &setup.options,
                                .live = setup.registry,
                                .live_stream = setup.queue,
                                .background = true};
    assert_ok(writer_take_memory(&writer));
    now.waited = false;
    assert_ok(writer_take_copy(&writer, &reached));
    assert_int_equal(now.read, 2);
    writer_release_memory(&writer);
    now.waited = false; /* a save that writes at once reads them after this */
    writer.background = false;
    assert_ok(writer_take_adapters(&writer));
    assert_true(now.waited);

    setup.options.checkpoint_memory_folder = setup.options.job_dump_folder = folder;
    assert_ok(snapshot_new(&setup.options, folder, 1, setup.registry, setup.queue, NULL, &shot));
    assert_ok(snapshot_ready(shot, true));
    now.waited = false;
    assert_ok(snapshot_take(shot, &reached, false));
    assert_int_equal(now.read, 4);
    snapshot_finish(shot);
    snapshot_free(&shot);
    setup.dev->backend = &backend_cpu;
    close_bench(&setup);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states__are_found_in_the_buffer_of_their_turn),
        cmocka_unit_test(test_states__a_copy_waits_for_the_step),
    };
    return cmocka_run_group_tests_name("host_states", tests, NULL, NULL);
}
