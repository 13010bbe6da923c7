/* SPDX-License-Identifier: Apache-2.0 */
/* test_lora.c: LoRA adapters of every kind of matrix, in double precision. Their gradients agree
 * with central differences, the merged model agrees with the adapted one, everything else is
 * frozen, and targets that do not exist are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/model/params/lora_params.h"

static const char all_targets[] = "q_proj,k_proj, v_proj,o_proj,gate,gate_up_proj,down_proj";
static const double wanted = 1e-6;
enum { RANK = 3 };

static void open_adapted(fixture *setup, bool checkpoint_full)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(setup, &dims);
    params_release(setup->registry, setup->queue);
    assert_ok(lora_add(setup->registry, (lora_kind){.rank = RANK, .alpha = 2 * RANK}, all_targets));
    fixture_alloc_anew(setup);
    row packed = fixture_row(setup, debug_documents, 3, true);
    model_options options = {.training = true, .recomputed = fixture_full(checkpoint_full)};
    batch_caps_for(&packed, 1, 64, 64, &options.cap);
    model_options_freeze(&options, setup->registry);
    fixture_model(setup, &options, false);
}

typedef struct check {
    fixture setup;
    row batch;
    double *value, *direction;
    int32_t *count;
    size_t count_bytes;
} check;

static double measure_step(check *checked, const param *weight, double step, bool *same)
{
    double *at = malloc((size_t)weight->count * sizeof *at);
    assert_non_null(at);
    for (int64_t i = 0; i < weight->count; i++)
        at[i] = checked->value[i] + step * checked->direction[i];
    assert_ok(params_write(weight, checked->setup.queue, 0, weight->count, at));
    free(at);
    double loss = fixture_forward(&checked->setup, &checked->batch, 1);
    *same = *same && memcmp(model_expert_count(checked->setup.net), checked->count,
                            checked->count_bytes) == 0;
    return loss;
}

/* The smallest relative error of the slope along a random direction, among the steps that leave the
 * choice of experts unchanged. */
static double error_of(check *checked, const param *weight, const double *grad)
{
    static const double steps[] = {1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6};
    rng_key key = rng_key_make(3, weight->name);
    double slope = 0, best = 1;
    assert_ok(params_read(weight->value, checked->setup.queue, 0, weight->count, checked->value));
    for (int64_t i = 0; i < weight->count; i++) {
        checked->direction[i] = rng_normal(key, (uint64_t)i);
        slope += checked->direction[i] * grad[i];
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps && best > wanted / 4; i++) {
        double step = steps[i];
        bool same = true;
        double near = measure_step(checked, weight, step, &same) -
                      measure_step(checked, weight, -step, &same);
        double far = measure_step(checked, weight, 2 * step, &same) -
                     measure_step(checked, weight, -2 * step, &same);
        double numeric = (8 * near - far) / (12 * step);
        double error = fabs(numeric - slope) / fmax(fabs(slope), fabs(numeric));
        best = same && error < best ? error : best;
    }
    assert_ok(params_write(weight, checked->setup.queue, 0, weight->count, checked->value));
    return best;
}

static void test_lora__gradients_agree_with_differences(void **state)
{
    (void)state;
    check checked = {0};
    open_adapted(&checked.setup, false);
    const params *registry = checked.setup.registry;
    int64_t largest = 0, adapters = 0, kinds[GROUP_COUNT] = {0};
    for (int64_t i = 0; i < registry->count; i++)
        largest = registry->list[i].count > largest ? registry->list[i].count : largest;
    checked.batch = fixture_row(&checked.setup, debug_documents, 3, true);
    checked.value = malloc((size_t)largest * sizeof(double));
    checked.direction = malloc((size_t)largest * sizeof(double));
    checked.count_bytes =
        (size_t)(checked.setup.dims.text.layers * checked.setup.dims.text.experts) *
        sizeof(int32_t);
    checked.count = malloc(checked.count_bytes);
    assert_true(checked.value && checked.direction && checked.count);
    fixture_forward_backward(&checked.setup, &checked.batch, 1);
    memcpy(checked.count, model_expert_count(checked.setup.net), checked.count_bytes);
    for (int64_t i = 0; i < registry->count; i++) {
        const param *weight = &registry->list[i];
        assert_true(weight->adapter == (weight->grad != NULL)); /* the model itself is frozen */
        if (!weight->adapter)
            continue;
        double *grad = fixture_grad(&checked.setup, weight),
               error = error_of(&checked, weight, grad);
        if (!(error < wanted))
            fail_msg("%s: relative error %.3g", weight->name, error);
        free(grad);
        adapters++;
        kinds[weight->group]++;
    }
    assert_true(kinds[GROUP_TEXT] && kinds[GROUP_ROUTER] && kinds[GROUP_EXPERTS]);
    assert_int_equal(kinds[GROUP_VISION], 0);
    assert_int_equal(adapters, 2 * 7 * checked.setup.dims.text.layers);
    free(checked.value);
    free(checked.direction);
    free(checked.count);
    fixture_close(&checked.setup);
}

static void test_lora__recomputation_changes_no_bit(void **state)
{
    (void)state;
    fixture setups[2];
    for (int full = 0; full < 2; full++) {
        open_adapted(&setups[full], full);
        row packed = fixture_row(&setups[full], debug_documents, 3, true);
        fixture_forward_backward(&setups[full], &packed, 1);
    }
    for (int64_t i = 0; i < setups[0].registry->count; i++) {
        const param *weight = &setups[0].registry->list[i];
        if (weight->adapter)
            assert_memory_equal(weight->grad, setups[1].registry->list[i].grad,
                                (size_t)weight->count * sizeof(double));
    }
    fixture_close(&setups[0]);
    fixture_close(&setups[1]);
}

static void test_lora__merged_is_the_same_model(void **state)
{
    (void)state;
    fixture setup, plain;
    open_adapted(&setup, false);
    fixture_open(&plain, &setup.dims);
    row packed = fixture_row(&setup, debug_documents, 3, true);
    fixture_model(&plain, &(model_options){.cap = setup.options.cap}, false);
    double adapted = fixture_forward(&setup, &packed, 1),
           base = fixture_forward(&plain, &packed, 1);
    assert_true(fabs(adapted - base) > 1e-3 * base); /* the adapters have an effect */
    for (int64_t i = 0; i < plain.registry->count; i++) {
        const param *weight = &setup.registry->list[i];
        double *values = malloc((size_t)weight->count * sizeof *values);
        assert_non_null(values);
        assert_string_equal(weight->name, plain.registry->list[i].name);
        /* Reads in parts that end anywhere within the matrices. */
        for (int64_t at = 0, length; at < weight->count; at += length) {
            length = weight->count - at < 10007 ? weight->count - at : 10007;
            assert_ok(lora_read_merged(weight, setup.queue, at, length, values + at));
        }
        assert_ok(params_write(&plain.registry->list[i], plain.queue, 0, weight->count, values));
        free(values);
    }
    double merged = fixture_forward(&plain, &packed, 1);
    if (!(fabs(merged - adapted) < 1e-12 * adapted))
        fail_msg("loss %.15g with adapters, %.15g merged", adapted, merged);
    fixture_close(&plain);
    fixture_close(&setup);
}

static void test_lora__starts_as_the_base_model(void **state)
{
    (void)state;
    fixture setup, plain;
    open_adapted(&setup, false);
    fixture_open(&plain, &setup.dims);
    row packed = fixture_row(&setup, debug_documents, 3, true);
    fixture_model(&plain, &(model_options){.cap = setup.options.cap}, false);
    assert_ok(params_init_adapters(setup.registry, setup.queue, 1));
    double adapted = fixture_forward(&setup, &packed, 1),
           base = fixture_forward(&plain, &packed, 1);
    assert_true(adapted == base);
    fixture_close(&plain);
    fixture_close(&setup);
}

static void test_lora_add__refuses_bad_targets(void **state)
{
    (void)state;
    model_dims dims;
    params *registry;
    assert_ok(dims_preset("debug", &dims));
    const char *bad[] = {"q_proj,embed_tokens", "qkv", "lm_head", "", " , "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_ok(params_new(&dims, &registry));
        assert_fails(ST_CONFIG, lora_add(registry, (lora_kind){.rank = 4, .alpha = 4}, bad[i]),
                     "lora.targets");
        params_free(&registry);
    }
    assert_ok(params_new(&dims, &registry));
    assert_ok(lora_add(registry, (lora_kind){.rank = 4, .alpha = 4}, "*layers.1.self_attn.?_proj"));
    int64_t adapters = 0;
    for (int64_t i = 0; i < registry->count; i++)
        adapters += registry->list[i].adapter;
    assert_int_equal(adapters, 2 * 4);
    assert_non_null(
        params_find(registry, "model.language_model.layers.1.self_attn.q_proj.lora_A.weight"));
    params_free(&registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora__gradients_agree_with_differences),
        cmocka_unit_test(test_lora__recomputation_changes_no_bit),
        cmocka_unit_test(test_lora__merged_is_the_same_model),
        cmocka_unit_test(test_lora__starts_as_the_base_model),
        cmocka_unit_test(test_lora_add__refuses_bad_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
