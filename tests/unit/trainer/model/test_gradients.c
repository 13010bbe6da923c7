/* test_gradients.c: compares the gradient of every parameter of the debug model with central
 * differences, in double precision, on a row with several pictures of different sizes, a video and
 * several documents (trainer/model/equations.md, "Debug model and worked examples").
 *
 * The model has 2.77 million elements, too many to try one by one. For each tensor the test takes
 * derivatives along random directions that touch every element, which miss an error of the gradient
 * only if it is orthogonal to all of them, and along single elements. The relative error must stay
 * below 1e-6. The router must choose the same experts on both sides of a difference; otherwise the
 * step is made smaller. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/model/fixture.h"

static const double wanted = 1e-6;

typedef struct check {
    fixture f;
    row batch;
    double *direction; /* has room for the largest parameter */
    double *value;
    int32_t *count; /* token copies per layer and expert before anything moves */
    double worst;
    char worst_name[160];
} check;

static size_t count_bytes(const check *c)
{
    return (size_t)(c->f.d.text.layers * c->f.d.text.experts) * sizeof(int32_t);
}

static bool same_routing(const check *c)
{
    return memcmp(model_expert_count(c->f.m), c->count, count_bytes(c)) == 0;
}

/* The loss after elements [first, first + n) have moved by step * direction. */
static double measure_moved(check *c, const param *p, int64_t first, int64_t n, double step)
{
    double *at = malloc((size_t)n * sizeof *at);
    assert_non_null(at);
    for (int64_t i = 0; i < n; i++)
        at[i] = c->value[first + i] + step * c->direction[first + i];
    assert_ok(params_write(p, c->f.s, first, n, at));
    free(at);
    return fixture_forward(&c->f, &c->batch, 1);
}

/* The slope by central differences of order 2, or of order 4 (Richardson), which allows larger
 * steps and so suffers less from rounding. Returns false if the routing changed. */
static bool slope_at(check *c, const param *p, int64_t first, int64_t n, double step, bool fourth,
                     double *out)
{
    double near = 0, far = 0;
    bool same = true;
    for (int side = -1; side <= 1; side += 2) {
        near += side * measure_moved(c, p, first, n, side * step);
        same = same && same_routing(c);
        if (!fourth)
            continue;
        far += side * measure_moved(c, p, first, n, 2 * side * step);
        same = same && same_routing(c);
    }
    *out = fourth ? (8 * near - far) / (12 * step) : near / (2 * step);
    return same;
}

/* The smallest relative error over a few step sizes; it stops early when the error is well below
 * the limit. Returns -1 if the routing changed at every size. */
static double error_along(check *c, const param *p, int64_t first, int64_t n, double slope)
{
    static const struct {
        double step;
        bool fourth;
    } tries[] = {{1e-5, false}, {1e-3, true}, {2e-4, true}, {5e-3, true}, {3e-6, false}};
    double best = -1;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        double numeric;
        if (!slope_at(c, p, first, n, tries[i].step, tries[i].fourth, &numeric))
            continue;
        double error = fabs(numeric - slope) / fmax(fabs(slope), fabs(numeric));
        if (best < 0 || error < best)
            best = error;
        if (best < wanted / 4)
            break;
    }
    assert_ok(params_write(p, c->f.s, first, n, c->value + first));
    return best;
}

static void note_error(check *c, const param *p, const char *how, double error)
{
    if (error < 0 || error >= wanted)
        print_error("%s: %s: relative error %.3g\n", p->name, how, error);
    if (error < 0 || error > c->worst) {
        c->worst = error < 0 ? 1 : error;
        snprintf(c->worst_name, sizeof c->worst_name, "%s (%s)", p->name, how);
    }
}

/* Draws a random direction whose slope is not nearly cancelled: at least 0.3 of its spread. */
static double draw_direction(check *c, const param *p, const double *grad, uint64_t n)
{
    double slope = 0, spread = 0;
    rng_key key = rng_key_make(n, p->name);
    for (uint64_t attempt = 0; attempt < 50; attempt++) {
        slope = 0;
        spread = 0;
        for (int64_t i = 0; i < p->count; i++) {
            double v = rng_normal(key, (uint64_t)i + attempt * (uint64_t)p->count);
            c->direction[i] = v;
            slope += v * grad[i];
            spread += v * v * grad[i] * grad[i];
        }
        if (fabs(slope) > 0.3 * sqrt(spread))
            break;
    }
    return slope;
}

static void check_param(check *c, const param *p, const double *grad, int directions, int elements)
{
    int64_t largest = 0;
    assert_ok(params_read(p->value, c->f.s, 0, p->count, c->value));
    for (int64_t i = 1; i < p->count; i++)
        largest = fabs(grad[i]) > fabs(grad[largest]) ? i : largest;
    if (grad[largest] == 0)
        fail_msg("%s has no gradient at all", p->name);
    for (int n = 0; n < directions; n++) {
        double slope = draw_direction(c, p, grad, (uint64_t)n);
        note_error(c, p, "direction", error_along(c, p, 0, p->count, slope));
    }
    rng_key key = rng_key_make(99, p->name);
    for (int n = 0; n < elements; n++) { /* the largest first, then others, not tiny */
        int64_t i = largest;
        for (uint64_t t = 0; n > 0 && t < 1000; t++) {
            i = (int64_t)rng_below(key, t + 1000 * (uint64_t)n, (uint64_t)p->count);
            if (fabs(grad[i]) > 0.05 * fabs(grad[largest]))
                break;
        }
        if (fabs(grad[i]) <= 0.05 * fabs(grad[largest]))
            i = largest;
        c->direction[i] = 1;
        note_error(c, p, "element", error_along(c, p, i, 1, grad[i]));
    }
}

static void check_all(const model_dims *d, double aux, bool again, int directions, int elements)
{
    check c = {0};
    fixture_open(&c.f, d);
    c.batch = fixture_row(&c.f, debug_documents, 3, true);
    assert_int_equal(c.batch.n_tokens, 46);
    model_options o = {.training = true,
                       .recomputed = fixture_full(again),
                       .router_aux_coef = aux,
                       .logit_rows = 7};
    batch_caps_for(&c.batch, 1, 1, 4, &o.cap);
    fixture_model(&c.f, &o, false);
    double loss = fixture_forward_backward(&c.f, &c.batch, 1);
    assert_true(isfinite(loss) && loss > 0);
    int64_t largest = 0, n_params = c.f.p->count;
    double **grad = calloc((size_t)n_params, sizeof *grad);
    for (int64_t i = 0; i < n_params; i++) {
        grad[i] = fixture_grad(&c.f, &c.f.p->list[i]);
        largest = c.f.p->list[i].count > largest ? c.f.p->list[i].count : largest;
    }
    c.count = malloc(count_bytes(&c));
    memcpy(c.count, model_expert_count(c.f.m), count_bytes(&c));
    assert_true(fabs(fixture_forward(&c.f, &c.batch, 1) - loss) < 1e-12 * loss);
    c.direction = calloc((size_t)largest, sizeof(double));
    c.value = calloc((size_t)largest, sizeof(double));
    for (int64_t i = 0; i < n_params; i++)
        check_param(&c, &c.f.p->list[i], grad[i], directions, elements);
    print_message("%lld tensors, aux %g, loss %.12g: worst relative error %.2g in %s\n",
                  (long long)n_params, aux, loss, c.worst, c.worst_name);
    assert_true(c.worst < wanted);
    for (int64_t i = 0; i < n_params; i++)
        free(grad[i]);
    free(grad);
    free(c.count);
    free(c.direction);
    free(c.value);
    fixture_close(&c.f);
}

static void test_gradients__debug(void **state)
{
    (void)state;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    check_all(&d, 0, false, 2, 2);
}

static void test_gradients__debug_with_aux_loss_recomputed(void **state)
{
    (void)state;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    check_all(&d, 0.05, true, 1, 0);
}

/* A model with dense layers among the others, a tied head, and router weights that are not
 * rescaled. */
static void test_gradients__dense_layers_tied_no_renormalisation(void **state)
{
    (void)state;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    d.text.tied = true;
    d.text.norm_topk_prob = false;
    d.text.dense_layers[0] = 1;
    d.text.n_dense_layers = 1;
    d.text.layers = 3;
    d.vision.depth = 3;
    d.vision.n_deepstack = 2;
    d.vision.deepstack[0] = 0;
    d.vision.deepstack[1] = 2;
    check_all(&d, 0.05, false, 1, 0);
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
