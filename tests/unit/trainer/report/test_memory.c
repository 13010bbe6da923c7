/* What a layout takes, and what is offered where it does not fit. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__regions_are_counted),
        cmocka_unit_test(test_memory__offers_the_smallest_change),
        cmocka_unit_test(test_memory__patches_are_whole_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
