/* SPDX-License-Identifier: Apache-2.0 */
/* test_cut.c: how a parameter is cut over the ranks of a layout. The parts that the ranks hold make
 * up the whole parameter, with nothing missing and nothing twice, and layouts that a model does not
 * allow are refused. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/model/params/params.h"
#include "trainer/ops/open.h"

static layout layout_like(int64_t replicate, int64_t shard, int64_t context, int64_t tensor,
                          int64_t expert, int64_t expert_tensor)
{
    return (layout){.replicate = replicate,
                    .shard = shard,
                    .context = context,
                    .tensor = tensor,
                    .pipeline = 1,
                    .expert = expert,
                    .expert_tensor = expert_tensor,
                    .world = replicate * shard * context * tensor,
                    .accumulation = 8};
}

static params *cut_for(const model_dims *dims, const layout *degrees, int rank)
{
    params *registry;
    assert_ok(params_new(dims, &registry));
    assert_ok(params_cut(registry, dims, degrees, mesh_place_of(degrees, rank)));
    for (int64_t i = 0; i < registry->count; i++) {
        const param *weight = &registry->list[i];
        int64_t elements = 1;
        for (int axis = 0; axis < weight->n_dims; axis++)
            elements *= weight->local[axis];
        assert_int_equal(elements, weight->n_local);
        assert_int_equal(slice_count(&weight->held), weight->n_local);
    }
    return registry;
}

/* The pipeline stages have the units in order, and each unit is on exactly one stage, whatever else
 * cuts it. */
static void test_cut__stages_have_every_unit_once(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    layout degrees = layout_like(1, 2, 1, 2, 2, 1);
    degrees.pipeline = 3;
    degrees.world *= 3;
    degrees.stage_end[0] = 12;
    degrees.stage_end[1] = 31;
    params *of[3];
    for (int stage = 0; stage < 3; stage++)
        of[stage] = cut_for(&dims, &degrees, stage * 4 + 1);
    for (int64_t i = 0; i < of[0]->count; i++) {
        const param *weight = &of[0]->list[i];
        int want = weight->layer >= 0 ? (weight->layer >= 12) + (weight->layer >= 31)
                   : strcmp(weight->name, "lm_head.weight") == 0 ||
                           strcmp(weight->name, "model.language_model.norm.weight") == 0
                       ? 2
                       : 0;
        for (int stage = 0; stage < 3; stage++)
            assert_int_equal(of[stage]->list[i].elsewhere, stage != want);
    }
    params_sizes size;
    int64_t stored = 0;
    mesh ranks;
    mesh_alone(&ranks); /* one rank per stage, which stores all of the stage */
    for (int stage = 0; stage < 3; stage++) {
        params_share(of[stage], &ranks, true);
        assert_ok(params_size(of[stage], &backend_cpu, true, &size));
        stored += size.stored;
        params_free(&of[stage]);
    }
    /* Two ranks (tensor or expert) each store half of what they share, and spans are padded. */
    assert_in_range(stored, 31070754032 / 2, 31070754032 * 11 / 20);
}

static bool overlap_slices(const slice *first, const slice *second)
{
    bool all = true;
    for (int axis = 0; axis < SLICE_AXES; axis++)
        all = all && first->first[axis] < second->first[axis] + second->count[axis] &&
              second->first[axis] < first->first[axis] + first->count[axis];
    return all;
}

/* Within a stage and a replica, the ranks that own a row together hold the same part of it, other
 * ranks hold nothing of that part, and all of them together hold everything. */
static void check_shapes(const char *preset, layout degrees)
{
    model_dims dims;
    params **of = calloc((size_t)degrees.world, sizeof(params *));
    int *owner = calloc((size_t)degrees.world, sizeof *owner),
        world = (int)(degrees.world / degrees.replicate);
    assert_ok(dims_preset(preset, &dims));
    for (int rank = 0; rank < world; rank++)
        of[rank] = cut_for(&dims, &degrees, rank);
    for (int64_t i = 0; i < of[0]->count; i++)
        for (int axis = 0; axis < world; axis++) {
            const param *mine = &of[axis]->list[i];
            int owners = mesh_members(&degrees, axis, params_owners(mine), owner), same = 0;
            assert_int_equal(mine->n_local * (world / owners), mine->count);
            for (int other = 0; other < world; other++) {
                const slice *theirs = &of[other]->list[i].held;
                bool shares = false;
                for (int k = 0; k < owners; k++)
                    shares |= owner[k] == other;
                if (shares)
                    assert_memory_equal(theirs, &mine->held, sizeof *theirs);
                else
                    assert_false(overlap_slices(theirs, &mine->held));
                same += shares;
            }
            assert_int_equal(same, owners);
        }
    for (int rank = 0; rank < world; rank++)
        params_free(&of[rank]);
    free(owner);
    free(of);
}

static void test_cut__ranks_hold_everything_once(void **state)
{
    (void)state;
    for (int preset = 0; preset < 2; preset++) {
        const char *name = preset ? "tile" : "debug";
        check_shapes(name, layout_like(1, 1, 1, 1, 1, 1));
        check_shapes(name, layout_like(1, 8, 1, 1, 4, 1));
        check_shapes(name, layout_like(1, 2, 2, 2, 1, 1));
        check_shapes(name, layout_like(1, 2, 1, 2, 2, 2));
        check_shapes(name, layout_like(1, 4, 1, 2, 8, 1));
        check_shapes(name, layout_like(2, 2, 2, 1, 4, 1));
        check_shapes(name, layout_like(1, 2, 1, 2, 1, 2));
    }
    check_shapes("qwen3-vl-30b-a3b", layout_like(1, 2, 1, 4, 2, 4));
    check_shapes("qwen3-vl-30b-a3b", layout_like(1, 8, 1, 1, 8, 1));
}

/* Compares a slice with a plain walk over the elements of the tensor. */
static void check_slice(const slice *box)
{
    int64_t count = box->size[0] * box->size[1] * box->size[2] * box->size[3], local = 0, at,
            run = 0;
    for (int64_t stored = 0; stored < count; stored++) {
        int64_t rest = stored, axis = SLICE_AXES;
        bool held = true;
        while (axis-- > 0) {
            int64_t i = rest % box->size[axis];
            held = held && i >= box->first[axis] && i < box->first[axis] + box->count[axis];
            rest /= box->size[axis];
        }
        assert_int_equal(slice_find(box, stored), held ? local : -1);
        if (!held) {
            assert_int_equal(run, 0); /* the last run ended here */
            continue;
        }
        assert_int_equal(slice_run(box, local, 1, &at), 1);
        assert_int_equal(at, stored);
        if (run == 0)
            run = slice_run(box, local, count, &at);
        run--;
        local++;
    }
    assert_int_equal(local, slice_count(box));
}

static void test_slice__runs_and_finds(void **state)
{
    (void)state;
    const int shares[][SLICE_AXES] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 3, 1, 1}, {2, 1, 1, 4},
                                      {1, 1, 1, 2}, {2, 3, 1, 1}, {2, 3, 2, 4}};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        for (int64_t which = 0; which < 2; which++) {
            slice box = slice_whole(4, 6, 2, 8);
            for (int axis = 0; axis < SLICE_AXES; axis++)
                slice_cut(&box, axis, which < shares[i][axis] ? which : 0, shares[i][axis]);
            check_slice(&box);
        }
}

/* The initial values on the ranks of a cut model are those of the whole model. */
static void test_cut__initial_values_are_the_same(void **state)
{
    (void)state;
    layout degrees = layout_like(1, 2, 1, 2, 2, 2);
    model_dims dims;
    device *dev;
    stream *queue;
    params *whole;
    assert_ok(dims_preset("debug", &dims));
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    assert_ok(params_new(&dims, &whole));
    assert_ok(params_alloc(whole, queue, false));
    assert_ok(params_init(whole, queue, 3));
    for (int rank = 0; rank < degrees.world; rank++) {
        params *registry = cut_for(&dims, &degrees, rank);
        assert_ok(params_alloc(registry, queue, false));
        assert_ok(params_init(registry, queue, 3));
        for (int64_t i = 0; i < registry->count; i++) {
            const float *got = registry->list[i].value, *want = whole->list[i].value;
            for (int64_t j = 0, run, at; j < registry->list[i].n_local; j += run) {
                run = slice_run(&registry->list[i].held, j, registry->list[i].n_local, &at);
                assert_memory_equal(got + j, want + at, (size_t)run * sizeof *got);
            }
        }
        params_release(registry, queue);
        params_free(&registry);
    }
    params_release(whole, queue);
    params_free(&whole);
    dev->backend->stream_free(&queue);
    device_close(&dev);
}

static layout staged(int64_t stages)
{
    layout degrees = layout_like(1, 1, 1, 1, 1, 1);
    degrees.pipeline = degrees.world = stages;
    return degrees;
}

static void test_cut__refusals_name_what_does_not_divide(void **state)
{
    (void)state;
    const struct {
        const char *preset;
        layout degrees;
        const char *rule;
    } cases[] = {
        {"qwen3-vl-30b-a3b", layout_like(1, 1, 1, 8, 1, 1),
         "tensor_parallel_degree 8 must divide the model's 4 key-value heads"},
        {"qwen3-vl-30b-a3b", layout_like(1, 3, 1, 1, 3, 1),
         "expert_parallel_degree 3 must divide the model's 128 experts"},
        {"qwen3-vl-30b-a3b", staged(47),
         "pipeline_parallel_degree 47 must be at most 46: the model has 48 layers, of which the "
         "first stage must have 3"},
        {"qwen3-vl-2b", staged(2), "the model's head shares its weights with the embedding"},
        {"debug", layout_like(1, 32, 1, 1, 32, 1),
         "expert_parallel_degree 32 must divide the model's 16 experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_dims dims;
        params *registry;
        assert_ok(dims_preset(cases[i].preset, &dims));
        assert_ok(params_new(&dims, &registry));
        assert_fails(
            ST_CONFIG,
            params_cut(registry, &dims, &cases[i].degrees, mesh_place_of(&cases[i].degrees, 0)),
            cases[i].rule);
        /* The batch is not known here, so the message suggests no other layout (test_layout.c tests
         * those). */
        assert_null(strstr(status_text(), "nearest"));
        params_free(&registry);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut__ranks_hold_everything_once),
        cmocka_unit_test(test_cut__stages_have_every_unit_once),
        cmocka_unit_test(test_slice__runs_and_finds),
        cmocka_unit_test(test_cut__initial_values_are_the_same),
        cmocka_unit_test(test_cut__refusals_name_what_does_not_divide),
    };
    return cmocka_run_group_tests_name("cut", tests, NULL, NULL);
}
