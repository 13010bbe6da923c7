/* SPDX-License-Identifier: Apache-2.0 */
/* test_orders.c: that what the parity tests allow a library is its own order of roundings and no
 * more: results in that order hold, and those with one more rounding, with a term left out or in
 * another implementation's order do not. Letters: as in README.md. */
#include "tests/parity/attention_loops.h"

#include <stdlib.h>

#include "tests/parity/judge.h"

enum { TOKENS = 120, HEADS = 4, KV_HEADS = 2, WIDTH = 32, SEGMENTS = 3 };
enum { N_Q = TOKENS * HEADS * WIDTH, N_K = TOKENS * KV_HEADS * WIDTH };

static const backend_vtable bf16 = {.act = DT_BF16, .acc = DT_F32};
static device dev = {.backend = &bf16};
static stream queue = {.dev = &dev};

/* The comparisons of other tests are not told here. */
void errors_note(const parity *test, const char *what, double ours, double order)
{
    (void)test;
    (void)what;
    (void)ours;
    (void)order;
}

typedef struct setting {
    parity test;
    attention sizes;
    double q[N_Q], k[N_K], v[N_K], up[N_Q], row[TOKENS];
} setting;

typedef struct result {
    double dq[N_Q], dk[N_K], dv[N_K];
} result;

static void draw(parity *test, double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = parity_round(test, parity_uniform(test, -2, 2));
}

static void open_setting(setting *setup)
{
    static const int32_t cu[SEGMENTS + 1] = {0, 37, 38, TOKENS};
    setup->test = (parity){.queue = &queue, .key = rng_key_make(harness_seed(), "orders")};
    setup->sizes = (attention){.tokens = TOKENS,
                               .heads = HEADS,
                               .kv_heads = KV_HEADS,
                               .d = WIDTH,
                               .segments = SEGMENTS,
                               .causal = true,
                               .scale = 1 / sqrt(WIDTH),
                               .cu = cu,
                               .keys = TOKENS,
                               .q = setup->q,
                               .k = setup->k,
                               .v = setup->v,
                               .up = setup->up,
                               .row = setup->row,
                               .q_stride = HEADS * WIDTH,
                               .k_stride = KV_HEADS * WIDTH,
                               .v_stride = KV_HEADS * WIDTH,
                               .o_stride = HEADS * WIDTH};
    draw(&setup->test, setup->q, N_Q);
    draw(&setup->test, setup->k, N_K);
    draw(&setup->test, setup->v, N_K);
    draw(&setup->test, setup->up, N_Q);
}

static void compute(setting *setup, const attention_order *order, result *out)
{
    memset(out, 0, sizeof *out);
    attention_gradients(&setup->sizes, &(gradients){out->dq, out->dk, out->dv}, order);
    for (int64_t i = 0; i < N_Q && order; i++)
        out->dq[i] = parity_round(&setup->test, out->dq[i]);
    for (int64_t i = 0; i < N_K && order; i++) {
        out->dk[i] = parity_round(&setup->test, out->dk[i]);
        out->dv[i] = parity_round(&setup->test, out->dv[i]);
    }
}

static bool holds(int64_t n, const double *got, const double *want, const double *order)
{
    const verdict found = judge_bf16(n, got, want, order, true, 0);
    return verdict_holds(&found);
}

static void test_attention__a_library_is_held_to_its_own_order(void **state)
{
    (void)state;
    static setting setup;
    static result want, own, library, more, left;
    open_setting(&setup);
    const parity *test = &setup.test;
    compute(&setup, NULL, &want);
    compute(&setup, &(attention_order){.test = test}, &own);
    compute(&setup, &(attention_order){.test = test, .scaled = true, .by_head = true}, &library);
    assert_true(holds(N_Q, own.dq, want.dq, own.dq) && holds(N_K, own.dk, want.dk, own.dk));
    assert_true(holds(N_Q, library.dq, want.dq, library.dq));
    assert_true(holds(N_K, library.dk, want.dk, library.dk));
    assert_true(holds(N_K, library.dv, want.dv, library.dv));
    /* Our kernels are not allowed the library's order. */
    assert_false(holds(N_K, library.dk, want.dk, own.dk));
    assert_false(holds(N_K, library.dv, want.dv, own.dv));
    /* One more rounding. */
    compute(&setup, &(attention_order){.test = test, .scaled = true, .by_head = true, .dp = true},
            &more);
    assert_false(holds(N_Q, more.dq, want.dq, library.dq));
    assert_false(holds(N_K, more.dk, want.dk, library.dk));
    /* One query of one head is left out. */
    const int64_t token = TOKENS - 5;
    memset(setup.up + token * HEADS * WIDTH + WIDTH, 0, WIDTH * sizeof(double));
    compute(&setup, &(attention_order){.test = test, .scaled = true, .by_head = true}, &left);
    assert_false(holds(N_Q, left.dq, want.dq, library.dq));
    assert_false(holds(N_K, left.dk, want.dk, library.dk));
    assert_false(holds(N_K, left.dv, want.dv, library.dv));
}

/* The sizes of a case of attention.c; spare: tokens after the last segment. */
typedef struct reported {
    int64_t tokens, spare, heads, kv_heads, width, segments;
} reported;

/* Draws what bwd_case of attention.c draws with seed 1. cu [segments + 1] is written. */
static void draw_reported(parity *test, const reported *of, int32_t *cu, attention *out)
{
    const int64_t tokens = of->tokens + of->spare, n_q = tokens * of->heads * of->width,
                  n_k = tokens * of->kv_heads * of->width;
    *test = (parity){.queue = &queue, .key = rng_key_make(1, "attention_bwd")};
    for (int64_t i = 0; i <= of->segments; i++)
        cu[i] = i == of->segments ? (int32_t)of->tokens
                : i % 5 == 4      ? cu[i - 1]
                                  : (int32_t)(of->tokens * i / of->segments);
    *out = (attention){.tokens = tokens,
                       .heads = of->heads,
                       .kv_heads = of->kv_heads,
                       .d = of->width,
                       .segments = of->segments,
                       .causal = true,
                       .scale = 1 / sqrt((double)of->width),
                       .cu = cu,
                       .keys = tokens,
                       .q_stride = of->heads * of->width,
                       .k_stride = of->kv_heads * of->width,
                       .v_stride = of->kv_heads * of->width,
                       .o_stride = of->heads * of->width};
    out->q = parity_zeros(test, n_q);
    out->k = parity_zeros(test, n_k);
    out->v = parity_zeros(test, n_k);
    out->up = parity_zeros(test, n_q);
    out->row = parity_zeros(test, tokens);
    draw(test, out->q, n_q);
    draw(test, out->k, n_k);
    draw(test, out->v, n_k);
    test->drawn += (uint64_t)(n_q + 2 * tokens * of->heads); /* o, lse and work */
    for (int64_t i = 0; i < n_q; i++)
        out->up[i] = parity_round(test, parity_uniform(test, -1, 1));
}

/* dk [n], rounded if there is an order. */
static double *keys_gradient(parity *test, const attention *sizes, const attention_order *order)
{
    const int64_t n_q = sizes->tokens * sizes->q_stride, n_k = sizes->tokens * sizes->k_stride;
    const gradients to = {parity_zeros(test, n_q), parity_zeros(test, n_k),
                          parity_zeros(test, n_k)};
    attention_gradients(sizes, &to, order);
    for (int64_t i = 0; i < n_k && order; i++)
        to.dk[i] = parity_round(test, to.dk[i]);
    return to.dk;
}

/* The order that the library is held to is the one that it has: it gives what an H200 reported, and
 * neither our own order nor half of the library's does. */
static void test_attention__the_order_of_the_library_gives_what_was_reported(void **state)
{
    (void)state;
    static const reported text = {100, 9, 4, 2, 128, 6}, documents = {51, 0, 8, 2, 32, 2};
    parity test;
    attention sizes;
    int32_t cu[8];
    attention_order own = {.test = &test}, half = {.test = &test, .by_head = true},
                    library = {.test = &test, .by_head = true, .scaled = true};
    draw_reported(&test, &text, cu, &sizes);
    assert_true(fabs(keys_gradient(&test, &sizes, NULL)[89] - 2.112826422560321) < 1e-12);
    assert_true(keys_gradient(&test, &sizes, &library)[89] == 2.125);
    assert_true(keys_gradient(&test, &sizes, &own)[89] == 2.109375);
    parity_done(&test);
    draw_reported(&test, &documents, cu, &sizes);
    const int64_t n = sizes.tokens * sizes.k_stride;
    const double *want = keys_gradient(&test, &sizes, NULL),
                 *first = keys_gradient(&test, &sizes, &library),
                 *second = keys_gradient(&test, &sizes, &own),
                 *third = keys_gradient(&test, &sizes, &half);
    const double reported_error = 0.00166, digit = 0.000005;
    assert_true(fabs(judge_errors(n, first, want, second, 0).ours - reported_error) < digit);
    assert_true(fabs(judge_errors(n, second, want, second, 0).ours - 0.00151) < digit);
    assert_true(fabs(judge_errors(n, third, want, second, 0).ours - reported_error) > 10 * digit);
    parity_done(&test);
}

/* A product with a bias and a residual, in the orders of gemm.c: the bias is added before the first
 * rounding (`first`), or after it (`last`). */
static void test_gemm__a_bias_is_added_before_or_after_one_rounding(void **state)
{
    (void)state;
    enum { PRODUCTS = 1500 };
    static double want[PRODUCTS], first[PRODUCTS], last[PRODUCTS], more[PRODUCTS], left[PRODUCTS];
    parity test = {.queue = &queue, .key = rng_key_make(harness_seed(), "orders of a product")};
    bool out = false; /* whether one bias that is not small was left out */
    for (int i = 0; i < PRODUCTS; i++) {
        const double product = parity_uniform(&test, -4, 4),
                     bias = parity_round(&test, parity_uniform(&test, -1, 1)),
                     residual = parity_round(&test, parity_uniform(&test, -1, 1));
        want[i] = product + bias + residual;
        first[i] = parity_round(&test, parity_round(&test, product + bias) + residual);
        last[i] = parity_round(&test, parity_round(&test, product + residual) + bias);
        more[i] = parity_round(&test,
                               parity_round(&test, parity_round(&test, product) + residual) + bias);
        const bool leave = !out && fabs(bias) > 0.5;
        left[i] = leave ? parity_round(&test, product + residual) : last[i];
        out |= leave;
    }
    assert_true(holds(PRODUCTS, last, want, last) && holds(PRODUCTS, first, want, first));
    assert_false(holds(PRODUCTS, more, want, first) || holds(PRODUCTS, more, want, last));
    assert_false(holds(PRODUCTS, left, want, first) || holds(PRODUCTS, left, want, last));
}

/* A single element that is wrong does not hide among many that are right. */
static void test_judge__one_element_may_not_be_far_off(void **state)
{
    (void)state;
    enum { MANY = 20000, AT = 777 };
    static double want[MANY], order[MANY], got[MANY];
    parity test = {.queue = &queue, .key = rng_key_make(harness_seed(), "one element")};
    double worst = 0;
    for (int i = 0; i < MANY; i++) {
        want[i] = parity_uniform(&test, -1, 1);
        order[i] = got[i] = parity_round(&test, want[i]);
        worst = fmax(worst, fabs(order[i] - want[i]));
    }
    got[AT] = want[AT] + 2 * worst;
    assert_true(holds(MANY, got, want, order));
    got[AT] = want[AT] + 3 * worst;
    const verdict found = judge_bf16(MANY, got, want, order, true, 0);
    assert_true(found.at == AT && found.alike);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judge__one_element_may_not_be_far_off),
        cmocka_unit_test(test_attention__a_library_is_held_to_its_own_order),
        cmocka_unit_test(test_attention__the_order_of_the_library_gives_what_was_reported),
        cmocka_unit_test(test_gemm__a_bias_is_added_before_or_after_one_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
