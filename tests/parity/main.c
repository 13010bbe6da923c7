/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: runs the list of cases on its target. It checks the results, that all runs give the same
 * bits, and that every op has cases; with --bench it prints times instead.
 *
 *   test_parity                all cases
 *   test_parity --op OP        the cases of one op
 *   test_parity --real         only the cases of a real model's sizes, which the CPU's list omits
 *   .. --portable              on a GPU: with our portable kernels in place of cuDNN's and Hopper's
 *   test_parity --bench [OP]   nanoseconds per call of the "real" cases */
#include <stdio.h>
#include <stdlib.h>

#include "tests/parity/parity.h"

static const parity_case *const families[] = {
    parity_gemm,      parity_norm,       parity_norm_rope, parity_rope, parity_attention,
    parity_pointwise, parity_rows,       parity_route,     parity_loss, parity_adamw,
    parity_peers,     parity_dequantise, parity_dora,
};
bool parity_portable;

enum { N_FAMILIES = sizeof families / sizeof families[0], CASES_MAX = 512 };

/* Runs one case once, and returns the hash of everything it compared. */
static uint64_t run_case(const parity_case *one, int variant, int run, parity *test)
{
    device *dev = NULL;
    const ops_table *ops = NULL;
    parity_here.open(variant, run, &dev, &ops);
    *test = (parity){
        .op = one->op, .name = one->name, .bench = test->bench, .bits_only = test->bits_only};
    assert_ok(dev->backend->stream_new(dev, &test->queue));
    test->queue->ops = ops;
    test->key = rng_key_make(harness_seed(), one->op);
    test->bits = 0xcbf29ce484222325u;
    one->run(test, one->shape);
    parity_done(test);
    dev->backend->stream_free(&test->queue);
    device_close(&dev);
    return test->bits;
}

static void test_case(void **state)
{
    const parity_case *one = *state;
    for (int variant = 0; variant < parity_here.variants(); variant++) {
        parity test = {0}, again = {.bits_only = true};
        uint64_t first = run_case(one, variant, 0, &test);
        for (int run = 1; run < (test.once ? 1 : parity_here.runs); run++)
            if (run_case(one, variant, run, &again) != first)
                fail_msg("%s/%s: the bits differ with %s", one->op, one->name, parity_here.other);
    }
}

static bool is_here(const char *op)
{
    return !parity_here.lacks || !parity_here.lacks(op);
}

static const parity_case *find_case(const char *op)
{
    for (int family = 0; family < N_FAMILIES; family++)
        for (const parity_case *one = families[family]; one->op; one++)
            if (strcmp(one->op, op) == 0)
                return one;
    return NULL;
}

static void test_coverage(void **state)
{
    (void)state;
    device *dev = NULL;
    const ops_table *ops = NULL;
    parity_here.open(0, 0, &dev, &ops);
#define OP(name)                                                                                   \
    if (!find_case(#name))                                                                         \
        fail_msg("op " #name " of ops.def has no parity case");                                    \
    if (is_here(#name) && !ops->name)                                                              \
        fail_msg("the table has no op " #name);
#include "trainer/ops/ops.def"
    device_close(&dev);
}

/* The last test: where this target rounds to bf16, each op whose roundings the published model
 * determines (or the one op that was asked for) was compared with them. */
static void test_orders(void **state)
{
    const char *only = *state;
    device *dev = NULL;
    const ops_table *ops = NULL;
    parity_here.open(0, 0, &dev, &ops);
    bool rounds = dev->backend->act == DT_BF16;
    device_close(&dev);
#define OP(name)                                                                                   \
    if (rounds && is_here(#name) && errors_wanted(#name) && (!only || strcmp(only, #name) == 0) && \
        errors_compared(#name) == 0)                                                               \
        fail_msg("no output of " #name " was compared with its order of roundings");
#include "trainer/ops/ops.def"
    errors_print();
}

static int bench(const char *only)
{
    for (int family = 0; family < N_FAMILIES; family++)
        for (const parity_case *one = families[family]; one->op; one++) {
            if (strncmp(one->name, "real", 4) != 0 || (only && strcmp(only, one->op) != 0) ||
                !is_here(one->op))
                continue;
            parity test = {.bench = true};
            run_case(one, 0, -1, &test);
            printf("%-18s %-18s %10.0f ns\n", one->op, one->name, test.best_ns);
        }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench(argc > 2 ? argv[2] : NULL);
    const char *only = argc > 2 && strcmp(argv[1], "--op") == 0 ? argv[2] : NULL;
    bool real = argc > 1 && strcmp(argv[1], "--real") == 0;
    parity_portable = argc > 1 && strcmp(argv[argc - 1], "--portable") == 0;
    if (parity_here.present && !parity_here.present()) {
        printf("skipped: %s\n", status_text());
        return 77;
    }
    static struct CMUnitTest tests[CASES_MAX];
    static char names[CASES_MAX][64];
    size_t count = 0;
    tests[count++] = (struct CMUnitTest){.name = "coverage", .test_func = test_coverage};
    for (int family = 0; family < N_FAMILIES; family++)
        for (const parity_case *one = families[family]; one->op; one++) {
            bool is_real = strncmp(one->name, "real", 4) == 0;
            bool left_out = real ? !is_real : parity_here.small && is_real;
            if (!is_here(one->op) || left_out || (only && strcmp(only, one->op) != 0))
                continue;
            if (count == CASES_MAX - 1) {
                fprintf(stderr, "there are more cases than CASES_MAX\n");
                return 1;
            }
            snprintf(names[count], sizeof names[count], "%s/%s", one->op, one->name);
            tests[count] = (struct CMUnitTest){
                .name = names[count], .test_func = test_case, .initial_state = (void *)one};
            count++;
        }
    tests[count++] = (struct CMUnitTest){
        .name = "orders", .test_func = test_orders, .initial_state = (void *)only};
    return _cmocka_run_group_tests("parity", tests, count, NULL, NULL);
}
