/* Predictions of plan: bytes between ranks against sums made by hand, times that are work over
 * rate, rates read from a file. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/plan/sweep.h"

typedef struct setting {
    conf c;
    model_dims d;
    params *p;
    rates r;
} setting;

static void open_setting(setting *s, const char *model)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    assert_ok(conf_load(&s->c, &argc, argv));
    s->c.training_seq_len = 8192;
    s->c.training_global_batch_size = 32;
    s->c.training_local_batch_size = 1;
    s->c.world_size = 0;
    assert_ok(dims_preset(model, &s->d));
    assert_ok(params_new(&s->d, &s->p));
    s->r = rates_h200();
}

static void close_setting(setting *s)
{
    params_free(&s->p);
    conf_done(&s->c);
}

static cost predict(setting *s, bool full)
{
    layout l;
    cost k;
    assert_ok(layout_of(&s->c, &l));
    cost_of(&s->c, &l, &s->d, s->p, &s->r, full, &k);
    return k;
}

static void near(double a, double b, double share)
{
    if (fabs(a - b) > share * fabs(b))
        fail_msg("%.15g is not %.15g", a, b);
}

static void test_cost__one_rank_has_no_traffic(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, "qwen3-vl-30b-a3b");
    cost k = predict(&s, false);
    for (int i = 0; i < TRAFFIC_KEYS; i++)
        assert_int_equal(k.traffic[i].bytes, 0);
    near(k.exposed + k.bubble, 0, 0);
    close_setting(&s);
}

static void test_cost__sharded_weights_cross_once_per_pass(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, "qwen3-vl-30b-a3b");
    s.c.dp_shard = 8;
    cost k = predict(&s, false);
    /* bf16 before forward and before backward, fp32 behind it; 7/8 of it comes from others; 4
     * micro-steps */
    near((double)k.traffic[TRAFFIC_GATHER].bytes, 4 * 2 * 2.0 * 31070754032.0 * 7 / 8, 1e-9);
    near((double)k.traffic[TRAFFIC_REDUCE].bytes, 4 * 4.0 * 31070754032.0 * 7 / 8, 1e-9);
    s.c.training_local_batch_size = 4;
    cost large = predict(&s, false);
    near((double)large.traffic[TRAFFIC_GATHER].bytes, (double)k.traffic[TRAFFIC_GATHER].bytes / 4,
         1e-9);
    close_setting(&s);
}

static void test_cost__every_dimension_has_its_traffic(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, "qwen3-vl-30b-a3b");
    s.c.dp_shard = 1;
    s.c.tensor_degree = 2;
    cost k = predict(&s, false);
    /* 48 layers, a gather and a reduction in each pass, half of [8192, 2048] bf16; 32 micro-steps
     */
    near((double)k.traffic[TRAFFIC_TENSOR].bytes, 32.0 * 48 * 4 * 8192 * 2048 * 2 / 2, 1e-9);
    assert_int_equal(k.traffic[TRAFFIC_CONTEXT].bytes, 0);
    s.c.tensor_degree = 1;
    s.c.context_degree = 2;
    k = predict(&s, false);
    near((double)k.traffic[TRAFFIC_CONTEXT].bytes, 32.0 * 48 * 2 * 8192 * 2 * 4 * 128 * 2 / 2,
         1e-9);
    assert_int_equal(k.traffic[TRAFFIC_TENSOR].bytes, 0);
    s.c.context_degree = 1;
    s.c.dp_shard = 2;
    s.c.expert_degree = 2;
    k = predict(&s, false);
    /* 8 choices of each token, to the experts and back, forward and backward; 16 micro-steps */
    near((double)k.traffic[TRAFFIC_EXPERT].bytes, 16.0 * 48 * 4 * 8192 * 8 * 2048 * 2 / 2, 1e-9);
    s.c.expert_degree = 1;
    s.c.dp_shard = 1;
    s.c.pipeline_degree = 2;
    k = predict(&s, false);
    near((double)k.traffic[TRAFFIC_PIPELINE].bytes, 32.0 * 2 * 8192 * 2048 * 2, 1e-9);
    near(k.bubble, (k.step - k.update) / 33, 1e-6); /* 1 of 32 + 1 micro-steps */
    close_setting(&s);
}

static void test_cost__work_is_divided_by_rates(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, "qwen3-30b-a3b");
    cost k = predict(&s, false);
    near(k.experts, 3.0 * (double)k.flops.text_experts / s.r.of[RATE_EXPERTS], 1e-9);
    near(k.step, k.dense + k.experts + k.attention + k.memory + k.update, 1e-9);
    near(k.mfu, (double)k.flops.training / k.step / s.r.of[RATE_PEAK], 1e-9);
    cost again = predict(&s, true);
    near(again.experts, k.experts * 4 / 3, 1e-9);
    assert_int_equal(again.flops.training, k.flops.training); /* recomputed work is not useful */
    s.r.of[RATE_EXPERTS] /= 2;
    near(predict(&s, false).experts, 2 * k.experts, 1e-9);
    close_setting(&s);
}

static void test_cost__far_groups_take_the_network(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, "qwen3-vl-30b-a3b");
    s.c.dp_shard = 8;
    s.c.dp_replicate = 2;
    cost k = predict(&s, false);
    assert_false(k.traffic[TRAFFIC_GATHER].between_nodes);
    assert_true(k.traffic[TRAFFIC_REPLICATE].between_nodes);
    s.c.dp_shard = 16;
    s.c.dp_replicate = 1;
    assert_true(predict(&s, false).traffic[TRAFFIC_GATHER].between_nodes);
    close_setting(&s);
}

static void test_rates__file_and_back(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096];
    snprintf(path, sizeof path, "%s/rates.yaml", folder);
    rates r = {.memory = 0}, back;
    r.of[RATE_EXPERTS] = 612.5e12;
    r.measured[RATE_EXPERTS] = true;
    snprintf(r.source, sizeof r.source, "a card, its driver");
    FILE *f = fopen(path, "w");
    rates_write(&r, f);
    fprintf(f, "memory_gib: 80\nranks_per_node: 4\n");
    fclose(f);
    assert_ok(rates_read(path, &back));
    near(back.of[RATE_EXPERTS], 612.5e12, 1e-12);
    assert_true(back.measured[RATE_EXPERTS] && !back.measured[RATE_DENSE]);
    near(back.of[RATE_DENSE], rates_h200().of[RATE_DENSE], 0);
    near(back.memory, 80.0 * 1073741824, 0);
    assert_int_equal(back.per_node, 4);
    assert_string_equal(back.source, "a card, its driver");
    f = fopen(path, "w");
    fprintf(f, "dense_tflops: 700\ncopy_gbs: fast\n");
    fclose(f);
    assert_fails(ST_CONFIG, rates_read(path, &back), "copy_gbs: expected a number above 0");
    f = fopen(path, "w");
    fprintf(f, "dense_tflop: 700\n");
    fclose(f);
    assert_fails(ST_CONFIG, rates_read(path, &back), "dense_tflop is no rate");
    harness_remove(&folder);
}

static void test_sweep__fastest_that_fits_first(void **state)
{
    (void)state;
    setting s;
    char *text = NULL;
    size_t size;
    open_setting(&s, "qwen3-30b-a3b");
    FILE *to = open_memstream(&text, &size);
    assert_ok(sweep(&s.c, 8, &s.d, s.p, &s.r, 50, to));
    fclose(to);
    double before = INFINITY;
    int n = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        long long degree[7], rows;
        double memory, ms, tps, mfu;
        char recompute[8];
        if (sscanf(line, "%lld %lld %lld %lld %lld %lld %lld %lld %7s %lf%% %lf %lf %lf%%",
                   &degree[0], &degree[1], &degree[2], &degree[3], &degree[4], &degree[5],
                   &degree[6], &rows, recompute, &memory, &ms, &tps, &mfu) != 13)
            continue;
        n++;
        assert_int_equal(degree[0] * degree[1] * degree[2] * degree[3] * degree[4], 8);
        assert_int_equal(32 % (degree[0] * degree[1] * rows), 0);
        assert_true(memory <= 85.05 && tps <= before);
        before = tps;
    }
    assert_true(n > 5);
    free(text);
    s.r.memory = 1e9;
    to = open_memstream(&text, &size);
    assert_fails(ST_CONFIG, sweep(&s.c, 8, &s.d, s.p, &s.r, 50, to), "more ranks or shorter rows");
    fclose(to);
    free(text);
    close_setting(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cost__one_rank_has_no_traffic),
        cmocka_unit_test(test_cost__sharded_weights_cross_once_per_pass),
        cmocka_unit_test(test_cost__every_dimension_has_its_traffic),
        cmocka_unit_test(test_cost__work_is_divided_by_rates),
        cmocka_unit_test(test_cost__far_groups_take_the_network),
        cmocka_unit_test(test_rates__file_and_back),
        cmocka_unit_test(test_sweep__fastest_that_fits_first),
    };
    return cmocka_run_group_tests_name("cost", tests, NULL, NULL);
}
