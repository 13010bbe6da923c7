/* main.c: runs the case list: parity, the same bits for any number of threads, coverage; or times.
 *
 *   test_parity                all cases
 *   test_parity --bench [OP]   nanoseconds per call of the "real" cases */
#include <stdio.h>
#include <stdlib.h>

#include "common/conf.h"
#include "tests/parity/parity.h"

static const parity_case *const families[] = {
    parity_gemm,      parity_norm, parity_rope,  parity_attention,
    parity_pointwise, parity_rows, parity_route, parity_loss,
};
enum { N_FAMILIES = sizeof families / sizeof families[0], CASES_MAX = 512 };

/* Runs one case once; returns the hash of all it compared. */
static uint64_t run_case(const parity_case *c, const ops_table *ops, int threads, parity *p)
{
    device *d = NULL;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = threads}, &d));
    *p = (parity){.op = c->op, .name = c->name, .bench = p->bench, .bits_only = p->bits_only};
    assert_ok(d->v->stream_new(d, &p->s));
    if (ops)
        p->s->ops = ops;
    p->key = rng_key_make(harness_seed(), c->op);
    p->bits = 0xcbf29ce484222325u;
    c->run(p, c->shape);
    for (int i = 0; i < p->n_held; i++)
        free(p->held[i]);
    free(p->held);
    d->v->stream_free(&p->s);
    device_close(&d);
    return p->bits;
}

/* Whether this machine, or this build, has no faster variant than ops_cpu. */
static bool best_is_plain(void)
{
    device *d = NULL;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &d));
    bool plain = d->ops == &ops_cpu;
    device_close(&d);
    return plain;
}

static void test_case(void **state)
{
    const parity_case *c = *state;
    const ops_table *variants[] = {NULL, &ops_cpu}; /* the machine's best, and the plain one */
    for (int v = 0; v < 2; v++) {
        parity p = {0}, again = {.bits_only = true};
        uint64_t one = run_case(c, variants[v], 1, &p);
        if (one != run_case(c, variants[v], 3, &again))
            fail_msg("%s/%s: other bits with 3 threads than with 1", c->op, c->name);
        if (best_is_plain())
            break;
    }
}

static const parity_case *find_case(const char *op)
{
    for (int f = 0; f < N_FAMILIES; f++)
        for (const parity_case *c = families[f]; c->op; c++)
            if (strcmp(c->op, op) == 0)
                return c;
    return NULL;
}

static void test_coverage(void **state)
{
    (void)state;
#define OP(name)                                                                                   \
    if (!find_case(#name))                                                                         \
        fail_msg("op " #name " of ops.def has no parity case");                                    \
    if (!ops_cpu.name)                                                                             \
        fail_msg("the CPU has no op " #name);
#include "trainer/ops/ops.def"
}

static int bench(const char *only)
{
    for (int f = 0; f < N_FAMILIES; f++)
        for (const parity_case *c = families[f]; c->op; c++) {
            if (strncmp(c->name, "real", 4) != 0 || (only && strcmp(only, c->op) != 0))
                continue;
            parity p = {.bench = true};
            run_case(c, NULL, 0, &p);
            printf("%-18s %-18s %10.0f ns\n", c->op, c->name, p.best_ns);
        }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench(argc > 2 ? argv[2] : NULL);
    static struct CMUnitTest tests[CASES_MAX];
    static char names[CASES_MAX][64];
    size_t n = 0;
    tests[n++] = (struct CMUnitTest){.name = "coverage", .test_func = test_coverage};
    for (int f = 0; f < N_FAMILIES; f++)
        for (const parity_case *c = families[f]; c->op; c++) {
            if (n == CASES_MAX) {
                fprintf(stderr, "more cases than CASES_MAX\n");
                return 1;
            }
            snprintf(names[n], sizeof names[n], "%s/%s", c->op, c->name);
            tests[n] = (struct CMUnitTest){
                .name = names[n], .test_func = test_case, .initial_state = (void *)c};
            n++;
        }
    return _cmocka_run_group_tests("parity", tests, n, NULL, NULL);
}
