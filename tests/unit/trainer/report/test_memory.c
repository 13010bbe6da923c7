/* What a layout takes, and what is offered where it does not fit. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/layout_plan.h"
#include "trainer/memory.h"

static memory_layout small_layout(const model_dims *d)
{
    return (memory_layout){.dims = d,
                           .backend = &backend_cpu,
                           .n_params = 1000,
                           .n_trained = 1000,
                           .rows = 6,
                           .seq_len = 256,
                           .patch_budget = 1024,
                           .training = true};
}

static void test_memory__regions_are_counted(void **state)
{
    (void)state;
    model_dims d;
    memory_plan p;
    assert_ok(dims_preset("debug", &d));
    memory_layout l = small_layout(&d);
    assert_ok(memory_layout_plan(&l, &p));
    assert_int_equal(p.parameters, 4000);
    assert_int_equal(p.gradients, 4000);
    assert_int_equal(p.moments, 8000);
    assert_int_equal(p.total, 16000 + p.activations);
    l.training = false;
    memory_plan eval;
    assert_ok(memory_layout_plan(&l, &eval));
    assert_int_equal(eval.gradients + eval.moments, 0);
    assert_true(eval.activations < p.activations);
}

static void test_memory__offers_the_smallest_change(void **state)
{
    (void)state;
    model_dims d;
    memory_plan p, full, fewer;
    assert_ok(dims_preset("debug", &d));
    memory_layout l = small_layout(&d), other = l;
    assert_ok(memory_layout_plan(&l, &p));
    assert_ok(memory_layout_check(&l, (double)p.total));

    other.checkpoint_full = true;
    assert_ok(memory_layout_plan(&other, &full));
    assert_fails(
        ST_CONFIG, memory_layout_check(&l, (double)full.total),
        "activation_checkpoint.mode full, training.local_batch_size 6, training.seq_len 256");
    other.rows = 3;
    assert_ok(memory_layout_plan(&other, &fewer));
    assert_fails(
        ST_CONFIG, memory_layout_check(&l, (double)fewer.total),
        "activation_checkpoint.mode full, training.local_batch_size 3, training.seq_len 256");
    assert_fails(ST_CONFIG, memory_layout_check(&l, (double)fewer.total / 4),
                 "training.local_batch_size 1, training.seq_len ");
    assert_fails(ST_CONFIG, memory_layout_check(&l, 1000), "no batch of this model fits");
}

static void test_memory__patches_are_whole_groups(void **state)
{
    (void)state;
    batch_caps c = memory_caps(3, 100, 401);
    assert_int_equal(c.patches, 3 * 404);
    assert_int_equal(c.tokens, 300);
    assert_true(c.docs >= 3 && c.items == 303 && c.frames == 303);
}

static void test_layout__ranks_fit_each_other(void **state)
{
    (void)state;
    const struct {
        int64_t world, shard, tensor, context, expert, expert_tensor, local, global;
        const char *words; /* NULL: fine */
        int64_t accumulation;
    } cases[] = {
        {0, -1, 1, 1, 1, 1, 1, 6, NULL, 6},
        {8, -1, 1, 1, 8, 1, 2, 32, NULL, 2},
        {8, -1, 4, 1, 2, 4, 2, 8, NULL, 2}, /* experts divide the two shards */
        {8, -1, 4, 1, 2, 1, 2, 8, "must divide 8 ranks and be a multiple of 4", 0},
        {8, 3, 1, 1, 1, 1, 1, 8, "8 ranks are no product", 0},
        {16, -1, 2, 2, 4, 1, 1, 4, NULL, 1},
        {8, -1, 1, 1, 3, 1, 1, 8, "expert_parallel_degree 3", 0},
        {8, -1, 1, 1, 1, 1, 3, 8, "local_batch_size 3 x 8", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        conf c = {.dp_replicate = 1,
                  .pipeline_degree = 1,
                  .world_size = cases[i].world,
                  .dp_shard = cases[i].shard,
                  .tensor_degree = cases[i].tensor,
                  .context_degree = cases[i].context,
                  .expert_degree = cases[i].expert,
                  .expert_tensor_degree = cases[i].expert_tensor,
                  .training_local_batch_size = cases[i].local,
                  .training_global_batch_size = cases[i].global};
        layout l;
        if (cases[i].words) {
            assert_fails(ST_CONFIG, layout_of(&c, &l), cases[i].words);
            continue;
        }
        assert_ok(layout_of(&c, &l));
        assert_int_equal(l.accumulation, cases[i].accumulation);
        assert_int_equal(l.shard * l.tensor * l.context, l.world);
    }
}

/* The published model's state over eight cards: 16 bytes a value in fp32, 2 in bf16. */
static void test_layout__state_is_sharded(void **state)
{
    (void)state;
    model_dims d;
    params *p;
    layout l;
    layout_plan none, full;
    conf c = {.dp_replicate = 1,
              .pipeline_degree = 1,
              .world_size = 8,
              .dp_shard = -1,
              .tensor_degree = 1,
              .context_degree = 1,
              .expert_degree = 1,
              .expert_tensor_degree = 1,
              .training_local_batch_size = 1,
              .training_global_batch_size = 8,
              .training_seq_len = 4096};
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &d));
    assert_ok(params_new(&d, &p));
    assert_ok(layout_of(&c, &l));
    assert_ok(layout_plan_make(&c, &l, &d, p, 1, false, &none));
    assert_ok(layout_plan_make(&c, &l, &d, p, 1, true, &full));
    assert_int_equal(none.state, 31070754032 * 16 / 8);
    assert_int_equal(none.weights, 31070754032 * 2 / 8);
    assert_true(full.activations < none.activations / 4);
    assert_int_equal(none.total, none.state + none.weights + none.gathered + none.activations);
    params_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__regions_are_counted),
        cmocka_unit_test(test_memory__offers_the_smallest_change),
        cmocka_unit_test(test_memory__patches_are_whole_groups),
        cmocka_unit_test(test_layout__ranks_fit_each_other),
        cmocka_unit_test(test_layout__state_is_sharded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
