/* test_model_bf16.c: a whole small model, forward and backward, on the CUDA kernels (bf16
 * activations and weights, float sums and gradients) against the CPU in float. It runs in the
 * harness and, as test_model_cuda, on a GPU (bf16_device.h).
 *
 * In the harness, matrix products, which the GPU leaves to a library, are the CPU's, rounded to
 * bf16. The CPU's choices of experts replace the kernels' own, since one other expert is more than
 * a rounding error; choices that differ are counted. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "tests/simt/bf16_device.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/model/convert.h"
#include "trainer/ops/table.h"

enum { CALLS_MAX = 64 };

/* Tolerances relative to the norm of a gradient and to the loss. A rounding to bf16 is off by up to
 * 1/256, and some hundred roundings of random sign follow each other; in practice the worst tensor
 * is off by half the tolerance. A wrong factor, index or type is off by the order of 1. */
static const double GRADIENT_TOLERANCE = 0.06, LOSS_TOLERANCE = 0.001;

/* ---- choices of experts, by call ---- */

static struct {
    int32_t *expert[CALLS_MAX];
    int64_t slots[CALLS_MAX];
    int n, at;
    int64_t all, flipped;
} routes;

static const ops_table *below; /* the table that does the work */

static status route_and_note(stream *s, const route_fwd_args *a)
{
    TRY(below->route_fwd(s, a));
    int64_t slots = a->tokens * a->top_k;
    assert_true(routes.n < CALLS_MAX);
    routes.expert[routes.n] = malloc((size_t)slots * sizeof(int32_t));
    assert_non_null(routes.expert[routes.n]);
    memcpy(routes.expert[routes.n], a->expert, (size_t)slots * sizeof(int32_t));
    routes.slots[routes.n++] = slots;
    return ST_OK;
}

static void *fetch_array(stream *s, const void *src, size_t bytes)
{
    void *out = malloc(bytes ? bytes : 1);
    assert_non_null(out);
    assert_ok(s->dev->backend->to_host(s, out, src, bytes));
    assert_ok(s->dev->backend->wait(s));
    return out;
}

static void send_array(stream *s, void *dst, const void *src, size_t bytes)
{
    assert_ok(s->dev->backend->to_device(s, dst, src, bytes));
    assert_ok(s->dev->backend->wait(s));
}

/* Computes one token's weights for these experts from its probabilities. */
static void weigh_experts(float *weight, const float *p, const int32_t *expert, int64_t k,
                          bool norm)
{
    float sum = 0;
    for (int64_t i = 0; i < k; i++) {
        weight[i] = expert[i] < 0 ? 0 : p[expert[i]];
        sum += weight[i];
    }
    for (int64_t i = 0; norm && i < k; i++)
        weight[i] = expert[i] < 0 ? weight[i] : weight[i] / sum;
}

/* Routes by the noted choices, with weights from this run's own probabilities. */
static status route_as_noted(stream *s, const route_fwd_args *a)
{
    TRY(below->route_fwd(s, a));
    int64_t k = a->top_k, slots = a->tokens * k;
    const int32_t *noted = routes.expert[routes.at];
    assert_int_equal(routes.slots[routes.at++], slots);
    int32_t *own = fetch_array(s, a->expert, (size_t)slots * sizeof *own);
    float *p = fetch_array(s, a->probs, (size_t)(a->tokens * a->experts) * sizeof *p);
    float *weight = calloc((size_t)slots + 1, sizeof *weight);
    int32_t *count = calloc((size_t)a->experts, sizeof *count);
    assert_true(weight && count);
    for (int64_t t = 0; t < a->tokens; t++)
        weigh_experts(weight + t * k, p + t * a->experts, noted + t * k, k, a->norm_topk);
    for (int64_t i = 0; i < slots; i++) {
        bool kept = false;
        for (int64_t j = i / k * k; j < (i / k + 1) * k; j++)
            kept |= own[j] == noted[i];
        routes.all++;
        routes.flipped += !kept;
        if (noted[i] >= 0)
            count[noted[i]]++;
    }
    send_array(s, a->expert, noted, (size_t)slots * sizeof *noted);
    send_array(s, a->weight, weight, (size_t)slots * sizeof *weight);
    send_array(s, a->count, count, (size_t)a->experts * sizeof *count);
    free(own);
    free(p);
    free(weight);
    free(count);
    return ST_OK;
}

static void forget_routes(void)
{
    for (int i = 0; i < routes.n; i++)
        free(routes.expert[i]);
    memset(&routes, 0, sizeof routes);
}

/* ---- the matrix product, as the library does it ---- */

static stream *cpu; /* the CPU's stream, which computes it */

static float *widen_array(const void *bf16, int64_t n)
{
    double x;
    float *out = malloc((size_t)(n > 0 ? n : 1) * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < n; i++) {
        convert_to_double(&x, (const uint16_t *)bf16 + i, DT_BF16, 1);
        out[i] = (float)x;
    }
    return out;
}

static void narrow_array(void *bf16, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = from[i];
        convert_from_double((uint16_t *)bf16 + i, DT_BF16, &x, 1);
    }
}

static int64_t cells(int64_t rows, int64_t columns, int64_t stride)
{
    return rows > 0 ? (rows - 1) * stride + columns : 0;
}

static status multiply_bf16(stream *s, const gemm_args *g)
{
    (void)s;
    int64_t na = g->trans_a ? cells(g->k, g->m, g->lda) : cells(g->m, g->k, g->lda);
    int64_t nb = g->trans_b ? cells(g->n, g->k, g->ldb) : cells(g->k, g->n, g->ldb);
    int64_t nc = cells(g->m, g->n, g->ldc);
    gemm_args f = *g;
    float *a = widen_array(g->a, na), *b = widen_array(g->b, nb);
    float *bias = g->bias ? widen_array(g->bias, g->n) : NULL, *c = NULL;
    float *residual = g->residual ? widen_array(g->residual, nc) : NULL;
    f.a = a;
    f.b = b;
    f.bias = bias;
    f.residual = residual;
    if (!g->c_acc)
        f.c = c = widen_array(g->c, nc);
    status st = op_gemm(cpu, &f);
    if (st == ST_OK && c)
        narrow_array(g->c, c, nc);
    free(a);
    free(b);
    free(bias);
    free(residual);
    free(c);
    return st;
}

/* ---- two models with the same values ---- */

static ops_table noting, merged;

static void open_bf16(fixture *f, fixture *from)
{
    *f = (fixture){.d = from->d};
    assert_ok(bf16_device_open(&f->dev));
    assert_ok(f->dev->backend->stream_new(f->dev, &f->s));
    assert_ok(params_new(&f->d, &f->p));
    assert_ok(params_alloc(f->p, f->s, true));
    for (int64_t i = 0; i < f->p->count; i++) {
        const param *p = &f->p->list[i];
        double *v = malloc((size_t)p->count * sizeof *v);
        uint16_t *rounded = malloc((size_t)p->count * sizeof *rounded);
        assert_ok(params_read(from->p->list[i].value, from->s, 0, p->count, v));
        convert_from_double(rounded, DT_BF16, v, p->count);
        convert_to_double(v, rounded, DT_BF16, p->count);
        assert_ok(params_write(p, f->s, 0, p->count, v));
        assert_ok(params_write(&from->p->list[i], from->s, 0, p->count, v));
        free(v);
        free(rounded);
    }
    void *sums[3];
    for (int i = 0; i < 3; i++)
        assert_ok(f->dev->backend->alloc(f->dev, sizeof(double), &sums[i]));
    f->sums = (loss_sums){sums[0], sums[1], sums[2]};
    arena_init(&f->rows, 0);
}

static double difference(const double *a, const double *b, int64_t n)
{
    double d = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        size += a[i] * a[i];
    }
    return size > 0 ? sqrt(d / size) : sqrt(d);
}

static void compare_gradients(fixture *f, fixture *g, double *out_worst)
{
    for (int64_t i = 0; i < f->p->count; i++) {
        const param *p = &f->p->list[i];
        double *want = fixture_grad(f, p), *got = fixture_grad(g, &g->p->list[i]);
        double d = difference(want, got, p->count);
        if (d > *out_worst) {
            print_message("%-72s %.4f\n", p->name, d);
            *out_worst = d;
        }
        free(want);
        free(got);
    }
}

static void compare_flavour(const char *flavour)
{
    fixture f, g;
    model_dims d;
    assert_ok(dims_preset(flavour, &d));
    fixture_open(&f, &d);
    open_bf16(&g, &f);
    cpu = f.s;
    merged = *g.s->ops;
    if (bf16_device_lacks_products)
        merged.gemm = multiply_bf16;
    const char *missing = ops_first_missing(&merged);
    if (missing)
        fail_msg("the device has no op %s", missing);
    const ops_table *plain = f.s->ops;
    row rows[2];
    rows[0] = fixture_row(&f, debug_documents, 3, true);
    rows[1] = fixture_row(&f, (document[]){{"6 1x4x4 5", 61}}, 1, false);
    model_options o = {.training = true, .router_aux_coef = 0.01};
    batch_caps_for(rows, 2, 16, 16, &o.cap);
    fixture_model(&f, &o, true);
    fixture_model(&g, &o, true);

    noting = *plain;
    noting.route_fwd = route_and_note;
    below = plain;
    f.s->ops = &noting;
    double want = fixture_forward_backward(&f, rows, 2);
    f.s->ops = plain; /* the other model's products run on this stream */
    const ops_table *kernels = g.s->ops;
    static ops_table own;
    own = merged;
    below = &own;
    merged.route_fwd = route_as_noted;
    g.s->ops = &merged;
    double got = fixture_forward_backward(&g, rows, 2), worst = 0;
    print_message("%s: loss %.6f, in bf16 %.6f; %lld of %lld choices of experts were others\n",
                  flavour, want, got, (long long)routes.flipped, (long long)routes.all);
    assert_true(fabs(got - want) <= LOSS_TOLERANCE * fabs(want));
    compare_gradients(&f, &g, &worst);
    assert_true(worst <= GRADIENT_TOLERANCE);
    assert_true(routes.flipped * 10 < routes.all);
    forget_routes();
    g.s->ops = kernels;
    fixture_close(&g);
    fixture_close(&f);
}

static void test_model__bf16_against_float(void **state)
{
    (void)state;
    device *there = NULL;
    status st = bf16_device_open(&there);
    if (st == ST_UNAVAILABLE)
        HARNESS_SKIP(status_text());
    assert_ok(st);
    device_close(&there);
    for (const char *const *flavour = bf16_device_flavours; *flavour; flavour++)
        compare_flavour(*flavour);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__bf16_against_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
