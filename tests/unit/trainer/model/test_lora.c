/* test_lora.c: LoRA adapters of every kind of matrix, in double precision. Their gradients agree
 * with central differences, the merged model agrees with the adapted one, everything else is
 * frozen, and targets that do not exist are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/model/lora_params.h"

static const char all_targets[] = "q_proj,k_proj, v_proj,o_proj,gate,gate_up_proj,down_proj";
static const double wanted = 1e-6;
enum { RANK = 3 };

static void open_adapted(fixture *f, bool checkpoint_full)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(f, &d);
    params_release(f->p, f->s);
    assert_ok(lora_add(f->p, RANK, 2 * RANK, all_targets));
    fixture_alloc_anew(f);
    row r = fixture_row(f, debug_documents, 3, true);
    model_options o = {.training = true, .recomputed = fixture_full(checkpoint_full)};
    batch_caps_for(&r, 1, 64, 64, &o.cap);
    model_options_freeze(&o, f->p);
    fixture_model(f, &o, false);
}

typedef struct check {
    fixture f;
    row batch;
    double *value, *direction;
    int32_t *count;
    size_t count_bytes;
} check;

static double measure_step(check *c, const param *p, double step, bool *same)
{
    double *at = malloc((size_t)p->count * sizeof *at);
    assert_non_null(at);
    for (int64_t i = 0; i < p->count; i++)
        at[i] = c->value[i] + step * c->direction[i];
    assert_ok(params_write(p, c->f.s, 0, p->count, at));
    free(at);
    double loss = fixture_forward(&c->f, &c->batch, 1);
    *same = *same && memcmp(model_expert_count(c->f.m), c->count, c->count_bytes) == 0;
    return loss;
}

/* The smallest relative error of the slope along a random direction, among the steps that leave the
 * choice of experts unchanged. */
static double error_of(check *c, const param *p, const double *grad)
{
    static const double steps[] = {1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6};
    rng_key key = rng_key_make(3, p->name);
    double slope = 0, best = 1;
    assert_ok(params_read(p->value, c->f.s, 0, p->count, c->value));
    for (int64_t i = 0; i < p->count; i++) {
        c->direction[i] = rng_normal(key, (uint64_t)i);
        slope += c->direction[i] * grad[i];
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps && best > wanted / 4; i++) {
        double h = steps[i];
        bool same = true;
        double near = measure_step(c, p, h, &same) - measure_step(c, p, -h, &same);
        double far = measure_step(c, p, 2 * h, &same) - measure_step(c, p, -2 * h, &same);
        double numeric = (8 * near - far) / (12 * h);
        double error = fabs(numeric - slope) / fmax(fabs(slope), fabs(numeric));
        best = same && error < best ? error : best;
    }
    assert_ok(params_write(p, c->f.s, 0, p->count, c->value));
    return best;
}

static void test_lora__gradients_agree_with_differences(void **state)
{
    (void)state;
    check c = {0};
    open_adapted(&c.f, false);
    const params *p = c.f.p;
    int64_t largest = 0, adapters = 0, kinds[GROUP_COUNT] = {0};
    for (int64_t i = 0; i < p->count; i++)
        largest = p->list[i].count > largest ? p->list[i].count : largest;
    c.batch = fixture_row(&c.f, debug_documents, 3, true);
    c.value = malloc((size_t)largest * sizeof(double));
    c.direction = malloc((size_t)largest * sizeof(double));
    c.count_bytes = (size_t)(c.f.d.text.layers * c.f.d.text.experts) * sizeof(int32_t);
    c.count = malloc(c.count_bytes);
    assert_true(c.value && c.direction && c.count);
    fixture_forward_backward(&c.f, &c.batch, 1);
    memcpy(c.count, model_expert_count(c.f.m), c.count_bytes);
    for (int64_t i = 0; i < p->count; i++) {
        const param *q = &p->list[i];
        assert_true(q->adapter == (q->grad != NULL)); /* the model itself is frozen */
        if (!q->adapter)
            continue;
        double *grad = fixture_grad(&c.f, q), error = error_of(&c, q, grad);
        if (!(error < wanted))
            fail_msg("%s: relative error %.3g", q->name, error);
        free(grad);
        adapters++;
        kinds[q->group]++;
    }
    assert_true(kinds[GROUP_TEXT] && kinds[GROUP_ROUTER] && kinds[GROUP_EXPERTS]);
    assert_int_equal(kinds[GROUP_VISION], 0);
    assert_int_equal(adapters, 2 * 7 * c.f.d.text.layers);
    free(c.value);
    free(c.direction);
    free(c.count);
    fixture_close(&c.f);
}

static void test_lora__recomputation_changes_no_bit(void **state)
{
    (void)state;
    fixture f[2];
    for (int full = 0; full < 2; full++) {
        open_adapted(&f[full], full);
        row r = fixture_row(&f[full], debug_documents, 3, true);
        fixture_forward_backward(&f[full], &r, 1);
    }
    for (int64_t i = 0; i < f[0].p->count; i++) {
        const param *q = &f[0].p->list[i];
        if (q->adapter)
            assert_memory_equal(q->grad, f[1].p->list[i].grad, (size_t)q->count * sizeof(double));
    }
    fixture_close(&f[0]);
    fixture_close(&f[1]);
}

static void test_lora__merged_is_the_same_model(void **state)
{
    (void)state;
    fixture f, plain;
    open_adapted(&f, false);
    fixture_open(&plain, &f.d);
    row r = fixture_row(&f, debug_documents, 3, true);
    fixture_model(&plain, &(model_options){.cap = f.o.cap}, false);
    double adapted = fixture_forward(&f, &r, 1), base = fixture_forward(&plain, &r, 1);
    assert_true(fabs(adapted - base) > 1e-3 * base); /* the adapters have an effect */
    for (int64_t i = 0; i < plain.p->count; i++) {
        const param *q = &f.p->list[i];
        double *v = malloc((size_t)q->count * sizeof *v);
        assert_non_null(v);
        assert_string_equal(q->name, plain.p->list[i].name);
        /* Reads in parts that end anywhere within the matrices. */
        for (int64_t at = 0, n; at < q->count; at += n) {
            n = q->count - at < 10007 ? q->count - at : 10007;
            assert_ok(lora_read_merged(q, f.s, at, n, v + at));
        }
        assert_ok(params_write(&plain.p->list[i], plain.s, 0, q->count, v));
        free(v);
    }
    double merged = fixture_forward(&plain, &r, 1);
    if (!(fabs(merged - adapted) < 1e-12 * adapted))
        fail_msg("loss %.15g with adapters, %.15g merged", adapted, merged);
    fixture_close(&plain);
    fixture_close(&f);
}

static void test_lora__starts_as_the_base_model(void **state)
{
    (void)state;
    fixture f, plain;
    open_adapted(&f, false);
    fixture_open(&plain, &f.d);
    row r = fixture_row(&f, debug_documents, 3, true);
    fixture_model(&plain, &(model_options){.cap = f.o.cap}, false);
    assert_ok(params_init_adapters(f.p, f.s, 1));
    double adapted = fixture_forward(&f, &r, 1), base = fixture_forward(&plain, &r, 1);
    assert_true(adapted == base);
    fixture_close(&plain);
    fixture_close(&f);
}

static void test_lora_add__refuses_bad_targets(void **state)
{
    (void)state;
    model_dims d;
    params *p;
    assert_ok(dims_preset("debug", &d));
    const char *bad[] = {"q_proj,embed_tokens", "qkv", "lm_head", "", " , "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_ok(params_new(&d, &p));
        assert_fails(ST_CONFIG, lora_add(p, 4, 4, bad[i]), "lora.targets");
        params_free(&p);
    }
    assert_ok(params_new(&d, &p));
    assert_ok(lora_add(p, 4, 4, "*layers.1.self_attn.?_proj"));
    int64_t adapters = 0;
    for (int64_t i = 0; i < p->count; i++)
        adapters += p->list[i].adapter;
    assert_int_equal(adapters, 2 * 4);
    assert_non_null(params_find(p, "model.language_model.layers.1.self_attn.q_proj.lora_A.weight"));
    params_free(&p);
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
