/* SPDX-License-Identifier: Apache-2.0 */
/* test_gradients.c: compares the gradient of every parameter of the debug model with central
 * differences, in double precision, on a row with several pictures of different sizes, a video and
 * several documents (trainer/model/equations.md, "Debug model and worked examples").
 *
 * The model has 2.77 million elements, too many to try one by one. For each tensor the test takes
 * derivatives along random directions that touch every element, which miss an error of the gradient
 * only if it is orthogonal to all of them, and along single elements. The relative error must stay
 * below 1e-6. The router must choose the same experts on both sides of a difference; otherwise the
 * step is made smaller. Under a sanitizer every eighth tensor is tried. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/model/fixture.h"

static const double wanted = 1e-6;

typedef struct check {
    fixture setup;
    row batch;
    double *direction; /* has room for the largest parameter */
    double *value;
    int32_t *count; /* token copies per layer and expert before anything moves */
    double worst;
    char worst_name[160];
} check;

static size_t count_bytes(const check *checked)
{
    return (size_t)(checked->setup.dims.text.layers * checked->setup.dims.text.experts) *
           sizeof(int32_t);
}

static bool same_routing(const check *checked)
{
    return memcmp(model_expert_count(checked->setup.net), checked->count, count_bytes(checked)) ==
           0;
}

/* The loss after elements [first, first + count) have moved by step * direction. */
static double measure_moved(check *checked, const param *weight, int64_t first, int64_t count,
                            double step)
{
    double *at = malloc((size_t)count * sizeof *at);
    assert_non_null(at);
    for (int64_t i = 0; i < count; i++)
        at[i] = checked->value[first + i] + step * checked->direction[first + i];
    assert_ok(params_write(weight, checked->setup.queue, first, count, at));
    free(at);
    return fixture_forward(&checked->setup, &checked->batch, 1);
}

/* The slope by central differences of order 2, or of order 4 (Richardson), which allows larger
 * steps and so suffers less from rounding. Returns false if the routing changed. */
static bool slope_at(check *checked, const param *weight, int64_t first, int64_t count, double step,
                     bool fourth, double *out)
{
    double near = 0, far = 0;
    bool same = true;
    for (int side = -1; side <= 1; side += 2) {
        near += side * measure_moved(checked, weight, first, count, side * step);
        same = same && same_routing(checked);
        if (!fourth)
            continue;
        far += side * measure_moved(checked, weight, first, count, 2 * side * step);
        same = same && same_routing(checked);
    }
    *out = fourth ? (8 * near - far) / (12 * step) : near / (2 * step);
    return same;
}

/* The smallest relative error over a few step sizes; it stops early when the error is well below
 * the limit. Returns -1 if the routing changed at every size. */
static double error_along(check *checked, const param *weight, int64_t first, int64_t count,
                          double slope)
{
    static const struct {
        double step;
        bool fourth;
    } tries[] = {{1e-5, false}, {1e-3, true}, {2e-4, true}, {5e-3, true}, {3e-6, false}};
    double best = -1;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        double numeric;
        if (!slope_at(checked, weight, first, count, tries[i].step, tries[i].fourth, &numeric))
            continue;
        double error = fabs(numeric - slope) / fmax(fabs(slope), fabs(numeric));
        if (best < 0 || error < best)
            best = error;
        if (best < wanted / 4)
            break;
    }
    assert_ok(params_write(weight, checked->setup.queue, first, count, checked->value + first));
    return best;
}

static void note_error(check *checked, const param *weight, const char *how, double error)
{
    if (error < 0 || error >= wanted)
        print_error("%s: %s: relative error %.3g\n", weight->name, how, error);
    if (error < 0 || error > checked->worst) {
        checked->worst = error < 0 ? 1 : error;
        snprintf(checked->worst_name, sizeof checked->worst_name, "%s (%s)", weight->name, how);
    }
}

/* Draws a random direction whose slope is not nearly cancelled: at least 0.3 of its spread. */
static double draw_direction(check *checked, const param *weight, const double *grad,
                             uint64_t number)
{
    double slope = 0, spread = 0;
    rng_key key = rng_key_make(number, weight->name);
    for (uint64_t attempt = 0; attempt < 50; attempt++) {
        slope = 0;
        spread = 0;
        for (int64_t i = 0; i < weight->count; i++) {
            double value = rng_normal(key, (uint64_t)i + attempt * (uint64_t)weight->count);
            checked->direction[i] = value;
            slope += value * grad[i];
            spread += value * value * grad[i] * grad[i];
        }
        if (fabs(slope) > 0.3 * sqrt(spread))
            break;
    }
    return slope;
}

static void check_param(check *checked, const param *weight, const double *grad, int directions,
                        int elements)
{
    int64_t largest = 0;
    assert_ok(params_read(weight->value, checked->setup.queue, 0, weight->count, checked->value));
    for (int64_t i = 1; i < weight->count; i++)
        largest = fabs(grad[i]) > fabs(grad[largest]) ? i : largest;
    if (grad[largest] == 0)
        fail_msg("%s has no gradient at all", weight->name);
    for (int number = 0; number < directions; number++) {
        double slope = draw_direction(checked, weight, grad, (uint64_t)number);
        note_error(checked, weight, "direction",
                   error_along(checked, weight, 0, weight->count, slope));
    }
    rng_key key = rng_key_make(99, weight->name);
    for (int number = 0; number < elements;
         number++) { /* the largest first, then others, not tiny */
        int64_t i = largest;
        for (uint64_t tries = 0; number > 0 && tries < 1000; tries++) {
            i = (int64_t)rng_below(key, tries + 1000 * (uint64_t)number, (uint64_t)weight->count);
            if (fabs(grad[i]) > 0.05 * fabs(grad[largest]))
                break;
        }
        if (fabs(grad[i]) <= 0.05 * fabs(grad[largest]))
            i = largest;
        checked->direction[i] = 1;
        note_error(checked, weight, "element", error_along(checked, weight, i, 1, grad[i]));
    }
}

static void check_all(const model_dims *dims, double aux, bool again, int directions, int elements)
{
    check checked = {0};
    fixture_open(&checked.setup, dims);
    checked.batch = fixture_row(&checked.setup, debug_documents, 3, true);
    assert_int_equal(checked.batch.n_tokens, 46);
    model_options options = {.training = true,
                             .recomputed = fixture_full(again),
                             .router_aux_coef = aux,
                             .logit_rows = 7};
    batch_caps_for(&checked.batch, 1, 1, 4, &options.cap);
    fixture_model(&checked.setup, &options, false);
    double loss = fixture_forward_backward(&checked.setup, &checked.batch, 1);
    assert_true(isfinite(loss) && loss > 0);
    int64_t largest = 0, n_params = checked.setup.registry->count;
    double **grad = calloc((size_t)n_params, sizeof *grad);
    for (int64_t i = 0; i < n_params; i++) {
        grad[i] = fixture_grad(&checked.setup, &checked.setup.registry->list[i]);
        largest = checked.setup.registry->list[i].count > largest
                      ? checked.setup.registry->list[i].count
                      : largest;
    }
    checked.count = malloc(count_bytes(&checked));
    memcpy(checked.count, model_expert_count(checked.setup.net), count_bytes(&checked));
    assert_true(fabs(fixture_forward(&checked.setup, &checked.batch, 1) - loss) < 1e-12 * loss);
    checked.direction = calloc((size_t)largest, sizeof(double));
    checked.value = calloc((size_t)largest, sizeof(double));
    for (int64_t i = 0; i < n_params; i += HARNESS_SANITIZED ? 8 : 1)
        check_param(&checked, &checked.setup.registry->list[i], grad[i], directions, elements);
    print_message("%lld tensors, aux %g, loss %.12g: worst relative error %.2g in %s\n",
                  (long long)n_params, aux, loss, checked.worst, checked.worst_name);
    assert_true(checked.worst < wanted);
    for (int64_t i = 0; i < n_params; i++)
        free(grad[i]);
    free(grad);
    free(checked.count);
    free(checked.direction);
    free(checked.value);
    fixture_close(&checked.setup);
}

static void test_gradients__debug(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    check_all(&dims, 0, false, 2, 2);
}

static void test_gradients__debug_with_aux_loss_recomputed(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    check_all(&dims, 0.05, true, 1, 0);
}

/* A model with dense layers among the others, a tied head, and router weights that are not
 * rescaled. */
static void test_gradients__dense_layers_tied_no_renormalisation(void **state)
{
    (void)state;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    dims.text.tied = true;
    dims.text.norm_topk_prob = false;
    dims.text.dense_layers[0] = 1;
    dims.text.n_dense_layers = 1;
    dims.text.layers = 3;
    dims.vision.depth = 3;
    dims.vision.n_deepstack = 2;
    dims.vision.deepstack[0] = 0;
    dims.vision.deepstack[1] = 2;
    check_all(&dims, 0.05, false, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients__debug),
        cmocka_unit_test(test_gradients__debug_with_aux_loss_recomputed),
        cmocka_unit_test(test_gradients__dense_layers_tied_no_renormalisation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
