/* SPDX-License-Identifier: Apache-2.0 */
/* test_states.c: moments in 8 bits and master values in BF16. Every layout of ranks takes the same
 * step; states go from one layout to another as they are; states of another kind are refused, or
 * converted when that is asked for.
 *
 * Letters: g a gradient. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/checkpoint/state/train_state.h"
#include "tests/dry_run/shapes.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/optim.h"

typedef struct bench {
    model_dims dims;
    device *dev;
    stream *queue;
    step_scalars *step; /* on the device */
} bench;

/* What one rank holds, with the options that it was made with. */
typedef struct part {
    mesh mesh; /* only sizes: the ranks of this test never talk */
    params *registry;
    conf options;
} part;

enum { SHARD, TENSOR, EXPERT, EXPERT_TENSOR, DEGREES };
static const int64_t one[DEGREES] = {1, 1, 1, 1};
static const int64_t two[DEGREES] = {2, 1, 1, 1};
static const int64_t three[DEGREES] = {3, 1, 1, 1};
static const int64_t cut[DEGREES] = {2, 2, 2, 2}; /* its columns are no multiples of a block */

static void open_bench(bench *setup)
{
    const step_scalars step = {.lr = 1e-2,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .bias1 = 0.1,
                               .bias2 = 0.05,
                               .grad_scale = 1,
                               .number = 7};
    assert_ok(dims_preset("debug", &setup->dims));
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &setup->dev));
    const backend_vtable *backend = setup->dev->backend;
    assert_ok(backend->stream_new(setup->dev, &setup->queue));
    assert_ok(backend->alloc(setup->dev, sizeof step, (void **)&setup->step));
    assert_ok(backend->to_device(setup->queue, setup->step, &step, sizeof step));
}

static void close_bench(bench *setup)
{
    setup->dev->backend->release(setup->dev, setup->step);
    setup->dev->backend->stream_free(&setup->queue);
    device_close(&setup->dev);
}

static void open_part(bench *setup, const int64_t *degrees, int rank, int states, int master,
                      part *piece)
{
    int members[8];
    const layout ranks = {.replicate = 1,
                          .shard = degrees[SHARD],
                          .context = 1,
                          .tensor = degrees[TENSOR],
                          .pipeline = 1,
                          .expert = degrees[EXPERT],
                          .expert_tensor = degrees[EXPERT_TENSOR],
                          .world = degrees[SHARD] * degrees[TENSOR],
                          .accumulation = 8};
    *piece = (part){.options = {.optimizer_states = states,
                                .training_master = master,
                                .training_seed = 5,
                                .optimizer_groups = "",
                                .freeze_pattern = ""}};
    mesh_alone(&piece->mesh);
    piece->mesh.layout = ranks;
    piece->mesh.rank = rank;
    piece->mesh.place = mesh_place_of(&ranks, rank);
    for (int group = 0; group < MESH_GROUPS; group++) {
        comm *all = &piece->mesh.group[group];
        all->size = mesh_members(&ranks, rank, (mesh_group)group, members);
        while (members[all->rank] != rank)
            all->rank++;
    }
    assert_ok(params_new(&setup->dims, &piece->registry));
    assert_ok(groups_apply(&piece->options, piece->registry));
    if (ranks.world > 1) {
        assert_ok(params_cut(piece->registry, &setup->dims, &ranks, piece->mesh.place));
        params_share(piece->registry, &piece->mesh, true);
    }
    assert_ok(params_alloc(piece->registry, setup->queue, true));
    assert_ok(params_init(piece->registry, setup->queue, 3));
}

static void close_part(bench *setup, part *piece)
{
    params_release(piece->registry, setup->queue);
    params_free(&piece->registry);
}

/* Takes a step on gradients that depend on an element's published place alone. */
static void take_step(bench *setup, part *piece)
{
    for (int64_t i = 0; i < piece->registry->count; i++) {
        const param *row = &piece->registry->list[i];
        for (int64_t j = 0, length, stored; j < row->own_n; j += length) {
            length = slice_run(&row->held, row->own_first + j, row->own_n - j, &stored);
            for (int64_t k = 0; k < length; k++)
                ((float *)row->own_grad)[j + k] = sinf((float)(stored + k)) * (float)(i + 1);
        }
        optim_tensor tensor = optim_tensor_of(&piece->options, row, 0);
        assert_ok(op_adamw(
            setup->queue,
            &(adamw_args){.list = {.tensor = &tensor,
                                   .n_tensors = 1,
                                   .n_chunks = (row->own_n + OPTIM_CHUNK - 1) / OPTIM_CHUNK,
                                   .coded = true},
                          .step = setup->step}));
    }
}

/* Compares what a rank has with what the whole model has: values, and moments with their scales. */
static void expect_part(const part *piece, const params *whole, bool moments)
{
    for (int64_t i = 0; i < whole->count; i++) {
        const param *row = &piece->registry->list[i], *all = &whole->list[i];
        for (int64_t j = 0, length, at; j < row->own_n; j += length) {
            length = slice_run(&row->held, row->own_first + j, row->own_n - j, &at);
            assert_memory_equal((float *)row->value + j, (float *)all->value + at,
                                (size_t)length * sizeof(float));
            if (!moments)
                continue;
            const size_t size = row->coded ? 1 : sizeof(float);
            assert_memory_equal((char *)row->moment1 + (size_t)j * size,
                                (char *)all->moment1 + (size_t)at * size, (size_t)length * size);
            assert_memory_equal((char *)row->moment2 + (size_t)j * size,
                                (char *)all->moment2 + (size_t)at * size, (size_t)length * size);
            const size_t scales = (size_t)((length + STATE_BLOCK - 1) / STATE_BLOCK) * 4;
            if (row->coded) {
                assert_memory_equal(row->scale1 + j / STATE_BLOCK, all->scale1 + at / STATE_BLOCK,
                                    scales);
                assert_memory_equal(row->scale2 + j / STATE_BLOCK, all->scale2 + at / STATE_BLOCK,
                                    scales);
            }
        }
    }
}

static void test_states__every_layout_takes_the_same_step(void **state)
{
    (void)state;
    bench setup;
    part whole, piece;
    const int64_t *const layouts[] = {two, three, cut};
    open_bench(&setup);
    open_part(&setup, one, 0, STATES_INT8, MASTER_BF16, &whole);
    take_step(&setup, &whole);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int rank = 0; rank < layouts[i][SHARD] * layouts[i][TENSOR]; rank++) {
            open_part(&setup, layouts[i], rank, STATES_INT8, MASTER_BF16, &piece);
            take_step(&setup, &piece);
            expect_part(&piece, whole.registry, layouts[i] != cut);
            close_part(&setup, &piece);
        }
    close_part(&setup, &whole);
    close_bench(&setup);
}

static void test_states__matrices_alone_are_in_few_bits(void **state)
{
    (void)state;
    bench setup;
    part whole;
    open_bench(&setup);
    open_part(&setup, one, 0, STATES_INT8, MASTER_BF16, &whole);
    take_step(&setup, &whole);
    for (int64_t i = 0; i < whole.registry->count; i++) {
        const param *row = &whole.registry->list[i];
        const bool matrix = row->n_dims > 1 && row->group != GROUP_ROUTER;
        bool rounded = true;
        assert_int_equal(row->coded, matrix);
        assert_int_equal(row->moment_dtype, matrix ? DT_U8 : DT_F32);
        assert_int_equal(row->scale1 != NULL, matrix);
        for (int64_t j = 0; j < row->own_n; j++)
            rounded &= (state_float_bits(((float *)row->value)[j]) & 0xffff) == 0;
        if (matrix)
            assert_true(rounded);
    }
    close_part(&setup, &whole);
    close_bench(&setup);
}

/* A device that computes in BF16 and has no storage: what it is asked for is what the plan says,
 * and no two arrays of a row lie over each other. */
static void test_states__have_room_on_a_device_of_two_types(void **state)
{
    (void)state;
    bench setup = {0};
    part whole;
    params_sizes size;
    open_bench(&setup);
    close_bench(&setup);
    assert_ok(shapes_device_open(NULL, &setup.dev));
    assert_ok(setup.dev->backend->stream_new(setup.dev, &setup.queue));
    open_part(&setup, one, 0, STATES_INT8, MASTER_BF16, &whole);
    assert_ok(params_size(whole.registry, setup.dev->backend, true, &size));
    const char *const begin = whole.registry->moments1.at, *last = begin;
    for (int64_t i = 0; i < whole.registry->n_spans * whole.registry->count; i++) {
        const param *row = &whole.registry->list[i % whole.registry->count];
        const char *const codes = row->moment1;
        if (row->span != i / whole.registry->count)
            continue; /* they lie unit by unit */
        assert_true(codes >= last);
        last = codes + (size_t)row->own_n * st_dtype_size(row->moment_dtype);
        if (row->coded) {
            assert_true((const char *)row->scale1 >= last);
            last = (const char *)(row->scale1 + (row->own_n + STATE_BLOCK - 1) / STATE_BLOCK);
        }
        assert_int_equal(row->value_dtype, row->act_master ? DT_BF16 : DT_F32);
        if (row->act_master) {
            assert_ptr_equal(row->value, row->own_act);
            continue;
        }
        assert_true((const char *)row->value >= last);
        last = (const char *)row->value + (size_t)row->own_n * sizeof(float);
    }
    assert_true(last <= begin + size.moments);
    assert_int_equal(size.values, 0);
    assert_int_equal(size.moments, whole.registry->moments1.count);
    assert_true(size.moments * 2 < size.trained * 3); /* 2.03 bytes and the vectors' */
    close_part(&setup, &whole);
    setup.dev->backend->stream_free(&setup.queue);
    device_close(&setup.dev);
}

static void write_all(bench *setup, const int64_t *degrees, int states, int master,
                      const char *folder)
{
    const int world = (int)(degrees[SHARD] * degrees[TENSOR]);
    for (int rank = 0; rank < world; rank++) {
        part piece;
        open_part(setup, degrees, rank, states, master, &piece);
        take_step(setup, &piece);
        assert_ok(
            train_state_write(piece.registry, setup->queue, (state_writer){rank, world}, folder));
        close_part(setup, &piece);
    }
}

static void test_states__go_from_layout_to_layout_as_they_are(void **state)
{
    (void)state;
    bench setup;
    part whole, piece;
    const int64_t *const layouts[] = {one, two, three};
    open_bench(&setup);
    open_part(&setup, one, 0, STATES_INT8, MASTER_BF16, &whole);
    take_step(&setup, &whole);
    for (int from = 0; from < 3; from++) {
        char *folder = harness_temp();
        write_all(&setup, layouts[from], STATES_INT8, MASTER_BF16, folder);
        for (int to = 0; to < 3; to++)
            for (int rank = 0; rank < layouts[to][SHARD]; rank++) {
                open_part(&setup, layouts[to], rank, STATES_INT8, MASTER_BF16, &piece);
                assert_ok(train_state_load(piece.registry, setup.queue, folder));
                expect_part(&piece, whole.registry, true);
                close_part(&setup, &piece);
            }
        harness_remove(&folder);
    }
    close_part(&setup, &whole);
    close_bench(&setup);
}

/* Loads states of one kind into a registry of another; `words` NULL: they must come near. */
static void load_other(bench *setup, const char *folder, const int64_t *degrees, int states,
                       int master, bool convert, const char *words)
{
    part piece;
    open_part(setup, degrees, 0, states, master, &piece);
    piece.registry->convert_states = convert;
    if (words) {
        assert_fails(ST_CONFIG, train_state_load(piece.registry, setup->queue, folder), words);
        close_part(setup, &piece);
        return;
    }
    assert_ok(train_state_load(piece.registry, setup->queue, folder));
    for (int64_t i = 0; i < piece.registry->count; i++) {
        const param *row = &piece.registry->list[i];
        const float size = (float)(i + 1);
        for (int64_t j = 0, stored; j < row->own_n; j++) {
            slice_run(&row->held, row->own_first + j, 1, &stored);
            const float g = sinf((float)stored) * size, want = 0.05f * g * g;
            const float got = row->coded ? state_second_value(((uint8_t *)row->moment2)[j],
                                                              row->scale2[j / STATE_BLOCK])
                                         : ((float *)row->moment2)[j];
            /* a sixteenth is lost twice, and a share may be below the smallest code */
            assert_true(fabsf(got - want) <= want * 0.13f + size * size * 2e-11f);
        }
    }
    close_part(setup, &piece);
}

static void test_states__of_another_kind_are_refused_or_converted(void **state)
{
    (void)state;
    bench setup;
    char *coded = harness_temp(), *plain = harness_temp();
    open_bench(&setup);
    write_all(&setup, one, STATES_INT8, MASTER_FLOAT32, coded);
    write_all(&setup, one, STATES_FLOAT32, MASTER_FLOAT32, plain);
    load_other(&setup, coded, one, STATES_FLOAT32, MASTER_FLOAT32, false, "is in 8 bits here");
    load_other(&setup, plain, one, STATES_INT8, MASTER_FLOAT32, false, "in 8 bits in this run");
    load_other(&setup, plain, one, STATES_FLOAT32, MASTER_BF16, false, "training.master: float32");
    load_other(&setup, coded, cut, STATES_INT8, MASTER_FLOAT32, false, "do not fall together");
    load_other(&setup, coded, one, STATES_FLOAT32, MASTER_FLOAT32, true, NULL);
    load_other(&setup, plain, one, STATES_INT8, MASTER_BF16, true, NULL);
    load_other(&setup, coded, cut, STATES_INT8, MASTER_FLOAT32, true, NULL);
    close_bench(&setup);
    harness_remove(&coded);
    harness_remove(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states__every_layout_takes_the_same_step),
        cmocka_unit_test(test_states__matrices_alone_are_in_few_bits),
        cmocka_unit_test(test_states__have_room_on_a_device_of_two_types),
        cmocka_unit_test(test_states__go_from_layout_to_layout_as_they_are),
        cmocka_unit_test(test_states__of_another_kind_are_refused_or_converted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
