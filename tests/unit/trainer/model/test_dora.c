/* SPDX-License-Identifier: Apache-2.0 */
/* test_dora.c: adapters whose rows have lengths of their own (DoRA), in double precision. With the
 * lengths at what the rows have, the model is that of LoRA. With others it is LoRA on matrices and
 * factors that are scaled row by row, whose gradients say what those here must be, since the norm
 * counts as a constant; the gradients of the lengths agree with central differences.
 *
 * Letters: w a matrix; a, b the factors of its adapter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/model/params/quantised.h"
#include "trainer/ops/table.h"

static const char targets[] = "q_proj,k_proj,v_proj,o_proj";
enum { RANK = 3 };

static void open_model(fixture *setup, bool dora, bool coded)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(setup, &dims);
    params_release(setup->registry, setup->queue);
    assert_ok(lora_add(setup->registry, (lora_kind){.rank = RANK, .alpha = 2 * RANK, .dora = dora},
                       targets));
    if (coded)
        assert_ok(quantised_choose(setup->registry, WEIGHT_INT8));
    fixture_alloc_anew(setup);
    row packed = fixture_row(setup, debug_documents, 3, true);
    model_options options = {.training = true};
    batch_caps_for(&packed, 1, 64, 64, &options.cap);
    model_options_freeze(&options, setup->registry);
    fixture_model(setup, &options, false);
}

static double *read_all(const fixture *setup, const param *weight)
{
    double *values = malloc((size_t)weight->count * sizeof *values);
    assert_non_null(values);
    assert_ok(params_read_value(weight, setup->queue, 0, weight->count, values));
    return values;
}

/* The lengths of the rows of W + s B A. */
static double *lengths_of(const fixture *setup, const param *weight)
{
    const param *pair = weight + weight->lora;
    const int64_t out = weight->shape[0], in = weight->shape[1];
    double *w = read_all(setup, weight), *a = read_all(setup, pair), *b = read_all(setup, pair + 1);
    double *length = calloc((size_t)out, sizeof *length);
    assert_non_null(length);
    for (int64_t j = 0; j < out; j++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = w[j * in + i];
            for (int64_t k = 0; k < RANK; k++)
                sum += weight->lora_scale * b[j * RANK + k] * a[k * in + i];
            length[j] += sum * sum;
        }
        length[j] = sqrt(length[j]);
    }
    free(w);
    free(a);
    free(b);
    return length;
}

/* Writes `weight` of `from` into `to`, each of `rows` rows times its factor. */
static void write_scaled(const fixture *from, const param *weight, const fixture *to,
                         const double *factor, int64_t rows)
{
    const int64_t index = weight - from->registry->list;
    const param *other = params_find(to->registry, weight->name);
    double *values = read_all(from, weight);
    assert_true(other && index >= 0);
    for (int64_t i = 0; i < weight->count; i++)
        values[i] *= factor[i / (weight->count / rows)];
    assert_ok(params_write(other, to->queue, 0, weight->count, values));
    free(values);
}

static void expect_near(double got, double want, double scale)
{
    if (!(fabs(got - want) <= 1e-9 * (scale + 1)))
        fail_msg("%.17g is not %.17g", got, want);
}

static void test_dora__begins_as_lora(void **state)
{
    (void)state;
    fixture dora, plain;
    open_model(&dora, true, false);
    open_model(&plain, false, false);
    row packed = fixture_row(&dora, debug_documents, 3, true);
    row same = fixture_row(&plain, debug_documents, 3, true);
    assert_ok(lora_set_lengths(dora.registry, dora.queue));
    const double loss = fixture_forward(&dora, &packed, 1);
    expect_near(loss, fixture_forward(&plain, &same, 1), loss);
    fixture_close(&dora);
    fixture_close(&plain);
}

/* Gives the lengths other values, and `plain` the matrices and factors that make the same model.
 * Returns the factor of each row of the first matrix that has an adapter, *out_first. */
static double *make_same(const fixture *dora, const fixture *plain, const param **out_first)
{
    const rng_key key = rng_key_make(9, "lengths");
    double *first = NULL;
    for (int64_t i = 0; i < dora->registry->count; i++) {
        const param *weight = &dora->registry->list[i], *pair = weight + weight->lora;
        if (!weight->dora)
            continue;
        double *length = lengths_of(dora, weight), *factor = read_all(dora, pair + 2);
        double *wanted = read_all(dora, pair + 2);
        for (int64_t j = 0; j < weight->shape[0]; j++) {
            factor[j] = 1 + 0.3 * fabs(rng_normal(key, (uint64_t)(i * 1000 + j)));
            wanted[j] = factor[j] * length[j];
        }
        assert_ok(params_write(pair + 2, dora->queue, 0, pair[2].count, wanted));
        write_scaled(dora, weight, plain, factor, weight->shape[0]);
        write_scaled(dora, pair + 1, plain, factor, weight->shape[0]);
        free(length);
        free(wanted);
        if (first) {
            free(factor);
            continue;
        }
        first = factor;
        *out_first = weight;
    }
    return first;
}

static void check_gradients(fixture *dora, fixture *plain, const param *weight,
                            const double *factor)
{
    const param *pair = weight + weight->lora;
    double *a = fixture_grad(dora, pair), *b = fixture_grad(dora, pair + 1);
    double *want_a = fixture_grad(plain, params_find(plain->registry, pair->name));
    double *want_b = fixture_grad(plain, params_find(plain->registry, pair[1].name));
    double most = 0;
    for (int64_t i = 0; i < pair->count; i++)
        expect_near(a[i], want_a[i], fabs(want_a[i]));
    for (int64_t i = 0; i < pair[1].count; i++) {
        expect_near(b[i], factor[i / RANK] * want_b[i], fabs(want_b[i]));
        most = fmax(most, fabs(b[i]));
    }
    assert_true(most > 1e-6);
    free(a);
    free(b);
    free(want_a);
    free(want_b);
}

/* The slope of the loss along the lengths of one matrix. */
static void check_slope(fixture *dora, const row *packed, const param *lengths)
{
    const rng_key key = rng_key_make(4, "direction");
    const double step = 1e-5;
    double *value = read_all(dora, lengths), *moved = read_all(dora, lengths);
    double *grad = fixture_grad(dora, lengths), loss[2], slope = 0;
    for (int side = 0; side < 2; side++) {
        for (int64_t j = 0; j < lengths->count; j++)
            moved[j] = value[j] + (side ? -step : step) * rng_normal(key, (uint64_t)j);
        assert_ok(params_write(lengths, dora->queue, 0, lengths->count, moved));
        loss[side] = fixture_forward(dora, packed, 1);
    }
    assert_ok(params_write(lengths, dora->queue, 0, lengths->count, value));
    for (int64_t j = 0; j < lengths->count; j++)
        slope += rng_normal(key, (uint64_t)j) * grad[j];
    const double numeric = (loss[0] - loss[1]) / (2 * step);
    if (!(fabs(numeric - slope) <= 1e-5 * fabs(slope)) || slope == 0)
        fail_msg("%s: the slope is %.9g, and by differences %.9g", lengths->name, slope, numeric);
    free(value);
    free(moved);
    free(grad);
}

static void test_dora__is_lora_on_scaled_rows(void **state)
{
    (void)state;
    fixture dora, plain;
    const param *weight = NULL;
    open_model(&dora, true, false);
    open_model(&plain, false, false);
    row packed = fixture_row(&dora, debug_documents, 3, true);
    row same = fixture_row(&plain, debug_documents, 3, true);
    double *factor = make_same(&dora, &plain, &weight);
    assert_non_null(factor);
    const double loss = fixture_forward_backward(&dora, &packed, 1);
    expect_near(loss, fixture_forward_backward(&plain, &same, 1), loss);
    check_gradients(&dora, &plain, weight, factor);
    check_slope(&dora, &packed, weight + weight->lora + 2);

    /* What an export merges is the matrix that the model computes with. */
    const param *other = params_find(plain.registry, weight->name);
    double got[64], want[64];
    for (int64_t at = 0; at + 64 < weight->count; at += 61 * 64) {
        assert_ok(lora_read_merged(weight, dora.queue, at, 64, got));
        assert_ok(lora_read_merged(other, plain.queue, at, 64, want));
        for (int i = 0; i < 64; i++)
            expect_near(got[i], want[i], fabs(want[i]));
    }
    free(factor);
    fixture_close(&dora);
    fixture_close(&plain);
}

/* What a row of zeros, with nothing added to it yet, computes would be divided by 0. */
static void test_dora__rows_of_zeros_are_refused(void **state)
{
    (void)state;
    enum { ROW = 5 };
    fixture dora;
    open_model(&dora, true, false);
    const param *weight =
        params_find(dora.registry, "model.language_model.layers.1.self_attn.k_proj.weight");
    double *zeros = calloc((size_t)weight->shape[1], sizeof *zeros);
    assert_ok(lora_set_lengths(dora.registry, dora.queue));
    assert_ok(params_write(weight, dora.queue, ROW * weight->shape[1], weight->shape[1], zeros));
    assert_ok(params_write(weight + weight->lora + 1, dora.queue, ROW * RANK, RANK, zeros));
    assert_int_equal(lora_set_lengths(dora.registry, dora.queue), ST_CONFIG);
    assert_non_null(strstr(status_text(), "row 5 of model.language_model.layers.1.self_attn.k_p"));
    free(zeros);
    fixture_close(&dora);
}

/* Counts expansions of codes. */
static int64_t expanded;
static status (*dequantise)(stream *queue, const struct dequantise_args *args);

static status count_dequantise(stream *queue, const struct dequantise_args *args)
{
    expanded++;
    return dequantise(queue, args);
}

static int64_t count_expanded(bool dora)
{
    fixture setup;
    open_model(&setup, dora, true);
    ops_table counting = *setup.queue->ops;
    const ops_table *own = setup.queue->ops;
    row packed = fixture_row(&setup, debug_documents, 3, true);
    dequantise = own->dequantise;
    counting.dequantise = count_dequantise;
    expanded = 0;
    setup.queue->ops = &counting;
    fixture_forward_backward(&setup, &packed, 1);
    setup.queue->ops = own;
    fixture_close(&setup);
    return expanded;
}

/* The product that backward repeats and the gradient of the input read one expansion. */
static void test_dora__backward_expands_codes_once(void **state)
{
    (void)state;
    const int64_t plain = count_expanded(false);
    assert_true(plain > 0);
    assert_int_equal(count_expanded(true), plain);
}

static void test_dora__what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"gate_up_proj", "q_proj,gate"};
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        params *registry;
        assert_ok(params_new(&dims, &registry));
        assert_int_equal(
            lora_add(registry, (lora_kind){.rank = RANK, .alpha = 6, .dora = true}, wrong[i]),
            ST_CONFIG);
        assert_non_null(strstr(status_text(), "lora.dora"));
        params_free(&registry);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dora__begins_as_lora),
        cmocka_unit_test(test_dora__is_lora_on_scaled_rows),
        cmocka_unit_test(test_dora__rows_of_zeros_are_refused),
        cmocka_unit_test(test_dora__backward_expands_codes_once),
        cmocka_unit_test(test_dora__what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
